"""Record a policy's decisions day by day: orders, positions held and closed, and the reasons."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int, Shaped

from eigen2.market.data.panel_rows import orderable
from eigen2.market.data.source import CLOSE
from eigen2.market.simulation.account import DUST, AccountRules, Capacity
from eigen2.market.simulation.environment import TradingEnvironment
from eigen2.market.simulation.portfolio import PortfolioEnvironment, make_environment
from eigen2.market.simulation.rules import CLOSE_REASONS, TradingRules
from eigen2.market.simulation.simulate import Day, Policy, Prices, play_days
from eigen2.market.simulation.windows import window_options

COLUMNS = (
    *("date", "ticker", "action", "size", "target_pct", "stake_pct"),
    *("price", "target_price", "days_held", "gain_pct", "reason"),
)
WHY_CLOSED = {
    "target": "the take-profit was reached",
    "gap": "the open was beyond the take-profit",
    "holding": "held for all days allowed",
    "halted": "no price on the day it had to close: the next one",
    "delisted": "stopped trading for good",
    "signal": "the agent closed it",
}
UNFILLED = "no price at the open: dropped"
Row = dict[str, Any]
LOST: Row = {"action": "wait", "reason": "the equity is lost: all that is held is closed, and nothing follows"}


def write_orders(
    prices: Prices,
    dates: Shaped[np.ndarray, " days"],
    tickers: Sequence[str],
    rules: TradingRules,
    account: AccountRules,
    policy: Policy,
    start: int,
    capacity: Capacity = None,
) -> pd.DataFrame:
    """Play a policy from day `start` on, without positions at first, and record its decisions at every close.

    Rows by date have `COLUMNS`: size and target_pct (the take-profit) as ordered, stake_pct (percent of the
    equity that an order takes, or a position is worth at this close), price (the close of a position held, the exit
    of one closed), days_held (trading days), gain_pct (net of costs for a closed position). Actions are `buy` and
    `sell short` (an order given at this close), `sell` and `buy back` (one that closes a position), `unfunded` (an
    order for which the account has no money left, and which later rows leave out), `unfilled` (an order of the day
    before that did not trade), `hold`, `close`, and `wait` if nothing is ordered.

    Target weights are `buy` or `sell` rows of the columns with a price on a day of rebalancing whose weight is not the
    target, and stake_pct is the target in percent of the equity; `hold` are others that are held, and `wait` the days
    between. The rows end where the equity is lost.
    """
    # a first extra day takes the last orders; a second keeps it from being the last day, which sells everything
    table = np.pad(prices, ((0, 2), (0, 0), (0, 0)), constant_values=np.nan)
    env = make_environment(table, rules, 1, account=account, capacity=capacity)
    days = play_days(env, policy, window_options([start], len(table) - 1 - start, len(table) - start))
    rows: list[Row] = []
    if isinstance(env, PortfolioEnvironment):
        return _table(_weight_days(env, days, prices, dates, tickers, start))
    assert isinstance(env, TradingEnvironment)
    writer, may_order = _Writer(env, tickers), orderable(prices)
    for today, day in zip(range(start, len(prices)), days, strict=False):
        rows += [{"date": dates[today], **row} for row in writer.rows(day, may_order[today])]
    return _table(rows)


def _table(rows: list[Row]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"days_held": "Int64"})


def _weight_days(
    env: PortfolioEnvironment,
    days: Iterable[Day],
    prices: Prices,
    dates: Shaped[np.ndarray, " days"],
    tickers: Sequence[str],
    start: int,
) -> list[Row]:
    """Return the rows of target weights from day `start` on, until the equity is lost."""
    every, rows, unfilled, ruined = env.rules.rebalance_days, list[Row](), list[Row](), False
    held = env.held_weights()[0, 0]
    for today, day in zip(range(start, len(prices), every), days, strict=False):
        decided = [LOST] if ruined else _weight_rows(held, day, env, prices[today, :, CLOSE], tickers)
        rows += [{"date": dates[today], **row} for row in (*unfilled, *decided)]
        if ruined:
            break
        given = {row["ticker"] for row in decided if row["action"] in ("buy", "sell")}
        names = [
            name for name, traded in zip(tickers, day.info["traded"][0], strict=True) if name in given and not traded
        ]
        unfilled = [{"ticker": name, "action": "unfilled", "reason": UNFILLED} for name in names]
        for waiting in range(today + 1, min(today + every, len(prices))):
            left = today + every - waiting
            wait = {"action": "wait", "reason": f"the next rebalancing is in {left} day{'s' * (left > 1)}"}
            rows += [{"date": dates[waiting], **row} for row in (*unfilled, wait)]
            unfilled = []
        held = env.held_weights()[0, 0]
        ruined = bool(env.accounts.ruined[0])
    return rows


def _weight_rows(
    weights: Float[np.ndarray, " columns"],
    day: Day,
    env: PortfolioEnvironment,
    close: Float[np.ndarray, " columns"],
    tickers: Sequence[str],
) -> list[Row]:
    """Return the rows of a rebalancing of weights, by column; one that waits if none is held or has a target."""
    held = 100 * weights
    targets = 100 * env.accounts.rules.max_leverage * day.info["weights"][0, 0]
    fill = "the next open" if env.rules.execution == "next_open" else "this close"
    rows = []
    columns = tickers, held.tolist(), targets.tolist(), close.tolist()
    for ticker, now, target, price in zip(*columns, strict=True):
        if math.isfinite(price) and abs(target - now) > 100 * DUST:
            name, reason = "buy" if target > now else "sell", f"from {now:.2f} % of the equity, at {fill}"
            rows.append({"ticker": ticker, "action": name, "stake_pct": target, "price": price, "reason": reason})
        elif now:
            reason = "it has its target" if math.isfinite(price) else "no price: it is kept"
            rows.append({"ticker": ticker, "action": "hold", "stake_pct": now, "price": price, "reason": reason})
    return rows or [{"action": "wait", "reason": "nothing is held, and nothing with a price is wanted"}]


class _Writer:
    """Follows the account of an environment through the days and makes rows of it."""

    def __init__(self, env: TradingEnvironment, tickers: Sequence[str]) -> None:
        self.env, self.rules, self.tickers = env, env.rules, tickers
        self.fill = "the next open" if self.rules.execution == "next_open" else "this close"
        self.unfilled = UNFILLED
        reasons = ["positions already reach the maximum leverage"]
        if env.accounts.capacity is not None:
            reasons.append("the ticker trades too little for the volume cap")
        if env.accounts.rules.whole_shares:
            self.unfilled = "no price at the open, or one above the stake: dropped"
            reasons.append("a share costs more than the stake")
        self.unfunded = ", or ".join(reasons)
        self.held: dict[int, Row] = {}
        self.tomorrow: list[Row] = []

    def rows(self, day: Day, orderable: Bool[np.ndarray, " columns"]) -> list[Row]:
        """Return the rows of a day: its fills and closes, the positions held at its close, and the orders at it."""
        low, high = torch.tensor(self.rules.action_range)
        action = torch.clamp(day.action[0, 0], low, high).double().numpy()
        ordered, stakes, fills, closes = (day.info[name] for name in ("ordered", "stakes", "fills", "closes"))
        exits = day.info["exits"]
        rows = [*self.tomorrow, *self._orders(ordered, stakes, action), *self._exits(exits, action)]
        if not len(ordered) and not len(exits):
            rows.append(self._waiting(action[:, 0], orderable & (day.observation["held_days"][0, 0].numpy() == 0)))
        for column, price in zip(fills.cell.tolist(), fills.price.tolist(), strict=True):
            size, target_pct = action[column].tolist()
            target_price = price * (1 + math.copysign(target_pct, size) / 100)
            row = {"ticker": self.tickers[column], "size": size, "target_pct": target_pct}
            self.held[column] = {**row, "target_price": target_price, "entry": price, "days_held": 0}
        for position in self.held.values():
            position["days_held"] += 1
        unfilled = {column: self.unfilled for column in np.setdiff1d(ordered[stakes > 0], fills.cell)}
        unfilled |= {column: UNFILLED for column in np.setdiff1d(exits, closes.cell)}
        self.tomorrow = [
            {"ticker": self.tickers[column], "action": "unfilled", "reason": reason}
            for column, reason in unfilled.items()
        ]
        for column, price, reason, gain_pct in zip(*(values.tolist() for values in closes[:4]), strict=True):
            name, position = CLOSE_REASONS[reason], self.held.pop(column)
            row = {**position, "action": "close", "price": price, "gain_pct": gain_pct, "reason": WHY_CLOSED[name]}
            if name == "signal" and self.rules.execution == "close":
                rows.append({**row, "days_held": position["days_held"] - 1})
            else:
                self.tomorrow.append(row)
        for column, position in sorted(self.held.items()):
            price = float(day.info["last_close"][0, column])
            left = self.rules.max_holding_days - position["days_held"]
            worth, equity = abs(self.env.accounts.shares[column]) * price, float(self.env.accounts.equity[0])
            stake = 100 * worth / equity if equity > 0 else math.nan
            gain_pct = math.copysign(100, position["size"]) * (price / position["entry"] - 1)
            row = {**position, "action": "hold", "price": price, "stake_pct": stake, "gain_pct": gain_pct}
            reason = f"the take-profit is not reached; closes in {left} day{'s' * (left > 1)} at the latest"
            if left <= 0:
                reason = "it had to close, but has no price; closes at the next one"
            self.tomorrow.append({**row, "reason": reason})
        return rows

    def _orders(
        self,
        columns: Int[np.ndarray, " orders"],
        stakes: Float[np.ndarray, " orders"],
        action: Float[np.ndarray, "columns 2"],
    ) -> list[Row]:
        """Return the rows of orders, each with the percent of the current equity that it takes."""
        rows = []
        for column, stake in zip(columns.tolist(), stakes.tolist(), strict=True):
            size, target_pct = action[column].tolist()
            name, reason = "unfunded", self.unfunded
            if stake:
                name, reason = "buy" if size > 0 else "sell short", f"fills at {self.fill}"
            row = {"ticker": self.tickers[column], "action": name, "size": size, "reason": reason}
            rows.append({**row, "target_pct": target_pct, "stake_pct": 100 * stake})
        return rows

    def _exits(self, columns: Int[np.ndarray, " exits"], action: Float[np.ndarray, "columns 2"]) -> list[Row]:
        """Return the rows of orders that close positions."""
        rows = []
        for column in columns.tolist():
            name = "sell" if self.held[column]["size"] > 0 else "buy back"
            row = {"ticker": self.tickers[column], "action": name, "size": action[column, 0]}
            rows.append({**row, "reason": f"fills at {self.fill}"})
        return rows

    def _waiting(self, sizes: Float[np.ndarray, " columns"], free: Bool[np.ndarray, " columns"]) -> Row:
        size = np.abs(sizes) if self.rules.allow_short else sizes
        size = np.where(free & np.isfinite(size), size, -np.inf)
        best = int(size.argmax())
        if not np.isfinite(size[best]):
            return {"action": "wait", "reason": "all columns are held, have no price or are no members"}
        row = {"ticker": self.tickers[best], "action": "wait", "size": float(sizes[best])}
        return {**row, "reason": "the largest size of what is not held is below 1"}
