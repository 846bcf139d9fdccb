"""What a policy does day by day, in words: orders to give, positions to hold and why, what was sold and why."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Float32, Int, Shaped
from torch import Tensor

from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.environment import TradingEnvironment
from eigen2.market.simulation.episode_statistics import Closes
from eigen2.market.simulation.rules import CLOSE_REASONS, TradingRules
from eigen2.market.simulation.simulate import Policy

COLUMNS = (
    *("date", "ticker", "action", "coefficient", "target_pct", "stake_pct"),
    *("price", "target_price", "days_held", "gain_pct", "reason"),
)
WHY_CLOSED = {
    "target": "the sale target was reached",
    "gap": "the open was beyond the sale target",
    "holding": "held for all days allowed",
    "halted": "no price on the day it had to close, so its last one",
}
Row = dict[str, Any]


@dataclass(frozen=True)
class _Position:
    coefficient: float
    target_pct: float
    entry: float
    first_day: int

    @property
    def aim(self) -> float:
        """Price at which it is sold, or bought back."""
        return self.entry * (1 + float(np.sign(self.coefficient)) * self.target_pct / 100)


def write_orders(
    prices: Float32[np.ndarray, "days columns 4"],
    dates: Shaped[np.ndarray, " days"],
    tickers: Sequence[str],
    rules: TradingRules,
    account: AccountRules,
    policy: Policy,
    start: int,
) -> pd.DataFrame:
    """Play a policy from a day on with empty hands, and write down what it does at every close.

    A row depends on the prices of its day and earlier ones alone, if what the policy does depends on nothing else.

    Args:
        prices: of the columns that may be bought.
        dates: of the days.
        tickers: of the columns.
        rules: what the policy may do.
        account: what its orders are worth.
        policy: what it does.
        start: day of the first decision.

    Returns:
        Rows by date: date, ticker, action (see below), coefficient and target_pct (the sale target in percent), as
        ordered, stake_pct (percent of the equity that an order takes, or a position is worth at this close), price (the
        close for what is held, an exit for what is closed), target_price, days_held (trading days), gain_pct (net of
        costs for what is closed), reason. Actions are `buy` and `sell short` (an order given at this close), `unfunded`
        (one for which the account has no money left, of which nothing more is written), `unfilled` (one of the day
        before that did not trade), `hold`, `close`, and `wait` where nothing is ordered.
    """
    # one day that is yet to come takes the last orders; a second keeps it from being the last, which sells everything
    table = np.pad(prices, ((0, 2), (0, 0), (0, 0)), constant_values=np.nan)
    env = TradingEnvironment(table, rules, 1)
    env.record(0, account)
    seen, _ = env.reset(start_idx=start, trading_end_idx=len(table) - 1, end_idx=len(table))
    writer = _Writer(env, seen, tickers)
    rows: list[Row] = []
    for day in range(start, len(prices)):
        rows += [{"date": dates[day], **row} for row in writer.live(day, prices[day, :, 3], policy)]
    found = pd.DataFrame(rows, columns=list(COLUMNS))
    found["days_held"] = found["days_held"].astype("Int64")
    return found


class _Writer:
    """Follows one account through the days."""

    def __init__(self, env: TradingEnvironment, seen: dict[str, Tensor], tickers: Sequence[str]) -> None:
        self.env, self.rules, self.tickers = env, env.rules, tickers
        self.seen = seen
        self.held: dict[int, _Position] = {}
        self.last_close = np.zeros(len(tickers))
        self.happened: list[Row] = []

    def live(self, day: int, close: Float[np.ndarray, " columns"], policy: Policy) -> Iterator[Row]:
        """Rows of a day: what happened on it, what is held at its close, what is ordered then."""
        yield from self.happened
        self.last_close = np.where(np.isnan(close), self.last_close, close)
        yield from (self._holding(column, position, day) for column, position in sorted(self.held.items()))
        action = policy(self.seen)
        low, high = torch.tensor(self.rules.action_range)
        asked = torch.clamp(action[0, 0].float(), low, high).double().numpy()
        free = np.isfinite(close) & (self.seen["held_days"][0, 0].numpy() == 0)
        room = [float(each[0]) for each in self.env.account.room()]
        self.seen, _, _, _, info = self.env.step(action)
        given, fills = info["ordered"], info["fills"]
        for column, stake_pct in self._stakes(given, asked, *room):
            yield self._order(column, asked[column], stake_pct)
        if not len(given):
            yield self._waiting(asked[:, 0], free)
        self.happened = [*self._unfilled(given, fills.cell)]
        for (column, paid), price in zip(self._stakes(fills.cell, asked, *room), fills.price.tolist(), strict=True):
            coefficient, target = (float(value) for value in asked[column])
            if paid:
                self.held[column] = _Position(coefficient, target, price, day + 1)
        self.happened += self._closed(info["closes"], day + 1)

    def _stakes(
        self, columns: Int[np.ndarray, " ordered"], asked: Float[np.ndarray, "columns 2"], equity: float, left: float
    ) -> Iterator[tuple[int, float]]:
        """What orders take, in percent of the equity, served in turn as the account serves them."""
        for column in columns.tolist():
            stake = min(abs(float(asked[column, 0])) * self.env.account.rules.unit_share * equity, left)
            left -= stake
            yield column, 100 * stake / equity if equity else 0.0

    def _order(self, column: int, asked: Float[np.ndarray, "2"], stake_pct: float) -> Row:
        coefficient, target = (float(value) for value in asked)
        row = {"ticker": self.tickers[column], "coefficient": coefficient, "target_pct": target, "stake_pct": stake_pct}
        if not stake_pct:
            return {**row, "action": "unfunded", "reason": "no money is left: positions are worth all that may be"}
        return {
            **row,
            "action": "buy" if coefficient > 0 else "sell short",
            "reason": f"fills at {'the next open' if self.rules.execution == 'next_open' else 'this close'}",
        }

    def _waiting(self, coefficients: Float[np.ndarray, " columns"], free: Bool[np.ndarray, " columns"]) -> Row:
        size = np.abs(coefficients) if self.rules.allow_short else coefficients
        size = np.where(free & np.isfinite(size), size, -np.inf)
        best = int(size.argmax())
        if not np.isfinite(size[best]):
            return {"action": "wait", "reason": "all columns are held or have no price"}
        return {
            "ticker": self.tickers[best],
            "action": "wait",
            "coefficient": float(coefficients[best]),
            "reason": "the highest coefficient of what is not held is below 1",
        }

    def _unfilled(self, given: Int[np.ndarray, " ordered"], filled: Int[np.ndarray, " filled"]) -> Iterator[Row]:
        for column in np.setdiff1d(given, filled).tolist():
            yield {"ticker": self.tickers[column], "action": "unfilled", "reason": "no price at the open: dropped"}

    def _position(self, column: int, position: _Position, day: int) -> Row:
        return {
            "ticker": self.tickers[column],
            "coefficient": position.coefficient,
            "target_pct": position.target_pct,
            "target_price": position.aim,
            "days_held": day - position.first_day + 1,
        }

    def _holding(self, column: int, position: _Position, day: int) -> Row:
        price, side, account = float(self.last_close[column]), float(np.sign(position.coefficient)), self.env.account
        left = self.rules.max_holding_days - (day - position.first_day + 1)
        return {
            **self._position(column, position, day),
            "action": "hold",
            "price": price,
            "stake_pct": 100 * abs(account.shares[0, column]) * price / float(account.worth[0]),
            "gain_pct": 100 * side * (price / position.entry - 1),
            "reason": f"the sale target is not reached; closes in {left} day{'s' * (left > 1)} at the latest",
        }

    def _closed(self, closes: Closes, day: int) -> Iterator[Row]:
        for column, price, reason, gain in zip(
            closes.cell.tolist(), closes.price.tolist(), closes.reason.tolist(), closes.gain_pct.tolist(), strict=True
        ):
            position = self.held.pop(column, None)
            if position is None:  # no money was in it
                continue
            yield {
                **self._position(column, position, day),
                "action": "close",
                "price": price,
                "gain_pct": gain,
                "reason": WHY_CLOSED[CLOSE_REASONS[reason]],
            }
