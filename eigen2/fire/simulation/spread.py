"""Fires on a landscape: rates of spread, arrival times, and the effect of fuel breaks.

A fire takes the shortest path: cells are the nodes of a graph, edges lead to the four neighbours, and an edge takes the
minutes that fire needs to cross the cell it leads into. Four neighbours, not eight: a fire must not slip between two
breaks that touch at a corner. A fire burns the cells it reaches within its duration.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int, Int32, Int64
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph

from eigen2.errors import require_range
from eigen2.fire.landscapes.fuels import Moisture, behavior
from eigen2.fire.landscapes.landscape import Landscape

STEPS = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""Rows and columns to the neighbour in the north, east, south and west, the order of directions everywhere."""
DEGREES = (0.0, 90.0, 180.0, 270.0)  # the same, clockwise from north
WIND_AT_20_FEET = 0.87  # wind speed 20 feet above the vegetation over that at 10 m
KM_PER_MILE = 1.609
LONGEST_ELLIPSE = 8.0  # largest length of a fire's ellipse over its width
FIRES_AT_ONCE = 256  # fires computed in one call, which bounds its memory


@dataclass(frozen=True)
class Weather:
    """Weather, constant over the landscape and the duration of a fire."""

    wind_speed: float = 15.0  # 10 m above the vegetation, in km/h (0 to 200)
    wind_from: float = 270.0  # direction the wind comes from, in degrees clockwise from north (0 to 360)
    moisture: Moisture = field(default_factory=Moisture)

    def __post_init__(self) -> None:
        require_range("wind_speed", self.wind_speed, least=0, most=200)
        require_range("wind_from", self.wind_from, least=0, most=360)


def spread_rates(
    landscape: Landscape, weather: Weather | None = None, degrees: Sequence[float] = DEGREES
) -> Float32[np.ndarray, "directions rows columns"]:
    """Return the rate of spread (m/min) in each cell towards each direction; 0 where nothing burns.

    A fire grows as an ellipse with the ignition in a focus (Anderson 1983, as FARSITE uses it: Finney 1998,
    RMRS-RP-4), at most `LONGEST_ELLIPSE` times as long as wide. Wind and slope add as vectors; the effective wind has
    no limit (Andrews, Cruz and Rothermel 2013 advise against Rothermel's).
    """
    weather = weather or Weather()
    models, at = np.unique(landscape.fuel, return_inverse=True)
    fuel = behavior(models.tolist(), weather.moisture)
    rate, slope, wind, exponent, adjustment = (each[at.reshape(landscape.shape)] for each in fuel)

    uphill, downwind = np.radians(landscape.aspect + 180.0), np.radians(weather.wind_from + 180.0)
    climb = slope * landscape.slope.astype(float) ** 2
    push = wind * (adjustment * WIND_AT_20_FEET * weather.wind_speed) ** exponent
    east = climb * np.sin(uphill) + push * np.sin(downwind)
    north = climb * np.cos(uphill) + push * np.cos(downwind)
    phi, heading = np.hypot(east, north), np.arctan2(east, north)

    # mph; the ellipse reaches its longest far below 100
    speed = np.minimum((phi / wind) ** (1 / exponent) / KM_PER_MILE, 100.0)
    ratio = 0.936 * np.exp(0.1147 * speed) + 0.461 * np.exp(-0.0692 * speed) - 0.397
    ratio = np.clip(ratio, 1, LONGEST_ELLIPSE)
    eccentricity = np.sqrt(ratio**2 - 1) / ratio
    slowest = rate * (1 + phi) * (1 - eccentricity)
    rates = np.empty((len(degrees), *landscape.shape), np.float32)
    for towards, angle in enumerate(np.radians(degrees)):
        rates[towards] = slowest / (1 - eccentricity * np.cos(angle - heading))
    return rates


