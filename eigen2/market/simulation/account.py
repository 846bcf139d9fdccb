"""The money behind the reward: cash, positions, equity and every trade of one agent in all windows."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float, Int, Shaped

from eigen2.errors import require_range
from eigen2.market.simulation.events import Closes, Fills
from eigen2.market.simulation.rules import CLOSE_REASONS, TradingRules

WHOLE = ("window", "column", "entry_day", "exit_day", "reason")  # the integers of a trade
COLUMNS = "window column entry_day entry_price exit_day exit_price reason coefficient shares gain_pct reward profit"
TRADE = np.dtype([(name, np.int64 if name in WHOLE else np.float64) for name in COLUMNS.split()])


@dataclass
class AccountRules:
    """Money of an agent and its division over positions."""

    initial_cash: float = 100_000.0
    """Money at the start of a window (above 0, at most 1e12)."""
    unit_share: float = 0.05
    """Share of the equity that a coefficient of 1 puts into a position (above 0, at most 1)."""
    max_leverage: float = 1.0
    """Largest gross exposure, as a multiple of the equity (above 0, at most 100; 1 borrows nothing). An order beyond it
    is scaled down to what is left, if need be to nothing."""

    def __post_init__(self) -> None:
        for name, most in (("initial_cash", 1e12), ("unit_share", 1), ("max_leverage", 100)):
            require_range(f"data.account.{name}", getattr(self, name), above=0, most=most)


class Account:
    """Keeps an agent's money in each window, from each day's fills and closes in the environment.

    With c the costs per side as a fraction of the price, a bought share costs price x (1 + c) and a sold share brings
    price x (1 - c). The money paid for a position bought, or received for one sold short, is its stake (see `stakes`),
    so its profit is the stake times the percent gain that the environment rewards.

    The proceeds of a short sale are kept as cash, the shares owed are a liability. Positions are marked at their last
    valid close; the gross exposure is the sum of their absolute values. An account whose equity falls to 0 or below,
    which takes leverage or short sales, is ruined: it places no orders until the next reset.
    """

    def __init__(self, rules: AccountRules, trading: TradingRules, windows: int, columns: int) -> None:
        self.rules, self.trading, self.columns = rules, trading, columns
        self.cash, self.worth, self.exposure = np.zeros((3, windows))  # at the last close; worth is the equity
        self.ruined = np.zeros(windows, np.bool_)
        self.shares = np.zeros((windows, columns))  # negative where sold short
        # at the last decision: the equity, 0 if ruined, and the money that max_leverage leaves for orders
        self.budget = np.zeros((2, windows))
        self._entry_day = np.zeros(self.shares.size, np.int64)
        self._entry_price, self._coefficient = np.zeros((2, self.shares.size))
        self._start = np.zeros(windows, np.int64)
        self._curves: list[np.ndarray] = []  # equity, cash and exposure of each day, (3, windows)
        self._trades: list[np.ndarray] = []  # trades closed on each day, in the order of windows

    @property
    def nbytes(self) -> int:
        """Return the bytes of state and record."""
        state = [part for part in vars(self).values() if isinstance(part, np.ndarray)]
        return sum(part.nbytes for part in (*state, *self._curves, *self._trades))

    def reset(self, start: Int[np.ndarray, " windows"]) -> None:
        """Start new windows with `initial_cash`, each on its first day."""
        self._start = start
        self._curves, self._trades = [], []
        self.cash.fill(self.rules.initial_cash)
        self.shares.fill(0)
        self.ruined.fill(False)
        self._mark(np.zeros_like(self.shares))

    def step(self, fills: Fills, closes: Closes, last_close: Float[np.ndarray, "windows columns"]) -> None:
        """Book a day of the environment: its fills, its closes and the last valid closing prices."""
        self.budget[0] = np.where(self.ruined, 0, self.worth)
        self.budget[1] = (self.rules.max_leverage * self.budget[0] - self.exposure).clip(min=0)
        self._open(fills)
        self._close(closes)
        self._mark(last_close)

    def stakes(
        self, cell: Int[np.ndarray, " orders"], coefficient: Float[np.ndarray, " orders"]
    ) -> Float[np.ndarray, " orders"]:
        """Return the money that orders of the last decision take, one after the other.

        A stake is |coefficient| x unit_share x equity at the decision, or what max_leverage leaves after the gross
        exposure and the stakes before it, whichever is less.
        """
        equity, room = self.budget.copy()
        window, stake = cell // self.columns, np.zeros(len(cell))
        waiting = np.arange(len(cell))
        while waiting.size:  # the next order of every window at once
            first = np.unique(window[waiting], return_index=True)[1]
            now, waiting = waiting[first], np.delete(waiting, first)
            at = window[now]
            stake[now] = np.minimum(np.abs(coefficient[now]) * self.rules.unit_share * equity[at], room[at])
            room[at] -= stake[now]
        return stake

    def _cash_flow(self, shares: Float[np.ndarray, " some"], price: Float[np.ndarray, " some"]) -> np.ndarray:
        """Return the cash received when shares are bought, or sold if negative."""
        flow: np.ndarray = -price * (shares + self.trading.side_cost * np.abs(shares))
        return flow

    def _open(self, fills: Fills) -> None:
        cell, price, coefficient = fills.cell, fills.price.astype(np.float64), fills.coefficient.astype(np.float64)
        window, side = cell // self.columns, np.sign(coefficient)
        self._entry_day[cell] = self._start[window] + len(self._curves) - (self.trading.execution == "close")
        self._entry_price[cell], self._coefficient[cell] = price, coefficient
        shares = side * self.stakes(cell, coefficient) / (price * (1 + side * self.trading.side_cost))
        self.shares.reshape(-1)[cell] = shares
        np.add.at(self.cash, window, self._cash_flow(shares, price))

    def _close(self, closes: Closes) -> None:
        cell, window = closes.cell, closes.cell // self.columns
        shares, price = self.shares.reshape(-1)[cell], closes.price.astype(np.float64)
        proceeds = self._cash_flow(-shares, price)
        np.add.at(self.cash, window, proceeds)
        self.shares.reshape(-1)[cell] = 0
        trades = np.zeros(len(cell), TRADE)
        trades["window"], trades["column"], trades["reason"] = window, cell % self.columns, closes.reason
        trades["entry_day"], trades["exit_day"] = self._entry_day[cell], self._start[window] + len(self._curves)
        trades["entry_price"], trades["exit_price"] = self._entry_price[cell], price
        trades["coefficient"], trades["shares"] = self._coefficient[cell], shares
        trades["gain_pct"], trades["reward"] = closes.gain_pct, closes.reward
        trades["profit"] = proceeds + self._cash_flow(shares, self._entry_price[cell])
        self._trades.append(trades)

    def _mark(self, last_close: Float[np.ndarray, "windows columns"]) -> None:
        values = self.shares * last_close
        self.exposure[...] = np.abs(values).sum(-1)
        self.worth[...] = self.cash + values.sum(-1)
        self.ruined |= self.worth <= 0
        self._curves.append(np.stack([self.worth, self.cash, self.exposure]))

    def equity(self, dates: Shaped[np.ndarray, " days"] | None = None) -> pd.DataFrame:
        """Return window, equity, cash and exposure since the last reset, a row for each window and day so far.

        The index is "day", or "date" if `dates` is not None; a window's first row precedes any order.
        """
        curves = np.stack(self._curves, axis=-1)
        window, day = np.indices(curves.shape[1:]).reshape(2, -1)
        days = self._start[window] + day
        index = pd.Index(days, name="day") if dates is None else pd.Index(dates[days], name="date")
        columns = dict(zip(("equity", "cash", "exposure"), curves.reshape(3, -1), strict=True))
        return pd.DataFrame({"window": window, **columns}, index=index)

    def trades(self) -> pd.DataFrame:
        """Return the trades closed since the last reset, one per row, by window and then in the order they closed.

        Columns are the `COLUMNS`: the reason is one of `CLOSE_REASONS`, coefficient and shares are negative for short
        sales, the profit is in money, prices are before costs.
        """
        trades = pd.DataFrame(np.concatenate([np.zeros(0, TRADE), *self._trades]))
        trades["reason"] = np.array(CLOSE_REASONS, object)[trades["reason"]]
        return trades.sort_values("window", kind="stable", ignore_index=True)
