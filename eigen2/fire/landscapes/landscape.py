"""Terrain, fuel and canopy on a grid of square cells, from arrays or synthetic."""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from eigen2.errors import UserError, require_range
from eigen2.fire.landscapes.fuels import NON_BURNABLE, WATER, require_known

TIMBER = 161  # first fuel model with trees
Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
Series = Split | Literal["environment"]
SERIES: tuple[Series, ...] = (*SPLITS, "environment")

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


@dataclass(frozen=True)
class Terrain:
    """Statistics that synthetic landscapes are made to; `eigen2.fire.evaluation.terrain` fits them to a region.

    Args:
        fuel: share of the cells by fuel model, without water (0 or more each, in all above 0; scaled to a sum of 1).
        water: share of the cells in lakes, in the lowest ground (0 to below 1).
        slope: mean slope, rise over run (above 0, at most 2; mountains have 0.2 to 0.5).
        patchiness: how fast the spectral power of the vegetation falls with the frequency (0 or more); at 0 each cell
            is of its own, and patches grow with it.
    """

    fuel: dict[int, float] = field(
        default_factory=lambda: dict.fromkeys((101, 102, 104, 122, 145, 165, 183, 188), 0.125)
    )
    water: float = 0.03
    slope: float = 0.25  # a scene of real mountains had 0.19
    patchiness: float = 3.0
    cell_size: float = 30.0

    def __post_init__(self) -> None:
        require_known(self.fuel)
        for model, share in self.fuel.items():
            require_range(f"terrain.fuel.{model}", share, least=0, most=1e9)
        if not any(share for model, share in self.fuel.items() if model not in NON_BURNABLE):
            raise UserError("terrain.fuel has no model that burns with a share above 0; give one")
        require_range("terrain.water", self.water, least=0, below=1)
        require_range("terrain.slope", self.slope, above=0, most=2)  # a single cell may have 20
        require_range("terrain.patchiness", self.patchiness, least=0, most=10)
        require_range("terrain.cell_size", self.cell_size, above=0)


def synthesize(size: int, rng: np.random.Generator, terrain: Terrain | None = None) -> Landscape:
    """Make a synthetic landscape of `size` rows and columns (4 or more) of hills, lakes, grass, shrub and timber.

    Elevation and vegetation are Gaussian random fields with spectra like those of real ones. Fuel models follow the
    vegetation in the order of their numbers, which is from bare ground to timber and slash; so does the canopy.
    """
    require_range("grid_size", size, least=4, whole=True)
    terrain = terrain or Terrain()
    height, density = _random_field(size, 4, rng), _random_field(size, terrain.patchiness, rng)
    surface = np.quantile(height, terrain.water)
    height = np.maximum(height, surface) - surface
    height *= terrain.slope / slopes(height, terrain.cell_size)[0].mean()
    slope, aspect = slopes(height, terrain.cell_size)

    rank = density.argsort(axis=None).argsort().reshape(size, size) / size**2
    models = sorted(terrain.fuel)
    bounds = np.cumsum([terrain.fuel[model] for model in models])
    bounds /= bounds[-1]
    fuel = np.array(models)[np.searchsorted(bounds, rank, side="right")]
    first = np.concatenate([[0.0], bounds])[np.searchsorted(models, TIMBER)]
    growth = np.clip((rank - first) / max(1 - first, 1 / size**2), 0, 1)  # from the sparsest timber to the densest
    lake = (height <= 0) & (terrain.water > 0)
    fuel[lake] = WATER
    wooded = fuel >= TIMBER
    tall = wooded * (8 + 20 * growth)
    layers = dict(
        elevation=500 + height,
        slope=slope,
        aspect=aspect,
        fuel=fuel,
        canopy_cover=wooded * (0.3 + 0.5 * growth),
        canopy_height=tall,
        canopy_base_height=0.2 * tall,
        canopy_bulk_density=wooded * (0.05 + 0.1 * growth),
    )
    try:
        return Landscape(**layers, cell_size=terrain.cell_size)
    except UserError as error:
        raise UserError(f"terrain makes {error}; lower its slope, water or cell_size") from error


def synthetic(
    size: int,
    seed: int,
    number: int,
    split: Series | None = None,
    terrain: Terrain | None = None,
) -> Landscape:
    """Return a landscape of the series that `seed` determines for a split of a run, or for `FuelBreakEnv`.

    None is a series on which nothing is trained: its landscapes 0 to 3 are the first of each of the others.
    """
    part = [] if split is None else [SERIES.index(split)]
    return synthesize(size, np.random.default_rng([seed, *part, number]), terrain)


def _random_field(size: int, power: float, rng: np.random.Generator) -> Float64[np.ndarray, "size size"]:
    """Return a Gaussian random field whose spectral power falls with a power of the frequency; edges do not match."""
    double = 2 * size
    frequency = np.hypot(np.fft.fftfreq(double)[:, None], np.fft.rfftfreq(double)[None, :])
    frequency[0, 0] = np.inf
    noise = np.fft.rfft2(rng.standard_normal((double, double)))
    whole: Float64[np.ndarray, "double double"] = np.fft.irfft2(noise * frequency ** (-power / 2), s=(double, double))
    return whole[:size, :size]
