"""The money behind the reward: cash, positions, equity and every trade of the accounts of an environment."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float, Int, Shaped

from eigen2.errors import require_range
from eigen2.market.simulation.episode_statistics import Closes, Fills
from eigen2.market.simulation.rules import CLOSE_REASONS, TradingRules

CURVES = ("equity", "cash", "exposure")
INTEGERS = ("column", "entry_day", "exit_day", "reason")
TRADE_COLUMNS = (
    *("column", "entry_day", "entry_price", "exit_day", "exit_price", "reason"),
    *("coefficient", "shares", "gain_pct", "reward", "profit"),
)
TRADE = np.dtype([(name, np.int64 if name in INTEGERS else np.float64) for name in TRADE_COLUMNS])


@dataclass
class AccountRules:
    """How much money an agent has and how it is spread over positions."""

    initial_cash: float = 100_000.0
    """Money at the start of a window (above 0, at most 1e12)."""
    unit_share: float = 0.05
    """Share of the equity that a coefficient of 1 puts into a position (above 0, at most 1)."""
    max_leverage: float = 1.0
    """Gross exposure allowed, as a multiple of the equity (above 0, at most 100; 1 borrows nothing). An order is scaled
    down to what is left of it, to nothing if nothing is left."""

    def __post_init__(self) -> None:
        require_range("data.account.initial_cash", self.initial_cash, above=0, most=1e12)
        require_range("data.account.unit_share", self.unit_share, above=0, most=1)
        require_range("data.account.max_leverage", self.max_leverage, above=0, most=100)


class Account:
    """Does in money what an environment did in prices, from each day's fills and closes.

    Commission is `cost_bps` of the traded shares at the price before slippage; slippage moves each fill by
    `slippage_bps` against the trader. With c their sum, as a fraction of the price, a bought share costs price x
    (1 + c) and a sold one brings price x (1 - c). What is paid for a position bought, or received for one sold short,
    is its stake (see `stakes`), so its profit is the stake times the percent gain that the environment rewards.

    What a short sale brings is kept as cash, the shares owed are a liability. Positions are marked at their last valid
    close; the gross exposure is the sum of their absolute values. An account whose equity falls to 0 or below, which
    takes leverage or short sales, is ruined: until the next reset no order has a size.

    Attributes:
        shape: of the accounts; its last axis are the environment's windows.
        cash, worth, exposure: money, equity and gross exposure at the last close, `shape`, float64.
        shares: held, negative where sold short, (*shape, columns) float64.
        ruined: whether the equity ever was 0 or below, `shape`.
        budget: (2, accounts) float64: equity, 0 of a ruined account, and what max_leverage leaves of it for orders, at
            the close of the last decision.
    """

    def __init__(self, rules: AccountRules, trading: TradingRules, shape: tuple[int, ...], columns: int) -> None:
        self.rules, self.trading = rules, trading
        self.shape, self.columns = shape, columns
        self.cash, self.worth, self.exposure = np.zeros((3, *shape))
        self.ruined = np.zeros(shape, np.bool_)
        self.shares = np.zeros((*shape, columns))
        self.budget = np.zeros((2, self.cash.size))
        cells = self.shares.size
        self._entry_day = np.zeros(cells, np.int64)
        self._entry_price, self._coefficient = np.zeros((2, cells))
        self._start = np.zeros(shape[-1], np.int64)
        self._count = np.zeros(self.cash.size, np.int64)
        self._step = 0
        self._curves = np.zeros((self.cash.size, 0, len(CURVES)))
        self._trades = np.zeros((self.cash.size, 0), TRADE)

    @property
    def nbytes(self) -> int:
        """Return the bytes of state and record."""
        return sum(part.nbytes for part in vars(self).values() if isinstance(part, np.ndarray))

    def reset(self, start: Sequence[int], length: int, trading_length: int) -> None:
        """Start windows of `length` days again with `initial_cash`, each on its first day, with so many trading days.

        The record's memory is allocated anew only where lengths differ.
        """
        max_trades = trading_length * min(self.trading.max_opens_per_day, self.columns)
        if self._curves.shape[1] != length:
            self._curves = np.zeros((self.cash.size, length, len(CURVES)))
        if self._trades.shape[1] != max_trades:
            self._trades = np.zeros((self.cash.size, max_trades), TRADE)
        self._start, self._step = np.array(start), 0
        self.cash.fill(self.rules.initial_cash)
        for state in (self.shares, self.ruined, self._count):
            state.fill(0)
        self._mark(np.zeros((len(start), self.columns)))

    def step(self, fills: Fills, closes: Closes, last_close: Float[np.ndarray, "windows columns"]) -> None:
        """Live through a day of the environment, given what it opened and closed and the day's last valid closes."""
        self._step += 1
        equity = np.where(self.ruined, 0, self.worth)
        room = (self.rules.max_leverage * equity - self.exposure).clip(min=0)
        self.budget[:] = equity.reshape(-1), room.reshape(-1)
        self._open(fills)
        self._close(closes)
        self._mark(last_close)

    def stakes(
        self, cell: Int[np.ndarray, " orders"], coefficient: Float[np.ndarray, " orders"]
    ) -> Float[np.ndarray, " orders"]:
        """Return the money that orders of the last decision take, which are served in the sequence given.

        A stake is |coefficient| x unit_share of the equity at the close of the decision, or what max_leverage leaves
        of that equity after the gross exposure and the stakes before it, whichever is less.
        """
        equity, room = self.budget.copy()
        account, stake = cell // self.columns, np.zeros(len(cell))
        waiting = np.arange(len(cell))
        while waiting.size:  # the next order of every account at once
            first = np.unique(account[waiting], return_index=True)[1]
            now, waiting = waiting[first], np.delete(waiting, first)
            own = account[now]
            stake[now] = np.minimum(np.abs(coefficient[now]) * self.rules.unit_share * equity[own], room[own])
            room[own] -= stake[now]
        return stake

    def _days(self, cell: Int[np.ndarray, " some"]) -> Int[np.ndarray, " some"]:
        """Return today in the windows of the cells."""
        days: np.ndarray = self._start[cell // self.columns % len(self._start)] + self._step
        return days

    def _cash_flow(self, shares: Float[np.ndarray, " some"], price: Float[np.ndarray, " some"]) -> np.ndarray:
        """Return the cash that comes in when shares are bought, or sold where negative."""
        flow: np.ndarray = -price * (shares + self.trading.side_cost * np.abs(shares))
        return flow

    def _open(self, fills: Fills) -> None:
        cell, price, coefficient = fills.cell, fills.price.astype(np.float64), fills.coefficient.astype(np.float64)
        self._entry_day[cell] = self._days(cell) - (self.trading.execution == "close")
        self._entry_price[cell], self._coefficient[cell] = price, coefficient
        side = np.sign(coefficient)
        shares = side * self.stakes(cell, coefficient) / (price * (1 + side * self.trading.side_cost))
        self.shares.reshape(-1)[cell] = shares
        np.add.at(self.cash.reshape(-1), cell // self.columns, self._cash_flow(shares, price))

    def _close(self, closes: Closes) -> None:
        cell, account = closes.cell, closes.cell // self.columns
        shares, price = self.shares.reshape(-1)[cell], closes.price.astype(np.float64)
        proceeds = self._cash_flow(-shares, price)
        np.add.at(self.cash.reshape(-1), account, proceeds)
        self.shares.reshape(-1)[cell] = 0
        trades = np.zeros(len(cell), TRADE)
        trades["column"], trades["reason"] = cell % self.columns, closes.reason
        trades["entry_day"], trades["exit_day"] = self._entry_day[cell], self._days(cell)
        trades["entry_price"], trades["exit_price"] = self._entry_price[cell], price
        trades["coefficient"], trades["shares"] = self._coefficient[cell], shares
        trades["gain_pct"], trades["reward"] = closes.gain_pct, closes.reward
        trades["profit"] = proceeds + self._cash_flow(shares, self._entry_price[cell])
        # closes come by account: those of one follow each other
        behind = np.arange(len(account)) - np.searchsorted(account, account)
        self._trades[account, self._count[account] + behind] = trades
        np.add.at(self._count, account, 1)

    def _mark(self, last_close: Float[np.ndarray, "windows columns"]) -> None:
        values = self.shares * last_close
        self.exposure[...] = np.abs(values).sum(-1)
        self.worth[...] = self.cash + values.sum(-1)
        self.ruined |= self.worth <= 0
        for i, curve in enumerate((self.worth, self.cash, self.exposure)):
            self._curves[:, self._step, i] = curve.reshape(-1)

    def equity(self, dates: Shaped[np.ndarray, " days"] | None = None) -> pd.DataFrame:
        """Return the daily curves since the last reset, a row for each window and day so far.

        Columns: window (and agent in front of it where there are agents), equity, cash, exposure. A window's first row
        is the day of its first decision, before any order. The index is "day", or "date" where dates are given.
        """
        curves = self._curves[:, : self._step + 1]
        account, day = np.indices(curves.shape[:2]).reshape(2, -1)
        days = self._start[account % len(self._start)] + day
        index = pd.Index(days, name="day") if dates is None else pd.Index(dates[days], name="date")
        columns = dict(zip(CURVES, curves.reshape(-1, len(CURVES)).T, strict=True))
        return pd.DataFrame({**self._places(account), **columns}, index=index)

    def trades(self) -> pd.DataFrame:
        """Return the trades closed since the last reset, a row each, by account and then in the order they closed.

        Columns: window (and agent in front of it where there are agents), then `TRADE_COLUMNS`: the reason is one of
        `CLOSE_REASONS`, coefficient and shares are negative for short sales, the profit is in money, prices are those
        before costs.
        """
        account, rank = np.nonzero(np.arange(self._trades.shape[1]) < self._count[:, None])
        trades = self._trades[account, rank]
        columns = {name: trades[name] for name in TRADE_COLUMNS}
        columns["reason"] = np.array(CLOSE_REASONS, object)[trades["reason"]]
        return pd.DataFrame({**self._places(account), **columns})

    def _places(self, account: Int[np.ndarray, " rows"]) -> dict[str, Int[np.ndarray, " rows"]]:
        """Return the accounts' indices along the axes of `shape`."""
        names = ("agent", "window")[-len(self.shape) :]
        return dict(zip(names, np.unravel_index(account, self.shape), strict=True))
