"""Terrain, fuel and canopy on a grid of square cells: given ones are checked, synthetic ones made up."""

from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from eigen2.errors import UserError, require_range
from eigen2.fire.landscapes.fuels import NON_BURNABLE, require_known

MEAN_SLOPE = 0.25
"""Of synthetic landscapes, rise over run; a scene of real mountains had 0.19."""
LAKES = 0.03
"""Share of a synthetic landscape's cells under water."""
LADDER = (101, 102, 104, 122, 145, 165, 183, 188)
"""Fuel models of synthetic landscapes, from the sparsest vegetation to the densest: grass, shrub, timber."""
TIMBER = 165
"""From here on, the ladder has trees."""

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
"""What the landscapes of a run are for."""

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
    """What a fire finds; nobody can change it, as its arrays are read-only copies of those given.

    All arrays are (rows, columns), float32, but int16 for fuel. Row 0 is the northern edge, column 0 the western one.

    Args:
        elevation: in m.
        slope: rise over run (0 or more).
        aspect: the direction the slope faces, which is downhill, in degrees clockwise from north (0 to 360).
        fuel: numbers of fuel models, one of `eigen2.fire.landscapes.fuels.FUEL_MODELS` or `NON_BURNABLE`.
        canopy_cover: share of the ground under trees (0 to 1). No canopy layer affects a surface fire as
            `eigen2.fire.simulation.spread` has it; they are there for other fire models, and to be looked at.
        canopy_height: in m.
        canopy_base_height: height of the lowest branches, in m.
        canopy_bulk_density: in kg/m3.
        cell_size: a cell's edge, in m (above 0).

    Raises:
        UserError: a layer has another shape than elevation, holds a value outside its range, or an unknown fuel model.
    """

    elevation: NDArray[Any]
    slope: NDArray[Any]
    aspect: NDArray[Any]
    fuel: NDArray[Any]
    canopy_cover: NDArray[Any]
    canopy_height: NDArray[Any]
    canopy_base_height: NDArray[Any]
    canopy_bulk_density: NDArray[Any]
    cell_size: float = 30.0

    def __post_init__(self) -> None:
        require_range("landscape.cell_size", self.cell_size, above=0)
        for name in self.layers():
            object.__setattr__(self, name, self._checked(name, np.asarray(getattr(self, name))))

    def _checked(self, name: str, given: NDArray[Any]) -> NDArray[Any]:
        """A read-only copy of a layer."""
        shape = np.shape(self.elevation)
        if len(shape) != 2 or 0 in shape:
            raise UserError(f"landscape.elevation has shape {shape}; it must have rows and columns")
        if given.shape != shape:
            raise UserError(f"landscape.{name} has shape {given.shape}; it must be elevation's {shape}")
        if name in RANGES:
            least, most, unit = RANGES[name]
            wrong = given[~((given >= least) & (given <= most))]
            if wrong.size:
                raise UserError(f"landscape.{name} holds {wrong[0]}; it must be {least} to {most}, {unit}")
        elif not np.issubdtype(given.dtype, np.integer):
            raise UserError(f"landscape.{name} has dtype {given.dtype}; give the numbers of fuel models as integers")
        else:
            require_known(np.unique(given).tolist())
        copy = given.astype(np.float32 if name in RANGES else np.int16)
        copy.flags.writeable = False
        return copy

    def __reduce__(self) -> tuple[type["Landscape"], tuple[Any, ...]]:
        """In another process it is read-only too."""
        return Landscape, tuple(getattr(self, field.name) for field in fields(self))

    @classmethod
    def layers(cls) -> list[str]:
        """Names of the arrays."""
        return [field.name for field in fields(cls) if field.name != "cell_size"]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.fuel.shape
        return rows, columns

    @property
    def nbytes(self) -> int:
        """Bytes of all layers."""
        return sum(getattr(self, name).nbytes for name in self.layers())


