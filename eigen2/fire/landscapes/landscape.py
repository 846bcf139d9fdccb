"""Terrain, fuel and canopy on a grid of square cells, from arrays or synthetic."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from eigen2.errors import UserError, require_range
from eigen2.fire.landscapes.fuels import WATER, require_known

MEAN_SLOPE = 0.25  # mean slope of synthetic landscapes, rise over run; a scene of real mountains had 0.19
LAKES = 0.03  # share of a synthetic landscape's cells under water
LADDER = (101, 102, 104, 122, 145, 165, 183, 188)
"""Fuel models of synthetic landscapes, from the sparsest vegetation to the densest: grass, shrub, timber."""
TIMBER = 165  # first fuel model of the ladder that has trees
Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

RANGES = {
    "elevation": (-500, 9000, "metres"),
    "slope": (0, 20, "rise over run"),
    "aspect": (0, 360, "degrees clockwise from north"),
    "canopy_cover": (0, 1, "a fraction, not percent"),
    "canopy_height": (0, 150, "metres"),
    "canopy_base_height": (0, 150, "metres"),
    "canopy_bulk_density": (0, 5, "kg/m3"),
}
"""Least and largest value of each layer, and its unit."""


@dataclass(frozen=True, eq=False)
class Landscape:
    """Layers of a landscape, as read-only copies; raises UserError for values outside `RANGES`.

    All layers are (rows, columns) float32, fuel int16. Row 0 is the northern edge, column 0 the western one.
    The surface fires of `simulation.spread` ignore the canopy, which serves other fire models.
    """

    elevation: NDArray[Any]
    slope: NDArray[Any]
    aspect: NDArray[Any]  # direction the slope faces, downhill
    fuel: NDArray[Any]  # numbers of `fuels.FUEL_MODELS` or `fuels.NON_BURNABLE`
    canopy_cover: NDArray[Any]  # share of the ground under trees
    canopy_height: NDArray[Any]
    canopy_base_height: NDArray[Any]  # height of the lowest branches
    canopy_bulk_density: NDArray[Any]
    cell_size: float = 30.0  # edge of a cell, in m (above 0)

    def __post_init__(self) -> None:
        require_range("landscape.cell_size", self.cell_size, above=0)
        shape = np.shape(self.elevation)
        if len(shape) != 2 or 0 in shape:
            raise UserError(f"landscape.elevation has shape {shape}; it must have rows and columns")
        for name, layer in self.layers().items():
            object.__setattr__(self, name, _checked_copy(name, np.asarray(layer), shape))

    def layers(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        return {name: layer for name, layer in vars(self).items() if name != "cell_size"}

    @property
    def shape(self) -> tuple[int, int]:
        """Return rows and columns."""
        rows, columns = self.fuel.shape
        return rows, columns


def _checked_copy(name: str, layer: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    if layer.shape != shape:
        raise UserError(f"landscape.{name} has shape {layer.shape}; it must be elevation's {shape}")
    if name == "fuel":
        if not np.issubdtype(layer.dtype, np.integer):
            raise UserError(f"landscape.fuel has dtype {layer.dtype}; give the numbers of fuel models as integers")
        require_known(np.unique(layer).tolist())
    else:
        least, most, unit = RANGES[name]
        if (wrong := layer[~((layer >= least) & (layer <= most))]).size:
            raise UserError(f"landscape.{name} holds {wrong[0]}; it must be {least} to {most}, {unit}")
    copy = layer.astype(np.float32 if name in RANGES else np.int16)
    copy.flags.writeable = False
    return copy


def slopes(
    elevation: Float64[np.ndarray, "rows columns"], cell_size: float
) -> tuple[Float64[np.ndarray, "rows columns"], Float64[np.ndarray, "rows columns"]]:
    """Return slope (rise over run) and aspect (degrees clockwise from north, downhill) of 2 x 2 cells or more."""
    south, east = np.gradient(elevation, cell_size)
    aspect = np.degrees(np.arctan2(-east, south)) % 360  # downhill is (-east, +south) in (east, north)
    return np.hypot(south, east), aspect


def synthesize(size: int, rng: np.random.Generator) -> Landscape:
    """Make a synthetic landscape of `size` rows and columns (4 or more) of hills, lakes, grass, shrub and timber.

    Elevation and vegetation are Gaussian random fields with spectra like those of real ones; each fuel of the ladder
    covers an equal share of the land; the canopy follows the vegetation.
    """
    require_range("grid_size", size, least=4)
    height, density = _random_field(size, 4, rng), _random_field(size, 3, rng)
    surface = np.quantile(height, LAKES)
    height = np.maximum(height, surface) - surface
    height *= MEAN_SLOPE / slopes(height, 30.0)[0].mean()
    slope, aspect = slopes(height, 30.0)

    rank = density.argsort(axis=None).argsort().reshape(size, size) / size**2
    fuel = np.array(LADDER)[(rank * len(LADDER)).astype(int)]
    first = LADDER.index(TIMBER) / len(LADDER)
    growth = np.clip((rank - first) / (1 - first), 0, 1)  # from the sparsest timber to the densest
    lake = height <= 0
    fuel[lake] = WATER
    wooded = (rank >= first) & ~lake
    tall = wooded * (8 + 20 * growth)
    return Landscape(
        elevation=500 + height,
        slope=slope,
        aspect=aspect,
        fuel=fuel,
        canopy_cover=wooded * (0.3 + 0.5 * growth),
        canopy_height=tall,
        canopy_base_height=0.2 * tall,
        canopy_bulk_density=wooded * (0.05 + 0.1 * growth),
    )


def synthetic(size: int, seed: int, number: int, split: Split | None = None) -> Landscape:
    """Return a landscape of the series that `seed` determines for a split, or, with None, for `FuelBreakEnv`."""
    part = [] if split is None else [SPLITS.index(split)]
    return synthesize(size, np.random.default_rng([seed, *part, number]))


def _random_field(size: int, power: float, rng: np.random.Generator) -> Float64[np.ndarray, "size size"]:
    """Return a Gaussian random field whose spectral power falls with a power of the frequency; edges do not match."""
    double = 2 * size
    frequency = np.hypot(np.fft.fftfreq(double)[:, None], np.fft.rfftfreq(double)[None, :])
    frequency[0, 0] = np.inf
    noise = np.fft.rfft2(rng.standard_normal((double, double)))
    whole: Float64[np.ndarray, "double double"] = np.fft.irfft2(noise * frequency ** (-power / 2), s=(double, double))
    return whole[:size, :size]
