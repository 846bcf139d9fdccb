"""Pictures of fuel breaks: a landscape, the breaks on it, and where fires still burn."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8
from lightning.pytorch import Callback, LightningModule, Trainer

from callbacks.plots import draw_figure, image_writers
from eigen2.dqn.module import DQNModule
from eigen2.errors import UserError, require_range
from eigen2.files import Folder
from eigen2.fire.datamodule import FuelBreakDataModule
from eigen2.fire.evaluation.placements import FOLDERS, PLACEMENTS_FILE, read_placements
from eigen2.fire.landscapes.landscape import Landscape
from eigen2.fire.simulation.environment import Scene
from eigen2.fire.simulation.spread import Fires

log = logging.getLogger(__name__)

WIDTH, HEIGHT, DPI = 720, 400, 110  # of the picture of one placement
INK = "#333333"
FUELS = ((91, "#9fb4c7"), (100, "#f0dc9a"), (120, "#c9b25f"), (160, "#7fa56b"), (200, "#b58a63"))
"""First fuel model number and colour of each group: non-burnable, grass, shrub, timber, slash."""


def draw_placements(scene: Scene, placements: Mapping[str, Sequence[int]]) -> UInt8[np.ndarray, "height width rgb=3"]:
    """Draw a landscape without breaks and with each placement, in order, beside the share of fires that burn each cell.

    Fires start in every cell that burns. Raises UserError if a placement does not fit the landscape.
    """
    model, before = scene.model, scene.model.start()
    most = float(before.frequency.max())
    drawn: dict[str, tuple[Fires, Sequence[int]]] = {}
    drawn[f"no breaks: an average fire burns {100 * before.burned:.1f} %"] = before, ()
    for name, breaks in placements.items():
        try:
            after = model.start(breaks=breaks)
        except ValueError as error:
            raise UserError(f"the placement {name} does not fit the landscape ({error})") from error
        drawn[f"{name}: saves {100 * (1 - after.burned / before.burned):.1f} %"] = after, breaks
    rows = -(-len(drawn) // 2)

    def draw(figure: Any) -> None:
        parts = figure.subfigures(rows, 2, squeeze=False).flat
        for part, (title, (fires, breaks)) in zip(parts, drawn.items(), strict=False):
            part.suptitle(title, x=0.02, ha="left", fontsize=12, fontweight="bold", color=INK)
            _draw_placement(part, scene.landscape, fires, breaks, most)

    return draw_figure(draw, 2 * WIDTH, rows * HEIGHT, DPI)


def _draw_placement(part: Any, landscape: Landscape, fires: Fires, breaks: Sequence[int], most: float) -> None:
    """Draw fuel and breaks, the first ones darkest, beside the share of fires that burn each cell."""
    from matplotlib import colormaps
    from matplotlib.colors import to_rgb

    left, right = part.subplots(1, 2)
    kinds = np.searchsorted([first for first, _ in FUELS], landscape.fuel, side="right") - 1
    left.imshow(np.array([to_rgb(colour) for _, colour in FUELS])[kinds], interpolation="nearest")
    place = np.full(landscape.shape, np.nan)
    place.reshape(-1)[list(breaks)] = np.linspace(0.0, 0.7, len(breaks))
    left.imshow(place, cmap="RdPu_r", vmin=0, vmax=1, interpolation="nearest")
    burns = np.where(fires.model.burnable, fires.frequency, np.nan).reshape(landscape.shape)
    colours = colormaps["YlOrRd"].with_extremes(bad=FUELS[0][1])
    right.imshow(burns, cmap=colours, vmin=0, vmax=most, interpolation="nearest")
    black = np.where(fires.breaks, 1.0, np.nan).reshape(landscape.shape)
    right.imshow(black, cmap="Greys", vmin=0, vmax=1.2, interpolation="nearest")
    titles = "breaks, darkest first, on fuel", f"fires that burn a cell, up to {100 * most:.0f} %"
    for axes, title in zip((left, right), titles, strict=True):
        axes.set_title(title, fontsize=9, color=INK)
        axes.set(xticks=[], yticks=[])


class BreaksPlot(Callback):
    """Draws the fuel breaks of the champion and the baselines on the first validation landscape.

    The picture goes to TensorBoard as `champion/breaks` every few epochs, and to `champion/breaks.png` in the run
    folder for each new champion.
    """

    def __init__(self, every_n_epochs: int = 5) -> None:
        """Choose how often to draw.

        Args:
            every_n_epochs: Add to TensorBoard at the end of every n-th epoch, >= 1. Default 5.
        """
        super().__init__()
        require_range("every_n_epochs of BreaksPlot", every_n_epochs, least=1)
        self.every_n_epochs = every_n_epochs

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse another workload."""
        if not isinstance(pl_module, DQNModule) or not isinstance(pl_module.data, FuelBreakDataModule):
            raise UserError("BreaksPlot draws only fuel breaks; leave it out with other workloads")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw if the champion is new or a picture is due."""
        from matplotlib.image import imsave

        assert isinstance(pl_module, DQNModule)
        assert isinstance(pl_module.data, FuelBreakDataModule)
        epoch, champion = trainer.current_epoch, int(pl_module.champion_generation)
        new, due = champion == epoch, champion >= 0 and (epoch + 1) % self.every_n_epochs == 0
        folder = Folder(trainer.default_root_dir) / FOLDERS["validation"]
        if not (new or due) or not trainer.is_global_zero:
            return
        try:
            placed = read_placements(folder.path / PLACEMENTS_FILE).placements
            scene = pl_module.data.held_out("validation")[0].scenes[0]
            picture = draw_placements(scene, {name: each[0] for name, each in placed.items()})
            if new:
                with folder.replacing("breaks.png") as draft:
                    imsave(draft, picture, format="png")
        except (OSError, UserError, IndexError) as error:
            log.warning("cannot draw the champion's fuel breaks: %s", error)
            return
        for writer in image_writers(trainer) if due else ():
            writer.add_image("champion/breaks", picture, global_step=epoch, dataformats="HWC")
