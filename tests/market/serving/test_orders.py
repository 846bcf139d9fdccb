"""The orders and positions that are written down of a policy, on prices made by hand."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from eigen2.market.serving.orders import COLUMNS, write_orders
from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.simulate import Policy, simulate
from eigen2.market.synthetic.generator import SyntheticMarket

MONEY = AccountRules(unit_share=0.05)
WHOLE = AccountRules(initial_cash=1000, unit_share=0.05, whole_shares=True)
DATES = np.datetime64("2024-01-01") + np.arange(200)


def bars(*days: tuple[float, float, float, float] | None) -> np.ndarray:
    """Return open, high, low and close of one column; None for a day without a price."""
    rows = [(np.nan,) * 4 if day is None else day for day in days]
    return np.array(rows, np.float32)[:, None]


def ordering(*days: Any) -> Policy:
    """Return a policy of these (coefficient, target) day by day for all columns, the last one ever after."""
    orders = iter(days)
    last = [days[-1]]

    def policy(seen: dict[str, Tensor]) -> Tensor:
        order = torch.tensor(next(orders, last[0]), dtype=torch.float32)
        return order.expand(1, 1, seen["held_days"].shape[-1], 2)

    return policy


def written(
    prices: np.ndarray, policy: Policy, start: int = 0, money: AccountRules = MONEY, **rules: Any
) -> pd.DataFrame:
    settings = TradingRules(**{"cost_bps": 0.0, "slippage_bps": 0.0, "min_target": 5.0, "early_close": False, **rules})
    names = [f"C{column}" for column in range(prices.shape[1])]
    return write_orders(prices, DATES[: len(prices)], names, settings, money, policy, start)


def values_of(orders: pd.DataFrame, *names: str) -> list[tuple[Any, ...]]:
    chosen = orders[list(names)].astype(object)
    return [tuple(row) for row in chosen.where(chosen.notna(), None).itertuples(index=False)]


FLAT = (100.0, 101.0, 99.0, 100.0)


def test_an_order_is_held_and_closed_at_its_target() -> None:
    prices = bars(FLAT, FLAT, (100, 104, 99, 103), (103, 112, 103, 111), FLAT)
    orders = written(prices, ordering((2, 10), (0, 0)))
    assert tuple(orders.columns) == COLUMNS
    assert orders["date"].dt.day.tolist() == [1, 2, 2, 3, 3, 4, 4, 5]
    assert values_of(orders, "action", "ticker") == [
        ("buy", "C0"),
        *[("hold", "C0"), ("wait", None)],
        *[("hold", "C0"), ("wait", None)],
        *[("close", "C0"), ("wait", "C0")],
        ("wait", "C0"),
    ]
    buy, hold, close = (orders[orders["action"] == action].iloc[-1] for action in ("buy", "hold", "close"))
    assert (buy["size"], buy["target_pct"], buy["stake_pct"]) == (2, 10, 10)
    assert buy["reason"] == "fills at the next open"
    assert np.isnan(buy["price"])
    assert (hold["price"], hold["days_held"]) == (103, 2)
    assert hold["target_price"] == pytest.approx(110)
    assert hold["gain_pct"] == pytest.approx(3)
    assert hold["reason"] == "the take-profit is not reached; closes in 18 days at the latest"
    assert (close["price"], close["days_held"]) == (pytest.approx(110), 3)
    assert close["gain_pct"] == pytest.approx(10)
    assert close["reason"] == "the take-profit was reached"
    reasons = orders[orders["action"] == "wait"]["reason"].tolist()
    full, low = (
        "all columns are held, have no price or are no members",
        "the largest size of what is not held is below 1",
    )
    assert reasons == [full, full, low, low]


def test_reasons_tell_a_gap_a_long_hold_and_a_halt_apart() -> None:
    gap = written(bars(FLAT, FLAT, (120, 121, 119, 120)), ordering((2, 10), (0, 0)))
    assert values_of(gap[gap["action"] == "close"], "price", "reason") == [(120, "the open was beyond the take-profit")]
    long = written(bars(*[FLAT] * 4), ordering((2, 10), (0, 0)), max_holding_days=2)
    assert values_of(long[long["action"] == "hold"], "reason") == [
        ("the take-profit is not reached; closes in 1 day at the latest",)
    ]
    (row,) = long[long["action"] == "close"].itertuples()
    assert (row.price, row.days_held, row.reason) == (100, 2, "held for all days allowed")
    halted = written(bars(FLAT, FLAT, None, (90, 91, 89, 90)), ordering((2, 10), (0, 0)), max_holding_days=2)
    (row,) = halted[halted["action"] == "close"].itertuples()
    assert (row.price, row.reason) == (90, "no price on the day it had to close: the next one")


def test_an_order_without_an_open_is_dropped() -> None:
    orders = written(bars(FLAT, None, FLAT, FLAT), ordering((2, 10), (2, 10), (0, 0)))
    assert values_of(orders, "action") == [("buy",), ("unfilled",), ("wait",), ("wait",), ("wait",)]
    assert orders["reason"].iloc[1] == "no price at the open: dropped"
    assert orders["reason"].iloc[2] == "all columns are held, have no price or are no members"


def test_a_share_may_cost_more_than_the_stake() -> None:
    """A coefficient of 2 stakes 100: too little at the close of 101, and at the second open."""
    prices = bars((100, 101, 99, 101), FLAT, (101, 101, 99, 100), FLAT)
    orders = written(prices, ordering((2, 10), (2, 10), (2, 10), (0, 0)), money=WHOLE)
    assert values_of(orders, "action") == [("unfunded",), ("buy",), ("unfilled",), ("buy",), ("hold",), ("wait",)]
    assert orders["reason"][0] == "positions already reach the maximum leverage, or a share costs more than the stake"
    assert orders["reason"][2] == "no price at the open, or one above the stake: dropped"


def test_a_sale_is_not_dropped_for_its_stake() -> None:
    prices = bars(FLAT, FLAT, None, FLAT)
    orders = written(prices, ordering((2, 40), (0, 40), (0, 40), (0, 40)), money=WHOLE, early_close=True)
    assert orders.loc[orders["action"] == "unfilled", "reason"].tolist() == ["no price at the open: dropped"]


@pytest.mark.parametrize("side", [1, -1])
def test_an_order_that_closes_a_position_fills_at_the_next_open(side: int) -> None:
    signals = ordering((2 * side, 40), (0, 40), (2 * side, 40), (0, 40), (0, 40))
    prices = bars(FLAT, FLAT, None, FLAT, (103, 104, 102, 103))
    orders = written(prices, signals, allow_short=side < 0, early_close=True)
    name = "sell" if side > 0 else "buy back"
    assert values_of(orders, "action") == [
        ("buy" if side > 0 else "sell short",),
        *[("hold",), (name,)],
        *[("unfilled",), ("hold",), ("wait",)],  # nothing can be sold on a day without a price
        *[("hold",), (name,)],
        *[("close",), ("wait",)],
    ]
    close = orders[orders["action"] == "close"].iloc[0]
    assert (close["price"], close["gain_pct"], close["reason"]) == (103, pytest.approx(3 * side), "the agent closed it")


def test_a_short_sale_has_its_target_below() -> None:
    prices = bars(FLAT, FLAT, (100, 100, 94, 95), (95, 96, 88, 89))
    orders = written(prices, ordering((-2, 10), (0, 0)), allow_short=True)
    assert values_of(orders, "action")[:2] == [("sell short",), ("hold",)]
    hold, close = (orders[orders["action"] == action].iloc[-1] for action in ("hold", "close"))
    assert hold["target_price"] == pytest.approx(90)
    assert hold["gain_pct"] == pytest.approx(5)
    assert close["price"] == pytest.approx(90)
    assert close["gain_pct"] == pytest.approx(10)


def test_orders_that_fill_at_the_close() -> None:
    orders = written(bars(FLAT, (100, 104, 99, 103), FLAT), ordering((2, 10), (0, 0)), execution="close")
    assert orders["reason"].iloc[0] == "fills at this close"
    hold = orders[orders["action"] == "hold"].iloc[0]
    assert (hold["days_held"], hold["price"]) == (1, 103)
    assert hold["gain_pct"] == pytest.approx(3)


MARKET = SyntheticMarket(days=160, columns=6, missing=0.1, seed=5).prices()


def random_policy(seed: int) -> Policy:
    """Return a policy that draws coefficients and targets by the day, whatever it holds."""

    def policy(seen: dict[str, Tensor]) -> Tensor:
        rng = np.random.default_rng([seed, int(seen["day"][0, 0])])
        low, high = np.array([-5, 5]), np.array([5, 20])
        return torch.from_numpy(rng.uniform(low, high, (*seen["held_days"].shape, 2))).float()

    return policy


@pytest.mark.parametrize(("opens", "share", "execution"), [(1, 0.05, "next_open"), (3, 0.4, "close")])
def test_what_is_closed_are_the_trades_of_a_simulation(opens: int, share: float, execution: str) -> None:
    """What is closed is what trading the same days makes of the same policy, but for its forced end."""
    money = AccountRules(unit_share=share)
    rules = {"allow_short": True, "max_opens_per_day": opens, "execution": execution, "cost_bps": 10.0}
    rules["early_close"] = execution == "close"
    orders = written(MARKET, random_policy(1), start=20, money=money, **rules)
    assert share < 0.4 or "unfunded" in set(orders["action"])
    assert orders["stake_pct"][orders["action"].isin(["buy", "sell short"])].min() >= 100 * money.min_order
    closed = orders[orders["action"] == "close"].reset_index(drop=True)
    settings = TradingRules(slippage_bps=0.0, min_target=5.0, **rules)
    trades = simulate(MARKET, settings, money, range(20, 160), random_policy(1)).closed
    trades = trades[trades["shares"] != 0]
    trades = trades[(trades["reason"] != "window_end") & (trades["exit_day"] < 159)]
    trades = trades.sort_values(["exit_day", "column"])
    closed = closed[closed["date"] < DATES[159]].sort_values(["date", "ticker"])
    assert len(trades) == len(closed) > 15
    assert [f"C{column}" for column in trades["column"]] == closed["ticker"].tolist()
    assert DATES[trades["exit_day"]].tolist() == closed["date"].dt.date.tolist()
    for ours, theirs in (("price", "exit_price"), ("gain_pct", "gain_pct"), ("size", "coefficient")):
        np.testing.assert_allclose(closed[ours], trades[theirs], rtol=1e-6)


@pytest.mark.parametrize(("early_close", "money"), [(False, MONEY), (True, MONEY), (True, WHOLE)])
def test_no_row_depends_on_later_days(early_close: bool, money: AccountRules) -> None:
    rules: dict[str, Any] = {"max_opens_per_day": 2, "early_close": early_close, "money": money}
    whole = written(MARKET, random_policy(2), start=20, **rules)
    assert ("unfunded" in set(whole["action"])) == money.whole_shares
    assert ("sell" in set(whole["action"])) == early_close
    for days in (21, 22, 60, 159):
        part = written(MARKET[:days], random_policy(2), start=20, **rules)
        same = whole[whole["date"] < DATES[days]].reset_index(drop=True)
        pd.testing.assert_frame_equal(part, same)


def test_stakes_are_what_leverage_leaves() -> None:
    prices = np.repeat(bars(*[FLAT] * 5), 3, axis=1)
    money = AccountRules(unit_share=0.4, max_leverage=1.0)
    orders = written(prices, ordering((2, 40), (2, 40), (0, 0)), money=money, max_opens_per_day=2, cost_bps=0.0)
    first, second = orders[orders["date"] == DATES[0]], orders[orders["date"] == DATES[1]]
    assert values_of(first, "action", "ticker") == [("buy", "C0"), ("buy", "C1")]
    assert first["stake_pct"].tolist() == pytest.approx([50, 50])  # they asked for 80 each
    assert values_of(second, "action", "ticker") == [("hold", "C0"), ("hold", "C1"), ("unfunded", "C2")]
    assert second["stake_pct"].tolist() == pytest.approx([50, 50, 0])


def test_a_position_that_is_due_without_a_price_waits_for_one() -> None:
    prices = bars(FLAT, FLAT, None, None, None, (90, 91, 89, 90))
    due = written(prices, ordering((2, 10), (0, 0)), max_holding_days=2, delisting_return=0.0)
    reasons = due[due["action"] == "hold"]["reason"].tolist()
    assert reasons[-1] == "it had to close, but has no price; closes at the next one"
    assert not any(" 0 day" in reason or "-" in reason.replace("take-profit", "") for reason in reasons)
