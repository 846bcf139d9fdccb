"""Fuel breaks in a whole region, placed tile by tile by the agent, and their files for a GIS."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64
from torch import nn

from eigen2.errors import UserError, require_range
from eigen2.files import replacing, write
from eigen2.fire.landscapes.fuels import BARE, NON_BURNABLE
from eigen2.fire.landscapes.landscape import Landscape
from eigen2.fire.landscapes.rasters import Region
from eigen2.fire.simulation.environment import FuelBreakEnv

MISSING = 255  # in the raster of breaks, where the region lacks data


@dataclass(frozen=True)
class Plan:
    """How to place breaks in a region; raises UserError if a value is out of range.

    A tile of `tile` x `tile` cells gets its breaks from fires in a window that reaches `margin` cells farther, so that
    fires cross the edges of tiles; breaks of the tiles before it do not burn. Fires take the memory of one window.
    """

    budget: float  # cost of all breaks over that of all cells that burn; without costs, the share of these cells
    duration: float = 240.0  # minutes that a fire burns
    wind_speed: float = 15.0  # km/h
    wind_from: float = 270.0  # degrees
    fires: int = 256  # in random cells of each window
    tile: int = 48
    margin: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        require_range("budget", self.budget, above=0, most=1)
        require_range("fires", self.fires, least=1)
        require_range("tile", self.tile, least=4)
        require_range("margin", self.margin, least=0)
        require_range("seed", self.seed, least=0)


def place(
    region: Region,
    network: nn.Module,
    plan: Plan,
    costs: Float64[np.ndarray, "rows columns"] | None = None,
    barred: Bool[np.ndarray, "rows columns"] | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> Bool[np.ndarray, "rows columns"]:
    """Return where to place breaks, tile by tile; `progress` is called with the share of tiles done.

    Of the cells that a tile can pay for, the network's value above the lowest of the window, divided by the cell's
    cost, decides. What a tile does not spend goes to the next. No break is placed where `barred`, or the cost is NaN.
    """
    breaks = np.zeros(region.missing.shape, bool)
    costs = np.ones(breaks.shape) if costs is None else costs
    counted = ~np.isin(region.landscape.fuel, NON_BURNABLE) & np.isfinite(costs)
    allowed = counted if barred is None else counted & ~barred
    height, width = region.landscape.shape
    rows, columns = range(0, height, plan.tile), range(0, width, plan.tile)
    purse = 0.0
    for number, (row, column) in enumerate(product(rows, columns), 1):
        tile = np.s_[row : row + plan.tile, column : column + plan.tile]
        purse += plan.budget * float(costs[tile][counted[tile]].sum())
        top, left = max(row - plan.margin, 0), max(column - plan.margin, 0)
        window = np.s_[top : row + plan.tile + plan.margin, left : column + plan.tile + plan.margin]
        candidates = np.zeros_like(breaks[window])
        inside = np.s_[row - top : row - top + plan.tile, column - left : column - left + plan.tile]
        candidates[inside] = allowed[tile]
        purse -= _place_tile(region.landscape, window, breaks[window], candidates, costs[window], purse, network, plan)
        progress(number / (len(rows) * len(columns)))
    return breaks


def _place_tile(
    landscape: Landscape,
    window: tuple[slice, slice],
    breaks: Bool[np.ndarray, "rows columns"],
    candidates: Bool[np.ndarray, "rows columns"],
    costs: Float64[np.ndarray, "rows columns"],
    purse: float,
    network: nn.Module,
    plan: Plan,
) -> float:
    """Place breaks, in place, in candidates of a window as long as the purse pays for one; return their cost."""
    layers = {name: layer[window] for name, layer in landscape.layers().items()}
    layers["fuel"] = np.where(breaks, BARE, layers["fuel"]).astype(np.int16)
    open_to, price, spent = candidates.reshape(-1), costs.reshape(-1), 0.0
    payable_at_most = np.searchsorted(np.sort(price[open_to]).cumsum(), purse + 1e-9, side="right")
    if payable_at_most == 0:
        return 0.0
    env = FuelBreakEnv(
        landscapes=[Landscape(**layers, cell_size=landscape.cell_size)],
        ignitions=plan.fires,
        fire_simulation_max_duration=plan.duration,
        wind_speed=plan.wind_speed,
        wind_from=plan.wind_from,
    )
    env.budget = int(payable_at_most)
    observation, info = env.reset(seed=plan.seed)
    done = False
    while not done:
        payable = info["action_mask"] & open_to & (price <= purse - spent + 1e-9)
        if not payable.any():
            break
        with torch.inference_mode():
            values = network(torch.from_numpy(observation[None]))[0].double().numpy()
        worth = (values - values[info["action_mask"]].min()) / np.where(payable, price, 1.0)
        cell = int(np.where(payable, worth, -np.inf).argmax())
        observation, _, done, _, info = env.step(cell)
        breaks[divmod(cell, breaks.shape[1])] = True
        spent += float(price[cell])
    return spent


def write_breaks(output: Path, region: Region, breaks: Bool[np.ndarray, "rows columns"]) -> Path:
    """Write breaks as a GeoTIFF, 1 in a break, and as GeoJSON of their outlines beside it, whose path is returned.

    Both have the region's projection; GeoJSON names it by its EPSG number, as QGIS and GDAL read it, where it has one.
    Raises UserError if a file cannot be written.
    """
    import rasterio
    from rasterio import features

    shape = {"count": 1, "height": breaks.shape[0], "width": breaks.shape[1], "dtype": "uint8", "nodata": MISSING}
    values = np.where(region.missing, MISSING, breaks).astype(np.uint8)
    mask = breaks.astype(np.uint8)
    outlines = features.shapes(mask, mask=breaks, connectivity=4, transform=region.transform)
    parts: list[Any] = [{"type": "Feature", "properties": {}, "geometry": outline} for outline, _ in outlines]
    collection: dict[str, Any] = {"type": "FeatureCollection", "name": output.stem, "features": parts}
    if region.crs is not None and (number := region.crs.to_epsg()) is not None:
        collection["crs"] = {"type": "name", "properties": {"name": f"urn:ogc:def:crs:EPSG::{number}"}}
    outline_file = output.with_suffix(".geojson")
    grid = {"driver": "GTiff", "crs": region.crs, "transform": region.transform, "compress": "deflate"}
    try:
        with replacing(output) as draft, rasterio.open(draft, "w", **shape, **grid) as file:
            file.write(values, 1)
        write(outline_file, json.dumps(collection) + "\n")
    except (OSError, rasterio.errors.RasterioError) as error:
        raise UserError(f"{output} or {outline_file} cannot be written ({error}); name another file") from error
    return outline_file
