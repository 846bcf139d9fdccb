"""Boosted trees on averages: what they find, where nothing is to be found, and which days they never see."""

import numpy as np
import pytest

from eigen2.market.evaluation.information import rank_ic
from eigen2.market.features.boosting import _rows, boosted_scores

pytest.importorskip("lightgbm")
DAYS, COLUMNS, HELD = 300, 10, 3
TRAIN, VALIDATION, LATER = [range(0, 180)], [range(180, 240)], range(239, 300)
ROWS = np.random.default_rng(0).normal(size=(DAYS, COLUMNS, 4))


def gains(seed: int = 1) -> np.ndarray:
    """Returns that depend on the square of an average, which no linear rule can rank by."""
    return ROWS[..., 1] ** 2 + np.random.default_rng(seed).normal(size=(DAYS, COLUMNS))


def forecast(returns: np.ndarray) -> np.ndarray:
    counted = np.ones(returns.shape, bool)
    return boosted_scores(lambda days: ROWS[days], returns, counted, (TRAIN, VALIDATION), HELD, LATER)


def test_they_find_what_is_not_linear_and_nothing_in_chance() -> None:
    found = forecast(gains())
    assert np.isnan(found[: LATER.start]).all()
    assert np.nanmean(rank_ic(found, gains())) > 0.3
    chance = np.random.default_rng(5).normal(size=(DAYS, COLUMNS))
    assert abs(np.nanmean(rank_ic(forecast(chance), chance))) < 0.15


def test_no_forecast_depends_on_returns_that_were_not_known() -> None:
    """The last days of training and validation, whose returns end later, are left out."""
    changed = gains()
    for span in (*TRAIN, *VALIDATION):
        changed[span.stop - HELD : span.stop] *= -1
    changed[VALIDATION[0].stop :] = np.nan
    np.testing.assert_array_equal(forecast(changed), forecast(gains()))
    changed[VALIDATION[0].stop - HELD - 1] *= -1
    assert (forecast(changed) != forecast(gains()))[LATER.start :].any()


def test_too_few_days_forecast_nothing() -> None:
    spans, counted = ([range(0, HELD)], VALIDATION), np.ones((DAYS, COLUMNS), bool)
    found = boosted_scores(lambda days: ROWS[days], gains(), counted, spans, HELD, LATER)
    assert not found[LATER.start :].any()


def test_rows_are_those_with_a_rank_of_evenly_spaced_days(monkeypatch: pytest.MonkeyPatch) -> None:
    returns = gains()
    returns[4, 2:] = np.nan
    monkeypatch.setattr("eigen2.market.features.boosting.MOST_ROWS", 100)
    rows, ranks = _rows(lambda days: ROWS[days], returns, np.ones(returns.shape, bool), [range(0, 43)], HELD)
    days = np.arange(0, 40, 4)  # 400 rows
    assert len(rows) == len(ranks) == 92
    np.testing.assert_allclose(rows[:10], ROWS[0] - ROWS[0].mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(ranks, np.concatenate([returns[day][np.isfinite(returns[day])] for day in days]))


def test_columns_that_cannot_be_ordered_change_no_forecast_of_the_others() -> None:
    rows = np.concatenate([ROWS, np.full((DAYS, 3, 4), 50.0)], axis=1)
    returns = np.concatenate([gains(), np.full((DAYS, 3), np.nan)], axis=1)
    counted = np.isfinite(returns)
    found = boosted_scores(lambda days: rows[days], returns, counted, (TRAIN, VALIDATION), HELD, LATER)
    np.testing.assert_array_equal(found[:, :COLUMNS], forecast(gains()))
