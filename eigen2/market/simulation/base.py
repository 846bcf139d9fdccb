"""What environments of the market share: the windows of an episode, and the agents' accounts."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64
from torch import Tensor

from eigen2.core.replay import Field
from eigen2.errors import UserError, require_range
from eigen2.market.data.source import CLOSE
from eigen2.market.simulation.account import AccountRecord, AccountRules, Accounts, Capacity, observed_room
from eigen2.market.simulation.bars import final_closes, market_table
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.windows import window_options

MOST_DAYS = 32_767  # of a window, the largest number in 16 bits
MAX_OBSERVED = 65_504.0  # bound of observed numbers, the largest in half precision
MONEY_FIELDS = {
    "day": Field((), torch.int32),
    "days_left": Field((), torch.int16),  # until the end of the window
    "cash": Field((), torch.float16),  # as a share of the equity
    "room": Field((), torch.float16),  # share of the equity left for orders
}
"""Fields of every observation; the first two are (1, windows), the others (agents, windows)."""


class EpisodeSettings(NamedTuple):
    """What agents trade on: rules, money, and the days of a window with and without orders."""

    rules: TradingRules
    account: AccountRules
    trading_days: int
    settlement_days: int

    @property
    def window_days(self) -> int:
        """Return the days of a window."""
        return self.trading_days + self.settlement_days


class MarketEnvironment(ABC):
    """Windows of the market, the same for all agents, and an account for each agent in each window.

    Accounts are in the order (agents, windows). `prices` are those of the investable columns: open, high, low, close,
    NaN where a column did not trade, and with membership whether it may be opened. `capacity` is the most money that an
    order puts into each column; None is any. `stops` are days, ascending, before which windows end that know nothing of
    later prices, see `market_table` and `final_closes`.
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
        stops: Sequence[int],
    ) -> None:
        self._market, self._stops = market_table(np.asarray(prices, np.float32), rules.delisting_return, stops), stops
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
        most, last = min(self.num_days, MOST_DAYS), self.num_days - self._length
        if not 1 <= self._trading_length <= self._length or not 2 <= self._length <= most:
            raise UserError(
                f"windows of {self._length} days, {self._trading_length} of them to trade: give 2 to {most} days, 1 or "
                "more of them to trade"
            )
        if len(self._start) != self.windows or not 0 <= self._start.min() <= self._start.max() <= last:
            raise UserError(
                f"starts {options['starts']}: give {self.windows}, each on day 0 to {last}, as a window takes "
                f"{self._length} of {self.num_days} days"
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
        days = self._start[window] + self._step
        self._bars[CLOSE, window, column] = final_closes(self._market, days, column, self._stops)

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
