"""Bootstraps against exact variances."""

import numpy as np
import pytest

from benchmarks.learning.intervals import Interval, over_days, over_seeds, stationary_days


def chance(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_seeds_of_two_folds_by_hand() -> None:
    # the first fold's mean is 0, 2 or 4 with chances 1/4, 1/2, 1/4; the second's 10 always
    assert over_seeds(np.array([[0.0, 4.0], [10.0, 10.0]]), chance()) == Interval(6.0, 5.0, 7.0)


@pytest.mark.parametrize("values", [[[1.0, 1.0], [9.0, 9.0]], [[1.0], [9.0]]])
def test_what_differs_between_folds_alone_makes_no_interval(values: list[list[float]]) -> None:
    assert over_seeds(np.array(values), chance()) == Interval(5.0, 5.0, 5.0)


@pytest.mark.parametrize("block_days", [1.0, 5.0, 20.0])
def test_the_interval_over_days_is_that_of_the_formula(block_days: float) -> None:
    """Days i apart are of one block with chance (1 - p)^i, and then as far apart on the circle of days.

    So the variance is (1 / n) (C(0) + 2 sum over i of (1 - i / n) (1 - p)^i C(i)), C the circular autocovariance.
    """
    n, noise = 60, chance(1).normal(size=80)
    values = np.convolve(noise, np.ones(21) / 21, mode="valid")  # of long memory
    centred = values - values.mean()
    covariance = np.array([(centred * np.roll(centred, -i)).mean() for i in range(n)])
    weight = (1 - np.arange(n) / n) * (1 - 1 / block_days) ** np.arange(n)
    exact = (covariance[0] + 2 * (weight * covariance)[1:].sum()) / n
    means = values[stationary_days(n, 20_000, chance(2), block_days)].mean(1)
    assert np.var(means) == pytest.approx(exact, rel=0.05)
    assert np.mean(means) == pytest.approx(values.mean(), abs=4 * (exact / 20_000) ** 0.5)
    found = over_days(values, chance(2), 5000, block_days)
    assert found.mean == values.mean()
    assert found[1:] == pytest.approx(np.percentile(means, (2.5, 97.5)), abs=0.1 * exact**0.5)


def test_sides() -> None:
    assert [Interval(0, *bounds).side for bounds in ((1, 2), (-1, 2), (-2, -1), (0, 1), (1, 1))] == [1, 0, -1, 0, 0]
