"""Plot metrics over generations as images in TensorBoard."""

import gc
import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from eigen2.errors import UserError, damage_as_user_error, require_range

# the palette of Okabe and Ito for colour-blind readers, without its pale yellow
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", ":", "-.")
_INK = "#333333"


class MetricsPlot(Callback):
    """Plots several metrics over generations in one image and adds it to TensorBoard.

    At the end of each epoch it takes the metrics from `trainer.callback_metrics`, which holds what was logged before
    the callbacks' `on_train_epoch_end`: in batches and in validation. Lightning keeps a metric that was not logged in
    this epoch at its last value; one that never was, or is NaN, leaves a gap. The values are saved in the checkpoint.
    Several of these callbacks need different tags.
    """

    def __init__(
        self,
        metrics: Sequence[str],
        tag: str,
        every_n_epochs: int = 5,
        max_history: int = 1000,
        band: tuple[str, str] | None = None,
    ) -> None:
        """Choose what is plotted and how often.

        Args:
            metrics: Names of the metrics to plot, a line each. The legend shows the part after the last slash, or full
                names if two would be the same.
            tag: Name of the image in TensorBoard, and its title.
            every_n_epochs: Plot at the end of every n-th epoch, >= 1: epochs n-1, 2n-1, and so on. Default 5.
            max_history: Epochs kept and plotted, >= 1; older ones are dropped. Default 1000.
            band: Names of a lower and an upper metric with the area between them shaded. Default none.

        Raises:
            UserError: `metrics` is empty or a string, a number is out of its range, or `band` names one metric twice.
        """
        super().__init__()
        if isinstance(metrics, str) or not metrics:
            raise UserError(f"MetricsPlot.metrics is {metrics!r}; give a list of metric names")
        for name, number in (("every_n_epochs", every_n_epochs), ("max_history", max_history)):
            require_range(f"MetricsPlot.{name}", number, least=1, most=10**9, whole=True)
        if band is not None and band[0] == band[1]:
            raise UserError(f"MetricsPlot.band is {band[0]!r} twice; give a lower and an upper metric")
        self.metrics, self.band, self.tag = tuple(metrics), band, tag
        self.every_n_epochs = every_n_epochs
        self._names = tuple(dict.fromkeys((*metrics, *(band or ()))))
        self._rows: deque[tuple[int, tuple[float, ...]]] = deque(maxlen=max_history)  # epoch and values
        self._warned = False

    @property
    def state_key(self) -> str:
        """Return the key of the values in a checkpoint, one per tag."""
        return self._generate_state_key(tag=self.tag)

    def state_dict(self) -> dict[str, Any]:
        """Return the collected values as plain lists."""
        values = {name: [row[place] for _, row in self._rows] for place, name in enumerate(self._names)}
        return {"generations": [generation for generation, _ in self._rows], "values": values}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the values of a checkpoint; a metric that it does not contain starts with a gap.

        Raises UserError for an altered state.
        """
        what = f"the values of MetricsPlot {self.tag!r} in the checkpoint cannot be read"
        with damage_as_user_error(what, "were they altered? give another one"):
            generations = [int(generation) for generation in state_dict["generations"]]
            gap = [math.nan] * len(generations)
            values = [map(float, state_dict["values"].get(name, gap)) for name in self._names]
            self._rows = deque(zip(generations, zip(*values, strict=True), strict=True), self._rows.maxlen)

    def memory_owners(self) -> dict[str, object]:
        """Return the bytes of the collected values."""
        row = sys.getsizeof(self._names) + 24 * len(self._names)
        return {f"plot_{self.tag}": sys.getsizeof(self._rows) + len(self._rows) * row}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Collect the epoch's values and plot them every n-th epoch."""
        generation, logged = trainer.current_epoch, trainer.callback_metrics
        # drop values of this epoch and later: the fit started over, or repeats the end of an epoch
        while self._rows and self._rows[-1][0] >= generation:
            self._rows.pop()
        self._rows.append((generation, tuple(float(logged.get(name, math.nan)) for name in self._names)))
        if (generation + 1) % self.every_n_epochs == 0 and trainer.is_global_zero:
            self._plot(trainer)

    def _plot(self, trainer: Trainer) -> None:
        if not (writers := image_writers(trainer)):
            return
        generations, values = self.state_dict().values()
        absent = [name for name in self._names if not np.isfinite(values[name]).any()]
        if absent and not self._warned:
            self._warned = True
            rank_zero_warn(f"MetricsPlot {self.tag!r}: no value yet of {', '.join(absent)} in callback_metrics")
        lines, band = ({name: values[name] for name in names} for names in (self.metrics, self.band or ()))
        image = draw_lines(generations, lines, title=self.tag, band=band or None)
        for writer in writers:
            writer.add_image(self.tag, image, global_step=trainer.current_epoch, dataformats="HWC")


