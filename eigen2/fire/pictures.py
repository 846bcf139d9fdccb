"""Pictures of fuel breaks: a landscape, the breaks on it, and where fires still burn."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int16, UInt8
from lightning.pytorch import Callback, LightningModule, Trainer
from numpy.typing import NDArray

from callbacks.plots import draw_figure, image_writers
from eigen2.dqn.module import DQNModule
from eigen2.errors import UserError, require_range
from eigen2.files import Folder, replacing, writing
from eigen2.fire.datamodule import FuelBreakDataModule
from eigen2.fire.evaluation.placements import FOLDERS, PLACEMENTS_FILE, read_placements
from eigen2.fire.landscapes.fuels import NON_BURNABLE
from eigen2.fire.landscapes.landscape import Landscape
from eigen2.fire.simulation.environment import Scene
from eigen2.fire.simulation.spread import Fires

log = logging.getLogger(__name__)

WIDTH, HEIGHT, DPI = 720, 400, 110  # of the picture of one placement
INK = "#333333"
FUELS = (
    (91, "#a9bccd", "does not burn"),
    (100, "#f6e9b2", "grass"),
    (120, "#d6b656", "shrub"),
    (160, "#4d9078", "timber"),
    (200, "#8c5a3c", "slash"),
)
"""First fuel model number, colour and name of each group; colour-blind readers can tell the colours apart."""
MOST, USUAL = 1500, 500  # pixels along the longer side of the map of a region: at most, and about, of a small region


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

    left, right = part.subplots(1, 2)
    left.imshow(_fuel_colours(landscape.fuel), interpolation="nearest")
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


def _fuel_colours(fuel: Int16[np.ndarray, "rows columns"]) -> UInt8[np.ndarray, "rows columns rgb=3"]:
    """Return the colour of each cell's fuel group."""
    from matplotlib.colors import to_rgb

    colours = np.rint([[255 * part for part in to_rgb(colour)] for _, colour, _ in FUELS]).astype(np.uint8)
    kinds = np.searchsorted([first for first, *_ in FUELS], fuel, side="right") - 1
    return np.asarray(colours[kinds])


def write_map(
    file: Path,
    landscape: Landscape,
    breaks: Bool[np.ndarray, "rows columns"],
    burned: Float32[np.ndarray, "2 rows columns"],
) -> None:
    """Write the picture of `draw_map`; raise UserError if it cannot be written."""
    from matplotlib.image import imsave

    with writing(str(file), "name another file"), replacing(file) as draft:
        imsave(draft, draw_map(landscape, breaks, burned), format="png")


def draw_map(
    landscape: Landscape, breaks: Bool[np.ndarray, "rows columns"], burned: Float32[np.ndarray, "2 rows columns"]
) -> UInt8[np.ndarray, "height width rgb=3"]:
    """Draw breaks on fuel, beside the share of fires that burn a cell without and with breaks (0 to 1).

    A cell of a small region takes several pixels. In a large one a pixel stands for several cells: it is a break if any
    of them is, burns as the one that burns most, and has the fuel of the north-western one.
    """
    from matplotlib import colormaps

    step, most = -(-max(breaks.shape) // MOST), float(burned.max()) or 1.0
    fuel, drawn = landscape.fuel[::step, ::step], _most(breaks, step)
    maps = {"breaks on fuel": (colours := _fuel_colours(fuel)).copy()}
    ground = np.where(np.isin(fuel, NON_BURNABLE)[..., None], colours, 238)  # grey, as the page is white
    for which, share in zip(("without", "with"), (_most(each, step) for each in burned), strict=True):
        heat = colormaps["YlOrRd"](0.15 + 0.7 * share / most, bytes=True)[..., :3]
        percent = 100 * share.max()
        title = f"{which} breaks, a cell burns in up to {percent:{'.0f' if percent >= 10 else '.2g'}} % of fires"
        maps[title] = np.where(share[..., None] > 0, heat, ground).astype(np.uint8)
    for title in [*maps][::2]:
        maps[title][drawn] = 0
    scale = max(1, round(USUAL / max(fuel.shape)))
    enlarged = {title: each.repeat(scale, 0).repeat(scale, 1) for title, each in maps.items()}
    return _draw_maps(enlarged, landscape.cell_size * step / scale)


def _most(layer: NDArray[Any], step: int) -> NDArray[Any]:
    """Return the maximum of each block of `step` x `step` cells."""
    rows, columns = (np.arange(0, cells, step) for cells in layer.shape)
    return np.asarray(np.maximum.reduceat(np.maximum.reduceat(layer, rows, 0), columns, 1))


def _draw_maps(
    maps: Mapping[str, UInt8[np.ndarray, "rows columns rgb=3"]], metres: float
) -> UInt8[np.ndarray, "height width rgb=3"]:
    """Draw maps in a row, pixel by pixel, with their titles, a legend and a scale bar; a pixel shows so many metres."""
    height, width = next(iter(maps.values())).shape[:2]
    unit = max(1, round(max(height, width) / USUAL))  # pixels in one of a small picture
    pad = 25 * unit  # whole pads are whole pixels of Matplotlib
    slot = max(width, 14 * pad)
    whole = -(-(pad + len(maps) * (slot + pad)) // pad) * pad, -(-(height + 4 * pad) // pad) * pad
    kilometres = max(n * 10.0**k for k in range(-6, 5) for n in (1, 2, 5) if n * 10.0**k <= width * metres / 3000)
    bar = np.zeros((3 * unit, max(1, round(1000 * kilometres / metres)), 3), np.uint8)

    def draw(figure: Any) -> None:
        """Put maps, titles, scale bar and legend at their pixels, counted from the upper left."""
        from matplotlib.patches import Patch

        def write(x: float, y: float, text: str, size: int) -> None:
            """Write a text to the right of a point."""
            figure.text(x / whole[0], 1 - y / whole[1], text, fontsize=size, va="center", color=INK)

        figure.set_layout_engine("none")
        for number, (title, each) in enumerate(maps.items()):
            left = pad + number * (slot + pad)
            figure.figimage(each, left, whole[1] - 2 * pad - height)
            write(left, 1.5 * pad, title, 9)
        write(pad + bar.shape[1] + pad // 2, height + 3 * pad - bar.shape[0] / 2, f"{kilometres:g} km", 8)
        figure.figimage(bar, pad, whole[1] - height - 3 * pad)
        handles = [Patch(color=colour, label=name) for _, colour, name in FUELS] + [Patch(color="black", label="break")]
        at = (2 * pad + slot) / whole[0], (whole[1] - height - 3 * pad) / whole[1]
        style: dict[str, Any] = {"ncols": len(handles), "frameon": False, "fontsize": 8, "labelcolor": INK}
        figure.legend(handles=handles, loc="center left", bbox_to_anchor=at, borderaxespad=0, **style)

    return draw_figure(draw, *whole, 100 * unit)


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
        require_range("every_n_epochs of BreaksPlot", every_n_epochs, least=1, whole=True)
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
        epoch, folder = trainer.current_epoch, Folder(trainer.default_root_dir) / FOLDERS["validation"]
        new = int(pl_module.champion_generation) == pl_module.generation
        # without a champion, or in another folder than its, there are none
        due = (epoch + 1) % self.every_n_epochs == 0 and (folder.path / PLACEMENTS_FILE).is_file()
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
