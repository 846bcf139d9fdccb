"""Measures of equity series, by hand and against empyrical."""

import empyrical
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from eigen2.market.performance import (
    MEASURES,
    PerAccount,
    alpha_beta,
    annualised_return,
    calmar_ratio,
    daily_returns,
    format_measure,
    hit_rate,
    information_ratio,
    intercept_t,
    longest_drawdown,
    max_drawdown,
    mean_exposure,
    measure_all,
    overlapping_t,
    overlapping_tail,
    profit_factor,
    sharpe_ratio,
    sortino_ratio,
    total_return,
    turnover,
    upper_tail,
)

CURVE = np.array([100.0, 110.0, 99.0, 108.9])
"""Up by a tenth, down by a tenth, up by a tenth."""
RISING, CONSTANT = np.array([1.0, 2, 3]), np.full(10, 100.0)
RETURNS, MARKET = np.random.default_rng(0).standard_t(4, (2, 300)) * 0.01 + 0.0005
EMPYRICAL = {
    "total return": empyrical.cum_returns_final(RETURNS),
    "annual return": empyrical.annual_return(RETURNS),
    "Sharpe": empyrical.sharpe_ratio(RETURNS),
    "Sortino": empyrical.sortino_ratio(RETURNS),
    "Calmar": empyrical.calmar_ratio(RETURNS),
    "max drawdown": -empyrical.max_drawdown(RETURNS),
    "alpha": empyrical.alpha(RETURNS, MARKET),
    "beta": empyrical.beta(RETURNS, MARKET),
    "information ratio": empyrical.sharpe_ratio(RETURNS - MARKET),
}
DIGITS = np.array([[3.0, -1, 4, 1, -5, 9, 2, 6, -5, 3, 5, 8], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5]])
curves = st.lists(st.floats(50, 200), min_size=3, max_size=40).map(np.array)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (total_return(CURVE), 0.089),
        (annualised_return(CURVE), 1.089**84 - 1),  # three days of 252
        (annualised_return(np.geomspace(100, 144, 505)), 0.2),  # of two years
        (annualised_return(np.array([[100.0, 50, 0], [100, 50, -20]])), [-1, -1]),
        # mean 1/30, deviations 1/15, -2/15, 1/15 from it: variance (1 + 4 + 1) / 225 / 2 = 1 / 75
        (sharpe_ratio(daily_returns(CURVE)), (1 / 30) / (1 / 75) ** 0.5 * 252**0.5),
        (sharpe_ratio(daily_returns(CONSTANT)), 0),
        # squares of losses 0, 1/100, 0
        (sortino_ratio(daily_returns(CURVE)), (1 / 30) / (1 / 300) ** 0.5 * 252**0.5),
        (sortino_ratio(daily_returns(RISING)), np.nan),
        (calmar_ratio(CURVE), (1.089**84 - 1) / 0.1),
        (calmar_ratio(RISING), np.nan),
        (max_drawdown(CURVE), 0.1),
        (max_drawdown(np.array([50.0, 100, 80, 120, 90, 130])), 0.25),  # from 120, not from 130
        (max_drawdown(RISING), 0),
        (longest_drawdown(np.array([5.0, 4, 3, 5, 4, 6, 5, 5, 5])), 3),
        (longest_drawdown(np.array([[1.0, 2, 3], [3, 2, 1]])), [0, 2]),
        # all bought and sold once within 126 days is twice a year
        (turnover(np.full(127, 100.0), np.array(200.0)), 2),
        (mean_exposure(np.array([100.0, 100, 200]), np.array([0.0, 50, 50])), 0.375),
        (hit_rate(np.array([3.0, -1, 0, -1])), 0.25),
        (hit_rate(np.zeros(0)), np.nan),
        (profit_factor(np.array([3.0, -1, 0, -1])), 1.5),
        (profit_factor(np.array([3.0])), np.nan),
        # statsmodels 0.14, HAC with 2 lags and use_correction: of a mean, and of an intercept
        (intercept_t(DIGITS[0]), 2.493710681860291),
        (intercept_t(*DIGITS), -0.08951516397752127),
        (intercept_t(DIGITS[0], lags=2), 2.493710681860291),
        (intercept_t(DIGITS[0], lags=0), stats.ttest_1samp(DIGITS[0], 0).statistic),
        (intercept_t(DIGITS[0], np.ones(12)), np.nan),
        (intercept_t(2 * DIGITS[1], DIGITS[1]), np.nan),
        (upper_tail(1.6448536269514722), 0.05),
        # beside a benchmark that stands still it is the Sharpe ratio
        (information_ratio(daily_returns(CURVE)), (1 / 30) / (1 / 75) ** 0.5 * 252**0.5),
        (information_ratio(np.zeros(3)), np.nan),
        (alpha_beta(daily_returns(CURVE), np.zeros(3))[1], np.nan),
    ],
)
def test_known_answers(value: PerAccount, expected: PerAccount) -> None:
    np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-12)


@given(curves, st.floats(0.1, 10))
def test_the_unit_of_money_does_not_matter(curve: np.ndarray, factor: float) -> None:
    for measure in (total_return, annualised_return, daily_returns, max_drawdown):
        assert measure(factor * curve) == pytest.approx(measure(curve), rel=1e-6, abs=1e-6)


