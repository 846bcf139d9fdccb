"""Tell growth from noise: a robust slope, and the generation since which a series grows."""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

WARM_UP = 2  # generations at the start that grow in every run: kernels, caches and buffers are created on first use
LEAST_GENERATIONS = 6  # generations after the warm-up before growth is reported
WINDOW = 24  # last generations looked at: growth that ended earlier does not count


class Slope(NamedTuple):
    """A Theil-Sen slope and its confidence interval, in units per step."""

    median: float
    low: float
    high: float


class Growth(NamedTuple):
    """A series that keeps growing: bytes per generation, and the first generation known to have added to it."""

    slope: Slope
    since: int


def theil_sen(values: Sequence[float] | np.ndarray, confidence: float = 0.99) -> Slope:
    """Return the median of the slopes between all pairs of values, with Sen's interval.

    Up to 29 % of the values may be outliers. The interval follows from the variance of Kendall's S without ties,
    n (n - 1) (2 n + 5) / 18. P. K. Sen, Estimates of the regression coefficient based on Kendall's tau, Journal of the
    American Statistical Association 63 (1968). The values are at even steps, at least 2.
    """
    y = np.asarray(values, dtype=np.float64)
    n = len(y)
    first, second = np.triu_indices(n, 1)
    slopes = np.sort((y[second] - y[first]) / (second - first))
    spread = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(0, round((len(slopes) - spread) / 2) - 1)
    high = min(len(slopes) - 1, round((len(slopes) + spread) / 2))
    return Slope(float(np.median(slopes)), float(slopes[low]), float(slopes[high]))


def find_growth(
    generations: Sequence[int] | np.ndarray, levels: Sequence[float] | np.ndarray, least: float
) -> Growth | None:
    """Return how levels at the ends of generations keep growing; None if they do not, or it is too early to say.

    They grow if the whole interval of the slope after the warm-up lies above `least`, and the last half alone still
    grows by at least half of that: what fills up and then stays is no leak. Generations ascend, levels are in bytes,
    `least` in bytes per generation.
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
    # high, as the start of the growth was chosen to fit best
    if slope.median * reach[-1] < 8 * np.median(scatter):
        return None
    # the bend is the last level before the growth
    return Growth(Slope(*(float(each / step) for each in slope)), int(x[start]) + 1)


def _bend(y: np.ndarray) -> int:
    """Return the index where a level turns into a slope: the hinge of least absolute error."""
    steps = np.arange(len(y))
    errors = []
    for bend in range(len(y) - 2):
        reach = np.maximum(0, steps - bend)
        base = float(np.median(y[: bend + 1]))
        slope = float(np.median((y[bend + 1 :] - base) / reach[bend + 1 :]))
        errors.append(float(np.abs(y - base - slope * reach).sum()))
    return int(np.argmin(errors))


class Trend:
    """Named numbers per generation, at most `capacity`, which is even; when it is full, every other one is dropped."""

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
        """Return the generations held, ascending."""
        return self._generations[: self._length]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the series, in the order in which they appeared."""
        return tuple(self._series)

    def __getitem__(self, name: str) -> np.ndarray:
        """Return a series, one number for each of `generations`; NaN where it has none."""
        return self._series[name][: self._length]

    def add(self, generation: int, numbers: Mapping[str, float]) -> None:
        """Append the numbers of a generation."""
        if self._length == self._capacity and generation % self._every == 0:
            self._length //= 2
            for held in (self._generations, *self._series.values()):
                held[: self._length] = held[::2].copy()
            self._every *= 2
        if generation % self._every:
            return
        for name, number in numbers.items():
            if name not in self._series:
                self._series[name] = np.full(self._capacity, np.nan)
            self._series[name][self._length] = number
        self._generations[self._length] = generation
        self._length += 1


class Rise(NamedTuple):
    """A count that has risen in each generation since one."""

    since: int  # first generation of the rise
    start: int  # count before it
    now: int
    length: int  # generations of the rise


class Rising:
    """Finds counts that rise in every generation."""

    def __init__(self) -> None:
        self._rises: dict[str, Rise] = {}
        self._started = False

    def add(self, generation: int, counts: Mapping[str, int]) -> None:
        """Add the counts at the end of a generation."""
        for name in counts.keys() | self._rises.keys():
            count = counts.get(name, 0)
            # what was absent rises from zero, but not at the first look
            rise = self._rises.get(name, Rise(generation, 0, 0 if self._started else count, 0))
            if count > rise.now:
                self._rises[name] = rise._replace(now=count, length=rise.length + 1)
            else:
                self._rises[name] = Rise(generation + 1, count, count, 0)
        self._started = True

    def found(self) -> dict[str, Rise]:
        """Return the rises that are long enough to be reported, by name, largest first."""
        long = {name: rise for name, rise in self._rises.items() if rise.length >= LEAST_GENERATIONS - 1}
        return dict(sorted(long.items(), key=lambda item: item[1].start - item[1].now))
