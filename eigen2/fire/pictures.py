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
from eigen2.fire.simulation.environment import Scene
from eigen2.fire.simulation.spread import Fires
from eigen2.runtime.files import replacing

log = logging.getLogger(__name__)

WIDTH, HEIGHT, DPI = 720, 400, 110  # of the picture of one placement
INK = "#333333"
FUELS = (
    ("nothing burns", range(91, 100), "#9fb4c7"),
    ("grass", range(100, 120), "#f0dc9a"),
    ("shrub", range(120, 160), "#c9b25f"),
    ("timber", range(160, 200), "#7fa56b"),
    ("slash", range(200, 220), "#b58a63"),
)
"""Kinds of fuel, the numbers of their models, and their colours."""


def draw_placements(scene: Scene, placements: Mapping[str, Sequence[int]]) -> UInt8[np.ndarray, "height width rgb=3"]:
    """Draw a landscape without breaks and with each placement, in order, beside the share of fires that burn each cell.

    Fires start everywhere. Pictures are side by side, two in a row, in the same colours.

    Raises:
        UserError: a placement does not fit the landscape.
    """
    model = scene.model
    before = model.start()
    most = float(before.frequency.max())
    drawn: list[tuple[str, Fires, Sequence[int]]] = [
        (f"no breaks: an average fire burns {100 * before.burned:.1f} %", before, ())
    ]
    for name, breaks in placements.items():
        try:
            after = model.start(breaks=breaks)
        except ValueError as error:
            raise UserError(f"the placement {name} does not fit the landscape ({error})") from error
        drawn.append((f"{name}: saves {100 * (1 - after.burned / before.burned):.1f} %", after, breaks))
    rows = -(-len(drawn) // 2)

    def draw(figure: Any) -> None:
        parts = figure.subfigures(rows, 2, squeeze=False).flat
        for part, (title, fires, breaks) in zip(parts, drawn, strict=False):
            part.suptitle(title, x=0.02, ha="left", fontsize=12, fontweight="bold", color=INK)
            _draw_placement(part, scene.landscape, fires, breaks, most)

    return draw_figure(draw, 2 * WIDTH, rows * HEIGHT, DPI)


def ground(landscape: Landscape) -> Float64[np.ndarray, "rows columns rgb=3"]:
    """Return the colours of fuel in the light and shadow of the terrain, 0 to 1; lit from the north-west, as maps."""
    from matplotlib.colors import LightSource, to_rgb

    colours = np.ones((*landscape.shape, 3))
    for _, numbers, colour in FUELS:
        colours[np.isin(landscape.fuel, list(numbers))] = to_rgb(colour)
    light, size = LightSource(azdeg=315, altdeg=45), landscape.cell_size
    shaded: Float64[np.ndarray, "rows columns rgb=3"] = light.shade_rgb(
        colours, landscape.elevation, blend_mode="soft", dx=size, dy=size
    )
    return shaded


def _draw_placement(part: Any, landscape: Landscape, fires: Fires, breaks: Sequence[int], most: float) -> None:
    """Draw terrain, fuel and breaks, in colours of their order, beside the share of fires that burn each cell."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    (left, right), (order, share) = part.subplots(2, 2, height_ratios=[1, 0.04])
    left.imshow(ground(landscape), interpolation="nearest")
    if len(breaks):
        place = np.full(landscape.shape, np.nan)
        place.reshape(-1)[list(breaks)] = np.arange(1, len(breaks) + 1)
        ordered, last = ListedColormap(colormaps["RdPu_r"](np.linspace(0.0, 0.7, 256))), max(len(breaks), 2)
        image = left.imshow(place, cmap=ordered, vmin=1, vmax=last, interpolation="nearest")
        _colorbar(part, image, order, [1, last], ["first break", "last"])
    else:
        present = [fuel for fuel in FUELS if np.isin(landscape.fuel, list(fuel[1])).any()]
        handles = [Patch(color=colour, label=name) for name, _, colour in present]
        order.legend(handles=handles, loc="upper center", ncols=2, frameon=False, fontsize=8).set_in_layout(False)
        order.axis("off")
    never = ~fires.model.burnable | fires.breaks
    burns = np.where(never, np.nan, fires.frequency).reshape(landscape.shape)
    colours = colormaps["YlOrRd"].with_extremes(bad=FUELS[0][2])
    image = right.imshow(burns, cmap=colours, vmin=0, vmax=most, interpolation="nearest")
    _colorbar(part, image, share, [0, most], ["none", f"{100 * most:.0f} %"])
    black = np.where(fires.breaks, 1.0, np.nan).reshape(landscape.shape)
    right.imshow(black, cmap="Greys", vmin=0, vmax=1.2, interpolation="nearest")
    for axes, title in ((left, "fuel and terrain, breaks"), (right, "fires that burn a cell")):
        axes.set_title(title, fontsize=10, color=INK)
        axes.set(xticks=[], yticks=[])


def _colorbar(figure: Any, image: Any, axes: Any, ticks: list[float], labels: list[str]) -> None:
    """Draw the colours of an image, with labels at both ends."""
    bar = figure.colorbar(image, cax=axes, orientation="horizontal")
    bar.set_ticks(ticks, labels=labels)
    bar.ax.tick_params(labelsize=9, labelcolor=INK, length=0)
    bar.outline.set_visible(False)


class BreaksPlot(Callback):
    """Draws where the champion and the baselines put fuel breaks on one of the validation landscapes.

    The picture goes to TensorBoard as `champion/breaks` every few epochs, and to `champion/breaks.png` in the run's
    folder when the champion is new. It reads `champion/placements.json`, so that it is of the champion whether this
    process found it or one before.
    """

    def __init__(self, every_n_epochs: int = 5, landscape: int = 0) -> None:
        """Choose how often to draw, and which landscape.

        Args:
            every_n_epochs: Add to TensorBoard at the end of every n-th epoch, >= 1. Default 5.
            landscape: Number of the validation landscape, >= 0 and below their number. Default 0.

        Raises:
            UserError: A number is out of range.
        """
        super().__init__()
        require_range("every_n_epochs of BreaksPlot", every_n_epochs, least=1)
        require_range("landscape of BreaksPlot", landscape, least=0)
        self.every_n_epochs, self.landscape = every_n_epochs, landscape

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse another workload, and a landscape that does not exist."""
        count = len(_data(pl_module).held_out("validation"))
        require_range("landscape of BreaksPlot", self.landscape, least=0, most=count - 1)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw, if the champion is new or a picture is due."""
        assert isinstance(pl_module, DQNModule)
        epoch, found = trainer.current_epoch, int(pl_module.champion_generation)
        new, due = found == epoch, found >= 0 and (epoch + 1) % self.every_n_epochs == 0
        folder = Path(trainer.default_root_dir) / FOLDERS["validation"]
        if not (new or due) or not trainer.is_global_zero:
            return
        try:
            placed = read_placements(folder / PLACEMENTS_FILE).placements
            cells = {name: each[self.landscape] for name, each in placed.items()}
            picture = draw_placements(_data(pl_module).held_out("validation")[self.landscape].scenes[0], cells)
            if new:
                _save(picture, folder / "breaks.png")
        except (OSError, UserError, IndexError) as error:
            log.warning("cannot draw the champion's fuel breaks: %s", error)
            return
        for logger in trainer.loggers if due else ():
            experiment: Any = getattr(logger, "experiment", None)
            if hasattr(experiment, "add_image"):
                experiment.add_image("champion/breaks", picture, global_step=epoch, dataformats="HWC")


def _data(module: LightningModule) -> FuelBreakDataModule:
    if not isinstance(module, DQNModule) or not isinstance(module.data, FuelBreakDataModule):
        raise UserError("BreaksPlot draws fuel breaks alone; leave it out with other workloads")
    return module.data


def _save(picture: UInt8[np.ndarray, "height width rgb=3"], path: Path) -> None:
    from matplotlib.image import imsave

    with replacing(path) as draft:
        imsave(draft, picture, format="png")
