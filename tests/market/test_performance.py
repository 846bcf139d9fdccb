"""Return and risk of equity series, by hand."""

import empyrical
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigen2.market.evaluation.performance import (
    alpha_beta,
    annualised_return,
    calmar_ratio,
    daily_returns,
    hit_rate,
    longest_drawdown,
    max_drawdown,
    mean_exposure,
    profit_factor,
    sharpe_ratio,
    sortino_ratio,
    total_return,
    turnover,
)

CURVE = np.array([100.0, 110.0, 99.0, 108.9])
"""Up by a tenth, down by a tenth, up by a tenth."""

curves = st.lists(st.floats(50, 200), min_size=3, max_size=40).map(np.array)


def test_returns_by_hand() -> None:
    np.testing.assert_allclose(daily_returns(CURVE), [0.1, -0.1, 0.1])
    assert total_return(CURVE) == pytest.approx(0.089)
    assert annualised_return(CURVE) == pytest.approx(1.089**84 - 1)  # three days of 252


def test_a_year_at_the_pace_of_two() -> None:
    two_years = np.geomspace(100, 144, 505)
    assert annualised_return(two_years) == pytest.approx(0.2)


def test_nothing_left_is_minus_one_and_less_than_nothing_too() -> None:
    assert annualised_return(np.array([[100.0, 50, 0], [100, 50, -20]])).tolist() == [-1, -1]


def test_sharpe_by_hand() -> None:
    # mean 1/30, deviations 1/15, -2/15, 1/15 from it: variance (1 + 4 + 1) / 225 / 2 = 1 / 75
    assert sharpe_ratio(CURVE) == pytest.approx((1 / 30) / (1 / 75) ** 0.5 * 252**0.5)


def test_an_account_that_never_trades_has_a_sharpe_of_zero() -> None:
    assert sharpe_ratio(np.full(10, 100.0)) == 0


def test_drawdown_is_from_the_highest_before() -> None:
    assert max_drawdown(CURVE) == pytest.approx(0.1)
    assert max_drawdown(np.array([50.0, 100, 80, 120, 90, 130])) == pytest.approx(0.25)  # of 120, not of 130
    assert max_drawdown(np.array([1.0, 2, 3])) == 0


def test_turnover_by_hand() -> None:
    # all bought and sold once within 126 days is twice a year
    assert turnover(np.full(127, 100.0), np.array(200.0)) == pytest.approx(2)


def test_exposure_leaves_the_first_day_out() -> None:
    assert mean_exposure(np.array([100.0, 100, 200]), np.array([0.0, 50, 50])) == pytest.approx(0.375)


@given(curves, st.floats(0.1, 10))
def test_the_unit_of_money_does_not_matter(curve: np.ndarray, factor: float) -> None:
    for measure in (total_return, annualised_return, sharpe_ratio, max_drawdown):
        assert measure(factor * curve) == pytest.approx(measure(curve), rel=1e-6, abs=1e-6)


@given(curves)
def test_drawdown_equals_the_worst_of_all_pairs(curve: np.ndarray) -> None:
    worst = max(1 - curve[j] / curve[i] for i in range(len(curve)) for j in range(i, len(curve)))
    assert max_drawdown(curve) == pytest.approx(worst, abs=1e-12)


def test_accounts_side_by_side_are_as_each_alone() -> None:
    both = np.stack([CURVE, CURVE[::-1]])
    for measure in (total_return, annualised_return, sharpe_ratio, max_drawdown):
        np.testing.assert_allclose(measure(both), [measure(CURVE), measure(CURVE[::-1])])


def test_sortino_by_hand() -> None:
    # mean 1/30, squares of losses 0, 1/100, 0
    assert sortino_ratio(CURVE) == pytest.approx((1 / 30) / (1 / 300) ** 0.5 * 252**0.5)
    assert np.isnan(sortino_ratio(np.array([1.0, 2, 3])))


def test_calmar_is_return_over_drawdown() -> None:
    assert calmar_ratio(CURVE) == pytest.approx((1.089**84 - 1) / 0.1)
    assert np.isnan(calmar_ratio(np.array([1.0, 2, 3])))


def test_the_longest_time_below_a_high() -> None:
    assert longest_drawdown(np.array([5.0, 4, 3, 5, 4, 6, 5, 5, 5])) == 3
    assert longest_drawdown(np.array([[1.0, 2, 3], [3, 2, 1]])).tolist() == [0, 2]


def test_trades_by_hand() -> None:
    gains = np.array([3.0, -1, 0, -1])
    assert hit_rate(gains) == 0.25
    assert profit_factor(gains) == 1.5
    assert np.isnan(profit_factor(np.array([3.0])))
    assert np.isnan(hit_rate(np.zeros(0)))


def test_twice_the_benchmark_is_beta_two_without_alpha() -> None:
    market = np.array([0.01, -0.02, 0.03, 0.0])
    curve = np.cumprod([1.0, *(1 + 2 * market)])
    alpha, beta = alpha_beta(curve, np.cumprod([1.0, *(1 + market)]))
    assert beta == pytest.approx(2)
    assert alpha == pytest.approx(0, abs=1e-12)
    assert np.isnan(alpha_beta(CURVE, np.full(4, 100.0))[1])


@pytest.mark.parametrize("seed", range(5))
def test_measures_are_those_of_empyrical(seed: int) -> None:
    chance = np.random.default_rng(seed)
    returns, market = chance.standard_t(4, (2, 400)) * 0.01 + 0.0005
    curve, benchmark = (np.cumprod([100.0, *(1 + each)]) for each in (returns, market))
    expected = {
        annualised_return: empyrical.annual_return(returns),
        sharpe_ratio: empyrical.sharpe_ratio(returns),
        sortino_ratio: empyrical.sortino_ratio(returns),
        calmar_ratio: empyrical.calmar_ratio(returns),
        max_drawdown: -empyrical.max_drawdown(returns),
    }
    for measure, value in expected.items():
        assert measure(curve) == pytest.approx(value, rel=1e-9), measure.__name__
    assert alpha_beta(curve, benchmark) == pytest.approx(empyrical.alpha_beta(returns, market), rel=1e-9)
