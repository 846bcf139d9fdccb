"""The trading environment: every agent in every window, one day a step, in memory that is allocated once.

Accounts are kept in NumPy on the host: a day is many small operations, for which a GPU would only be waited for.
"""

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from jaxtyping import Float, Float32, Int
from torch import Tensor

from eigen2.core.credit import Credit
from eigen2.core.replay import Field
from eigen2.errors import require_range
from eigen2.market.simulation.account import Account, AccountRules
from eigen2.market.simulation.bars import CLOSE, HIGHEST, LEAST_SIZE, LOWEST, OPEN, market_table
from eigen2.market.simulation.episode_statistics import (
    NO_CLOSES,
    NO_FILLS,
    Closes,
    EpisodeStatistics,
    Fills,
    events_of_agent,
)
from eigen2.market.simulation.rules import CLOSE_REASONS, TradingRules
from eigen2.market.simulation.windows import window_bounds

__all__ = ["CLOSE_REASONS", "LEVELS", "TradingEnvironment", "TradingRules", "native_action"]

LEVELS = 255
"""Steps from 0 to the largest value allowed in which observations hold sale targets and, without short sales,
coefficients."""
MAX_OBSERVED_GAIN, MAX_GAIN_PCT = 65_504.0, 1e30
"""Bounds of unrealised gains (as fractions) and realised ones (percent), so that no price makes a number infinite: the
loss of a short sale has no bound of its own."""
TARGET, GAP, HOLDING, HALTED, WINDOW_END = range(len(CLOSE_REASONS))


def native_action(unit: Float[Tensor, "... columns 2"], rules: TradingRules) -> Float[Tensor, "... columns 2"]:
    """Scale actions in [-1, 1] to coefficients and sale targets in percent."""
    low, high = torch.tensor(rules.action_range, device=unit.device)
    return torch.addcmul((high + low) / 2, unit, (high - low) / 2)


