"""Intervals over days against exact means and variances, and over trainings against scipy's."""

import numpy as np
import pytest
from scipy import stats

from eigen2.market.intervals import over_days, over_trainings, stationary_days, student_tail


@pytest.mark.parametrize("block_days", [1.0, 5.0, 20.0])
def test_the_variance_over_days_agrees_with_the_formula(block_days: float) -> None:
    """Days i apart are in the same block with probability (1 - p)^i, and then i apart on the circle of days.

    So the variance is (1 / n) (C(0) + 2 sum over i of (1 - i / n) (1 - p)^i C(i)), with circular autocovariance C.
    """
    n, noise = 60, np.random.default_rng(1).normal(size=80)
    values = np.convolve(noise, np.ones(21) / 21, mode="valid")  # autocorrelated
    centred = values - values.mean()
    covariance = np.array([(centred * np.roll(centred, -i)).mean() for i in range(n)])
    weight = (1 - np.arange(n) / n) * (1 - 1 / block_days) ** np.arange(n)
    exact = (covariance[0] + 2 * (weight * covariance)[1:].sum()) / n
    means = values[stationary_days(n, 20_000, np.random.default_rng(2), block_days)].mean(1)
    assert np.var(means) == pytest.approx(exact, rel=0.05)
    assert np.mean(means) == pytest.approx(values.mean(), abs=4 * (exact / 20_000) ** 0.5)
    interval = over_days(values, np.random.default_rng(2), 5000, block_days)
    capped = stationary_days(n, 20_000, np.random.default_rng(2), min(block_days, 60 ** (1 / 3)))
    means = values[capped].mean(1)
    assert interval.mean == values.mean()
    assert interval[1:] == pytest.approx(np.percentile(means, (2.5, 97.5)), abs=0.1 * means.std())


def test_few_days_have_an_interval_that_holds_the_mean_nine_times_in_ten() -> None:
    rng = np.random.default_rng(0)
    intervals = [over_days(rng.standard_normal(67), rng, 300) for _ in range(600)]
    assert 0.87 < np.mean([each.low <= 0 <= each.high for each in intervals]) < 0.95


@pytest.mark.parametrize("freedom", [1, 2.5, 30])
def test_tails_are_student_s(freedom: float) -> None:
    for t in (-2.0, 0.0, 0.5, 3.0):
        assert student_tail(t, freedom) == pytest.approx(stats.t.sf(t, freedom), abs=1e-6)
    assert np.isnan(student_tail(np.nan, freedom))


@pytest.mark.parametrize("trainings", [2, 3, 5, 30])
def test_an_interval_over_trainings_is_student_s(trainings: int) -> None:
    values = np.random.default_rng(trainings).normal(size=trainings)
    expected = stats.t.interval(0.95, trainings - 1, values.mean(), stats.sem(values))
    assert over_trainings(values) == pytest.approx((values.mean(), *expected), rel=1e-6)
