"""Statistics of a region's ground, to which synthetic landscapes are made."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from eigen2.errors import UserError
from eigen2.fire.landscapes.fuels import NON_BURNABLE, WATER
from eigen2.fire.landscapes.landscape import Landscape, Terrain, synthesize
from eigen2.fire.simulation.spread import FireModel, Weather

PATCHINESS = np.arange(0.0, 5.01, 0.5)  # values tried
LANDSCAPES = 16  # synthetic ones made for each
FIRES = 64  # burnt on each landscape
ALIKE = 1.5  # largest ratio of two burned shares that count as alike


@dataclass(frozen=True)
class Fit:
    """Terrain like a region's, and the share of a landscape's cells that a fire burns there and on landscapes of it."""

    terrain: Terrain
    region: float
    synthetic: float


def fit_terrain(tiles: Sequence[Landscape], weather: Weather, duration: float) -> Fit:
    """Return terrain with the fuel, water and slope of landscapes of a region, on which fires burn as much as there.

    Fuel, water and slope are the means over the tiles, and patchiness is the one of PATCHINESS with which the mean
    burned share is nearest to theirs, by its logarithm, and of equal ones the usual. Raises UserError if nothing burns.

    Args:
        tiles: landscapes of the region, of one size.
        weather: wind and moisture.
        duration: of a fire, in minutes (above 0).
    """
    models, counts = np.unique(np.stack([tile.fuel for tile in tiles]), return_counts=True)
    shares = dict(zip(models.tolist(), (counts / counts.sum()).round(6).tolist(), strict=True))
    water = shares.pop(WATER, 0.0)
    if not shares.keys() - {*NON_BURNABLE}:
        raise UserError("nothing burns in the region's tiles; give another region")
    slope = max(float(np.mean([tile.slope for tile in tiles])), 0.001)
    terrain = Terrain(shares, round(water, 6), round(slope, 6), cell_size=tiles[0].cell_size)
    size = tiles[0].shape[0]

    def burned(landscapes: Sequence[Landscape]) -> float:
        every = [FireModel.of(each, weather, duration) for each in landscapes]
        rng = np.random.default_rng([0, 1])
        return float(np.mean([model.start(model.draw(FIRES, rng)).burned for model in every if model.burnable.any()]))

    wanted = burned(tiles)
    found = {}
    for patchiness in PATCHINESS.tolist():
        tried = replace(terrain, patchiness=patchiness)
        rngs = (np.random.default_rng([0, number]) for number in range(LANDSCAPES))
        found[patchiness] = burned([synthesize(size, rng, tried) for rng in rngs])
    best = min(found, key=lambda each: (abs(np.log(found[each] / wanted)), abs(each - Terrain().patchiness)))
    return Fit(replace(terrain, patchiness=best), wanted, found[best])
