"""Bootstrap intervals: of the luck of training over the seeds of each fold, of the luck of days over blocks of them."""

from typing import NamedTuple

import numpy as np
from scipy import stats

DRAWS = 10_000
LEVEL = 0.95
AT_ONCE = 100  # series drawn at once, for the memory's sake
BLOCK_DAYS = 20.0  # mean days of a block: as long as a position is held at most, so that a block holds its whole course


class Interval(NamedTuple):
    """A mean, and the bounds of the middle `LEVEL` of resampled means."""

    mean: float
    low: float
    high: float

    @property
    def side(self) -> int:
        """Return 1 or -1 where the whole interval lies above or below 0, else 0; 0 without a width."""
        return 0 if self.low == self.high else int(self.low > 0) - int(self.high < 0)


def over_seeds(values: np.ndarray, generator: np.random.Generator, draws: int = DRAWS) -> Interval:
    """Return the mean of all runs with a stratified bootstrap interval: the seeds of each fold are resampled.

    As in Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (NeurIPS 2021), folds
    in the place of tasks. `values` are (folds, seeds); of a single seed the interval has no width.
    """
    mean = float(values.mean())
    if values.shape[1] == 1:
        return Interval(mean, mean, mean)

    def mean_of_folds(*folds: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.asarray(np.mean([fold.mean(axis=axis) for fold in folds], axis=0))

    low, high = stats.bootstrap(
        tuple(values), mean_of_folds, n_resamples=draws, confidence_level=LEVEL, method="percentile", rng=generator
    ).confidence_interval
    return Interval(mean, float(low), float(high))


def over_days(
    values: np.ndarray, generator: np.random.Generator, draws: int = DRAWS, block_days: float = BLOCK_DAYS
) -> Interval:
    """Return the mean of a daily series with an interval by the stationary bootstrap of Politis and Romano (1994).

    Blocks begin on any day with the same chance, have geometric lengths of mean `block_days` (1 or more), and go on at
    the first day after the last.
    """
    parts = [min(AT_ONCE, draws - done) for done in range(0, draws, AT_ONCE)]
    means = [values[stationary_days(len(values), part, generator, block_days)].mean(1) for part in parts]
    low, high = np.percentile(np.concatenate(means), (50 * (1 - LEVEL), 50 * (1 + LEVEL)))
    return Interval(float(values.mean()), float(low), float(high))


def stationary_days(days: int, series: int, generator: np.random.Generator, block_days: float) -> np.ndarray:
    """Return the days of resampled series, (series, days)."""
    places = np.arange(days)
    begins = generator.random((series, days)) < 1 / block_days
    begins[:, 0] = True
    starts = generator.integers(days, size=(series, days))
    block = np.maximum.accumulate(np.where(begins, places, 0), axis=1)
    chosen: np.ndarray = (np.take_along_axis(starts, block, 1) + places - block) % days
    return chosen
