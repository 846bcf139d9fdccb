"""Judge a series of memory by generation: flat, leaking, and since when, or growth that has an end."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

WARM_UP = 2  # generations at the start that grow in every run: kernels, caches and buffers are created on first use
MIN_GENERATIONS = 6  # generations of growth before it is reported
LEAST_RISE = 16  # times the least growth a generation: slow growth is judged when there is more of it
HISTORY = 128  # generations that a trend keeps; of a longer run, every other one of the older half
FLAT, LEAK, ENDED, FILLING, SAW_TOOTH, STEP = "flat", "leak", "ended", "filling", "saw-tooth", "step"
_MOST_PIECES = 6  # bends and steps of a series
_PENALTY = 4.0  # of each of them: times log n by which it must lower n log(mean squared error) of n values


class Slope(NamedTuple):
    """A Theil-Sen slope and its confidence interval, in units per step."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Growth:
    """A stretch of generations in which memory grew."""

    slope: Slope  # bytes a generation; of a second leak, what it adds to the first
    since: int  # the first generation that added to it
    until: int | None = None  # the last one; None if memory still grows


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a series does.

    `leak`: it grows steadily, and where `growths` has several, faster since each of them. `ended`: it grew, and stays.
    `filling`: the same from the start of the run or ever more slowly, as a cache does that reaches its bound.
    `saw-tooth`: it falls back again and again. `step`: it rose once. `flat`: nothing of the kind.
    """

    kind: str
    growths: tuple[Growth, ...] = ()


def theil_sen(
    values: Sequence[float] | np.ndarray, confidence: float = 0.99, x: Sequence[float] | np.ndarray | None = None
) -> Slope:
    """Return the median of the slopes between all pairs of values, at 0, 1, 2 ... or `x`, with Sen's interval.

    Up to 29 % of the values may be outliers. The interval follows from the variance of Kendall's S without ties,
    n (n - 1) (2 n + 5) / 18. P. K. Sen, Estimates of the regression coefficient based on Kendall's tau, Journal of the
    American Statistical Association 63 (1968). Importing SciPy's version would add megabytes to the run.
    """
    y = np.asarray(values, dtype=np.float64)
    n = len(y)
    at = np.arange(n) if x is None else np.asarray(x, dtype=np.float64)
    first, second = np.triu_indices(n, 1)
    slopes = np.sort((y[second] - y[first]) / (at[second] - at[first]))
    spread = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(0, round((len(slopes) - spread) / 2) - 1)
    high = min(len(slopes) - 1, round((len(slopes) + spread) / 2))
    return Slope(float(np.median(slopes)), float(slopes[low]), float(slopes[high]))


def judge(levels: Sequence[float] | np.ndarray, least: float, generations: Sequence[int] | np.ndarray = ()) -> Verdict:
    """Judge bytes at the ends of generations (0, 1, 2 ... unless given); growth below `least` a generation is none.

    The generations of the warm-up are left out, and NaN marks those without a value. The verdict is of the series as
    it is now: a leak may turn out to be a saw-tooth when it falls, and an ended one may begin again.
    """
    values = np.asarray(levels, dtype=np.float64)
    at = np.asarray(generations if len(generations) else np.arange(len(values)), dtype=np.float64)
    x, y = at[~np.isnan(values)], values[~np.isnan(values)]
    early, x, y = y[: WARM_UP + 1], x[WARM_UP:], y[WARM_UP:]
    least_rise = least * MIN_GENERATIONS / 2
    if len(y) < MIN_GENERATIONS or np.ptp(y) < LEAST_RISE * least:
        return Verdict(FLAT)
    tooth = _tooth(y)
    if tooth > max(least_rise, 4 * np.median(np.abs(np.diff(y)))) and y[-1] - y.min() <= 1.3 * tooth:
        return Verdict(SAW_TOOTH)
    fit = _fit(x, y, least)
    growths = [_from_start(growth, early, x) for growth in _growths(x, y - fit.steps, fit, least)]
    if growths:
        kind = FILLING if growths[0].since <= x[0] + 2 else ENDED
        return Verdict(LEAK if growths[-1].until is None else kind, tuple(growths))
    least_rise = max(least_rise, 8 * fit.scatter)
    slows = bool(fit.slopes) and max(fit.slopes) > max(least, 2 * fit.slopes[-1])
    if slows and fit.line[-1] - fit.steps[-1] - y[0] > least_rise:
        return Verdict(FILLING)
    return Verdict(STEP if np.ptp(fit.steps) > least_rise else FLAT)


class _Fit(NamedTuple):
    """A line with bends and steps through a series."""

    line: np.ndarray
    steps: np.ndarray  # the part of the line that its steps make
    bends: list[int]  # indices at which its slope changes; flat before the first
    slopes: list[float]  # from each bend on
    scatter: float  # median distance of the values from the line


def _fit(x: np.ndarray, y: np.ndarray, least: float) -> _Fit:
    """Add bends and steps to a constant, each time the one that explains most, while the fit is worth their number."""
    n, floor = len(y), (least / 4) ** 2
    bends = np.maximum(0, x[:, None] - x[None, : n - 2])
    steps = (x[:, None] > x[None, : n - 1]).astype(np.float64)
    columns = np.hstack((bends, steps))
    most = np.append(np.full(n - 2, np.inf), 2 * np.abs(np.diff(y)))  # a step is no larger than what it steps over

    def basis(names: list[int]) -> np.ndarray:
        return np.column_stack((np.ones(n), columns[:, names]))

    def best(names: list[int]) -> int:
        """Return the column that explains most of what these leave over."""
        known = np.linalg.qr(basis(names))[0]
        rest, others = y - known @ (known.T @ y), columns - known @ (known.T @ columns)
        norms = np.square(others).sum(axis=0)
        weights = others.T @ rest / np.maximum(norms, 1e-6)
        fits = (norms > 1e-6) & (np.abs(weights) <= most)
        return int(np.argmax(np.where(fits, np.square(weights) * norms, 0)))

    chosen: list[int] = []
    weights, error = np.array([y.mean()]), float(y.var())
    while len(chosen) < _MOST_PIECES:
        more = [*chosen, best(chosen)]
        for place in [*range(len(more) - 1)] * 2:  # an earlier choice may be better in the light of a later one
            more[place] = best(more[:place] + more[place + 1 :])
        new = np.linalg.lstsq(basis(more), y, rcond=None)[0]
        new_error = float(np.square(y - basis(more) @ new).mean())
        if n * math.log((error + floor) / (new_error + floor)) < _PENALTY * math.log(n):
            break
        chosen, weights, error = more, new, new_error
    line = basis(chosen) @ weights
    pieces = sorted(zip(chosen, weights[1:].tolist(), strict=True))
    risen = sum((columns[:, name] * weight for name, weight in pieces if name >= n - 2), np.zeros(n))
    hinges = [(name, weight) for name, weight in pieces if name < n - 2]
    slopes = list(np.cumsum([weight for _, weight in hinges]))
    return _Fit(line, risen, [name for name, _ in hinges], slopes, float(np.median(np.abs(y - line))))


def _growths(x: np.ndarray, y: np.ndarray, fit: _Fit, least: float) -> list[Growth]:
    """Return the stretches of steady growth; neighbours that rise about alike are one."""
    stretches: list[tuple[int, int, float]] = []
    for start, stop, slope in zip(fit.bends, [*fit.bends, len(y) - 1][1:], fit.slopes, strict=True):
        first, last, before = stretches[-1] if stretches else (0, -1, 0.0)
        if slope > least / 2 and last == start and not (slope > 1.3 * before and stop - start >= MIN_GENERATIONS / 2):
            stretches[-1] = first, stop, before
        elif slope > least / 2:
            stretches.append((start, stop, slope))
    growths: list[Growth] = []
    end, rate = -1, 0.0
    for start, stop, _ in stretches:
        steady = _steady(x[start : stop + 1], y[start : stop + 1], least, fit.scatter)
        if steady is None:
            if start == end and stop == len(y) - 1 and stop - start < 2 * MIN_GENERATIONS:  # faster, too new to say how
                growths[-1] = replace(growths[-1], until=None)
            continue
        faster = rate if start == end else 0.0
        if faster:  # the leak before goes on
            growths[-1] = replace(growths[-1], until=None)
        ends = None if stop == len(y) - 1 else int(x[stop])
        growths.append(Growth(Slope(*(part - faster for part in steady)), int(x[start]) + 1, ends))
        end, rate = stop, steady.median
    return growths


def _steady(x: np.ndarray, y: np.ndarray, least: float, scatter: float) -> Slope | None:
    """Return the slope of a stretch if it is significant and neither a few steps nor ever slower; else None."""
    if len(y) < MIN_GENERATIONS:
        return None
    slope = theil_sen(y, x=x)
    known, passed, risen = (
        np.diff([part.mean() for part in np.array_split(values, 4)]) for values in (np.arange(len(y)), x, y)
    )
    rises = risen * known / passed  # as if no generation were missing, which was traced or thinned out
    even = rises.min() >= 0.4 * rises.mean() and rises[-1] >= 0.5 * rises[0]
    risen_enough = slope.median * (x[-1] - x[0]) >= max(8 * scatter, LEAST_RISE * least)
    return slope if even and slope.low > least and risen_enough else None


def _from_start(growth: Growth, early: np.ndarray, x: np.ndarray) -> Growth:
    """Return the growth with an earlier start if the warm-up before its first generation grew at the same rate."""
    if growth.since != int(x[0]) + 1:
        return growth
    rises = np.diff(early)[::-1] / growth.slope.median
    alike = [*((rises > 0.5) & (rises < 2)), False].index(False)
    # what the first generation added to cannot be known: it counts where all others are alike
    return replace(growth, since=growth.since - alike - (alike == len(rises)))


def _tooth(y: np.ndarray) -> float:
    """Return the largest fall of what had risen before."""
    risen = y - np.minimum.accumulate(y)
    falls = y - np.minimum.accumulate(y[::-1])[::-1]
    return float(np.minimum(risen, falls).max())


class Trend:
    """Named series over generations, at most HISTORY: arrays of equal length, NaN where a value is missing."""

    def __init__(self) -> None:
        self.generations = np.zeros(0, np.int64)
        self.series: dict[str, np.ndarray] = {}

    @property
    def nbytes(self) -> int:
        """Return the bytes of all series."""
        return self.generations.nbytes * (1 + len(self.series))

    def add(self, generation: int, values: Mapping[str, float]) -> None:
        """Append the values of a generation by series name; of a long run, thin out the older half."""
        if len(self.generations) >= HISTORY:
            thin = slice(WARM_UP + 1, HISTORY // 2, 2)
            self.generations = np.delete(self.generations, thin)
            self.series = {name: np.delete(series, thin) for name, series in self.series.items()}
        for name in [name for name in values if name not in self.series]:
            self.series[name] = np.full(len(self.generations), np.nan)
        for name, series in self.series.items():
            self.series[name] = np.concatenate((series, [values.get(name, np.nan)]))
        self.generations = np.append(self.generations, generation)
