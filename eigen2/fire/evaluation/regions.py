"""Fuel breaks in a whole region, placed tile by tile by the agent, and their files for a GIS."""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64
from torch import Tensor, nn

from eigen2.errors import UserError, require_range
from eigen2.files import replacing, write
from eigen2.fire.landscapes.fuels import BARE, NON_BURNABLE
from eigen2.fire.landscapes.landscape import Landscape
from eigen2.fire.landscapes.rasters import Region
from eigen2.fire.networks import downstream_share
from eigen2.fire.simulation.environment import observe, rate_planes
from eigen2.fire.simulation.frames import symmetric_values
from eigen2.fire.simulation.spread import FireModel, Weather

log = logging.getLogger(__name__)

MISSING = 255  # in the raster of breaks, where the region lacks data
VALUE_STEPS = 10_000  # whole steps in which the values of a window count, for exact sums; the least is one step
CELLS_AT_ONCE = 16_000_000  # cells times fires that `judge` holds at a time, if it holds more than one fire
REGION_BYTES = 300  # per cell of a region: rasters, rates of spread, the graph and the search of its shortest paths
FIRE_BYTES = 14  # per fire and cell: arrival times in two precisions
TREE_BYTES = 90  # per fire and cell of a window: the sizes of shortest-path trees, while they are computed


@dataclass(frozen=True)
class Wind:
    """A wind and how often it blows.

    Args:
        wind_speed: wind speed 10 m above the vegetation, in km/h (0 to 200).
        wind_from: direction the wind blows from, in degrees clockwise from north (0 to 360).
        weight: how often it blows, relative to the other winds (above 0).
    """

    wind_speed: float
    wind_from: float
    weight: float = 1.0

    def __post_init__(self) -> None:
        require_range("weight", self.weight, above=0, most=1e9)
        self.weather()

    def weather(self) -> Weather:
        """Return the weather of this wind; raise UserError if it is out of range."""
        return Weather(self.wind_speed, self.wind_from)


@dataclass(frozen=True)
class Plan:
    """How to place breaks in a region; raises UserError if a value is out of range.

    A tile of `tile` x `tile` cells gets its breaks from fires in a window that reaches `margin` cells farther, so that
    fires cross the edges of tiles; breaks of the tiles before it do not burn. Fires take the memory of one window.
    """

    budget: float  # cost of all breaks over that of all cells that burn; without costs, the share of these cells
    duration: float = 240.0  # minutes that a fire burns
    winds: tuple[Wind, ...] = (Wind(15.0, 270.0),)  # each blows over the same fires
    fires: int = 256  # in random cells of each window
    tile: int = 48
    margin: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        require_range("budget", self.budget, above=0, most=1)
        require_range("duration", self.duration, above=0, most=1e9)
        require_range("number of winds", len(self.winds), least=1)
        require_range("fires", self.fires, least=1, whole=True)
        require_range("tile", self.tile, least=4, whole=True)
        require_range("margin", self.margin, least=0, whole=True)
        require_range("seed", self.seed, least=0, whole=True)

    @property
    def weights(self) -> Float64[np.ndarray, " winds"]:
        """Return the weights of the winds, which sum to 1."""
        weights = np.array([wind.weight for wind in self.winds])
        return weights / weights.sum()


class Tile(NamedTuple):
    """A tile of a region, and the window whose fires count for it, as slices of rows and columns."""

    cells: tuple[slice, slice]
    window: tuple[slice, slice]
    inside: tuple[slice, slice]  # the tile in the window

    @classmethod
    def all(cls, shape: tuple[int, ...], plan: Plan) -> list["Tile"]:
        """Return the tiles of a region, row by row."""

        def spans(size: int) -> Iterator[tuple[slice, slice, slice]]:
            for first in range(0, size, plan.tile):
                start, end = max(first - plan.margin, 0), first + plan.tile
                yield slice(first, end), slice(start, end + plan.margin), slice(first - start, end - start)

        return [cls(*zip(row, column, strict=True)) for row, column in product(*map(spans, shape))]


