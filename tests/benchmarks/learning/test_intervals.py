"""Bootstrap intervals over seeds by hand."""

import numpy as np
import pytest

from benchmarks.learning.intervals import over_seeds
from eigen2.market.evaluation.intervals import Interval


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_seeds_of_two_folds_by_hand() -> None:
    # the mean of the first fold is 0, 2 or 4 with probabilities 1/4, 1/2, 1/4; that of the second is 10
    assert over_seeds(np.array([[0.0, 4.0], [10.0, 10.0]]), rng()) == Interval(6.0, 5.0, 7.0)


@pytest.mark.parametrize("values", [[[1.0, 1.0], [9.0, 9.0]], [[1.0], [9.0]]])
def test_differences_between_folds_give_no_width(values: list[list[float]]) -> None:
    assert over_seeds(np.array(values), rng()) == Interval(5.0, 5.0, 5.0)
