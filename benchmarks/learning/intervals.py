"""Percentile intervals by bootstrap: over the seeds of each fold, and over blocks of days.

The two resample different things. The first says how far a mean would move with other seeds of the same training on the
same days; the second how far with other days of the same kind, the training as it came out.
"""

from dataclasses import asdict, dataclass

import numpy as np

DRAWS = 10_000
LEVEL = 0.95
AT_ONCE = 100
"""Series that are drawn at once."""
BLOCK_DAYS = 20.0
"""Mean days of a block: as long as a position is held at most, so that a block holds its whole course."""


@dataclass(frozen=True)
class Interval:
    """A mean, and the bounds of the middle `LEVEL` of resampled means."""

    mean: float
    low: float
    high: float

    @property
    def side(self) -> int:
        """1 or -1 where the whole interval lies above or below 0, else 0; 0 without a width, as of a single seed."""
        return 0 if self.low == self.high else int(self.low > 0) - int(self.high < 0)

    def json(self) -> dict[str, float]:
        """Plain values."""
        return asdict(self)


def over_seeds(values: np.ndarray, chance: np.random.Generator, draws: int = DRAWS) -> Interval:
    """Mean of all runs, resampled by a stratified bootstrap: in each fold its seeds, with replacement; the folds stay.

    As in Agarwal and others, "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (NeurIPS 2021),
    folds in the place of tasks.

    Args:
        values: (folds, seeds) of a figure.
        chance: draws.
        draws: resampled means.
    """
    folds, seeds = values.shape
    chosen = chance.integers(seeds, size=(draws, folds, seeds))
    means = np.take_along_axis(values[None], chosen, axis=2).mean((1, 2))
    return _interval(values, means)


def over_days(
    values: np.ndarray, chance: np.random.Generator, draws: int = DRAWS, block_days: float = BLOCK_DAYS
) -> Interval:
    """Mean of a daily series, resampled by the stationary bootstrap of Politis and Romano (1994).

    Blocks begin on any day with the same chance, have geometric lengths, and go on at the first day after the last.

    Args:
        values: (days,).
        chance: draws.
        draws: resampled means.
        block_days: mean length of a block (1 or more; 1 resamples single days).
    """
    parts = [min(AT_ONCE, draws - done) for done in range(0, draws, AT_ONCE)]
    means = [values[stationary_days(len(values), part, chance, block_days)].mean(1) for part in parts]
    return _interval(values, np.concatenate(means))


def stationary_days(days: int, series: int, chance: np.random.Generator, block_days: float) -> np.ndarray:
    """Days of resampled series, (series, days)."""
    places = np.arange(days)
    begins = chance.random((series, days)) < 1 / block_days
    begins[:, 0] = True
    starts = chance.integers(days, size=(series, days))
    block = np.maximum.accumulate(np.where(begins, places, 0), axis=1)
    chosen: np.ndarray = (np.take_along_axis(starts, block, 1) + places - block) % days
    return chosen


def _interval(values: np.ndarray, means: np.ndarray) -> Interval:
    low, high = np.percentile(means, (50 * (1 - LEVEL), 50 * (1 + LEVEL)))
    return Interval(float(values.mean()), float(low), float(high))
