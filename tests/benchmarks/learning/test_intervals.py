"""Bootstrap intervals over seeds by hand."""

import numpy as np
import pytest

from benchmarks.learning.intervals import interquartile_over_seeds, interquartile_ratio, over_seeds
from eigen2.market.intervals import Interval


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_seeds_of_two_folds_by_hand() -> None:
    # the mean of the first fold is 0, 2 or 4 with probabilities 1/4, 1/2, 1/4; that of the second is 10
    assert over_seeds(np.array([[0.0, 4.0], [10.0, 10.0]]), rng()) == Interval(6.0, 5.0, 7.0)


@pytest.mark.parametrize("values", [[[1.0, 1.0], [9.0, 9.0]], [[1.0], [9.0]]])
def test_differences_between_folds_give_no_width(values: list[list[float]]) -> None:
    assert over_seeds(np.array(values), rng()) == Interval(5.0, 5.0, 5.0)


def test_the_interquartile_mean_is_that_of_the_middle_runs_of_all_tasks() -> None:
    """Aggregates as `rliable` does: the mean over all runs of all tasks without a quarter at either end.

    Each task's runs are resampled by themselves: the mean of the middle four of these eight lies between 2 and 12, and
    every task keeps its four.
    """
    values = np.array([[0.0, 1.0, 2.0, 3.0], [10.0, 11.0, 12.0, 1000.0]])
    generator = rng(3)
    found = interquartile_over_seeds(values, generator)
    assert found.mean == (2 + 3 + 10 + 11) / 4
    draws = np.concatenate([generator.choice(task, (40_000, 4)) for task in values], axis=1)
    middle = np.sort(draws, axis=1)[:, 2:6].mean(1)
    assert found[1:] == pytest.approx(np.percentile(middle, (2.5, 97.5)), abs=0.25)


def test_the_ratio_of_interquartile_means_resamples_both_sides() -> None:
    """Of one task with two seeds on either side, where the mean is that of both."""
    found = interquartile_ratio(np.array([[2.0, 4.0]]), np.array([[1.0, 1.0]]), rng())
    assert found == Interval(3.0, 2.0, 4.0)
    reverse = interquartile_ratio(np.array([[6.0, 6.0]]), np.array([[2.0, 4.0]]), rng())
    assert reverse == Interval(2.0, 1.5, 3.0)
    assert interquartile_ratio(np.array([[3.0]]), np.array([[2.0]]), rng()) == Interval(1.5, 1.5, 1.5)
