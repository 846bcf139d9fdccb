"""Intervals: over blocks of days by the bootstrap, for the luck of days, and over trainings, for that of seeds."""

import math
from typing import NamedTuple

import numpy as np

DRAWS = 10_000
LEVEL = 0.95
ANGLES = 100_000  # steps of the integral of Student's t distribution
AT_ONCE = 100  # series drawn at once, to limit memory
MEAN_BLOCK_DAYS = 20.0  # a position's maximum holding time, so that blocks contain whole positions


class Interval(NamedTuple):
    """A mean, and the bounds of an interval that holds `LEVEL` of such means."""

    mean: float
    low: float
    high: float


def over_days(
    values: np.ndarray, generator: np.random.Generator, draws: int = DRAWS, block_days: float = MEAN_BLOCK_DAYS
) -> Interval:
    """Return the mean of a daily series with an interval by the stationary bootstrap of Politis and Romano (1994).

    Blocks start on uniformly drawn days, have geometric lengths of mean `block_days` (1 or more), or of the cube root
    of the number of days where that is less, and wrap around from the last day to the first. Of longer blocks there
    are too few for the variance of the mean (Hall, Horowitz and Jing, "On blocking rules for the bootstrap with
    dependent data", 1995). Of fewer than 60 days the interval is too narrow all the same.
    """
    block_days = min(block_days, len(values) ** (1 / 3))
    batches = [min(AT_ONCE, draws - first) for first in range(0, draws, AT_ONCE)]
    means = [values[stationary_days(len(values), batch, generator, block_days)].mean(1) for batch in batches]
    low, high = np.percentile(np.concatenate(means), (50 * (1 - LEVEL), 50 * (1 + LEVEL)))
    return Interval(float(values.mean()), float(low), float(high))


def over_trainings(values: np.ndarray) -> Interval:
    """Return the mean of two or more values with an interval by Student's t distribution (Student, 1908)."""
    freedom = len(values) - 1
    angle, within = _student(freedom)
    t = np.tan(np.interp(LEVEL, within, angle)) * np.sqrt(freedom)
    mean, half = values.mean(), t * values.std(ddof=1) / np.sqrt(len(values))
    return Interval(float(mean), float(mean - half), float(mean + half))


def student_tail(t: float, freedom: float) -> float:
    """Return the probability that Student's t of `freedom` degrees (1 or more) is `t` or more; NaN for NaN."""
    angle, within = _student(freedom)
    half = np.interp(np.arctan(abs(t) / np.sqrt(freedom)), angle, within) / 2
    return float(0.5 - math.copysign(half, t))


def _student(freedom: float) -> tuple[np.ndarray, np.ndarray]:
    """Return angles from 0 to a right one, and the probability that t lies within tan(angle) sqrt(freedom) of 0.

    The density is in proportion to cos(angle)^(freedom - 1).
    """
    angle = np.linspace(0, np.pi / 2, ANGLES)
    density = np.cos(angle) ** (freedom - 1)
    within = np.append(0, np.cumsum(density[1:] + density[:-1]))
    return angle, within / within[-1]


def stationary_days(days: int, series: int, generator: np.random.Generator, block_days: float) -> np.ndarray:
    """Return the indices of the days of resampled series, (series, days)."""
    positions = np.arange(days)
    is_start = generator.random((series, days)) < 1 / block_days
    is_start[:, 0] = True
    starts = generator.integers(days, size=(series, days))
    block = np.maximum.accumulate(np.where(is_start, positions, 0), axis=1)
    return (np.take_along_axis(starts, block, 1) + positions - block) % days
