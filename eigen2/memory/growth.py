"""Tell growth from noise: a robust slope, and the generation since which a series grows."""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

WARM_UP = 2  # generations at the start that grow in every run: kernels, caches and buffers are created on first use
LEAST_GENERATIONS = 6  # generations after the warm-up before growth is reported
WINDOW = 24  # last generations looked at: growth that ended earlier does not count
KEPT = 128  # last generations that a trend holds


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
    """Return the median of the slopes between all pairs of values, which are at even steps, with Sen's interval.

    Up to 29 % of the values may be outliers. The interval follows from the variance of Kendall's S without ties,
    n (n - 1) (2 n + 5) / 18. P. K. Sen, Estimates of the regression coefficient based on Kendall's tau, Journal of the
    American Statistical Association 63 (1968). SciPy's version would take megabytes in the run that is measured.
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

    They grow if the whole interval of the slope after the warm-up lies above `least` bytes per generation, and the last
    half alone still grows by at least half of that: what fills up and then stays is no leak.
    """
    x = np.asarray(generations)[WARM_UP:][-WINDOW:]
    y = np.asarray(levels, dtype=np.float64)[WARM_UP:][-WINDOW:]
    if len(y) < LEAST_GENERATIONS:
        return None
    start = _bend(y)
    grown = y[start:]
    if len(grown) < LEAST_GENERATIONS - 1:
        return None
    slope, late = theil_sen(grown), theil_sen(grown[len(grown) // 2 :])
    reach = np.maximum(0, np.arange(len(y)) - start)
    scatter = np.median(np.abs(y - y[start] - slope.median * reach))
    # 8 is high, as the start of the growth was chosen to fit best
    if slope.low <= least or late.median <= slope.median / 2 or slope.median * reach[-1] < 8 * scatter:
        return None
    return Growth(slope, int(x[start]) + 1)  # the bend is the last level before the growth


def _bend(y: np.ndarray) -> int:
    """Return the index where a level turns into a slope: the hinge of least absolute error."""
    steps = np.arange(len(y))
    errors = []
    for bend in range(len(y) - 2):
        reach = np.maximum(0, steps - bend)
        base = np.median(y[: bend + 1])
        slope = np.median((y[bend + 1 :] - base) / reach[bend + 1 :])
        errors.append(np.abs(y - base - slope * reach).sum())
    return int(np.argmin(errors))


class Trend:
    """Named numbers of the last KEPT generations: arrays of equal length, NaN where a generation has no number."""

    def __init__(self) -> None:
        self.generations = np.zeros(0, np.int64)
        self.series: dict[str, np.ndarray] = {}

    def add(self, generation: int, numbers: Mapping[str, float]) -> None:
        """Append the numbers of a generation."""
        for name in {**self.series, **numbers}:
            held = self.series.get(name, np.full(len(self.generations), np.nan))
            self.series[name] = np.append(held, numbers.get(name, np.nan))[-KEPT:]
        self.generations = np.append(self.generations, generation)[-KEPT:]


class Rise(NamedTuple):
    """A count that has risen in each generation `since` one, from what it was at the `start`."""

    since: int
    start: int
    now: int


class Rising:
    """Finds counts that rise in every generation."""

    def __init__(self) -> None:
        self._rises: dict[str, Rise] = {}
        self._generation = 0

    def add(self, generation: int, counts: Mapping[str, int]) -> None:
        """Add the counts at the end of a generation."""
        first, self._generation = not self._rises, generation
        for name in counts.keys() | self._rises.keys():
            count = counts.get(name, 0)
            # what was absent rises from zero, but not at the first look
            rise = self._rises.get(name, Rise(generation, 0, count if first else 0))
            grew = count > rise.now
            self._rises[name] = rise._replace(now=count) if grew else Rise(generation + 1, count, count)

    def found(self) -> dict[str, Rise]:
        """Return the rises that are long enough to be reported, by name, largest first."""
        long = [(name, r) for name, r in self._rises.items() if self._generation - r.since > LEAST_GENERATIONS - 3]
        return dict(sorted(long, key=lambda item: item[1].start - item[1].now))
