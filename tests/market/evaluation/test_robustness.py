"""Costs, a day's delay and the future: known answers, and champions that cheat."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from eigen2.core.datamodule import TrainedPolicies
from eigen2.market.datamodule import MarketDataModule
from eigen2.market.evaluation.robustness import Contender, Leak, lagged, robustness, shuffle_after
from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.simulate import Simulation, simulate
from eigen2.market.synthetic.generator import SyntheticMarket

pytestmark = pytest.mark.usefixtures("unchecked")
MARKET = SyntheticMarket(days=260, columns=5, seed=3)
PRICES = MARKET.prices()
NO_LEAK = Leak(("2020-01-01",))
MONEY = AccountRules(unit_share=0.2)


def once(seen: dict[str, Tensor]) -> Tensor:
    """Order the first column at the first close, the largest size, and keep it."""
    action = torch.zeros(*seen["held_days"].shape, 2)
    if int(seen["day"].flatten()[0]) == 100 or bool((seen["held_days"] > 0).any()):
        action[..., 0, :] = torch.tensor([5.0, 1000.0])
    return action


def play(contender: Contender) -> Simulation:
    return simulate(PRICES, contender.rules, contender.account, range(100, 115), contender.policy)


def test_costs_and_delay_of_one_trade_by_hand() -> None:
    """All money in one column, from the next open to the close of the last day, or from a day later."""
    rules = TradingRules(max_holding_days=250, max_target=1000, cost_bps=7, slippage_bps=3)
    found = robustness({"once": Contender(once, rules, MONEY)}, play, NO_LEAK)
    least = replace(MONEY, min_commission=500.0)
    assert robustness({"once": Contender(once, rules, least)}, play, NO_LEAK).costs == found.costs

    def annual(first: int, side_cost: float) -> float:
        growth = PRICES[114, 0, 3] / PRICES[first, 0, 0] * (1 - side_cost) / (1 + side_cost)
        return float(growth ** (252 / 14) - 1)

    expected = {f"{bps}": annual(101, bps / 1e4) for bps in (0, 10, 30)}
    assert found.costs["once"] == pytest.approx(expected, rel=1e-5)
    # the market of day 100 is seen on day 101, and the order fills on day 102; costs are 10 basis points
    assert found.lagged["once"] == pytest.approx(annual(102, 1e-3), rel=1e-5)
    assert found.summary()["leak"] == {"days": ["2020-01-01"], "decision": None, "text": NO_LEAK.text}


def test_a_day_late_takes_the_gain_of_who_knows_tomorrow() -> None:
    ahead = np.zeros(PRICES.shape[:2])
    ahead[:-1] = PRICES[1:, :, 3] / PRICES[1:, :, 0] - 1  # of the day of the fill

    def policy(seen: dict[str, Tensor]) -> Tensor:
        action = torch.zeros(*seen["held_days"].shape, 2)
        action[..., int(ahead[int(seen["day"].flatten()[0])].argmax()), :] = torch.tensor([5.0, 1000.0])
        return action

    rules = TradingRules(max_holding_days=1, cost_bps=0, slippage_bps=0)
    found = robustness({"clairvoyant": Contender(policy, rules, MONEY)}, play, NO_LEAK)
    assert found.costs["clairvoyant"]["0"] > 1
    assert found.lagged["clairvoyant"] < 0.1 * found.costs["clairvoyant"]["0"]


def test_a_lagged_policy_sees_today_s_account() -> None:
    seen = {"day": torch.tensor([[0, 7]]), "cash": torch.tensor([[0.5, 0.25]])}
    assert lagged(lambda each: each["day"])(seen).tolist() == [[0, 6]]
    assert lagged(lambda each: each["cash"])(seen).tolist() == [[0.5, 0.25]]


def test_a_shuffle_deals_a_ticker_s_later_rows_to_its_later_days() -> None:
    table = SyntheticMarket(days=40, columns=3, missing=0.2, seed=1).generate().sample(frac=1, random_state=0)
    dates = np.sort(table["date"].unique())
    found = shuffle_after(table, dates[20], np.random.default_rng(0))
    pd.testing.assert_frame_equal(found[["date", "ticker"]], table[["date", "ticker"]])
    before = table["date"] <= dates[20]
    pd.testing.assert_frame_equal(found[before], table[before])
    moved = 0
    for ticker, rows in table[~before].groupby("ticker"):
        own = found.loc[rows.index]
        assert (own["ticker"] == ticker).all()
        values = ["open", "high", "low", "close", "volume"]
        order = [each[values].sort_values("close").to_numpy() for each in (rows, own)]
        np.testing.assert_array_equal(*order)
        moved += int((rows["close"] != own["close"]).sum())
    assert moved > 0.7 * (~before).sum()


# Leaks


def played(
    policy_of: Callable[[MarketDataModule], Any], mode: Any, rebalance_days: int = 3
) -> tuple[MarketDataModule, str]:
    lengths = {"context_days": 20, "trading_days": 15, "settlement_days": 5, "validation_days": 40, "holdout_days": 40}
    rules = TradingRules(mode=mode, max_holding_days=5, rebalance_days=rebalance_days)
    data = MarketDataModule(synthetic=MARKET, rules=rules, **lengths)
    data.setup("test")
    data.build(1, torch.device("cpu"))
    policy, own = policy_of(data), data.encoder
    text = data.test(TrainedPolicies(policy, [policy], 1, 10, 0, checks=True)).text
    assert data.encoder is own
    return data, text


def looking(ahead: int) -> Callable[[MarketDataModule], Any]:
    """Return a policy that acts on the averages of a later day, or of today for 0."""

    def policy_of(data: MarketDataModule) -> Any:
        def policy(seen: dict[str, Tensor]) -> Tensor:
            day = np.minimum(seen["day"][0].numpy() + ahead, len(data.panel.dates) - 1)
            rows = torch.from_numpy(data.encoder.rows(day)[..., 0]).float()
            return torch.tanh(rows)[None, ..., None].expand(1, *rows.shape, data.eval_env.action_shape[-1])

        return policy

    return policy_of


@pytest.mark.parametrize("mode", ["orders", "weights"])
def test_a_champion_that_looks_ahead_is_found(mode: Any) -> None:
    data, printed = played(looking(3), mode)
    text = " ".join(printed.split())
    holdout = data.panel.dates[data.panel.splits.holdout.start - 1 :]
    assert "The champion sees the future: its decision of" in text
    found = re.search(r"its decision of (\S+) changes when prices after (\S+) are shuffled", text)
    assert found is not None
    decision, cut = (int(np.searchsorted(holdout, np.datetime64(day))) for day in found.groups())
    assert cut == int(0.25 * 39)
    assert cut - 3 < decision <= cut


@pytest.mark.parametrize("rebalance_days", [4, 7])
def test_a_look_at_the_next_day_is_found_however_rarely_it_decides(rebalance_days: int) -> None:
    """Days on which it decides nothing lie between its decisions and a part of the tested days."""
    assert int(0.25 * 39) % rebalance_days
    assert "The champion sees the future" in " ".join(played(looking(1), "weights", rebalance_days)[1].split())


@pytest.mark.parametrize("mode", ["orders", "weights"])
def test_an_honest_champion_is_cleared(mode: Any) -> None:
    _, printed = played(looking(0), mode)
    text = " ".join(printed.split())
    assert "no decision of the champion up to" in text
    assert "sees the future" not in text
    for words in ("return a year 0 bp 10 bp 30 bp a day late", "future no decision"):
        assert words in text
    assert max(map(len, printed.splitlines())) <= 80


def test_the_text_of_a_leak_names_both_days() -> None:
    leak = replace(NO_LEAK, decision="2020-01-03", after="2020-01-05")
    assert leak.text.startswith(
        "the champion sees the future: its decision of 2020-01-03 changes when prices after 2020-"
    )
    assert Leak(("2020-01-01", "2020-01-02")).text.startswith(
        "no decision of the champion up to 2020-01-01 and 2020-01-02"
    )
