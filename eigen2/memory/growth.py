"""Growth told from noise: a robust slope, since when, and what the growth is called."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

WARM_UP = 2
"""Generations at the start that grow in every run: kernels, caches and buffers are made on first use."""
LEAST_GENERATIONS = 6
"""Generations after the warm-up before anything is said."""
OUT_OF_SCATTER = 8
"""How many times the median scatter around it a growth must come to: the bend was chosen to make the most of it."""
WINDOW = 24
"""Generations looked at: a growth that ended earlier is none."""


@dataclass(frozen=True, slots=True)
class Slope:
    """A Theil-Sen slope and its interval, in units a step."""

    median: float
    low: float
    high: float


def theil_sen(values: Sequence[float] | np.ndarray, confidence: float = 0.99) -> Slope:
    """The median of the slopes between all pairs of values, with Sen's interval.

    Up to 29 % of the values may be anything. The interval follows from the variance of Kendall's S without ties,
    n (n - 1) (2 n + 5) / 18. P. K. Sen, Estimates of the regression coefficient based on Kendall's tau, Journal of the
    American Statistical Association 63 (1968).

    Args:
        values: at even steps, at least 2.
        confidence: of the interval, above 0 and below 1.
    """
    y = np.asarray(values, dtype=np.float64)
    n = len(y)
    first, second = np.triu_indices(n, 1)
    slopes = np.sort((y[second] - y[first]) / (second - first))
    spread = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(0, round((len(slopes) - spread) / 2) - 1)
    high = min(len(slopes) - 1, round((len(slopes) + spread) / 2))
    return Slope(float(np.median(slopes)), float(slopes[low]), float(slopes[high]))


@dataclass(frozen=True, slots=True)
class Growth:
    """A series that keeps growing."""

    slope: Slope
    """Bytes a generation."""
    since: int
    """The first generation known to have added to it."""


def growth(
    generations: Sequence[int] | np.ndarray, levels: Sequence[float] | np.ndarray, least: float
) -> Growth | None:
    """Whether levels at the ends of generations keep growing; None if they do not, or it is too early to say.

    They grow if the whole interval of the slope after the warm-up lies above `least`, and the last half alone still
    grows by at least half of that: what fills up and then stays is no leak.

    Args:
        generations: ascending.
        levels: one for each, in bytes.
        least: bytes a generation below which growth does not matter.
    """
    x = np.asarray(generations)[WARM_UP:][-WINDOW:]
    y = np.asarray(levels, dtype=np.float64)[WARM_UP:][-WINDOW:]
    if len(y) < LEAST_GENERATIONS:
        return None
    start = _bend(y)
    grown = y[start:]
    if len(grown) < LEAST_GENERATIONS - 1:
        return None
    step = (x[-1] - x[start]) / (len(grown) - 1)  # above 1 in thinned series
    slope, late = theil_sen(grown), theil_sen(grown[len(grown) // 2 :])
    if slope.low <= least * step or late.median <= slope.median / 2:
        return None
    reach = np.maximum(0, np.arange(len(y)) - start)
    scatter = np.abs(y - y[start] - slope.median * reach)
    if slope.median * reach[-1] < OUT_OF_SCATTER * np.median(scatter):
        return None
    slope = Slope(slope.median / step, slope.low / step, slope.high / step)
    # the bend is the last level before the growth
    return Growth(slope, int(x[start]) + 1)


def _bend(y: np.ndarray) -> int:
    """Where a level turns into a slope: the hinge of least absolute error."""
    steps = np.arange(len(y))
    errors = []
    for bend in range(len(y) - 2):
        reach = np.maximum(0, steps - bend)
        base = float(np.median(y[: bend + 1]))
        slope = float(np.median((y[bend + 1 :] - base) / reach[bend + 1 :]))
        errors.append(float(np.abs(y - base - slope * reach).sum()))
    return int(np.argmin(errors))


class Trend:
    """Numbers of every generation in memory that is taken once; when it is full, every other generation is dropped.

    Args:
        capacity: generations held, an even number of at least 32.
    """

    def __init__(self, capacity: int = 512) -> None:
        self._capacity = capacity
        self._generations = np.zeros(capacity, np.int64)
        self._series: dict[str, np.ndarray] = {}
        self._length = 0
        self._every = 1

    def __len__(self) -> int:
        return self._length

    @property
    def generations(self) -> np.ndarray:
        """Those held, ascending."""
        return self._generations[: self._length]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the series, in the order in which they appeared."""
        return tuple(self._series)

    def __getitem__(self, name: str) -> np.ndarray:
        """A series, one number for each of `generations`; NaN where it has none."""
        return self._series[name][: self._length]

    def add(self, generation: int, numbers: Mapping[str, float]) -> None:
        """Append a generation."""
        if generation % self._every:
            return None
        if self._length == self._capacity:
            self._length = self._capacity // 2
            for held in (self._generations, *self._series.values()):
                held[: self._length] = held[::2].copy()
            self._every *= 2
            return self.add(generation, numbers)
        for name, number in numbers.items():
            if name not in self._series:
                self._series[name] = np.full(self._capacity, np.nan)
            self._series[name][self._length] = number
        self._generations[self._length] = generation
        self._length += 1
        return None


@dataclass(slots=True)
class _Rise:
    since: int
    start: int
    rises: int
    last: int


class Rising:
    """Counts that rise in every generation, found as they come in."""

    def __init__(self) -> None:
        self._rises: dict[str, _Rise] = {}
        self._started = False

    def add(self, generation: int, counts: Mapping[str, int]) -> None:
        """The counts at the end of a generation."""
        for name in counts.keys() | self._rises.keys():
            count = counts.get(name, 0)
            rise = self._rises.get(name)
            if rise is None:
                # what was not there rises from none, but not at the first look
                rise = self._rises[name] = _Rise(generation, 0, 0, 0 if self._started else count)
            if count > rise.last:
                rise.rises += 1
            else:
                rise.since, rise.start, rise.rises = generation + 1, count, 0
            rise.last = count
        self._started = True

    def found(self) -> list[tuple[str, int, int, int]]:
        """Name, count before the rise, count now, first generation of it: those that rise long enough to be told."""
        rising = [
            (name, rise.start, rise.last, rise.since)
            for name, rise in self._rises.items()
            if rise.rises >= LEAST_GENERATIONS - 1
        ]
        return sorted(rising, key=lambda found: found[1] - found[2])