@given(curves)
def test_drawdown_equals_the_worst_of_all_pairs(curve: np.ndarray) -> None:
    worst = max(1 - curve[j] / curve[i] for i in range(len(curve)) for j in range(i, len(curve)))
    assert max_drawdown(curve) == pytest.approx(worst, abs=1e-12)


def test_an_account_that_recovers_from_ruin_has_lost_all_the_same() -> None:
    equity = np.array([[100.0, 50, -20, 180], [100, 50, 60, 180]])
    assert total_return(equity) == pytest.approx([-1.2, 0.8])
    assert annualised_return(equity)[0] == -1


def test_nothing_is_gained_after_ruin() -> None:
    """What a ruined account loses further is no gain on a negative equity."""
    equity, exposure = np.array([[100.0, -2, -20, -10], [100, 101, 102, 103]]), np.full((2, 4), 50.0)
    assert daily_returns(equity)[0].tolist() == pytest.approx([-1.02, 0, 0])
    assert daily_returns(equity)[1] == pytest.approx(equity[1, 1:] / equity[1, :-1] - 1)
    assert sharpe_ratio(daily_returns(equity))[0] < 0
    assert mean_exposure(equity, exposure) == pytest.approx([0, np.mean(50 / equity[1, 1:])])


def test_accounts_side_by_side_are_as_each_alone() -> None:
    both = np.stack([CURVE, CURVE[::-1]])
    for measure in (total_return, annualised_return, max_drawdown, longest_drawdown):
        np.testing.assert_allclose(measure(both), [measure(CURVE), measure(CURVE[::-1])])
    returns = daily_returns(both)
    for measure in (sharpe_ratio, sortino_ratio):
        np.testing.assert_allclose(measure(returns), [measure(each) for each in returns])


def test_all_measures_of_a_curve_are_those_of_empyrical() -> None:
    gains, money = np.array([4.0, -2.0]), np.array([100.0, 100.0])
    found = measure_all(RETURNS, MARKET, equity=money, exposure=money / 4, traded=np.float64(50.0), gains=gains)
    assert list(found) == list(MEASURES)
    own, active = intercept_t(RETURNS, MARKET), intercept_t(RETURNS - MARKET)
    robust = {"alpha t": own, "alpha p": upper_tail(own), "information t": active, "information p": upper_tail(active)}
    expected = {"trades": 2, "hit rate": 0.5, "profit factor": 2.0, "turnover": 63.0, "exposure": 0.25}
    longest = longest_drawdown(np.cumprod([1.0, *(1 + RETURNS)]))
    assert found == pytest.approx({**EMPYRICAL, **robust, **expected, "longest drawdown": longest}, rel=1e-9)


def test_alpha_without_skill_is_significant_as_often_as_stated() -> None:
    """Returns are autocorrelated, and the more volatile the more the market moves: plain t-statistics fail."""
    rng = np.random.default_rng(0)
    robust, plain = np.zeros((2, 600))
    for i in range(600):
        market, noise = rng.normal(0.001, 0.01, 500), rng.normal(size=502)
        own = (noise[2:] + noise[1:-1] + noise[:-2]) * (0.004 + np.abs(market))
        robust[i], plain[i] = intercept_t(0.7 * market + own, market), own.mean() / own.std() * 500**0.5
    rejected = [np.mean([upper_tail(t) < 0.05 for t in statistics]) for statistics in (robust, plain)]
    assert 0.035 < rejected[0] < 0.085
    assert rejected[1] > 0.12
    assert intercept_t(0.01 + 0.7 * market + own, market) > 5


@pytest.mark.parametrize(("days", "most"), [(47, 0.115), (232, 0.075)])
def test_overlapping_values_without_effect_are_about_as_often_significant_as_stated(days: int, most: float) -> None:
    """Of 47 sums of 20 days only two do not overlap."""
    noise = np.random.default_rng(days).normal(size=(1500, days + 19))
    sums = np.lib.stride_tricks.sliding_window_view(noise, 20, axis=1).sum(-1)
    tails = np.array([overlapping_tail(overlapping_t(each, 20), days, 20) for each in sums])
    assert 0.035 < (tails < 0.05).mean() < most
    assert 0.035 < (tails > 0.95).mean() < most


def test_values_of_a_day_have_student_s_test_and_too_few_values_none() -> None:
    found = overlapping_t(DIGITS[0], 1)
    expected = stats.ttest_1samp(DIGITS[0], 0, alternative="greater")
    assert (found, overlapping_tail(found, 12, 1)) == pytest.approx((expected.statistic, expected.pvalue), abs=1e-6)
    assert np.isnan([overlapping_t(DIGITS[0][:9], 5), overlapping_tail(1.0, 9, 5)]).all()


@pytest.mark.parametrize(
    ("measure", "value", "text"),
    [
        ("total return", -0.0001, "0.0 %"),
        ("alpha", 0.1234, "12.3 %"),
        ("longest drawdown", 1234.0, "1,234"),
        ("Sharpe", -1.005, "-1.00"),
        ("trades", 3.0, "3"),
        ("Calmar", None, "-"),
        ("a measure of another version", 0.5, "0.50"),
    ],
)
def test_measures_are_written_with_their_unit(measure: str, value: float | None, text: str) -> None:
    assert format_measure(measure, value) == text