class TradingEnvironment:
    """Steps `agents` x `windows` accounts through the market; the agents do not move prices.

    A window is the days start_idx <= day < end_idx. At the close of each day before trading_end_idx an agent gives
    every column a coefficient and a sale target. Of the columns that have a price that day and that it does not hold,
    those with the highest coefficients of at least 1 are ordered. Later no order is given and positions run out
    (settlement). The last day sells what is left, so an episode always terminates and is never truncated: the time
    left is part of the observation.

    A position is sold at entry x (1 + target / 100) on the day whose high reaches it, or at the open that is above it
    already; otherwise at the close when it has been held long enough or the window ends. An order whose column has no
    price at the next open is dropped. A position in a column without a price stays, at its last valid close, until it
    may be sold again or must be, then at that last price with the reason "halted".

    With `TradingRules.allow_short` a coefficient of -1 or less sells short, and orders are ranked by absolute value.
    Up and down are exchanged: a short sale is bought back at entry x (1 - target / 100). With c the commission and
    slippage of a side, as a fraction of the price, the gain of a position bought is
    100 x (exit (1 - c) / (entry (1 + c)) - 1) percent, that of a short sale
    100 x (1 - exit (1 + c) / (entry (1 - c))). The reward is |coefficient| x gain, losses times `loss_penalty`.

    Observations are dictionaries of compact tensors, ready to be stored: `day` (1, windows) int32, `days_left`
    (1, windows) int16 until the end of the window, and (agents, windows, columns): `held_days` uint8 (0: not held),
    `gain` float16 (unrealised, a fraction, positive where the position gains), `target` and `coefficient` uint8, in
    1/255 of the largest allowed; with short sales `coefficient` is int8 in 1/127, negative for them. The market itself
    is a function of the day (see `MarketEncoder`).

    `prices` are those of the investable columns: open, high, low, close, NaN where a column did not trade. All windows
    are of one length. With `credit_orders`, `info["credit"]` of a step says which earlier steps ordered what has
    closed, at most `credit_steps` before.

    Attributes:
        action_space: of one account: coefficients and targets in percent, shape (columns, 2).
    """

    def __init__(
        self,
        prices: Float[np.ndarray, "days columns 4"] | Float[Tensor, "days columns 4"],
        rules: TradingRules,
        agents: int,
        windows: int = 1,
        device: torch.device | str = "cpu",
        credit_orders: bool = False,
    ) -> None:
        self._market = market_table(np.asarray(prices, np.float32))
        self.num_days, _, self.num_columns = self._market.shape
        self.rules, self.agents, self.windows = rules, agents, windows
        self.device = torch.device(device)
        self.credit_steps = rules.max_holding_days - 1 if credit_orders else 0
        columns = self.num_columns
        self._low, self._high = np.array(rules.action_range, np.float32)
        self.action_space = spaces.Box(np.tile(self._low, (columns, 1)), np.tile(self._high, (columns, 1)))
        coefficient_type = torch.int8 if rules.allow_short else torch.uint8
        self.observation_fields = {
            "day": Field((), torch.int32),
            "days_left": Field((), torch.int16),
            "held_days": Field((columns,), torch.uint8),
            "gain": Field((columns,), torch.float16),
            "target": Field((columns,), torch.uint8),
            "coefficient": Field((columns,), coefficient_type),
        }
        levels = np.array([torch.iinfo(coefficient_type).max, LEVELS])
        self._levels = (levels / [rules.max_coefficient, rules.max_target]).astype(np.float32)
        self._kept = (1 - rules.side_cost) / (1 + rules.side_cost)  # of a position bought and sold at one price

        self._shape = (agents, windows, columns)
        self._start = np.zeros(windows, np.int64)
        self._step = self._length = self._trading_length = 0
        self._bars = self._current_bars()
        # Prices of a short sale are kept negative, so that every position closes at prices of at least its aim, and
        # gains last close / entry + offset. Where nothing is held, infinite ones close nothing and gain nothing.
        self._floats = np.zeros((5, agents * windows * columns), np.float32)
        self._entry, self._aim, self._offset, self._weight, self._scratch = self._floats
        self._shown = np.zeros((3, agents * windows * columns), np.uint8)
        self._held_days, self._target_level, coefficient_level = self._shown
        self._coefficient_level = coefficient_level.view(np.int8 if rules.allow_short else np.uint8)
        self._statistics = EpisodeStatistics(rules, agents, windows, columns)
        self._account: Account | None = None
        self._recorded = 0
        self._clear(slice(None))

    def _clear(self, cell: slice | Int[np.ndarray, " closed"]) -> None:
        """Forget the positions of some cells."""
        self._entry[cell] = self._aim[cell] = np.inf
        for state in (self._offset, self._held_days, self._target_level, self._coefficient_level):
            state[cell] = 0

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Return (columns, 2): coefficient and sale target of each column."""
        return (self.num_columns, 2)

    @staticmethod
    def needed_bytes(days: int, columns: int, agents: int, windows: int) -> int:
        """Return the bytes of an environment: its market, one day of it a window, and the state of every account."""
        market = (days + windows) * columns * 5 * 4
        accounts = agents * windows
        return market + accounts * columns * (5 * 4 + 3) + EpisodeStatistics.needed_bytes(accounts)

    @property
    def nbytes(self) -> int:
        """Return the bytes of market and state, and of the account that is recorded."""
        state = sum(part.nbytes for part in (self._market, self._bars, self._shown, self._floats))
        return state + self._statistics.nbytes + (0 if self._account is None else self._account.nbytes)

    def native_action(self, unit: Tensor) -> Tensor:
        """Scale actions in [-1, 1] (..., columns, 2) to coefficients and sale targets in percent."""
        return native_action(unit, self.rules)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Start new windows; nothing of the last episode remains.

        Args:
            seed: accepted for Gymnasium's sake; the environment draws nothing.
            options: `start_idx`, first day of each window, by default 0; `end_idx`, the day after the last one, by
                default the number of days; `trading_end_idx`, the day after the last one on which orders may be given,
                by default `max_holding_days` before `end_idx`, but at least one day after `start_idx`. Each is an
                index for all windows or one for each.

        Returns:
            The observation at the close of the first day, and an empty info.

        Raises:
            UserError: a window is not inside the days, has fewer than two days, or the windows differ in length.
        """
        starts, self._trading_length, self._length = window_bounds(
            options or {}, self.windows, self.num_days, self.rules.max_holding_days
        )
        self._start, self._step = np.array(starts), 0
        self._bars = self._current_bars()
        self._clear(slice(None))
        self._statistics.reset()
        if self._account is not None:
            self._account.reset(starts, self._length, self._trading_length)
        return self._observation(), {}

    def step(
        self, action: Float[Tensor, "agents windows columns 2"]
    ) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        """Decide at the close of the current day, then live through the next one.

        Args:
            action: coefficients and sale targets in native units; clipped to their ranges.

        Returns:
            observation, reward (agents, windows) float32, terminated and truncated (agents, windows) bool, and info:
            `ordered`, the cells in which an order was given (see `Fills`); `fills` and `closes`, what opened and closed
            (see `Fills`, `Closes`); `last_close` (windows, columns), the last valid closes, 0 before a column's first;
            with `credit_orders` also `credit`.

        Raises:
            RuntimeError: the episode is over.
            ValueError: the action is not one for every account and column.
        """
        if action.shape != (*self._shape, 2):
            raise ValueError(f"action of shape {tuple(action.shape)} for {self.agents} agents, {self.windows} windows")
        if self._step >= self._length - 1:
            raise RuntimeError("the episode is over: call reset() before step()")
        trading = self._step < self._trading_length
        self._step += 1
        last_day = self._step == self._length - 1
        before, self._bars = self._bars, self._current_bars()
        self._held_days += self._held_days > 0
        ordered, fills = np.zeros(0, np.int64), NO_FILLS
        if trading:
            ordered, fills = self._fill_orders(action.detach().to("cpu", torch.float32).numpy(), before)
        closing = self._closing_cells(last_day)
        steps_ago = self._held_days[closing].astype(np.int64) - 1
        closes = self._close_positions(closing)
        earned = self._statistics.count_day(closes, trading, last_day)
        if self._account is not None:
            agent, cells = self._recorded, self.windows * self.num_columns
            own_fills, own_closes = events_of_agent(fills, agent, cells), events_of_agent(closes, agent, cells)
            self._account.step(own_fills, own_closes, self._bars[CLOSE])
        info = {"ordered": ordered, "fills": fills, "closes": closes, "last_close": self._bars[CLOSE].copy()}
        if self.credit_steps:
            info["credit"] = Credit(closing // self.num_columns, steps_ago, closes.reward)
        accounts = (self.agents, self.windows)
        reward = self._tensor(earned.astype(np.float32).reshape(accounts))
        terminated, truncated = (self._tensor(np.full(accounts, flag)) for flag in (last_day, False))
        return self._observation(), reward, terminated, truncated, info

    def _current_bars(self) -> Float32[np.ndarray, "5 windows columns"]:
        """Return each window's bars of its current day."""
        bars: np.ndarray = self._market.take(self._start + self._step, axis=0)
        return bars.swapaxes(0, 1)

    def _fill_orders(
        self, action: Float[np.ndarray, "agents windows columns 2"], before: Float32[np.ndarray, "5 windows columns"]
    ) -> tuple[Int[np.ndarray, " ordered"], Fills]:
        """Fill the orders of the last close: the largest coefficients of at least 1 among columns not held."""
        rules = self.rules
        size = action[..., 0].copy()  # contiguous, as what follows is much faster on that
        size.clip(self._low[0], self._high[0], out=size)
        if rules.allow_short:
            np.abs(size, out=size)
        free = size >= before[LEAST_SIZE]
        free &= (self._held_days == 0).reshape(self._shape)
        bits = size.view(np.int32)
        bits *= free  # as integers, which clears not-a-number too
        ordered = _largest_orders(size.reshape(-1, self.num_columns), rules.max_opens_per_day)
        # a price seen at the decision is that of a column that trades
        prices = self._bars[OPEN] if rules.execution == "next_open" else before[CLOSE]
        price = prices.take(ordered % prices.size)
        filled = price > 0
        cell, price = ordered[filled], price[filled]
        self._statistics.count_orders(ordered, cell)
        # a target that is not a number becomes the lowest
        chosen = np.fmin(np.fmax(action.reshape(-1, 2)[cell], self._low), self._high)
        coefficient = chosen[:, 0]
        side = np.sign(coefficient)
        self._entry[cell] = side * price
        self._aim[cell] = side * price * (1 + side * chosen[:, 1] / 100)
        self._offset[cell] = -side
        self._weight[cell] = side * coefficient
        self._held_days[cell] = 1
        self._coefficient_level[cell], self._target_level[cell] = np.rint(chosen * self._levels).T
        return ordered, Fills(cell, price, coefficient)

    def _closing_cells(self, last_day: bool) -> Int[np.ndarray, " closed"]:
        """Return the cells whose positions close today."""
        reached = self._bars[HIGHEST]
        if self.rules.allow_short:
            reached = np.where(self._offset.reshape(self._shape) > 0, -self._bars[LOWEST], reached)
        closed: np.ndarray = (reached >= self._aim.reshape(self._shape)).reshape(-1)
        closed |= self._held_days >= (1 if last_day else self.rules.max_holding_days)
        return closed.nonzero()[0]

    def _close_positions(self, cell: Int[np.ndarray, " closed"]) -> Closes:
        """Sell, or buy back, positions at today's prices and forget them."""
        if not cell.size:
            return NO_CLOSES
        entry, aim, side = self._entry[cell], self._aim[cell], -self._offset[cell]
        bars = side * self._bars.reshape(len(self._bars), -1).take(cell % self._bars[0].size, axis=1)
        reached = bars[HIGHEST] >= aim
        if self.rules.allow_short:
            reached = np.where(side > 0, reached, bars[LOWEST] >= aim)
        price = np.where(reached, np.maximum(bars[OPEN], aim), bars[CLOSE])
        kept = np.where(side > 0, self._kept, 1 / self._kept)
        gain_pct = 100 * side * (np.divide(price, entry, dtype=np.float64) * kept - 1)
        gain_pct = np.minimum(np.maximum(gain_pct, -MAX_GAIN_PCT), MAX_GAIN_PCT)
        reward = self._weight[cell] * gain_pct
        if self.rules.loss_penalty != 1:
            reward[gain_pct < 0] *= self.rules.loss_penalty
        reason = np.where(self._held_days[cell] >= self.rules.max_holding_days, HOLDING, WINDOW_END)
        reason[np.isnan(bars[OPEN])] = HALTED
        reason[reached] = TARGET
        reason[bars[OPEN] >= aim] = GAP
        self._clear(cell)
        return Closes(cell, side * price, reason, gain_pct, reward)

    def _observation(self) -> dict[str, Tensor]:
        """Return fresh tensors: what a caller keeps does not change with the next step."""
        gain = np.divide(self._bars[CLOSE], self._entry.reshape(self._shape), out=self._scratch.reshape(self._shape))
        gain += self._offset.reshape(self._shape)
        gain.clip(-MAX_OBSERVED_GAIN, MAX_OBSERVED_GAIN, out=gain)
        held_days, target, coefficient = self._shown.reshape(3, *self._shape).copy()
        left = self._length - 1 - self._step
        return {
            "day": self._tensor((self._start + self._step).astype(np.int32)[None]),
            "days_left": self._tensor(np.full((1, self.windows), left, np.int16)),
            "held_days": self._tensor(held_days),
            "gain": self._tensor(gain).to(torch.float16),
            "target": self._tensor(target),
            "coefficient": self._tensor(coefficient.view(self._coefficient_level.dtype)),
        }

    def _tensor(self, values: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(values)
        return tensor if self.device.type == "cpu" else tensor.to(self.device)

    def record(self, agent: int | None, rules: AccountRules | None = None) -> None:
        """Keep money and trades of one agent in all windows, see `account`; None stops it. The next reset starts it.

        Raises:
            UserError: there is no such agent.
        """
        self._step = self._length = 0
        self._account = None
        if agent is not None:
            require_range("recorded agent", agent, least=0, most=self.agents - 1)
            self._recorded = agent
            self._account = Account(rules or AccountRules(), self.rules, (self.windows,), self.num_columns)

    @property
    def account(self) -> Account:
        """Return the recorded agent's money in each window since the last reset; refuse where none is recorded."""
        if self._account is None:
            raise RuntimeError("no agent is recorded: call record() and then reset()")
        return self._account

    def get_episode_summary(self, windows: slice = slice(None)) -> dict[str, Tensor]:
        """Return what happened since `reset`, per agent, summed over the given windows; copies, shape (agents,) each.

        `trades` opened, `wins` and `losses` closed net of costs (a gain of exactly 0 is a loss), `win_rate` of those
        closed (0 without any), `unfilled` orders, `days_with_position` and `days_without_position` of the trading
        days, `reward`, `gain_pct`, `inaction_penalty`, `zero_trade_penalty`, and `closed_<reason>` for each of
        `CLOSE_REASONS`.
        """
        return {name: self._tensor(values) for name, values in self._statistics.summary(windows).items()}


def _largest_orders(size: Float32[np.ndarray, "accounts columns"], count: int) -> Int[np.ndarray, " chosen"]:
    """Return flat indices of each account's `count` largest sizes of at least 1, by rank and then by account.

    Of equal ones the lower column comes first. The sizes chosen may be cleared.
    """
    chosen: list[np.ndarray] = []
    first = np.arange(0, size.size, size.shape[1])
    for rank in range(min(count, size.shape[1])):
        if rank:
            size.reshape(-1)[chosen[-1]] = 0
        cell = first + size.argmax(axis=1)
        chosen.append(cell[size.take(cell) >= 1])
        if len(chosen[-1]) == 0:
            break
    return np.concatenate(chosen)
