"""Bootstrap intervals over the seeds of each fold or task, for the luck of training."""

from collections.abc import Callable

import numpy as np
from scipy import stats

from eigen2.market.intervals import DRAWS, LEVEL, Interval


def over_seeds(values: np.ndarray, generator: np.random.Generator) -> Interval:
    """Return the mean of all runs with a stratified bootstrap interval: the seeds of each fold are resampled.

    As in Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (NeurIPS 2021), with
    folds in place of tasks. `values` are (folds, seeds); for a single seed the interval has no width.
    """

    def mean_of_folds(*folds: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.asarray(np.mean([fold.mean(axis=axis) for fold in folds], axis=0))

    return _stratified(values, float(values.mean()), mean_of_folds, generator, DRAWS)


def interquartile_over_seeds(values: np.ndarray, generator: np.random.Generator, draws: int = DRAWS) -> Interval:
    """Return the interquartile mean of all runs with such an interval: the mean without a quarter at either end."""
    return _stratified(values, float(_middle_mean(*values)), _middle_mean, generator, draws)


def interquartile_ratio(values: np.ndarray, reference: np.ndarray, generator: np.random.Generator) -> Interval:
    """Return the interquartile mean of all runs over that of other runs on the same tasks, with such an interval."""

    def ratio(*tasks: np.ndarray, axis: int = -1) -> np.ndarray:
        return _middle_mean(*tasks[: len(values)], axis=axis) / _middle_mean(*tasks[len(values) :], axis=axis)

    both = np.concatenate([values, reference])
    return _stratified(both, float(ratio(*both)), ratio, generator, DRAWS)


def mean_ratio(values: np.ndarray, reference: np.ndarray, generator: np.random.Generator) -> Interval:
    """Return the mean over tasks of the ratio of mean to mean of other runs, with such an interval."""

    def ratio(*tasks: np.ndarray, axis: int = -1) -> np.ndarray:
        own, other = tasks[: len(values)], tasks[len(values) :]
        return np.mean([a.mean(axis=axis) / b.mean(axis=axis) for a, b in zip(own, other, strict=True)], axis=0)

    both = np.concatenate([values, reference])
    return _stratified(both, float(ratio(*both)), ratio, generator, DRAWS)


def _middle_mean(*tasks: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.asarray(stats.trim_mean(np.concatenate(tasks, axis=axis), 0.25, axis=axis))


def _stratified(
    values: np.ndarray, mean: float, statistic: Callable[..., np.ndarray], generator: np.random.Generator, draws: int
) -> Interval:
    if values.shape[1] == 1:
        return Interval(mean, mean, mean)
    low, high = stats.bootstrap(
        tuple(values), statistic, n_resamples=draws, confidence_level=LEVEL, method="percentile", rng=generator
    ).confidence_interval
    return Interval(mean, float(low), float(high))
