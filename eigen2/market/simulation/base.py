"""What environments of the market share: its prices by day, the windows of an episode, and the agents' accounts."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int, Int16
from torch import Tensor

from eigen2.core.replay import Field
from eigen2.errors import UserError, require_range
from eigen2.market.data.panel_rows import members
from eigen2.market.data.source import LISTED_DAYS
from eigen2.market.simulation.account import AccountRecord, AccountRules, Accounts, Capacity, observed_room
from eigen2.market.simulation.rules import TradingRules

OPEN, HIGHEST, LOWEST, CLOSE, LEAST_SIZE = range(5)  # rows of a day in `market_table`
DEAL_DAYS, DEAL_RANGE = 10, 0.01  # closes of a column that is bought for cash, and how much they differ
NO_ORDER = np.float32(1e9)  # least size of an order in a column that is no member, above every size
MAX_OBSERVED = 65_504.0  # bound of observed numbers, the largest in half precision
MONEY_FIELDS = {
    "day": Field((), torch.int32),
    "days_left": Field((), torch.int16),  # until the end of the window
    "cash": Field((), torch.float16),  # as a share of the equity
    "room": Field((), torch.float16),  # share of the equity left for orders
}
"""Fields of every observation; the first two are (1, windows), the others (agents, windows)."""


class Terms(NamedTuple):
    """What agents trade on: rules, money, and the days of a window with and without orders."""

    rules: TradingRules
    account: AccountRules
    trading_days: int
    settlement_days: int

    @property
    def window_days(self) -> int:
        """Return the days of a window."""
        return self.trading_days + self.settlement_days


def window_options(starts: Iterable[int], trading_days: int, window_days: int) -> dict[str, Any]:
    """Return the reset options of windows of `window_days` from their first days, with orders on `trading_days`."""
    return {"starts": list(starts), "trading_days": trading_days, "window_days": window_days}


def market_table(
    prices: Float32[np.ndarray, "days columns bars"], delisting_return: float = 0.0
) -> Float32[np.ndarray, "days 5 columns"]:
    """Return each day's rows by column: open, highest and lowest price from the open on, last close, least order size.

    A price that is missing is NaN, and without a close the least size is infinite; with one, on a day on which the
    column is no member, `NO_ORDER`: it can be closed, not opened. The last close is 0 before the first. Without high or
    low, the higher or lower of open and close takes its place. With a `delisting_return` other than 0, the least size
    of a column is NaN once it has stopped trading for good, and its last close changes by that return unless it was
    `bought_for_cash`. If it ends within the last 20 days it counts as listed: it may be late, or halted.
    """
    may_open, prices = members(prices), prices[..., :4]
    valid = np.isfinite(prices) & (prices > 0)
    traded = valid.any(-1)
    open_, high, low, close = np.moveaxis(np.where(valid, prices, np.float32(np.nan)), -1, 0)
    high, low = (np.where(np.isnan(row), ends(open_, close), row) for row, ends in ((high, np.fmax), (low, np.fmin)))
    least_size = np.where(valid[..., 3], np.where(may_open, np.float32(1), NO_ORDER), np.float32(np.inf))
    last_close = last_valid(close)
    if delisting_return:
        ends = len(prices) - traded[::-1].argmax(0)
        for column in np.flatnonzero(ends + LISTED_DAYS <= len(prices)):
            gone = slice(ends[column], None), column
            last_close[gone] *= np.float32(1 if bought_for_cash(close[:, column]) else 1 + delisting_return)
            least_size[gone] = np.nan
    rows = open_, np.fmax(open_, high), np.fmin(open_, low), last_close, least_size
    return np.ascontiguousarray(np.stack(rows, axis=1))  # days next to each other, whatever the layout of prices


def bought_for_cash(close: Float[np.ndarray, " days"]) -> bool:
    """Return whether a column that has stopped trading was bought for cash: its last 10 closes are almost equal.

    Once such a deal is announced, a share trades near what is paid for it: the highest of these closes is less than 1 %
    above the lowest. Closes that are missing are NaN; with fewer than 10 it is False.
    """
    last = close[close > 0][-DEAL_DAYS:]
    return len(last) == DEAL_DAYS and bool(last.max() < (1 + DEAL_RANGE) * last.min())


def final_closes(
    market: Float32[np.ndarray, "days 5 columns"], days: Int[np.ndarray, " some"], columns: Int[np.ndarray, " some"]
) -> Float32[np.ndarray, " some"]:
    """Return the close of a day and column; without one the next price, mostly an open, if the table has one."""
    close: np.ndarray = market[days, CLOSE, columns]
    for i in np.flatnonzero(np.isposinf(market[days, LEAST_SIZE, columns])):
        later = market[days[i] :, :, columns[i]]
        priced = np.flatnonzero((later[:, OPEN] > 0) | np.isfinite(later[:, LEAST_SIZE]))
        if priced.size:
            bar = later[priced[0]]
            close[i] = bar[OPEN] if bar[OPEN] > 0 else bar[CLOSE]
    return close


def priced(bars: Float32[np.ndarray, "5 ..."]) -> Bool[np.ndarray, "..."]:
    """Return where positions can be closed: where a column has an open or a close, or has stopped trading for good."""
    found: np.ndarray = (bars[OPEN] > 0) | ~np.isposinf(bars[LEAST_SIZE])
    return found


def exit_prices(
    bars: Float32[np.ndarray, "5 ..."],
    side: Float32[np.ndarray, "..."],
    take_profit: Float32[np.ndarray, "..."],
    overdue: Bool[np.ndarray, "..."],
) -> tuple[Bool[np.ndarray, "..."], Float32[np.ndarray, "..."]]:
    """Return whether positions reach their take-profits, and their exit prices.

    These are the open for positions that are overdue or have no close, else the take-profit or better, else the close.
    Prices of short sales are negative, as are their take-profits.
    """
    first = (overdue | np.isinf(bars[LEAST_SIZE])) & ~np.isnan(bars[OPEN])
    reached = (np.where(side > 0, bars[HIGHEST], bars[LOWEST]) >= take_profit) & ~overdue
    price = np.where(reached, np.fmax(bars[OPEN], take_profit), bars[CLOSE])
    return reached, np.where(first & ~reached, bars[OPEN], price)


def tie_breaks(prices: Float32[np.ndarray, "days columns bars"]) -> Int16[np.ndarray, "days columns"]:
    """Draw a number for each column and day, which decides between equal orders; -1 where the column has no close.

    It is a hash of the close (MurmurHash3's finalizer), so that the same day has the same draw in any panel.
    """
    bits: np.ndarray = np.ascontiguousarray(prices[..., 3], np.float32).view(np.uint32)
    for factor, shift in ((0x85EBCA6B, 13), (0xC2B2AE35, 16)):
        bits = (bits ^ (bits >> 16)) * np.uint32(factor)
        bits ^= bits >> shift
    traded = np.isfinite(prices[..., 3]) & (prices[..., 3] > 0)
    draws: np.ndarray = np.where(traded, (bits >> 17).astype(np.int16), np.int16(-1))
    return draws


def largest_orders(
    size: Float32[np.ndarray, "agents windows columns"], draws: Int16[np.ndarray, "windows columns"], count: int
) -> Int[np.ndarray, " chosen"]:
    """Return flat indices of each account's `count` largest sizes of at least 1, by rank and then by account.

    Of equal ones the highest draw comes first. `size` is overwritten.
    """
    chosen: list[np.ndarray] = []
    first = np.arange(0, size.size, size.shape[-1])
    for rank in range(min(count, size.shape[-1])):
        if rank:
            size.reshape(-1)[chosen[-1]] = 0
        largest = size.max(-1, keepdims=True)
        cell = first + np.where(size == largest, draws, np.int16(-2)).argmax(-1).reshape(-1)
        chosen.append(cell[largest.reshape(-1) >= 1])
        if len(chosen[-1]) == 0:
            break
    return np.concatenate(chosen)


def last_valid(close: Float[np.ndarray, "days columns"]) -> Float[np.ndarray, "days columns"]:
    """Return each column's last close above 0 up to each day; 0 before its first."""
    valid = np.where(close > 0, np.arange(len(close))[:, None], -1)
    day = np.maximum.accumulate(valid, axis=0)
    filled: np.ndarray = np.where(day >= 0, np.take_along_axis(close, day.clip(0), axis=0), close.dtype.type(0))
    return filled


class MarketEnvironment(ABC):
    """Windows of the market, the same for all agents, and an account for each agent in each window.

    Accounts are in the order (agents, windows). `prices` are those of the investable columns: open, high, low, close,
    NaN where a column did not trade, and with membership whether it may be opened. `capacity` is the most money that an
    order puts into each column; None is any.
    """

    observation_fields: dict[str, Field]
    action_shape: tuple[int, ...]
    credit_steps = 0

    def __init__(
        self,
        prices: Float[np.ndarray, "days columns bars"] | Float[Tensor, "days columns bars"],
        rules: TradingRules,
        agents: int,
        windows: int,
        device: torch.device | str,
        account: AccountRules,
        capacity: Capacity,
    ) -> None:
        self._market = market_table(np.asarray(prices, np.float32), rules.delisting_return)
        self.num_days, _, self.num_columns = self._market.shape
        self.rules, self.agents, self.windows, self.device = rules, agents, windows, torch.device(device)
        self._shape = (agents, windows, self.num_columns)
        self._start = np.zeros(windows, np.int64)
        self._step = self._length = self._trading_length = 0  # in days
        self._bars = self._current_bars()
        self.accounts = Accounts(account, rules, agents * windows, self.num_columns, capacity)
        self._record: AccountRecord | None = None

    @abstractmethod
    def step(self, action: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        """Decide at the close of the current day, then advance to the close of the next decision."""

    @abstractmethod
    def get_episode_summary(self, windows: slice = slice(None)) -> dict[str, Tensor]:
        """Return sums since `reset` over some windows, (agents,) each."""

    @abstractmethod
    def _clear_episode(self) -> None:
        """Forget positions and statistics of the last episode."""

    @abstractmethod
    def _observation(self) -> dict[str, Tensor]:
        """Return new tensors, which the next step does not change."""

    def native_action(self, unit: Tensor) -> Tensor:
        """Scale actions in [-1, 1] to the units of the rules."""
        return self.rules.native_action(unit)

    @property
    def nbytes(self) -> int:
        """Return the bytes of market and accounts, and of the record of an agent."""
        record = 0 if self._record is None else self._record.nbytes
        return self._market.nbytes + self._bars.nbytes + self.accounts.nbytes + record

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Start new windows (see `window_options`); return the observation at the close of the first day, and no info.

        The environment is deterministic and ignores the seed. Without options every window is the whole market, its
        last `holding_days` for settlement. Raises UserError if windows do not fit into the days, or are too short
        or too few.
        """
        trading_days = max(1, self.num_days - self.rules.holding_days)
        options = options or window_options([0] * self.windows, trading_days, self.num_days)
        self._start, self._step = np.array(options["starts"], np.int64), 0
        self._trading_length, self._length = options["trading_days"], options["window_days"]
        inside = self._start.min() >= 0 and self._start.max() + self._length <= self.num_days
        if len(self._start) != self.windows or not inside or not 1 <= self._trading_length <= self._length >= 2:
            raise UserError(
                f"windows of {self._trading_length} trading days of {self._length} from {options['starts']}: give "
                f"{self.windows}, each of 2 or more days, within the {self.num_days} days of prices"
            )
        self._bars = self._current_bars()
        self._clear_episode()
        self.accounts.reset()
        if self._record is not None:
            self._record.reset(self._start)
        return self._observation(), {}

    def _require_step(self, action: Tensor) -> None:
        """Raise ValueError for an action that is not one for every account and column, RuntimeError after the end."""
        if action.shape != (self.agents, self.windows, *self.action_shape):
            raise ValueError(f"action of shape {tuple(action.shape)} for {self.agents} agents, {self.windows} windows")
        if self._step >= self._length - 1:
            raise RuntimeError("the episode is over: call reset() before step()")

    def _result(
        self, earned: Float64[np.ndarray, " accounts"], last_day: bool, info: dict[str, Any]
    ) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        """Return what a step returns, from the reward of each account."""
        reward = self._tensor(earned.astype(np.float32).reshape(self._shape[:2]))
        terminated, truncated = (self._tensor(np.full(self._shape[:2], flag)) for flag in (last_day, False))
        return self._observation(), reward, terminated, truncated, info

    def _money_observation(self) -> dict[str, Tensor]:
        """Return the observation of day and account, see `MONEY_FIELDS`."""
        left, accounts = self._length - 1 - self._step, (self.agents, self.windows)
        cash = self.accounts.cash_share().clip(-MAX_OBSERVED, MAX_OBSERVED).astype(np.float16)
        room = observed_room(self.accounts.room())
        return {
            "day": self._tensor((self._start + self._step).astype(np.int32)[None]),
            "days_left": self._tensor(np.full((1, self.windows), left, np.int16)),
            "cash": self._tensor(cash.reshape(accounts)),
            "room": self._tensor(room.reshape(accounts)),
        }

    def _current_bars(self) -> Float32[np.ndarray, "5 windows columns"]:
        """Return each window's bars of its current day."""
        bars: np.ndarray = self._market.take(self._start + self._step, axis=0)
        return bars.swapaxes(0, 1)

    def _settle_prices(self) -> None:
        """Make the closes of the last day those at which positions end, see `final_closes`."""
        window, column = (self.accounts.shares.reshape(self._shape) != 0).any(0).nonzero()
        self._bars[CLOSE, window, column] = final_closes(self._market, self._start[window] + self._step, column)

    def _tensor(self, values: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(values)
        return tensor if self.device.type == "cpu" else tensor.to(self.device)

    def record_agent(self, agent: int) -> None:
        """Record equity and trades of one agent in all windows from the next reset on, see `record`."""
        require_range("recorded agent", agent, least=0, most=self.agents - 1)
        self._step = self._length = 0
        self._record = AccountRecord(self.accounts, self.rules, agent, self.windows)

    @property
    def record(self) -> AccountRecord:
        """Return the record of an agent since the last reset; refuse where none is recorded."""
        if self._record is None:
            raise RuntimeError("no agent is recorded: call record_agent() and then reset()")
        return self._record

    def scores(self, returns: Float64[Tensor, "agents windows"]) -> Float64[Tensor, "agents windows"]:
        """Return the fitness of the episode that was played, given its sums of rewards, which are NaN where it failed.

        The account's log return in percent, less `risk_aversion` x its downside deviation over the window (the root of
        the sum of squared negative daily log returns, in percent).
        """
        score = self.accounts.log_return_pct() - 100 * self.rules.risk_aversion * np.sqrt(self.accounts.downside)
        return torch.where(returns.isnan(), returns, self._tensor(score.reshape(self.agents, -1)))