def needed_bytes(cells: int, plan: Plan) -> dict[str, int]:
    """Return the bytes that reading, placing and judging take at most in a region of so many cells, by owner."""
    window = min((plan.tile + 2 * plan.margin) ** 2, cells)
    placed = plan.fires * window * (TREE_BYTES + FIRE_BYTES * len(plan.winds))
    judged = min(plan.fires * cells, max(CELLS_AT_ONCE, cells)) * FIRE_BYTES
    return {"region": REGION_BYTES * cells, "fires": max(placed, judged)}


def place(
    region: Region,
    network: nn.Module,
    plan: Plan,
    costs: Float64[np.ndarray, "rows columns"] | None = None,
    barred: Bool[np.ndarray, "rows columns"] | None = None,
    values: Float64[np.ndarray, "rows columns"] | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> Bool[np.ndarray, "rows columns"]:
    """Return where to place breaks, tile by tile; `progress` is called with the share of tiles done.

    A tile's part of the budget is in proportion to the cost of its cells that burn or, with `values`, to the value that
    fires in its window burn without breaks, but at most what its cells cost; what it does not spend goes to the next.
    Of the cells that it can pay for, the network's value above the lowest of the window, divided by the cell's cost,
    decides; a tile in which `downstream_share` in place of the network saves more gets the breaks of that. It spends
    nothing once no fire burns a cell of some value, 0 or more. No break is placed where `barred`, or the cost is NaN.
    Raises UserError if nothing burns, no break is allowed, or the budget is below what any costs.
    """
    breaks = np.zeros(region.missing.shape, bool)
    costs = np.ones(breaks.shape) if costs is None else costs
    burnable = ~np.isin(region.landscape.fuel, NON_BURNABLE)
    counted = burnable & np.isfinite(costs)
    allowed = counted if barred is None else counted & ~barred
    if not burnable.any():
        raise UserError("nothing burns in the region; look at its fuel")
    if not allowed.any():
        raise UserError("no cell that burns may become a break: all are barred or without a cost; look at both rasters")
    if plan.budget * (total := float(costs[counted].sum())) + 1e-9 < (least := float(costs[allowed].min())):
        needed = f"{1.0005 * least / total:.4g}"  # rounded up
        raise UserError(f"budget is {plan.budget:g}, which pays for no break; it must be at least {needed}")
    tiles = [tile for tile in Tile.all(breaks.shape, plan) if allowed[tile.cells].any()]
    if values is None:
        parts = np.array([costs[tile.cells][counted[tile.cells]].sum() for tile in tiles])
    else:
        parts = np.array([_at_risk(region, tile, plan, values) for tile in tiles])
    room = np.array([costs[tile.cells][allowed[tile.cells]].sum() for tile in tiles])
    purse, shares = 0.0, shares_of(plan.budget * float(costs[counted].sum()), parts, room)
    for number, (tile, share) in enumerate(zip(tiles, shares.tolist(), strict=True), 1):
        purse += share
        candidates = np.zeros_like(breaks[tile.window])
        candidates[tile.inside] = allowed[tile.cells]
        models = _models(region, tile, plan, breaks, values)
        flat = candidates.reshape(-1), costs[tile.window].reshape(-1)
        chosen = _place_tile(models, *flat, purse, network, plan).reshape(candidates.shape)
        breaks[tile.window] |= chosen
        purse -= float(costs[tile.window][chosen].sum())
        progress(number / len(tiles))
    return breaks


def shares_of(
    budget: float, parts: Float64[np.ndarray, " tiles"], room: Float64[np.ndarray, " tiles"]
) -> Float64[np.ndarray, " tiles"]:
    """Return what each tile may spend: in proportion to its part, at most its room, and together all that there is."""
    shares, free = np.zeros_like(parts), np.ones(len(parts), bool)
    while (weight := parts[free].sum()) > 0:
        shares[free] = (budget - shares[~free].sum()) * (parts[free] / weight)
        if not (full := free & (shares > room)).any():
            break
        shares[full] = room[full]
        free &= ~full
    return shares


def _models(
    region: Region,
    tile: Tile,
    plan: Plan,
    breaks: Bool[np.ndarray, "rows columns"],
    values: Float64[np.ndarray, "rows columns"] | None,
) -> list[FireModel]:
    """Return the fire model of each wind in a tile's window, where breaks do not burn; values count in whole steps."""
    layers = {name: layer[tile.window] for name, layer in region.landscape.layers().items()}
    layers["fuel"] = np.where(breaks[tile.window], BARE, layers["fuel"]).astype(np.int16)
    landscape = Landscape(**layers, cell_size=region.landscape.cell_size)
    steps = None
    if values is not None:
        # a value that cannot burn must not make the steps of the others coarse
        own = np.where(np.isin(layers["fuel"], NON_BURNABLE), 0.0, values[tile.window]).reshape(-1)
        steps = np.ceil(own * (VALUE_STEPS / (own.max() or 1.0))).astype(np.int64)
    return [FireModel.of(landscape, wind.weather(), plan.duration, steps) for wind in plan.winds]


def _at_risk(region: Region, tile: Tile, plan: Plan, values: Float64[np.ndarray, "rows columns"]) -> float:
    """Return the value that fires from every cell of a tile's window burn without breaks, estimated by those drawn."""
    own, none = values[tile.window].reshape(-1), np.zeros(values.shape, bool)
    if not own.any():
        return 0.0
    burned = 0.0
    for model, weight in zip(_models(region, tile, plan, none, None), plan.weights.tolist(), strict=True):
        fires = model.start(model.draw(plan.fires, np.random.default_rng(plan.seed)))
        burned += weight * float(fires.frequency @ own) * int(model.burnable.sum())
    return burned


def _place_tile(
    models: Sequence[FireModel],
    candidates: Bool[np.ndarray, " cells"],
    costs: Float64[np.ndarray, " cells"],
    purse: float,
    network: nn.Module,
    plan: Plan,
) -> Bool[np.ndarray, " cells"]:
    """Return the candidates of a window chosen as breaks, as long as the purse pays for one.

    They are the network's, or those of `downstream_share`, the baseline `adaptive_downstream`, if these save more.
    """
    valued = (lambda seen: symmetric_values(network, seen)), (lambda seen: downstream_share(seen).flatten(1))
    chosen = [_place_by(values, models, candidates, costs, purse, plan) for values in valued]
    return min(chosen, key=lambda placed: placed.lost).cells


class Placed(NamedTuple):
    """Breaks of a window, and the value that its fires burn with them."""

    cells: Bool[np.ndarray, " cells"]
    lost: float


def _place_by(
    values_of: Callable[[Tensor], Tensor],
    models: Sequence[FireModel],
    candidates: Bool[np.ndarray, " cells"],
    costs: Float64[np.ndarray, " cells"],
    purse: float,
    plan: Plan,
) -> Placed:
    """Return the candidates of the highest values, each given the breaks before it."""
    open_to, chosen = candidates & models[0].burnable, np.zeros(candidates.shape, bool)
    payable_at_most = int(np.searchsorted(np.sort(costs[open_to]).cumsum(), purse + 1e-9, side="right"))
    if not payable_at_most:
        return Placed(chosen, 0.0)
    weights, rates = plan.weights.tolist(), rate_planes(models, plan.weights.tolist())
    ignitions = models[0].draw(plan.fires, np.random.default_rng(plan.seed))
    fires = [model.start(ignitions, trees=True) for model in models]
    for placed in range(payable_at_most):
        payable = open_to & ~chosen & (costs <= purse + 1e-9)
        if not payable.any() or not any(each.lost for each in fires):
            break
        observation = observe(rates, (payable_at_most - placed) / payable_at_most, fires, weights)
        with torch.inference_mode():
            values = values_of(torch.from_numpy(observation[None]))[0].double().numpy()
        burns = models[0].burnable & ~chosen
        worth = (values - values[burns].min()) / np.where(payable, costs, 1.0)
        cell = int(np.where(payable, worth, -np.inf).argmax())
        for each in fires:
            each.add_break(cell)
        chosen[cell] = True
        purse -= float(costs[cell])
    return Placed(chosen, sum(weight * each.lost for weight, each in zip(weights, fires, strict=True)))


class Losses(NamedTuple):
    """What each fire burns without and with breaks, and the probability of each fire."""

    before: Float64[np.ndarray, " fires"]
    after: Float64[np.ndarray, " fires"]
    weights: Float64[np.ndarray, " fires"]  # sum to 1
    burned: Float32[np.ndarray, "2 rows columns"]  # probability that a fire burns a cell, without and with breaks


def judge(
    region: Region,
    breaks: Bool[np.ndarray, "rows columns"],
    plan: Plan,
    values: Float64[np.ndarray, "rows columns"] | None = None,
) -> Losses:
    """Burn `plan.fires` fires in each wind, in random cells of the whole region, other fires than those of `place`.

    A loss is the sum of the values of the cells that a fire burns; without values, the number of cells.
    """
    worth = np.ones(breaks.size) if values is None else values.reshape(-1)
    placed: list[list[int]] = [[], np.flatnonzero(breaks).tolist()]
    burned = np.zeros((2, breaks.size), np.float32)
    losses: tuple[list[float], list[float]] = [], []
    for wind, weight in zip(plan.winds, plan.weights.tolist(), strict=True):
        model = FireModel.of(region.landscape, wind.weather(), plan.duration)
        ignitions = model.draw(plan.fires, np.random.default_rng([plan.seed, 1]))
        parts = min(ignitions.size, -(-ignitions.size * breaks.size // CELLS_AT_ONCE))
        for part in np.array_split(ignitions, parts):
            for which, cells in enumerate(placed):
                fires = model.start(part, cells)
                losses[which].extend(worth[np.isfinite(arrival)].sum() for arrival in fires.arrival)
                burned[which] += fires.burns * (weight / ignitions.size)
                del fires
    before, after = np.array(losses)
    weights = np.repeat(plan.weights / ignitions.size, ignitions.size)
    return Losses(before, after, weights, burned.reshape(2, *breaks.shape))


def tail_mean(losses: Float64[np.ndarray, " fires"], weights: Float64[np.ndarray, " fires"], share: float) -> float:
    """Return the mean of the largest losses that together have a share of the probability: CVaR; the mean if 1."""
    order = np.argsort(-losses, kind="stable")
    taken = np.diff(np.minimum(weights[order].cumsum(), share), prepend=0.0)
    return float(losses[order] @ taken / taken.sum())


def write_breaks(output: Path, region: Region, breaks: Bool[np.ndarray, "rows columns"]) -> None:
    """Write breaks as a GeoTIFF, 1 in a break, and as GeoJSON of their outlines beside it.

    Both have the region's projection; GeoJSON names it by its number of EPSG, else of ESRI, as QGIS and GDAL read it.
    Where it has none a warning says so.
    Raises UserError if a file cannot be written.
    """
    import rasterio
    from rasterio import features

    shape = {"count": 1, "height": breaks.shape[0], "width": breaks.shape[1], "dtype": "uint8", "nodata": MISSING}
    values = np.where(region.missing, MISSING, breaks).astype(np.uint8)
    mask = breaks.astype(np.uint8)
    outlines = features.shapes(mask, mask=breaks, connectivity=4, transform=region.transform)
    outline_file = output.with_suffix(".geojson")
    head: dict[str, Any] = {"type": "FeatureCollection", "name": output.stem}
    if region.crs is not None:
        number = region.crs.to_epsg()
        authority = region.crs.to_authority() if number is None else ("EPSG", str(number))
        if authority is None:
            log.warning("%s names no projection: that of the elevation has no number of an authority", outline_file)
        else:
            head["crs"] = {"type": "name", "properties": {"name": "urn:ogc:def:crs:{}::{}".format(*authority)}}
    feature = {"type": "Feature", "properties": {}}  # as text at once: the lists of many outlines take far more memory
    parts = ", ".join(json.dumps({**feature, "geometry": outline}) for outline, _ in outlines)
    grid = {"driver": "GTiff", "crs": region.crs, "transform": region.transform, "compress": "deflate"}
    try:
        with replacing(output) as draft, rasterio.open(draft, "w", **shape, **grid) as file:
            file.write(values, 1)
        write(outline_file, f'{json.dumps(head)[:-1]}, "features": [{parts}]}}\n')
    except (OSError, rasterio.errors.RasterioError) as error:
        raise UserError(f"{output} or {outline_file} cannot be written ({error}); name another file") from error