class FireModel:
    """Spread of fire on a landscape without breaks; immutable, so that any number of `Fires` share one.

    A cell burns if all of its `rates`, from `spread_rates`, are above 0; its number is `row * columns + column`. The
    size of a cell is in m, the duration of a fire in minutes (above 0), the graph in minutes from cell to neighbour.
    `values` are what burns with each cell, whole numbers from 0; None counts cells, a value of 1 in each.
    """

    def __init__(
        self,
        rates: Float32[np.ndarray, "4 rows columns"],
        cell_size: float,
        duration: float = 240.0,
        values: Int64[np.ndarray, " cells"] | None = None,
    ) -> None:
        require_range("fire_simulation_max_duration", duration, above=0, most=1e9)
        self.rates, self.cell_size, self.duration = rates, float(cell_size), float(duration)
        self.shape: tuple[int, int] = rates.shape[1:]
        self.burnable: Bool[np.ndarray, " cells"] = (rates > 0).all(0).reshape(-1)
        self.cells = self.burnable.size
        self.values: Int64[np.ndarray, " cells"] = np.ones(self.cells, np.int64) if values is None else values
        rows, columns = self.shape
        cells = np.arange(self.cells, dtype=np.int32).reshape(self.shape)  # of 32 bits for the memory of large regions
        bordered = np.pad(cells, 1, constant_values=-1)
        edges = []
        for rate, (down, right) in zip(rates, STEPS, strict=True):
            neighbour = bordered[1 + down : 1 + down + rows, 1 + right : 1 + right + columns]
            burns = (neighbour >= 0) & self.burnable[neighbour]
            ends = neighbour[burns]
            edges.append((cells[burns], ends, cell_size / rate.reshape(-1)[ends].astype(float)))
        starts, ends, minutes = map(np.concatenate, zip(*edges, strict=True))
        del edges
        self.graph = sparse.csr_array((minutes, (starts, ends)), shape=(self.cells, self.cells))

    @classmethod
    def of(
        cls,
        landscape: Landscape,
        weather: Weather | None = None,
        duration: float = 240.0,
        values: Int64[np.ndarray, " cells"] | None = None,
    ) -> "FireModel":
        """Return the model of a landscape in some weather, for fires of a duration in minutes."""
        return cls(spread_rates(landscape, weather), landscape.cell_size, duration, values)

    def draw(self, ignitions: int, rng: np.random.Generator) -> Int64[np.ndarray, " fires"]:
        """Draw different cells that burn, all of them if there are fewer; return their sorted numbers."""
        candidates = np.flatnonzero(self.burnable)
        return np.sort(rng.choice(candidates, min(ignitions, candidates.size), replace=False))

    def start(
        self, ignitions: Int[np.ndarray, " fires"] | None = None, breaks: Iterable[int] = (), trees: bool = False
    ) -> "Fires":
        """Burn one fire per ignition; None ignites every cell that burns."""
        chosen = np.flatnonzero(self.burnable) if ignitions is None else np.asarray(ignitions)
        return Fires(self, chosen, breaks, trees)