def image_writers(trainer: Trainer) -> list[Any]:
    """Return the objects that write images to TensorBoard: the `experiment` of every logger that has `add_image`."""
    experiments = [getattr(logger, "experiment", None) for logger in trainer.loggers]
    return [experiment for experiment in experiments if hasattr(experiment, "add_image")]


def draw_lines(
    generations: Sequence[int],
    lines: Mapping[str, Sequence[float]],
    title: str = "",
    band: Mapping[str, Sequence[float]] | None = None,
) -> UInt8[np.ndarray, "height=450 width=900 rgb=3"]:
    """Return an image, RGB in 0..255, of lines, which are values by metric name, over ascending generations.

    Values that are not finite leave a gap. The area between the lower and the upper metric of a band is shaded.
    """

    def draw(axes: Any) -> None:
        """Draw lines and band on Matplotlib axes."""
        from matplotlib.ticker import MaxNLocator

        for index, (label, values) in enumerate(zip(_legend_names(lines), lines.values(), strict=True)):
            color, style = COLORS[index % len(COLORS)], _STYLES[index // len(COLORS) % len(_STYLES)]
            axes.plot(generations, values, ".", ls=style, color=color, label=label, linewidth=2)
        if band is not None:
            label = " to ".join(_legend_names(band))
            axes.fill_between(generations, *band.values(), color=COLORS[0], alpha=0.15, lw=0, label=label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12, steps=[1, 2, 5, 10], min_n_ticks=1))
        margin = max(0.5, 0.02 * (generations[-1] - generations[0]))
        axes.set_xlim(generations[0] - margin, generations[-1] + margin)

    return draw_picture(draw, title, "generation")


def draw_picture(
    draw: Callable[[Any], None], title: str = "", xlabel: str = "", ylabel: str = ""
) -> UInt8[np.ndarray, "height=450 width=900 rgb=3"]:
    """Return an image, in the common style, of what `draw` plots on Matplotlib axes, with a legend of all labels."""

    def draw_axes(figure: Any) -> None:
        """Draw styled axes on a Matplotlib figure."""
        axes = figure.add_subplot()
        draw(axes)
        axes.set_title(title, loc="left", fontsize=13, fontweight="bold", color=_INK)
        axes.set_xlabel(xlabel, color=_INK)
        axes.set_ylabel(ylabel, color=_INK)
        axes.grid(color="#DDDDDD", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(colors=_INK, length=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color("#999999")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, labelcolor=_INK)

    return draw_figure(draw_axes, 900, 450)


def draw_figure(
    draw: Callable[[Any], None], width: int, height: int, dpi: int = 100
) -> UInt8[np.ndarray, "height width rgb=3"]:
    """Return an image, RGB in 0..255, of what `draw` puts on a Matplotlib figure; nothing else stays in memory."""
    # The parts of a figure refer to each other: 2 MB per figure would wait for a full collection, which is rare and
    # slow. With automatic collection off, all objects created here stay in the youngest generation.
    enabled = gc.isenabled()
    gc.disable()
    try:
        return _render(draw, width, height, dpi)
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
    return np.array(canvas.buffer_rgba())[..., :3].copy()  # type: ignore[no-untyped-call]


def _legend_names(names: Iterable[str]) -> list[str]:
    """Return what follows the last slash of each name, or the full names if two would be the same."""
    full = [*names]
    short = [name.rpartition("/")[2] for name in full]
    return short if len(set(short)) == len(short) else full
