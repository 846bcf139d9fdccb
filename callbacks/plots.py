"""Draw metrics over generations as a picture in TensorBoard."""

import contextlib
import gc
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

# Okabe and Ito's colours, which colour-blind readers tell apart too, without the pale yellow
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", ":", "-.")
_INK = "#333333"
_MARK_EVERY_POINT_UP_TO = 30
_MOST = 10**9


class MetricsPlot(Callback):
    """Draws several metrics over generations in one picture and adds it to TensorBoard.

    One value a metric and epoch is taken at the end of the epoch from `trainer.callback_metrics`, which holds
    what was logged before the callbacks' `on_train_epoch_end`: in batches and in validation, not in the
    module's own `on_train_epoch_end`, whose values would appear an epoch late. Lightning keeps a metric's
    last value until it is logged again. A metric that is absent or NaN leaves a gap.

    The picture goes to every logger whose `experiment` has `add_image`, at the epoch as step. The values
    survive a resume through the checkpoint. Several of these callbacks need different tags.
    """

    def __init__(
        self,
        metrics: Sequence[str],
        tag: str,
        every_n_epochs: int = 5,
        title: str = "",
        ylabel: str = "",
        max_history: int = 1000,
        band: tuple[str, str] | None = None,
    ) -> None:
        """Choose what is drawn and how often.

        Args:
            metrics: Names of the metrics to draw, a line each. The legend shows the part after the last
                slash, or the full name where two would read the same.
            tag: Name of the picture in TensorBoard.
            every_n_epochs: Draw at the end of every n-th epoch, >= 1: epochs n-1, 2n-1, and so on. Default 5.
            title: Title of the picture. Default: the tag.
            ylabel: What the values are, and their unit. Default none.
            max_history: Epochs kept and drawn, >= 1; older ones are forgotten. Default 1000.
            band: Names of a lower and an upper metric with the area between them shaded. Default none.

        Raises:
            ValueError: `metrics` is empty or a single text, a number is below 1, or `band` names one metric
                twice.
        """
        super().__init__()
        if isinstance(metrics, str) or not metrics:
            raise ValueError(f"metrics is {metrics!r}: give a list of metric names")
        for name, number in (("every_n_epochs", every_n_epochs), ("max_history", max_history)):
            if not 1 <= number <= _MOST:
                raise ValueError(f"{name} is {number}: give 1 to {_MOST:,}")
        if band is not None and band[0] == band[1]:
            raise ValueError(f"band is {band[0]!r} twice: give a lower and an upper metric")
        self.metrics = tuple(metrics)
        self.tag = tag
        self.every_n_epochs = every_n_epochs
        self.title = title or tag
        self.ylabel = ylabel
        self.band = band
        self._generations: deque[int] = deque(maxlen=max_history)
        self._values: dict[str, deque[float]] = {
            name: deque(maxlen=max_history) for name in dict.fromkeys((*metrics, *(band or ())))
        }
        self._warned = False

    @property
    def state_key(self) -> str:
        """Key of the values in a checkpoint: one for each tag."""
        return self._generate_state_key(tag=self.tag)

    def state_dict(self) -> dict[str, Any]:
        """The collected values as plain lists."""
        return {
            "generations": list(self._generations),
            "values": {name: list(values) for name, values in self._values.items()},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the values of a checkpoint; a metric it does not have starts with a gap.

        Args:
            state_dict: What `state_dict` returned.
        """
        self._generations.clear()
        self._generations.extend(state_dict["generations"])
        gap = [float("nan")] * len(state_dict["generations"])
        for name, values in self._values.items():
            values.clear()
            values.extend(state_dict["values"].get(name, gap))

    def memory_owners(self) -> dict[str, object]:
        """The values kept, for a memory profiler."""
        histories: list[deque[Any]] = [self._generations, *self._values.values()]
        numbers = sum(len(history) for history in histories)
        return {f"plot_{self.tag}": sum(sys.getsizeof(history) for history in histories) + 24 * numbers}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the epoch's values and draw, if it is time.

        Args:
            trainer: The Trainer.
            pl_module: The module in training.
        """
        generation = trainer.current_epoch
        self._forget_from(generation)
        self._generations.append(generation)
        found = trainer.callback_metrics
        for name, values in self._values.items():
            values.append(float(found[name]) if name in found else float("nan"))
        if (generation + 1) % self.every_n_epochs == 0 and trainer.is_global_zero:
            self._draw(trainer)

    def _forget_from(self, generation: int) -> None:
        """Drop values of this epoch and later: the fit starts anew, or repeats the end of an epoch."""
        while self._generations and self._generations[-1] >= generation:
            self._generations.pop()
            for values in self._values.values():
                values.pop()

    def _draw(self, trainer: Trainer) -> None:
        loggers = [getattr(logger, "experiment", None) for logger in trainer.loggers]
        experiments: list[Any] = [experiment for experiment in loggers if hasattr(experiment, "add_image")]
        if not experiments:
            return
        self._warn_of_absent()
        picture = draw_lines(
            self._generations,
            {name: self._values[name] for name in self.metrics},
            title=self.title,
            ylabel=self.ylabel,
            band=None if self.band is None else {name: self._values[name] for name in self.band},
        )
        for experiment in experiments:
            experiment.add_image(self.tag, picture, global_step=trainer.current_epoch, dataformats="HWC")

    def _warn_of_absent(self) -> None:
        absent = [name for name, values in self._values.items() if not np.isfinite(values).any()]
        if absent and not self._warned:
            self._warned = True
            rank_zero_warn(f"MetricsPlot {self.tag!r}: no value yet of {', '.join(absent)} in callback_metrics")


def draw_lines(
    generations: Sequence[int],
    lines: Mapping[str, Sequence[float]],
    title: str = "",
    ylabel: str = "",
    band: Mapping[str, Sequence[float]] | None = None,
) -> UInt8[np.ndarray, "height=450 width=900 rgb=3"]:
    """Draw lines over generations.

    Args:
        generations: Epochs, ascending, at least one.
        lines: Values by metric name, one an epoch; those that are not finite leave a gap.
        title: Title, may be empty.
        ylabel: Label of the vertical axis, may be empty.
        band: A lower and an upper metric, in this order, with the area between them shaded.

    Returns:
        The picture: height 450, width 900, red, green and blue in 0..255.
    """

    def draw(axes: Any) -> None:
        _draw_lines(axes, generations, lines, band)

    return draw_picture(draw, title, "generation", ylabel)


def draw_picture(
    draw: Callable[[Any], None], title: str = "", xlabel: str = "", ylabel: str = ""
) -> UInt8[np.ndarray, "height=450 width=900 rgb=3"]:
    """What is drawn on Matplotlib's axes as a picture, in the style of all pictures here.

    Args:
        draw: Takes the axes; what has a label is in the legend.
        title: Title, may be empty.
        xlabel: Label of the horizontal axis, may be empty.
        ylabel: Label of the vertical axis, may be empty.

    Returns:
        The picture: height 450, width 900, red, green and blue in 0..255.
    """

    def whole(figure: Any) -> None:
        axes = figure.add_subplot()
        draw(axes)
        _dress(axes, title, xlabel, ylabel)

    return draw_figure(whole, 900, 450)


def draw_figure(
    draw: Callable[[Any], None], width: int, height: int, dpi: int = 100
) -> UInt8[np.ndarray, "height width rgb=3"]:
    """What is drawn on a Matplotlib figure as a picture; nothing of the figure is left in memory.

    Args:
        draw: Takes the figure, which is empty and white and lays its parts out by itself.
        width: Of the picture, in pixels.
        height: Of the picture, in pixels.
        dpi: Pixels an inch, by which the size of text, which is in points, is known.

    Returns:
        The picture: red, green and blue in 0..255.
    """
    with _collect_what_is_made():
        return _render(draw, width, height, dpi)


@contextlib.contextmanager
def _collect_what_is_made() -> Iterator[None]:
    """Free the circular garbage made inside, at the cost of the young objects alone.

    A figure's parts refer to each other: 2 MB a picture would wait for a full collection, which is rare and
    slow. With automatic collection off, all that is made inside stays in the youngest generation.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)
        if enabled:
            gc.enable()


def _render(draw: Callable[[Any], None], width: int, height: int, dpi: int) -> np.ndarray:
    # without pyplot, which would keep the figure in a global registry
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
    figure = Figure(figsize=(width / dpi, height / dpi), dpi=dpi, layout=layout, facecolor="white")
    canvas = FigureCanvasAgg(figure)
    draw(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    rgba = np.array(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    return np.ascontiguousarray(rgba[..., :3])


def _draw_lines(
    axes: Any,
    generations: Sequence[int],
    lines: Mapping[str, Sequence[float]],
    band: Mapping[str, Sequence[float]] | None,
) -> None:
    from matplotlib.ticker import MaxNLocator

    labels = _short(lines)
    for index, (name, values) in enumerate(lines.items()):
        y = _finite(values)
        axes.plot(
            generations,
            y,
            label=labels[name],
            color=COLORS[index % len(COLORS)],
            linestyle=_STYLES[index // len(COLORS) % len(_STYLES)],
            linewidth=2,
            marker="o",
            markersize=4,
            markevery=_marked(y),
        )
    if band is not None:
        lower, upper = (_finite(values) for values in band.values())
        label = " to ".join(_short(band).values())
        axes.fill_between(generations, lower, upper, color=COLORS[0], alpha=0.15, lw=0, label=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12, steps=[1, 2, 5, 10], min_n_ticks=1))
    margin = max(0.5, 0.02 * (generations[-1] - generations[0]))
    axes.set_xlim(generations[0] - margin, generations[-1] + margin)


def _dress(axes: Any, title: str, xlabel: str, ylabel: str) -> None:
    """Title, labels, grid, and a legend that covers no data."""
    axes.set_title(title, loc="left", fontsize=13, fontweight="bold", color=_INK)
    axes.set_xlabel(xlabel, color=_INK)
    axes.set_ylabel(ylabel, color=_INK)
    axes.grid(color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_INK, length=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, labelcolor=_INK)


def _short(names: Mapping[str, Any]) -> dict[str, str]:
    """Names as the legend shows them: what follows the last slash, unless two would be the same."""
    last = {name: name.rpartition("/")[2] for name in names}
    uses = Counter(last.values())
    return {name: short if uses[short] == 1 else name for name, short in last.items()}


def _finite(values: Sequence[float]) -> np.ndarray:
    y = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(y), y, np.nan)


def _marked(y: np.ndarray) -> list[int]:
    """Indices of the points to mark: all of a few; of many, the lone ones, which no line shows."""
    here = np.isfinite(y)
    if len(y) > _MARK_EVERY_POINT_UP_TO:
        beside = np.zeros_like(here)
        beside[1:] |= here[:-1]
        beside[:-1] |= here[1:]
        here &= ~beside
    return [int(index) for index in np.flatnonzero(here)]