class Fires:
    """Independent fires, one from each ignition; a new break changes only the fires that had reached it.

    A break never burns, and a fire that starts on one burns nothing. Raises ValueError if the cell of an ignition or of
    a break does not burn.

    Attributes:
        arrival: minutes from the start of each fire (fires, cells), inf where it does not arrive.
        burns: fires that burn each cell (cells,).
        downstream: with `trees`, the value that burned through each cell, itself included, in the shortest-path trees
            of all fires (cells,). A break in a cell saves at most this.
    """

    def __init__(
        self, model: FireModel, ignitions: Int[np.ndarray, " fires"], breaks: Iterable[int] = (), trees: bool = False
    ) -> None:
        self.model, self.ignitions = model, ignitions.astype(np.int64)
        inside = (self.ignitions >= 0) & (self.ignitions < model.cells)
        if not inside.all() or not model.burnable[self.ignitions].all():
            raise ValueError("an ignition is not a cell that burns; choose from FireModel.burnable")
        self.breaks: Bool[np.ndarray, " cells"] = np.zeros(model.cells, bool)
        whole = model.graph
        self._graph = sparse.csr_array((whole.data.copy(), whole.indices, whole.indptr), shape=whole.shape)
        self.arrival: Float32[np.ndarray, "fires cells"] = np.full((ignitions.size, model.cells), np.inf, np.float32)
        self.burns: Int64[np.ndarray, " cells"] = np.zeros(model.cells, np.int64)
        self.downstream: Int64[np.ndarray, " cells"] = np.zeros(model.cells, np.int64)
        kind = np.int32 if model.values.sum() < 2**31 else np.int64
        self._sizes: Int[np.ndarray, "fires cells"] | None = np.zeros(self.arrival.shape, kind) if trees else None
        for cell in breaks:
            self._check(cell)
            self.breaks[cell] = True
        self._graph.data[self.breaks[self._graph.indices]] = np.inf
        self._burn(np.arange(ignitions.size))

    @property
    def lost(self) -> int:
        """Return the value that all fires burn together."""
        return int(self.burns @ self.model.values)

    @property
    def burned(self) -> float:
        """Return the share of all value that a fire burns, the mean over fires (0 to 1)."""
        return self.lost / max(self.ignitions.size * int(self.model.values.sum()), 1)

    @property
    def frequency(self) -> Float64[np.ndarray, " cells"]:
        """Return the share of fires that burn each cell (0 to 1)."""
        return self.burns / max(self.ignitions.size, 1)

    def add_break(self, cell: int) -> None:
        """Make a cell a break, and recompute the fires that had reached it."""
        self._check(cell)
        self._graph.data[self._graph.indices == cell] = np.inf
        self.breaks[cell] = True
        reached = np.flatnonzero(np.isfinite(self.arrival[:, cell]))
        self._burn(reached)

    def remove_break(self, cell: int) -> None:
        """Let a break burn again, and recompute the fires that start on it or had reached a neighbour."""
        if not 0 <= cell < self.model.cells or not self.breaks[cell]:
            raise ValueError(f"cell {cell} is no break")
        into = self._graph.indices == cell
        self._graph.data[into] = self.model.graph.data[into]
        self.breaks[cell] = False
        neighbours = self._graph.indices[self._graph.indptr[cell] : self._graph.indptr[cell + 1]]
        self._burn(np.flatnonzero(np.isfinite(self.arrival[:, neighbours]).any(1) | (self.ignitions == cell)))

    def saved(self, cell: int) -> int:
        """Return the value, summed over fires, that a break in a cell would save; nothing changes."""
        self._check(cell)
        reached = np.flatnonzero(np.isfinite(self.arrival[:, cell]))
        whole = self._graph
        minutes = np.where(whole.indices == cell, np.inf, whole.data)
        graph = sparse.csr_array((minutes, whole.indices, whole.indptr), shape=whole.shape)
        passed = self._spread(reached[self.ignitions[reached] != cell], graph, trees=False)
        burns = np.isfinite(self.arrival[reached]).sum(0)
        for _, arrival, _ in passed:
            burns -= np.isfinite(arrival).sum(0)
        return int(burns @ self.model.values)

    def _check(self, cell: int) -> None:
        if not 0 <= cell < self.model.cells or not self.model.burnable[cell] or self.breaks[cell]:
            raise ValueError(f"cell {cell} cannot become a break; choose one that burns and is not a break yet")

    def _burn(self, fires: Int64[np.ndarray, " some"]) -> None:
        """Recompute some fires on the current graph."""
        self.burns -= np.isfinite(self.arrival[fires]).sum(0)
        self.arrival[fires] = np.inf
        if self._sizes is not None:
            self.downstream -= self._sizes[fires].sum(0, dtype=np.int64)
            self._sizes[fires] = 0
        lit = fires[~self.breaks[self.ignitions[fires]]]
        for rows, arrival, before in self._spread(lit, self._graph, self._sizes is not None):
            self.arrival[rows] = arrival
            self.burns += np.isfinite(arrival).sum(0)
            if self._sizes is not None:
                self._sizes[rows] = sizes = tree_sizes(before, np.isfinite(arrival), self.model.values)
                self.downstream += sizes.sum(0, dtype=np.int64)

    def _spread(
        self, fires: Int64[np.ndarray, " some"], graph: sparse.csr_array, trees: bool
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int32]]]:
        """Yield some fires, a few at a time, with the minutes to each cell and, with `trees`, the cell before it."""
        for first in range(0, fires.size, FIRES_AT_ONCE):
            rows = fires[first : first + FIRES_AT_ONCE]
            found = csgraph.dijkstra(
                graph, indices=self.ignitions[rows], limit=self.model.duration, return_predecessors=trees
            )
            yield (rows, *found) if trees else (rows, found, np.empty((0, 0), np.int32))


def tree_sizes(
    before: Int32[np.ndarray, "trees cells"],
    inside: Bool[np.ndarray, "trees cells"],
    values: Int64[np.ndarray, " cells"],
) -> Int64[np.ndarray, "trees cells"]:
    """Return the value of the cells that hang from each cell of a tree, itself included; 0 outside.

    `before` is each cell's predecessor in its tree, negative at the root. Pointer doubling: each cell adds its sum to
    the cell 1, 2, 4, ... places nearer the root in turn.
    """
    nodes = np.flatnonzero(inside)
    place = np.empty(inside.size, np.int64)
    place[nodes] = np.arange(nodes.size)
    cell_before = before.reshape(-1)[nodes]
    up = place[np.where(cell_before >= 0, nodes - nodes % inside.shape[1] + cell_before, nodes)]
    up[cell_before < 0] = -1
    count = values[nodes % inside.shape[1]].astype(float)
    active = np.flatnonzero(up >= 0)
    while active.size:
        nearer = up[active]
        count += np.bincount(nearer, count[active], nodes.size)
        up[active] = up[nearer]
        active = active[up[active] >= 0]
    sizes = np.zeros(inside.shape, np.int64)
    sizes.reshape(-1)[nodes] = count
    return sizes
