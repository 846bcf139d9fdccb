"""Bootstraps against exact variances, and against how often an interval holds the truth."""

import itertools

import numpy as np
import pytest

from benchmarks.learning.intervals import Interval, over_days, over_seeds, stationary_days


def chance(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


class TestOverSeeds:
    def test_two_folds_of_two_seeds_by_hand(self) -> None:
        values = np.array([[0.0, 4.0], [10.0, 10.0]])
        found = over_seeds(values, chance())
        # the first fold's mean is 0, 2 or 4 with chances 1/4, 1/2, 1/4; the second's 10 always
        assert found == Interval(6.0, 5.0, 7.0)

    def test_percentiles_are_those_of_all_resamples(self) -> None:
        values = chance(3).normal(size=(2, 3))
        means = [
            (values[0, list(first)].mean() + values[1, list(second)].mean()) / 2
            for first in itertools.product(range(3), repeat=3)
            for second in itertools.product(range(3), repeat=3)
        ]
        found = over_seeds(values, chance(), draws=40_000)
        low, high = np.percentile(means, (2.5, 97.5))
        assert found.mean == pytest.approx(values.mean())
        assert found.low == pytest.approx(low, abs=0.03)
        assert found.high == pytest.approx(high, abs=0.03)

    @pytest.mark.parametrize("values", [[[1.0, 1.0], [9.0, 9.0]], [[1.0], [9.0]]])
    def test_what_differs_between_folds_alone_makes_no_interval(self, values: list[list[float]]) -> None:
        assert over_seeds(np.array(values), chance()) == Interval(5.0, 5.0, 5.0)


class TestOverDays:
    @pytest.mark.parametrize("block_days", [1.0, 5.0, 20.0])
    def test_variance_of_the_mean_is_that_of_the_formula(self, block_days: float) -> None:
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

    def test_blocks_run_on_and_around(self) -> None:
        (days,) = stationary_days(5000, 1, chance(), 10.0)
        steps = np.diff(days) % 5000
        assert (steps == 1).mean() == pytest.approx(0.9, abs=0.02)
        assert np.bincount(days, minlength=5000).sum() == 5000
        lengths = np.diff(np.flatnonzero(np.append(True, steps != 1)))
        assert lengths.mean() == pytest.approx(10, rel=0.1)
        assert lengths.std() == pytest.approx(90**0.5, rel=0.15)  # geometric: (1 - p) / p^2

    def test_the_interval_holds_the_truth_as_often_as_it_says(self) -> None:
        """Series with memory, of mean 0: single days say 95 % and hold it far more seldom, blocks nearly as often."""
        held = {1.0: 0, 20.0: 0}
        draw, runs = chance(4), 150
        for _ in range(runs):
            noise = draw.normal(size=620)
            series = np.convolve(noise, 0.8 ** np.arange(21), mode="valid")
            for block_days in held:
                found = over_days(series, draw, draws=200, block_days=block_days)
                held[block_days] += found.low <= 0 <= found.high
        assert held[20.0] / runs > 0.85
        assert held[1.0] / runs < 0.65


def test_sides() -> None:
    assert [Interval(0, *bounds).side for bounds in ((1, 2), (-1, 2), (-2, -1), (0, 1), (1, 1))] == [1, 0, -1, 0, 0]
