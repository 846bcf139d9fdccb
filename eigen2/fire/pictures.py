"""Pictures of fuel breaks: a landscape, where breaks are put on it, and where fires burn then."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, UInt8
from lightning.pytorch import Callback, LightningModule, Trainer

from callbacks.plots import draw_figure
from eigen2.dqn.module import DQNModule
from eigen2.errors import UserError, require_range
from eigen2.fire.datamodule import FuelBreakDataModule
from eigen2.fire.evaluation.placements import read_placements
from eigen2.fire.evaluation.records import FOLDERS, PLACEMENTS_FILE
from eigen2.fire.landscapes.landscape import Landscape
from eigen2.fire.simulation.environment import FuelBreakEnv
from eigen2.fire.simulation.spread import FireModel, Fires
from eigen2.runtime.files import replacing

log = logging.getLogger(__name__)

Picture = UInt8[np.ndarray, "height width rgb=3"]

WIDTH, HEIGHT, DPI = 720, 400, 110
NONE = "no breaks"
INK = "#333333"
FUELS = (
    ("nothing burns", range(91, 100), "#9fb4c7"),
    ("grass", range(100, 120), "#f0dc9a"),
    ("shrub", range(120, 160), "#c9b25f"),
    ("timber", range(160, 200), "#7fa56b"),
    ("slash", range(200, 220), "#b58a63"),
)
"""Kinds of fuel, the numbers of their models, and their colours."""
LIGHT = np.array([-1.0, 1.0, 1.5]) / np.linalg.norm([-1.0, 1.0, 1.5])
"""Direction of the light (east, north, up): from the north-west, as on maps."""


def draw_placement(landscape: Landscape, fires: Fires, breaks: Sequence[int], title: str, most: float) -> Picture:
    """Draw a landscape with its breaks, in order, beside the share of fires that burn each cell, darkest at `most`."""

    def draw(figure: Any) -> None:
        figure.suptitle(title, x=0.02, ha="left", fontsize=12, fontweight="bold", color=INK)
        (left, right), (order, share) = figure.subplots(2, 2, height_ratios=[1, 0.04])
        left.imshow(ground(landscape), interpolation="nearest")
        if len(breaks):
            image = _draw_order(left, breaks, landscape.shape)
            _colorbar(figure, image, order, [1, max(len(breaks), 2)], ["first break", "last"])
        else:
            _draw_legend(order, landscape)
        _colorbar(figure, _draw_burns(right, fires, most), share, [0, most], ["none", f"{100 * most:.0f} %"])
        titles = "breaks, on fuel and terrain" if len(breaks) else "fuel and terrain", "fires that burn a cell"
        for axes, each in zip((left, right), titles, strict=True):
            axes.set_title(each, fontsize=10, color=INK)
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_color("#999999")

    return draw_figure(draw, WIDTH, HEIGHT, DPI)


def draw_placements(
    landscape: Landscape, model: FireModel, placements: Mapping[str, Sequence[int]], titles: Mapping[str, str]
) -> dict[str, Picture]:
    """Draw the landscape without breaks, named `NONE`, and each placement, in the same colours, with fires everywhere.

    `titles` replace the names of placements.

    Raises:
        UserError: a placement does not fit the landscape, or nothing burns on it.
    """
    before = model.start()
    if before.burned == 0:
        raise UserError("nothing burns in the landscape; look at its fuel and the moistures")
    most = float(before.frequency.max())
    title = f"{NONE}: an average fire burns {100 * before.burned:.1f} %"
    pictures = {NONE: draw_placement(landscape, before, (), title, most)}
    for name, breaks in placements.items():
        try:
            after = model.start(breaks=breaks)
        except ValueError as error:
            raise UserError(f"the placement {name} does not fit the landscape ({error})") from error
        title = f"{titles.get(name, name)}: saves {100 * (1 - after.burned / before.burned):.1f} %"
        pictures[name] = draw_placement(landscape, after, breaks, title, most)
    return pictures


def side_by_side(pictures: Sequence[Picture], columns: int = 2) -> UInt8[np.ndarray, "high wide rgb=3"]:
    """Join pictures of one size from left to right and top to bottom; the rest of the last row is white."""
    height, width, _ = pictures[0].shape
    rows = -(-len(pictures) // columns)
    grid = np.full((rows * columns, height, width, 3), 255, np.uint8)
    grid[: len(pictures)] = pictures
    return grid.reshape(rows, columns, height, width, 3).swapaxes(1, 2).reshape(rows * height, columns * width, 3)


def ground(landscape: Landscape) -> Float64[np.ndarray, "rows columns rgb=3"]:
    """Return the colours of fuel in the light and shadow of the terrain, 0 to 1."""
    from matplotlib.colors import to_rgb

    colours = np.ones((*landscape.shape, 3))
    for _, numbers, colour in FUELS:
        colours[np.isin(landscape.fuel, list(numbers))] = to_rgb(colour)
    slope, downhill = landscape.slope.astype(float), np.radians(landscape.aspect.astype(float))
    normal = np.stack([slope * np.sin(downhill), slope * np.cos(downhill), np.ones(landscape.shape)], -1)
    normal /= np.linalg.norm(normal, axis=-1, keepdims=True)
    brightness = 0.55 + 0.45 * np.clip(normal @ LIGHT, 0, None) / LIGHT[2]  # 1 on level ground
    shaded: Float64[np.ndarray, "rows columns rgb=3"] = np.clip(colours * brightness[..., None], 0, 1)
    return shaded


def _draw_legend(axes: Any, landscape: Landscape) -> None:
    """Draw a legend of the landscape's fuels."""
    from matplotlib.patches import Patch

    present = [fuel for fuel in FUELS if np.isin(landscape.fuel, list(fuel[1])).any()]
    legend = axes.legend(
        handles=[Patch(color=colour, label=name) for name, _, colour in present],
        **{"loc": "upper center", "ncols": 4, "frameon": False, "fontsize": 9, "labelcolor": INK},
        **{"handlelength": 1, "handletextpad": 0.3, "columnspacing": 0.7, "borderpad": 0},
    )
    legend.set_in_layout(False)
    axes.axis("off")


