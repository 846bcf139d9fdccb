"""Distinguish growth from noise: a robust slope, and the generation in which growth began."""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

WARM_UP = 2  # generations at the start that grow in every run: kernels, caches and buffers are created on first use
MIN_GENERATIONS = 6  # generations after the warm-up before growth is reported
WINDOW = 24  # last generations looked at: growth that ended earlier does not count
HISTORY = 128  # last generations that a trend keeps


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
    """Return the median of the slopes between all pairs of evenly spaced values, with Sen's confidence interval.

    Up to 29 % of the values may be outliers. The interval follows from the variance of Kendall's S without ties,
    n (n - 1) (2 n + 5) / 18. P. K. Sen, Estimates of the regression coefficient based on Kendall's tau, Journal of the
    American Statistical Association 63 (1968). Importing SciPy's version would add megabytes to the run.
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
    generations: Sequence[int] | np.ndarray, levels: Sequence[float] | np.ndarray, min_slope: float
) -> Growth | None:
    """Return the growth of bytes measured at the ends of generations; None if there is none, or too few generations.

    It counts if the whole interval of the slope after the warm-up lies above `min_slope` bytes per generation and the
    last half alone grows at more than half of that rate: a buffer that fills up and then stays is no leak.
    """
    x = np.asarray(generations)[WARM_UP:][-WINDOW:]
    y = np.asarray(levels, dtype=np.float64)[WARM_UP:][-WINDOW:]
    if len(y) < MIN_GENERATIONS:
        return None
    start = _bend(y)
    rising = y[start:]
    if len(rising) < MIN_GENERATIONS - 1:
        return None
    slope, late = theil_sen(rising), theil_sen(rising[len(rising) // 2 :])
    elapsed = np.maximum(0, np.arange(len(y)) - start)
    scatter = np.median(np.abs(y - y[start] - slope.median * elapsed))
    # 8 is strict, since the start was chosen for the best fit
    if slope.low <= min_slope or late.median <= slope.median / 2 or slope.median * elapsed[-1] < 8 * scatter:
        return None
    return Growth(slope, int(x[start]) + 1)  # the bend is the last level before the growth


def _bend(y: np.ndarray) -> int:
    """Return the index at which a constant turns into a slope: the hinge of least absolute error."""
    steps = np.arange(len(y))
    errors = []
    for bend in range(len(y) - 2):
        elapsed = np.maximum(0, steps - bend)
        base = np.median(y[: bend + 1])
        slope = np.median((y[bend + 1 :] - base) / elapsed[bend + 1 :])
        errors.append(np.abs(y - base - slope * elapsed).sum())
    return int(np.argmin(errors))


class Trend:
    """Named series over the last HISTORY generations: arrays of equal length, NaN where a value is missing."""

    def __init__(self) -> None:
        self.generations = np.zeros(0, np.int64)
        self.series: dict[str, np.ndarray] = {}

    def add(self, generation: int, values: Mapping[str, float]) -> None:
        """Append the values of a generation by series name."""
        for name in {**self.series, **values}:
            earlier = self.series.get(name, np.full(len(self.generations), np.nan))
            self.series[name] = np.append(earlier, values.get(name, np.nan))[-HISTORY:]
        self.generations = np.append(self.generations, generation)[-HISTORY:]


class Rise(NamedTuple):
    """A count that rose in every generation from `since` on, from `start` to `now`."""

    since: int
    start: int
    now: int


class RisingCounts:
    """Follows counts over generations to find those that rise in every one."""

    def __init__(self) -> None:
        self._rises: dict[str, Rise] = {}
        self._generation = 0

    def add(self, generation: int, counts: Mapping[str, int]) -> None:
        """Add the counts at the end of a generation."""
        first, self._generation = not self._rises, generation
        for name in counts.keys() | self._rises.keys():
            count = counts.get(name, 0)
            # a name not seen before rises from zero, except in the first generation
            rise = self._rises.get(name, Rise(generation, 0, count if first else 0))
            grew = count > rise.now
            self._rises[name] = rise._replace(now=count) if grew else Rise(generation + 1, count, count)

    def rises(self) -> dict[str, Rise]:
        """Return the rises that last long enough to be reported, by name, largest first."""
        long = [(name, r) for name, r in self._rises.items() if self._generation - r.since > MIN_GENERATIONS - 3]
        return dict(sorted(long, key=lambda item: item[1].start - item[1].now))
