"""Champions whose skill is known, on days that no fit has seen."""

import json
from pathlib import Path

import empyrical
import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from eigen2.errors import UserError
from eigen2.market.evaluation.backtest import Backtest, Market, backtest, write
from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.simulate import Policy
from eigen2.market.synthetic.generator import SyntheticMarket

PRICES = SyntheticMarket(days=200, columns=20, signal=0.0, seed=3).prices()
DATES = pd.bdate_range("2020-01-01", periods=200).to_numpy().astype("datetime64[D]")
RULES = TradingRules(max_holding_days=5)
MARKET = Market(PRICES, RULES, AccountRules(unit_share=0.02), range(100, 200), DATES)


def ordering(score: np.ndarray) -> Policy:
    """Order, each day, the free column with the highest score of that day if it is above 0."""

    def policy(seen: dict[str, Tensor]) -> Tensor:
        day = int(seen["day"].flatten()[0])
        wanted = torch.from_numpy(score[day]) - 1e9 * (seen["held_days"][0] > 0)
        action = torch.zeros(*seen["held_days"].shape, 2)
        if wanted.max() > 0:
            action[0, 0, wanted.argmax()] = torch.tensor([5.0, 50.0])
        return action

    return policy


def at_random(seed: int) -> Policy:
    return ordering(np.random.default_rng(seed).random(PRICES.shape[:2]))


def clairvoyant() -> Policy:
    """Return a policy that knows what a position will gain until it has been held as long as it may."""
    entry, close = PRICES[..., 0].astype(np.float64), PRICES[..., 3].astype(np.float64)
    ahead = np.zeros_like(close)
    ahead[:-5] = close[5:] / entry[1:-4] - 1.01
    return ordering(ahead)


def judged(champion: Policy, policies: int = 200, agents: int = 4) -> Backtest:
    return backtest(
        MARKET, champion, [at_random(50 + i) for i in range(agents)], 80, 7, np.random.default_rng(0), policies
    )


def test_a_policy_that_knows_the_future_is_significant() -> None:
    found = judged(clairvoyant())
    assert found.luck()["p_value"] == pytest.approx(1 / 201)
    assert found.luck()["percentile"] == 100
    assert found.selection()["deflated_sharpe"] > 0.95
    assert found.measures()["champion"]["alpha"] > 1


def test_p_values_of_random_policies_are_spread_evenly() -> None:
    values = [judged(at_random(seed), policies=25).luck()["p_value"] for seed in range(6)]
    assert 0.3 < np.mean(values) < 0.7
    assert np.mean(np.array(values) < 0.2) < 0.45


@pytest.fixture(scope="module")
def random_champion() -> Backtest:
    return judged(at_random(2))


def test_the_random_baseline_trades_as_often_as_the_champion(random_champion: Backtest) -> None:
    random = random_champion.simulations["random"]
    assert abs(random.trades.mean() / random_champion.champion.trades[0] - 1) < 0.05
    assert random.equity.shape == (200, 100)


def test_measures_are_those_of_the_curve_that_is_written(random_champion: Backtest, tmp_path: Path) -> None:
    found = random_champion
    write(found, found.champion.closed, tmp_path, {"data.rules.cost_bps": 10.0})
    curves = pd.read_csv(tmp_path / "equity.csv", index_col="date", parse_dates=True)
    summary = json.loads((tmp_path / "summary.json").read_text())
    returns = curves.pct_change().iloc[1:]
    for policy in ("champion", "buy and hold", "momentum"):
        own, measures = returns[policy], summary["measures"][policy]
        assert measures["Sharpe"] == pytest.approx(empyrical.sharpe_ratio(own), rel=1e-6)
        assert measures["Sortino"] == pytest.approx(empyrical.sortino_ratio(own), rel=1e-6)
        assert measures["max drawdown"] == pytest.approx(-empyrical.max_drawdown(own), rel=1e-6)
        assert measures["beta"] == pytest.approx(empyrical.beta(own, returns["buy and hold"]), rel=1e-6)
        assert measures["total return"] == pytest.approx(curves[policy].iloc[-1] / curves[policy].iloc[0] - 1)
    trades = pd.read_csv(tmp_path / "trades.csv")
    assert len(trades) == summary["measures"]["champion"]["trades"]
    gain = trades["profit"].sum()
    assert curves["champion"].iloc[-1] - curves["champion"].iloc[0] == pytest.approx(gain)
    assert summary["days"] == {"first": str(DATES[101]), "last": str(DATES[199]), "count": 99}
    assert sorted(summary["random_returns"]) == summary["random_returns"]
    assert len(summary["random_returns"]) == 200


def test_the_text_fits_a_terminal_and_names_every_measure(random_champion: Backtest) -> None:
    text = random_champion.text()
    assert max(map(len, text.splitlines())) <= 80
    assert "max drawdown" in text
    assert "of 80 agents tried" in text
    assert "200 policies" in text


def test_numbers_that_do_not_exist_for_a_champion_that_never_trades_are_none() -> None:
    found = judged(ordering(np.zeros(PRICES.shape[:2])))
    assert found.luck()["p_value"] == 1
    summary = found.summary()
    assert summary["measures"]["champion"]["trades"] == 0
    assert summary["measures"]["champion"]["Sortino"] is None
    assert summary["selection"]["deflated_sharpe"] is None
    assert "unknown" in found.text()


def test_one_day_is_no_test() -> None:
    few = Market(PRICES, RULES, MARKET.account, range(198, 200), DATES)
    with pytest.raises(UserError, match=r"data.holdout_days is 1; a test needs at least 2 days"):
        backtest(few, at_random(0), [at_random(1)], 1, 0, np.random.default_rng(0), 2)
