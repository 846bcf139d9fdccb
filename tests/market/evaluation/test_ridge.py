"""Ridge regression against the normal equations of all rows at once, with nothing of later days."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from eigen2.market.data.panel import MarketPanel, Splits, build_panel
from eigen2.market.evaluation.ridge import PENALTIES, Ridge, fit_ridge, information_coefficient
from eigen2.market.features.encoding import AverageEncoder
from eigen2.market.simulation.base import Terms
from eigen2.market.simulation.environment import AccountRules, TradingRules
from eigen2.market.simulation.returns import relative_returns
from eigen2.market.synthetic.generator import SyntheticMarket

HELD, CONTEXT = 5, 8
RULES = TradingRules(max_holding_days=HELD)
MARKET = SyntheticMarket(days=400, columns=6, signal=0.5, half_life_days=10.0, missing=0.05, seed=3)


def encoder_of(panel: MarketPanel) -> AverageEncoder:
    return AverageEncoder(panel, list(range(panel.num_columns)), CONTEXT, Terms(RULES, AccountRules(), 20, 5))


def fitted(panel: MarketPanel, refit: bool = False) -> Ridge:
    return fit_ridge(encoder_of(panel), panel.prices, panel.splits, RULES, refit)


@pytest.fixture(scope="module")
def panel() -> MarketPanel:
    return build_panel(MARKET.generate(), validation_days=80, holdout_days=60)


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


@pytest.mark.parametrize(("refit", "spans"), [(False, 1), (True, 1), (False, 3), (True, 3)])
def test_equals_the_normal_equations_of_all_rows(panel: MarketPanel, refit: bool, spans: int) -> None:
    panel = replace(panel, splits=Splits.from_days(panel.num_days, 80, 60, spans))
    encoder, ridge = encoder_of(panel), fitted(panel, refit)
    features = encoder.describe(torch.arange(panel.num_days)[None])[0][0].double().numpy()
    fitted_spans = (range(panel.splits.holdout.start),) if refit else panel.splits.train
    train = [day for span in fitted_spans for day in span[:-HELD] if day >= CONTEXT - 1]
    returns = relative_returns(panel.prices, RULES)
    rows, targets = features[train], returns[train]
    rows, targets = rows[np.isfinite(targets)], targets[np.isfinite(targets)]
    penalty = ridge.penalty * (rows**2).sum(0).mean()
    weights = np.linalg.solve(rows.T @ rows + penalty * np.eye(rows.shape[1]), rows.T @ targets)
    np.testing.assert_allclose(ridge.scores[CONTEXT - 1 :], (features @ weights)[CONTEXT - 1 :], rtol=1e-6, atol=1e-9)
    assert np.isnan(ridge.scores[: CONTEXT - 1]).all()
    days = [day for span in panel.splits.validation for day in span[:-HELD]]
    assert ridge.penalty in PENALTIES
    chosen = fitted(panel)
    assert (ridge.penalty, ridge.validation_ic) == (chosen.penalty, chosen.validation_ic)
    assert ridge.validation_ic == information_coefficient(chosen.scores[days], returns[days]) > 0.1


def test_no_score_depends_on_later_days(panel: MarketPanel) -> None:
    """Weights come from returns that end in training, the penalty from those that end in validation."""
    holdout, validation = panel.splits.holdout.start, panel.splits.validation[0].start
    for first, refit in ((holdout, False), (holdout, True), (validation, False)):
        prices, expected = panel.prices.copy(), fitted(panel, refit)
        prices[first:] *= np.random.default_rng(0).uniform(0.5, 2, prices[first:].shape[:2])[..., None]
        ridge = fitted(replace(panel, prices=prices), refit)
        same = ridge.penalty == expected.penalty
        assert same or first == validation
        if same:
            np.testing.assert_array_equal(ridge.scores, expected.scores)


def test_the_information_coefficient_is_spearmans() -> None:
    rng = np.random.default_rng(1)
    scores, returns = rng.normal(size=(2, 30, 8))
    scores[rng.random(scores.shape) < 0.3] = np.nan
    returns[3] = np.nan
    days = [
        (s[~np.isnan(s) & ~np.isnan(r)], r[~np.isnan(s) & ~np.isnan(r)]) for s, r in zip(scores, returns, strict=True)
    ]
    expected = np.mean([stats.spearmanr(s, r).statistic for s, r in days if len(s) > 2])
    assert information_coefficient(scores, returns) == pytest.approx(expected, rel=1e-12)
    assert np.isnan(information_coefficient(scores[:0], returns[:0]))


def test_nothing_is_found_where_there_is_nothing() -> None:
    panel = build_panel(replace(MARKET, signal=0.0, days=800).generate(), validation_days=300, holdout_days=100)
    assert abs(fitted(panel).validation_ic) < 0.15