def flat(shape: tuple[int, int], fuel: int = 101, cell_size: float = 30.0) -> Landscape:
    """Level ground without trees and with one fuel model.

    Args:
        shape: rows and columns (1 or more each).
        fuel: number of the fuel model.
        cell_size: a cell's edge, in m (above 0).
    """
    layers: dict[str, Any] = {name: np.zeros(shape, np.float32) for name in Landscape.layers()}
    layers["fuel"] = np.full(shape, fuel, np.int16)
    return Landscape(**layers, cell_size=cell_size)


def slopes(
    elevation: Float64[np.ndarray, "rows columns"], cell_size: float
) -> tuple[Float64[np.ndarray, "rows columns"], Float64[np.ndarray, "rows columns"]]:
    """Slope (rise over run) and aspect (degrees clockwise from north, downhill); 2 cells or more a side."""
    south, east = np.gradient(elevation, cell_size)
    aspect = np.degrees(np.arctan2(-east, south)) % 360  # downhill is (-east, +south) in (east, north)
    return np.hypot(south, east), aspect


def synthesize(size: int, rng: np.random.Generator, cell_size: float = 30.0) -> Landscape:
    """Make up a landscape: hills, lakes in the lowest places, and vegetation from sparse grass to closed timber.

    Elevation and vegetation are Gaussian random fields with spectra like those of real ones. Slope and aspect are those
    of the elevation; each fuel of the ladder covers an equal share of the land; the canopy goes with the vegetation.

    Args:
        size: rows, and columns (4 or more).
        rng: the only source of chance.
        cell_size: a cell's edge, in m (above 0).

    Raises:
        UserError: the size is too small.
    """
    require_range("landscape size", size, least=4)
    require_range("landscape.cell_size", cell_size, above=0)
    height, density = _field(size, 4, rng), _field(size, 3, rng)
    surface = np.quantile(height, LAKES)
    height = np.maximum(height, surface) - surface
    height *= MEAN_SLOPE / slopes(height, cell_size)[0].mean()
    slope, aspect = slopes(height, cell_size)

    rank = density.argsort(axis=None).argsort().reshape(size, size) / size**2
    fuel = np.array(LADDER)[(rank * len(LADDER)).astype(int)]
    first = LADDER.index(TIMBER) / len(LADDER)
    trees = np.clip((rank - first) / (1 - first), 0, 1)  # how far up in the timber
    wooded = rank >= first
    lake = height <= 0
    fuel[lake] = next(number for number, what in NON_BURNABLE.items() if what == "water")
    wooded &= ~lake
    tall = wooded * (8 + 20 * trees)
    return Landscape(
        elevation=(500 + height).astype(np.float32),
        slope=slope.astype(np.float32),
        aspect=aspect.astype(np.float32),
        fuel=fuel.astype(np.int16),
        canopy_cover=(wooded * (0.3 + 0.5 * trees)).astype(np.float32),
        canopy_height=tall.astype(np.float32),
        canopy_base_height=(0.2 * tall).astype(np.float32),
        canopy_bulk_density=(wooded * (0.05 + 0.1 * trees)).astype(np.float32),
        cell_size=cell_size,
    )


def synthetic(size: int, seed: int, number: int, split: Split | None = None) -> Landscape:
    """One of a series of synthetic landscapes, the same by every call.

    Args:
        size: rows, and columns (4 or more).
        seed: of the series (0 or more).
        number: in the series (0 or more).
        split: of a run, each of which has a series of its own; None takes the series of `FuelBreakEnv`.
    """
    place = [] if split is None else [SPLITS.index(split)]
    return synthesize(size, np.random.default_rng([seed, *place, number]))


def _field(size: int, power: float, rng: np.random.Generator) -> Float64[np.ndarray, "size size"]:
    """A Gaussian random field whose power falls with the given power of the frequency.

    It is cut from one of twice the size, whose edges meet: those of the cut do not.
    """
    double = 2 * size
    frequency = np.hypot(np.fft.fftfreq(double)[:, None], np.fft.rfftfreq(double)[None, :])
    frequency[0, 0] = np.inf
    noise = np.fft.rfft2(rng.standard_normal((double, double)))
    whole: Float64[np.ndarray, "double double"] = np.fft.irfft2(noise * frequency ** (-power / 2), s=(double, double))
    return whole[:size, :size]
