"""Bootstrap intervals over the seeds of each fold, for the luck of training."""

import numpy as np
from scipy import stats

from eigen2.market.evaluation.intervals import DRAWS, LEVEL, Interval


def over_seeds(values: np.ndarray, generator: np.random.Generator, draws: int = DRAWS) -> Interval:
    """Return the mean of all runs with a stratified bootstrap interval: the seeds of each fold are resampled.

    As in Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (NeurIPS 2021), with
    folds in place of tasks. `values` are (folds, seeds); for a single seed the interval has no width.
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
