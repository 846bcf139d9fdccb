"""Ridge regression against the normal equations of all rows, with nothing of later days or of its own fold."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from eigen2.market.data.panel import MarketPanel, build_panel
from eigen2.market.data.source import LISTED_DAYS
from eigen2.market.features.encoding import AverageEncoder
from eigen2.market.features.ridge import FOLDS, PENALTIES, Ridge, fit_ridge
from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.base import EpisodeSettings
from eigen2.market.simulation.returns import relative_returns
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.synthetic.generator import SyntheticMarket

HELD, CONTEXT = 5, 8
RULES = TradingRules(max_holding_days=HELD)
MARKET = SyntheticMarket(days=400, columns=6, signal=0.5, half_life_days=10.0, missing=0.05, seed=3)


def encoder_of(panel: MarketPanel) -> AverageEncoder:
    return AverageEncoder(panel, list(range(panel.num_columns)), CONTEXT, EpisodeSettings(RULES, AccountRules(), 20, 5))


@pytest.fixture(scope="module")
def panel() -> MarketPanel:
    return build_panel(MARKET.generate(), validation_days=80, holdout_days=60, validation_spans=2)


def normal_equations(rows: np.ndarray, returns: np.ndarray, penalty: float) -> np.ndarray:
    """The weights of all rows, less the means of their days, by one linear system."""
    x, y = [], []
    for averages, gains in zip(rows, returns, strict=True):
        known = np.isfinite(gains)
        if known.any():
            x.append(averages[known] - averages[known].mean(0))
            y.append(gains[known] - gains[known].mean())
    design, targets = np.concatenate(x), np.concatenate(y)
    scale = penalty * (design**2).sum(0).mean()
    return np.linalg.solve(design.T @ design + scale * np.eye(design.shape[1]), design.T @ targets)


def test_returns_by_hand() -> None:
    prices = np.full((4, 3, 4), 100, np.float32)
    prices[1, :, 0], prices[2, :, 3] = (100, 200, np.nan), (110, 210, 120)
    for execution, entry in (("next_open", [100, 200]), ("close", [100, 100])):
        returns = relative_returns(prices, TradingRules(max_holding_days=2, execution=execution))
        expected = 100 * np.log(np.array([110, 210]) / entry)
        known = 2 if execution == "next_open" else 3  # the third column has no open
        gains = np.append(expected, 100 * np.log(1.2))[:known]
        np.testing.assert_allclose(returns[0, :known], gains - gains.mean(), rtol=1e-5)
        assert np.isnan(returns[2:]).all()
        assert np.isnan(returns[0, known:]).all()


@pytest.mark.parametrize("held", [3, 4, 6])
def test_returns_of_positions_longer_than_the_prices_are_unknown(held: int) -> None:
    returns = relative_returns(np.full((4, 2, 4), 100, np.float32), TradingRules(max_holding_days=held))
    assert np.isfinite(returns).sum() == (2 if held == 3 else 0)


@pytest.mark.parametrize(("delisting_return", "counted"), [(-0.3, -0.3), (0.0, 0.0), (-1.0, -0.9)])
def test_returns_count_the_loss_of_a_delisting(delisting_return: float, counted: float) -> None:
    """A column trades on five days, then never again; the other ones, from the fifth day on and throughout."""
    prices = np.full((5 + LISTED_DAYS, 3, 4), 100, np.float32)
    prices[5:, 0], prices[:4, 1] = np.nan, np.nan
    rules = TradingRules(max_holding_days=3, delisting_return=delisting_return)
    returns = relative_returns(prices, rules)
    lost = 100 * np.log(1 + counted)
    for day in (2, 3):  # it fills on the next day, and the last of three days has no price
        np.testing.assert_allclose(returns[day, [0, 2]], [lost / 2, -lost / 2], atol=1e-4)
    assert np.isfinite(returns[1]).tolist() == [True, False, True]
    assert np.isnan(returns[3, 1]), "no order can be given before the first close"
    assert np.isfinite(returns[4]).tolist() == [False, True, True], "nor one be filled after the last"


def test_a_halt_is_no_delisting() -> None:
    prices = np.full((5 + LISTED_DAYS, 2, 4), 100, np.float32)
    prices[5:8, 0] = np.nan
    returns = relative_returns(prices, TradingRules(max_holding_days=3))
    assert np.isfinite(returns[:8, 0]).tolist() == [True, True, False, False, False, False, False, False]


def test_columns_without_a_price_change_no_forecast_of_the_others() -> None:
    rows = np.random.default_rng(0).normal(size=(40, 5, 4))
    prices = np.ones((40, 5, 4), np.float32)
    ridge = Ridge(np.arange(4.0), ((np.arange(10, 20), np.ones(4)),))
    alone = ridge.scores(lambda days: rows[days][:, :3], prices[:, :3])
    prices[:, 3], prices[20:, 4] = np.nan, np.nan
    scores = ridge.scores(lambda days: rows[days], prices)
    np.testing.assert_allclose(scores[20:, :3], alone[20:])
    assert not scores[20:, 3:].any()
    assert scores[:20, 4].all()


def test_equals_the_normal_equations_of_all_rows(panel: MarketPanel, monkeypatch: pytest.MonkeyPatch) -> None:
    penalty = PENALTIES[6]
    monkeypatch.setattr("eigen2.market.features.ridge.PENALTIES", [penalty])
    encoder, returns = encoder_of(panel), relative_returns(panel.prices, RULES)
    ridge, rows = encoder.fit_ridge(panel, panel.splits.train), encoder.rows(np.arange(panel.num_days))
    assert len(panel.splits.train) == 2
    days = np.array([day for span in panel.splits.train for day in span[:-HELD] if day >= CONTEXT - 1])

    forecasts = {}
    for fold, weights in ridge.folds:
        place = np.searchsorted(days, fold)
        others = np.delete(days, np.arange(max(place[0] - HELD, 0), min(place[-1] + HELD, len(days) - 1) + 1))
        expected = normal_equations(rows[others], returns[others], penalty)
        np.testing.assert_allclose(weights / np.linalg.norm(weights), expected / np.linalg.norm(expected), rtol=1e-6)
        forecasts |= {day: rows[day] @ expected for day in fold.tolist()}
    assert len(ridge.folds) == FOLDS
    assert [*forecasts] == days.tolist()

    # the unit is the root mean square of the forecasts of known returns, less the means of their days
    centred = [
        (forecasts[day] - forecasts[day][np.isfinite(returns[day])].mean())[np.isfinite(returns[day])] for day in days
    ]
    unit = np.sqrt((np.concatenate(centred) ** 2).mean())
    whole = normal_equations(rows[days], returns[days], penalty) / unit
    np.testing.assert_allclose(ridge.weights, whole, rtol=1e-6)
    np.testing.assert_array_equal(encoder.ridge_weights, ridge.worth * ridge.weights)

    gains = [returns[day][np.isfinite(returns[day])] for day in days]
    gains = [each - each.mean() for each in gains]
    sums = [
        sum(score @ gain for day, score, gain in zip(days, centred, gains, strict=True) if day in fold)
        for fold, _ in ridge.folds
    ]
    t = stats.ttest_1samp(sums, 0).statistic
    assert ridge.worth == pytest.approx(1 - 4 / t**2, rel=1e-6)
    assert 0.5 < ridge.worth < 1

    scores, priced = ridge.scores(encoder.rows, panel.prices), np.isfinite(panel.prices[..., 3])
    for day in range(panel.num_days):
        score = forecasts[day] / unit if day in forecasts else rows[day] @ whole
        centred_score = np.where(priced[day], score - score[priced[day]].mean(), 0)
        np.testing.assert_allclose(scores[day], centred_score, rtol=1e-5, atol=1e-8)
    seen = encoder({"day": torch.arange(panel.num_days)[None], **empty(panel, encoder)})["ridge"][0].numpy()
    np.testing.assert_allclose(seen, (ridge.worth * scores).clip(-5, 5), rtol=1e-3, atol=1e-4)


def empty(panel: MarketPanel, encoder: AverageEncoder) -> dict[str, torch.Tensor]:
    """The rest of an observation without positions."""
    shape = (1, panel.num_days)
    columns = {name: torch.zeros(*shape, panel.num_columns) for name in ("held_days", "gain", "target")}
    account = {"days_left": torch.full(shape, 9), "cash": torch.ones(shape), "room": torch.ones(shape)}
    return {**columns, "coefficient": torch.zeros(*shape, panel.num_columns, dtype=torch.uint8), **account}


def test_the_penalty_is_the_best_over_all_folds(panel: MarketPanel) -> None:
    encoder, returns = encoder_of(panel), relative_returns(panel.prices, RULES)
    span = range(CONTEXT - 1, 200)
    ridge = fit_ridge(encoder.rows, returns, [span], HELD)
    rows, days = encoder.rows(np.arange(200)), np.arange(span.start, span.stop - HELD)
    found, alike = [], []
    for penalty in PENALTIES:
        forecast, gain = [], []
        for fold, _ in ridge.folds:
            away = days[(days < fold[0] - HELD) | (days > fold[-1] + HELD)]
            weights = normal_equations(rows[away], returns[away], penalty)
            for day in fold:
                known = np.isfinite(returns[day])
                score = (rows[day] @ weights)[known]
                forecast.append(score - score.mean())
                gain.append(returns[day][known] - returns[day][known].mean())
        alike.append(np.corrcoef(weights, ridge.folds[-1][1])[0, 1])
        found.append(np.corrcoef(np.concatenate(forecast), np.concatenate(gain))[0, 1])
    assert np.argmax(alike) == np.argmax(found)
    assert max(alike) == pytest.approx(1)


def test_no_forecast_depends_on_later_days(panel: MarketPanel) -> None:
    """Weights come from returns that end in training."""
    panel = build_panel(MARKET.generate(), validation_days=80, holdout_days=60)
    first = panel.splits.validation[0].start
    prices = panel.prices.copy()
    prices[first:] *= np.random.default_rng(0).uniform(0.5, 2, prices[first:].shape[:2])[..., None]
    changed = encoder_of(replace(panel, prices=prices))
    np.testing.assert_array_equal(changed.ridge_weights, encoder_of(panel).ridge_weights)


def test_no_forecast_depends_on_the_holdout() -> None:
    """A column that stops in training, and trades again in the holdout or not, has the same returns."""
    panel = build_panel(MARKET.generate(), validation_days=80, holdout_days=60)
    prices = panel.prices.copy()
    prices[100:, 2] = np.nan
    stopped = encoder_of(replace(panel, prices=prices.copy()))
    prices[-20:, 2] = 5.0
    np.testing.assert_array_equal(encoder_of(replace(panel, prices=prices)).ridge_weights, stopped.ridge_weights)


def test_restored_statistics_forecast_the_same(panel: MarketPanel) -> None:
    encoder = encoder_of(panel)
    saved = {**encoder.state_dict(), "encoding": "averages", "context_days": CONTEXT}
    episode = EpisodeSettings(RULES, AccountRules(), 20, 5)
    days = torch.arange(panel.num_days)[None]
    assert torch.equal(
        encoder.restore(saved, panel, episode).forecasts(days)[:, -60:], encoder.forecasts(days)[:, -60:]
    )


def test_too_few_days_to_learn_from_forecast_nothing() -> None:
    rows = np.random.default_rng(0).normal(size=(12, 3, 4))
    for span in (range(0, 4), range(0, 7)):
        ridge = fit_ridge(lambda days: rows[days], np.ones((12, 3)) * [1, 2, 3], [span], 4)
        assert not ridge.weights.any()
        assert not ridge.scores(lambda days: rows[days], np.ones((12, 3, 4), np.float32)).any()


def test_features_do_not_tell_how_columns_fare_on_the_training_days() -> None:
    """Where prices are pure chance, forecasts of days that were left out of a fit are too.

    Statistics of a column's own training days, in which its features are measured, would tell whether it rises or
    trends on those that were left out.
    """
    found, worth = [], []
    for seed in range(4):
        market = SyntheticMarket(days=1100, columns=60, signal=0.0, gap=0.7, seed=seed)
        panel = build_panel(market.generate(), validation_days=50, holdout_days=50)
        episode = EpisodeSettings(TradingRules(), AccountRules(), 20, 5)
        encoder = AverageEncoder(panel, list(range(60)), 64, episode)
        ridge = encoder.fit_ridge(panel, panel.splits.train)
        days, returns = np.concatenate([fold for fold, _ in ridge.folds]), relative_returns(panel.prices, episode.rules)
        scores = ridge.scores(encoder.rows, panel.prices)[days]
        found.append(np.corrcoef(scores.ravel(), returns[days].ravel())[0, 1])
        worth.append(ridge.worth)
    assert np.mean(found) < 0.02, found
    assert worth.count(0.0) >= 3, worth
