"""Rank IC against scipy, tables by hand, and scores whose knowledge is known."""

import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from eigen2.market.evaluation.information import HORIZONS, Information, forward_returns, information, rank_ic
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.synthetic.generator import SyntheticMarket

NAN = np.nan
RULES = TradingRules()
MARKET = SyntheticMarket(days=400, columns=12, signal=0.5, half_life_days=8.0, missing=0.05, seed=2)


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(2, 9), st.integers(1, 4))
def test_each_day_is_the_correlation_of_scipy(seed: int, columns: int, values: int) -> None:
    """Few values make ties, and some are missing."""
    rng = np.random.default_rng(seed)
    scores, returns = rng.integers(0, values + 1, (2, 6, columns)).astype(float)
    scores[rng.random(scores.shape) < 0.2] = NAN
    returns[rng.random(returns.shape) < 0.2] = NAN
    for found, score, gain in zip(rank_ic(scores, returns), scores, returns, strict=True):
        known = np.isfinite(score) & np.isfinite(gain)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", stats.ConstantInputWarning)
            expected = stats.spearmanr(score[known], gain[known]).statistic if known.sum() > 1 else NAN
        assert found == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_by_hand() -> None:
    scores = np.array([[1.0, 2, 3], [1, 2, 3], [1, 1, 3], [1, 1, 1], [1, NAN, NAN], [NAN, 5, 7]])
    returns = np.array([[2.0, 4, 9], [9, 4, 2], [5, 7, 9], [1, 2, 3], [1, 2, 3], [0, 8, 6]])
    np.testing.assert_allclose(rank_ic(scores, returns), [1, -1, np.sqrt(3) / 2, NAN, NAN, -1])


def test_summary_by_hand() -> None:
    daily = np.array([0.1, NAN, 0.3, -0.1, 0.1])
    dates = np.array(["2020-12-30", "2020-12-31", "2021-01-04", "2021-01-05", "2022-01-03"], "datetime64[D]")
    found = Information(1, daily, 0.9).summary(dates)
    assert found["mean"] == pytest.approx(0.1)
    assert found["icir"] == pytest.approx(0.1 / np.sqrt(0.08 / 3))
    # without overlap the t-statistic is the plain one
    plain = stats.ttest_1samp(daily[np.isfinite(daily)], 0).statistic
    assert found["t"] == pytest.approx(plain)
    assert found["p"] == pytest.approx(stats.t.sf(plain, 3), abs=1e-6)
    assert found["years"] == pytest.approx({"2020": 0.1, "2021": 0.1, "2022": 0.1})
    assert (found["days"], found["coverage"]) == (4, 0.9)


def test_numbers_that_do_not_exist() -> None:
    for daily in (np.full(3, NAN), np.array([NAN, 0.2]), np.full(4, 0.2)):
        found = Information(1, daily, 0.0)
        assert np.isnan(found.t)
        assert np.isnan(found.icir)
        assert found.mean == pytest.approx(np.nanmean(daily) if np.isfinite(daily).any() else NAN, nan_ok=True)


def test_overlap_is_allowed_for() -> None:
    """Scores that persist, without knowledge, seem significant as often as stated, if lags are those of the horizon."""
    rng, horizon = np.random.default_rng(0), 10
    robust, plain = [], []
    for _ in range(100):
        steps, scores = rng.normal(size=(310, 8)), np.cumsum(rng.normal(size=(300, 8)), axis=0)
        sums = np.cumsum(np.concatenate([np.zeros((1, 8)), steps]), axis=0)
        daily = rank_ic(scores, sums[horizon : horizon + 300] - sums[:300])
        robust.append(Information(horizon, daily, 1.0).t)
        plain.append(Information(1, daily, 1.0).t)
    rejected = [np.mean(np.array(each) > 1.645) for each in (robust, plain)]
    assert rejected[0] < 0.09
    assert rejected[1] > 0.2


def test_returns_run_from_the_fill_to_the_close_of_the_horizon() -> None:
    prices = np.full((4, 2, 4), 100, np.float32)
    prices[1, :, 0], prices[1, :, 3], prices[2, :, 3] = (100, 50), (110, 50), (100, 75)
    for horizon, last in ((1, [110, 50]), (2, [100, 75])):
        gain = 100 * np.log(np.array(last) / [100, 50])
        np.testing.assert_allclose(forward_returns(prices, RULES, horizon)[0], gain - gain.mean(), atol=1e-5)
        assert np.isnan(forward_returns(prices, RULES, horizon)[-horizon:]).all()


def test_one_who_knows_the_drift_beats_chance_and_less_so_further_ahead() -> None:
    prices, days = MARKET.prices(), range(100, 400)
    drift = information(MARKET.drift(), prices, RULES, days)
    chance = information(np.random.default_rng(0).normal(size=prices.shape[:2]), prices, RULES, days)
    assert [*drift] == [*HORIZONS]
    # persistent drifts add up for some days; thereafter noise does
    assert drift[5].mean > drift[1].mean > 0.2
    assert drift[5].mean > drift[20].mean
    for horizon in HORIZONS:
        assert len(drift[horizon].daily) == 300
        assert np.isnan(drift[horizon].daily[-horizon:]).all()
        assert len(drift[horizon].known) == 300 - horizon
        assert drift[horizon].t > 5
        assert abs(chance[horizon].t) < 3


def test_coverage_counts_columns_with_a_price() -> None:
    prices = np.full((4, 4, 4), 100, np.float32)
    prices += np.random.default_rng(0).random(prices.shape, np.float32)
    prices[:, 3] = NAN
    scores = np.array([[1.0, 2, NAN, 4]] * 4)
    found = information(scores, prices, RULES, range(4), [1])[1]
    assert found.coverage == pytest.approx(2 / 3)
    assert pd.notna(found.daily[:3]).all()
