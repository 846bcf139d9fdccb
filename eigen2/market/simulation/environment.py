"""The trading environment: every agent in every window, one day a step, in memory that is allocated once.

Accounts are kept on the host, in NumPy: a day is many small operations and few large ones, for which a GPU would only
be waited for. Actions come over once a step, and observations go back.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from jaxtyping import Bool, Float, Float32, Int
from torch import Tensor

from eigen2.core.credit import Credit
from eigen2.core.replay import Field
from eigen2.errors import require_range
from eigen2.market.simulation.account import Account, AccountRules
from eigen2.market.simulation.bars import BOTTOM, LAST, LEAST, OPEN, TOP, market_table
from eigen2.market.simulation.episode_statistics import Closes, Fills, Ledger, of_agent
from eigen2.market.simulation.rules import CLOSE_REASONS, TradingRules
from eigen2.market.simulation.windows import window_bounds

__all__ = ["CLOSE_REASONS", "LEVELS", "TradingEnvironment", "TradingRules"]

LEVELS, SIGNED_LEVELS = 255, 127
"""Steps in which an observation tells sale target and coefficient, as shares of the largest allowed; the second for
coefficients that may be negative."""
MOST_SEEN, MOST_BOOKED = 65_504.0, 1e30
"""Where unrealised gains (a share) and realised ones (percent) end, so that no price makes a number infinite: the loss
of a short sale has no bound of its own."""
FEW = 4096
"""Cells up to which `_half` leaves torch alone."""
TARGET, GAP, HOLDING, HALTED, WINDOW_END = range(len(CLOSE_REASONS))


class TradingEnvironment:
    """Steps `agents` x `windows` accounts through the market; the agents do not move prices.

    A window is the days start_idx <= day < end_idx. At the close of each day before trading_end_idx an agent gives
    every column a coefficient and a sale target. Of the columns that have a price that day and that it does not hold,
    those with the highest coefficients of at least 1 are ordered; orders fill at the next open or at this close (see
    `TradingRules.execution`). From trading_end_idx on no order is given and positions run out (settlement). The last
    day sells what is left, so an episode always terminates and is never truncated: the time left is part of the
    observation.

    A position is sold at entry x (1 + target / 100) on the day whose high reaches it, or at the open that is above it
    already; otherwise at the close when it has been held long enough or the window ends. An order whose column has no
    price at the next open is dropped. A position in a column without a price stays, at its last valid close, until it
    may be sold again or must be, then at that last price with the reason "halted".

    With `TradingRules.allow_short` a coefficient of -1 or less sells short, and orders are ranked by absolute value.
    All holds for it with up and down exchanged: it is bought back at entry x (1 - target / 100) when a day's low
    reaches that, or at the open that is below it already. With c the commission and slippage of a side, as a share of
    the price, the gain is 100 x (exit (1 - c) / (entry (1 + c)) - 1) percent of what was paid for a position bought,
    and 100 x (1 - exit (1 + c) / (entry (1 - c))) percent of what was received for one sold short. The reward is
    |coefficient| x gain, losses times `loss_penalty`.

    Observations are dictionaries of compact tensors, ready to be stored: `day` (1, windows) int32, `days_left`
    (1, windows) int16 until the end of the window, and (agents, windows, columns): `held_days` uint8 (0: not held),
    `gain` float16 (unrealised, fraction, positive where the position gains), `target` and `coefficient` uint8, in 1/255
    of the largest allowed; with short sales `coefficient` is int8 in 1/127, negative for them. The market itself is a
    function of the day (see `AverageEncoder`).

    Args:
        prices: (days, columns, 4) open, high, low, close of the investable columns; NaN where a column did not trade.
        rules: what agents may do and what it costs.
        agents: accounts in each window.
        windows: windows stepped side by side; all of one length.
        device: where observations and rewards go; the accounts themselves are kept on the host.
        credit_orders: whether steps tell, as `info["credit"]`, which earlier steps ordered what has closed.

    Attributes:
        credit_steps: how many steps earlier that may have been; 0 without `credit_orders`.
        action_space: of one account: coefficient in [0 or -max_coefficient, max_coefficient] and target in
            [min_target, max_target] percent, shape (columns, 2).
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
        self._market = market_table(torch.as_tensor(prices).to("cpu", torch.float32))
        self.rules = rules
        self.device = torch.device(device)
        self.num_days, _, self.num_columns = self._market.shape
        self.agents, self.windows = agents, windows
        self.credit_steps = rules.max_holding_days - 1 if credit_orders else 0
        columns = self.num_columns
        self._low, self._high = np.array(rules.action_range, np.float32)
        self._middle, self._half_range = (torch.from_numpy(self._high + sign * self._low) / 2 for sign in (1, -1))
        self.action_space = spaces.Box(np.tile(self._low, (columns, 1)), np.tile(self._high, (columns, 1)))
        levels = np.array([SIGNED_LEVELS if rules.allow_short else LEVELS, LEVELS])
        self._levels = (levels / [rules.max_coefficient, rules.max_target]).astype(np.float32)
        self._kept = (1 - rules.side_cost) / (1 + rules.side_cost)  # of a position bought and sold at one price
        self.observation_fields = {
            "day": Field((), torch.int32),
            "days_left": Field((), torch.int16),
            "held_days": Field((columns,), torch.uint8),
            "gain": Field((columns,), torch.float16),
            "target": Field((columns,), torch.uint8),
            "coefficient": Field((columns,), torch.int8 if rules.allow_short else torch.uint8),
        }
        self._account: Account | None = None
        self._recorded = 0
        self._allocate()

    def _allocate(self) -> None:
        self._shape = (self.agents, self.windows, self.num_columns)
        cells = self.agents * self.windows * self.num_columns
        self._start = np.zeros(self.windows, np.int64)
        self._step = self._length = self._trading_length = 0
        self._bars = self._day()
        # prices of a short sale are kept negative: so every position closes at prices of at least its aim, and gains
        # last close / entry + offset; where nothing is held, infinite ones close nothing and gain nothing
        self._entry, self._aim, self._offset, self._weight, self._scratch = np.zeros((5, cells), np.float32)
        self._shown = np.zeros((3, cells), np.uint8)
        self._held_days, self._target_level, coefficient_level = self._shown
        self._coefficient_level = coefficient_level.view(np.int8 if self.rules.allow_short else np.uint8)
        self._nothing = (
            *((price, np.inf) for price in (self._entry, self._aim)),
            *((state, 0) for state in (self._offset, self._held_days, self._target_level, self._coefficient_level)),
        )
        self._ledger = Ledger(self.rules, self.agents, self.windows, self.num_columns)
        self._clear()

    def _clear(self) -> None:
        for state, nothing in self._nothing:
            state.fill(nothing)
        self._ledger.reset()

    @property
    def action_shape(self) -> tuple[int, ...]:
        """(columns, 2): coefficient and sale target of each."""
        return (self.num_columns, 2)

    @staticmethod
    def needed_bytes(days: int, columns: int, agents: int, windows: int) -> int:
        """Bytes of an environment: its market, one day of it a window, and the state of every account."""
        market = (days + windows) * columns * 5 * 4
        accounts = agents * windows
        return market + accounts * columns * (5 * 4 + 3) + Ledger.needed_bytes(accounts)

    @property
    def nbytes(self) -> int:
        """Bytes of market and state, and of the account that is recorded."""
        floats = (self._entry, self._aim, self._offset, self._weight, self._scratch)
        state = sum(part.nbytes for part in (self._market, self._bars, self._shown, *floats))
        return state + self._ledger.nbytes + (0 if self._account is None else self._account.nbytes)

    def native_action(self, unit: Tensor) -> Tensor:
        """Actions in [-1, 1] (..., columns, 2) as coefficients and percent."""
        return torch.addcmul(self._middle.to(unit.device), unit, self._half_range.to(unit.device))

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
        start_idx: int | Sequence[int] | None = None,
        end_idx: int | Sequence[int] | None = None,
        trading_end_idx: int | Sequence[int] | None = None,
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Start new windows; nothing of the last episode remains.

        Args:
            seed: accepted for Gymnasium's sake; the environment draws nothing.
            options: `start_idx`, `end_idx`, `trading_end_idx`, as below; the keywords win.
            start_idx: first day of each window, an index, one for all or one a window.
            end_idx: the day after the last one; default: the number of days.
            trading_end_idx: the day after the last one on which orders may be given; default: `max_holding_days`
                before `end_idx`, but at least one day after `start_idx`.

        Returns:
            The observation at the close of the first day, and an empty info.

        Raises:
            UserError: a window is not inside the days, has fewer than two days, or the windows differ in length.
        """
        given = {"start_idx": start_idx, "trading_end_idx": trading_end_idx, "end_idx": end_idx}
        asked = {**(options or {}), **{name: value for name, value in given.items() if value is not None}}
        starts, trading_length, length = window_bounds(
            asked, self.windows, self.num_days, settlement=self.rules.max_holding_days
        )
        self._clear()
        self._start = np.array(starts)
        self._step, self._length, self._trading_length = 0, length, trading_length
        self._bars = self._day()
        if self._account is not None:
            self._account.reset(starts, length, trading_length)
        return self._observation(), {}

    def step(
        self, action: Float[Tensor, "agents windows columns 2"]
    ) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        """Decide at the close of the current day, then live through the next one.

        Args:
            action: coefficients and sale targets in native units; clipped to their ranges.

        Returns:
            observation, reward (agents, windows) float32, terminated and truncated (agents, windows) bool, info with
            `closed` (agents, windows, columns) bool, `ordered`: cells in which an order was given (see `Fills.cell`),
            `fills` and `closes`: what opened and closed (see `Fills`, `Closes`), and `last_close` (windows, columns):
            the last valid closes, 0 before a column's first; with
            `credit_orders` also `credit`.

        Raises:
            RuntimeError: the episode is over.
            ValueError: the action is not one for every account and column.
        """
        if action.shape != (self.agents, self.windows, *self.action_shape):
            raise ValueError(f"action of shape {tuple(action.shape)} for {self.agents} agents, {self.windows} windows")
        if self._step >= self._length - 1:
            raise RuntimeError("the episode is over: call reset() before step()")
        trading = self._step < self._trading_length
        self._step += 1
        last_day = self._step == self._length - 1
        before, self._bars = self._bars, self._day()
        self._held_days += self._held_days > 0
        given, fills = np.zeros(0, np.int64), Fills.none()
        if trading:
            given, fills = self._open_positions(action.detach().to("cpu", torch.float32).numpy(), before)
        closed = self._closing(last_day)
        closing = closed.nonzero()[0]
        ordered = self._held_days[closing].astype(np.int64) - 1  # days ago
        closes = self._close_positions(closing)
        earned = self._ledger.close(closes, trading, last_day)
        if self._account is not None:
            agent, cells = self._recorded, self.windows * self.num_columns
            self._account.step(of_agent(fills, agent, cells), of_agent(closes, agent, cells), self._bars[LAST])
        info = {
            "closed": self._tensor(closed.reshape(self._shape)),
            "ordered": given,
            "fills": fills,
            "closes": closes,
            "last_close": self._bars[LAST].copy(),
        }
        if self.credit_steps:
            info["credit"] = Credit(closing // self.num_columns, ordered, closes.reward)
        account = (self.agents, self.windows)
        reward = earned.astype(np.float32).reshape(account)
        terminated, truncated = np.full(account, last_day), np.zeros(account, np.bool_)
        flags = self._tensor(terminated), self._tensor(truncated)
        return self._observation(), self._tensor(reward), *flags, info

    def _open_positions(
        self, action: Float[np.ndarray, "agents windows columns 2"], before: Float32[np.ndarray, "5 windows columns"]
    ) -> tuple[Int[np.ndarray, " ordered"], Fills]:
        """Fill the orders of the last close: the largest coefficients of at least 1 among columns not held.

        Returns:
            Cells in which an order was given, by rank and then by account, and what filled of them.
        """
        rules = self.rules
        size = action[..., 0].copy()  # contiguous, as what follows is much faster on that
        size.clip(rules.min_coefficient, rules.max_coefficient, out=size)
        if rules.allow_short:
            np.abs(size, out=size)
        free = size >= before[LEAST]
        free &= (self._held_days == 0).reshape(self._shape)
        bits = size.view(np.int32)
        bits *= free  # as integers, which clears not-a-number too
        ordered = _largest(size.reshape(-1, self.num_columns), rules.max_opens_per_day)
        # a price seen at the decision is that of a column that trades
        prices = self._bars[OPEN] if rules.execution == "next_open" else before[LAST]
        price = prices.take(ordered % prices.size)
        filled = price > 0
        cell = ordered[filled]
        self._ledger.open(ordered, cell)
        # a target that is not a number becomes the lowest
        chosen = np.fmin(np.fmax(action.reshape(-1, 2)[cell], self._low), self._high)
        fills = Fills(cell, price[filled], chosen[:, 0])
        self._enter(fills, chosen)
        return ordered, fills

    def _day(self) -> Float32[np.ndarray, "5 windows columns"]:
        """Each window's bars of its current day."""
        bars: np.ndarray = self._market.take(self._start + self._step, axis=0)
        return bars.swapaxes(0, 1)

    def _enter(self, fills: Fills, action: Float32[np.ndarray, "filled 2"]) -> None:
        """Write new positions down."""
        cell, price, coefficient = fills
        side = np.sign(coefficient)
        entry = side * price
        self._entry[cell] = entry
        self._aim[cell] = entry * (1 + side * action[:, 1] / 100)
        self._offset[cell] = -side
        self._weight[cell] = side * coefficient
        self._held_days[cell] = 1
        self._coefficient_level[cell], self._target_level[cell] = np.rint(action * self._levels).T

    def _closing(self, last_day: bool) -> Bool[np.ndarray, " cells"]:
        """Which positions close today."""
        reached = self._bars[TOP]
        if self.rules.allow_short:
            reached = np.where(self._offset.reshape(self._shape) > 0, -self._bars[BOTTOM], reached)
        closed: np.ndarray = (reached >= self._aim.reshape(self._shape)).reshape(-1)
        closed |= self._held_days >= (1 if last_day else self.rules.max_holding_days)
        return closed

    def _close_positions(self, cell: Int[np.ndarray, " closed"]) -> Closes:
        """Sell (or buy back) positions at today's prices and forget them."""
        if not cell.size:
            return Closes.none()
        entry, aim, side = self._entry[cell], self._aim[cell], -self._offset[cell]
        bars = side * self._bars.reshape(len(self._bars), -1).take(cell % self._bars[0].size, axis=1)
        reached = bars[TOP] >= aim
        if self.rules.allow_short:
            reached = np.where(side > 0, reached, bars[BOTTOM] >= aim)
        price = np.where(reached, np.maximum(bars[OPEN], aim), bars[LAST])
        kept = np.where(side > 0, self._kept, 1 / self._kept)
        gain_pct = 100 * side * (np.divide(price, entry, dtype=np.float64) * kept - 1)
        gain_pct = np.minimum(np.maximum(gain_pct, -MOST_BOOKED), MOST_BOOKED)
        reward = self._weight[cell] * gain_pct
        if self.rules.loss_penalty != 1:
            reward[gain_pct < 0] *= self.rules.loss_penalty
        reason = np.where(self._held_days[cell] >= self.rules.max_holding_days, HOLDING, WINDOW_END)
        reason[np.isnan(bars[OPEN])] = HALTED
        reason[reached] = TARGET
        reason[bars[OPEN] >= aim] = GAP
        for state, nothing in self._nothing:
            state[cell] = nothing
        return Closes(cell, side * price, reason, gain_pct, reward)

    def _observation(self) -> dict[str, Tensor]:
        """Fresh tensors: what a caller keeps does not change with the next step."""
        gain = np.divide(self._bars[LAST], self._entry.reshape(self._shape), out=self._scratch.reshape(self._shape))
        gain += self._offset.reshape(self._shape)
        held_days, target, coefficient = self._shown.reshape(3, *self._shape).copy()
        left = self._length - 1 - self._step
        return {
            "day": self._tensor((self._start + self._step).astype(np.int32)[None]),
            "days_left": self._tensor(np.full((1, self.windows), left, np.int16)),
            "held_days": self._tensor(held_days),
            "gain": self._half(gain.clip(-MOST_SEEN, MOST_SEEN, out=gain)),
            "target": self._tensor(target),
            "coefficient": self._tensor(coefficient.view(self._coefficient_level.dtype)),
        }

    def _tensor(self, values: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(values)
        return tensor if self.device.type == "cpu" else tensor.to(self.device)

    def _half(self, values: Float32[np.ndarray, "agents windows columns"]) -> Tensor:
        """In half precision, to the same bits either way: NumPy's slow loop costs less than calling torch for few."""
        if values.size <= FEW:
            return self._tensor(values.astype(np.float16))
        return self._tensor(values).to(torch.float16)

    def record(self, agent: int | None, rules: AccountRules | None = None) -> None:
        """Keep money and trades of one agent in all windows, see `account`; ends the episode, the next reset starts it.

        Args:
            agent: which, 0 to agents - 1; None keeps nothing any more.
            rules: how much money it has and how it is spread; None takes the defaults.

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
        """The recorded agent's money in each window since the last reset.

        Raises:
            RuntimeError: no agent is recorded.
        """
        if self._account is None:
            raise RuntimeError("no agent is recorded: call record() and then reset()")
        return self._account

    def get_episode_summary(self, windows: slice = slice(None)) -> dict[str, Tensor]:
        """What happened since `reset`, per agent, summed over the given windows; copies, shape (agents,) each.

        `trades` opened, `wins` and `losses` closed net of costs (a gain of exactly 0 is a loss), `win_rate` of those
        closed (0 without any), `unfilled` orders, `days_with_position` and `days_without_position` of the trading
        days, `reward`, `gain_pct`, `inaction_penalty`, `zero_trade_penalty`, and `closed_<reason>` for each of
        `CLOSE_REASONS`.
        """
        return {name: self._tensor(values) for name, values in self._ledger.summary(windows).items()}


def _largest(size: Float32[np.ndarray, "accounts columns"], count: int) -> Int[np.ndarray, " chosen"]:
    """Flat indices of each account's `count` largest sizes of at least 1, by rank and then by account.

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