def _draw_order(axes: Any, breaks: Sequence[int], shape: tuple[int, int]) -> Any:
    """Draw breaks in colours of their order, and return the image."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    place = np.full(shape, np.nan)
    place.reshape(-1)[list(breaks)] = np.arange(1, len(breaks) + 1)
    colours = ListedColormap(colormaps["RdPu_r"](np.linspace(0.0, 0.7, 256)))
    return axes.imshow(place, cmap=colours, vmin=1, vmax=max(len(breaks), 2), interpolation="nearest")


def _draw_burns(axes: Any, fires: Fires, most: float) -> Any:
    """Draw where fires burn, with black breaks and a colour for what never burns, and return the image."""
    from matplotlib import colormaps

    model = fires.model
    burns = np.where(model.burnable & ~fires.breaks, fires.frequency, np.nan).reshape(model.shape)
    colours = colormaps["YlOrRd"].with_extremes(bad=FUELS[0][2])
    image = axes.imshow(burns, cmap=colours, vmin=0, vmax=most, interpolation="nearest")
    breaks = np.where(fires.breaks, 1.0, np.nan).reshape(model.shape)
    axes.imshow(breaks, cmap="Greys", vmin=0, vmax=1.2, interpolation="nearest")
    return image


def _colorbar(figure: Any, image: Any, axes: Any, ticks: list[float], labels: list[str]) -> None:
    """Draw the colours of an image, with labels at both ends."""
    bar = figure.colorbar(image, cax=axes, orientation="horizontal")
    bar.set_ticks(ticks, labels=labels)
    first, *_, last = bar.ax.get_xticklabels()
    first.set_ha("left")
    last.set_ha("right")
    bar.ax.tick_params(labelsize=9, labelcolor=INK, length=0)
    bar.outline.set_visible(False)


class BreaksPlot(Callback):
    """Draws where the champion and the baselines put fuel breaks on one of the validation landscapes.

    The pictures go to TensorBoard every few epochs, all in one, and to `champion/` in the run's folder when the
    champion is new, a file each. It reads `champion/placements.json`, so that they are of the champion whether this
    process found it or one before; nothing is kept from one epoch to the next.
    """

    def __init__(self, every_n_epochs: int = 5, landscape: int = 0, tag: str = "champion/breaks") -> None:
        """Choose how often to draw, and which landscape.

        Args:
            every_n_epochs: Add to TensorBoard at the end of every n-th epoch, >= 1. Default 5.
            landscape: Number of the validation landscape, >= 0 and below their number. Default 0.
            tag: Name of the picture in TensorBoard.

        Raises:
            UserError: A number is out of range.
        """
        super().__init__()
        require_range("every_n_epochs of BreaksPlot", every_n_epochs, least=1)
        require_range("landscape of BreaksPlot", landscape, least=0)
        self.every_n_epochs, self.landscape, self.tag = every_n_epochs, landscape, tag

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse another workload, and a landscape that does not exist."""
        if not isinstance(pl_module, DQNModule) or not isinstance(pl_module.data, FuelBreakDataModule):
            raise UserError("BreaksPlot draws fuel breaks alone; leave it out with other workloads")
        count = len(pl_module.data.held_out("validation"))
        require_range("landscape of BreaksPlot", self.landscape, least=0, most=count - 1)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw, if the champion is new or a picture is due."""
        assert isinstance(pl_module, DQNModule)
        assert isinstance(pl_module.data, FuelBreakDataModule)
        epoch, found = trainer.current_epoch, int(pl_module.champion_generation)
        new, due = found == epoch, found >= 0 and (epoch + 1) % self.every_n_epochs == 0
        folder = Path(trainer.default_root_dir) / FOLDERS["validation"]
        if not (new or due) or not trainer.is_global_zero:
            return
        try:
            environment = pl_module.data.held_out("validation")[self.landscape]
            pictures = self._draw(folder / PLACEMENTS_FILE, environment)
            if new:
                _save(pictures, folder)
        except (OSError, UserError) as error:
            log.warning("cannot draw the champion's fuel breaks: %s", error)
            return
        experiments: list[Any] = [getattr(logger, "experiment", None) for logger in trainer.loggers] if due else []
        for experiment in experiments:
            if hasattr(experiment, "add_image"):
                whole = side_by_side(list(pictures.values()))
                experiment.add_image(self.tag, whole, global_step=epoch, dataformats="HWC")

    def _draw(self, path: Path, environment: FuelBreakEnv) -> dict[str, Picture]:
        file = read_placements(path)
        if (count := min((len(each) for each in file.placements.values()), default=0)) <= self.landscape:
            raise UserError(f"{path} has breaks for {count} landscapes, none for number {self.landscape}")
        cells = {name: each[self.landscape] for name, each in file.placements.items()}
        titles = {"champion": f"champion of generation {file.generation}"}
        return draw_placements(environment.landscape(0), environment.scene(0).model, cells, titles)


def _save(pictures: Mapping[str, Picture], folder: Path) -> None:
    from matplotlib.image import imsave

    for number, (name, picture) in enumerate(pictures.items()):
        with replacing(folder / f"breaks-{number}-{name.replace(' ', '-')}.png") as draft:
            imsave(draft, picture, format="png", metadata={"Description": f"fuel breaks: {name}"})
