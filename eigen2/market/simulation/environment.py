"""The trading environment: all agents in all windows, one day per step, in memory that is allocated once.

State is kept in NumPy on the host: a day is many small operations, for which a GPU would only be waited for.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int, Int16
from torch import Tensor

from eigen2.core.credit import Credit
from eigen2.core.replay import Field
from eigen2.market.data.source import CLOSE, OPEN
from eigen2.market.performance import YEAR
from eigen2.market.simulation.account import AccountRules, Capacity
from eigen2.market.simulation.bars import (
    HIGHEST,
    LEAST_SIZE,
    LOWEST,
    can_close,
    delisted,
    exit_prices,
    final_closes,
    halted,
    has_close,
    tie_breaks,
)
from eigen2.market.simulation.base import MAX_OBSERVED, MONEY_FIELDS, MarketEnvironment
from eigen2.market.simulation.events import NO_CLOSES, NO_FILLS, ClosedPositions, OpenedPositions
from eigen2.market.simulation.rules import CLOSE_REASONS, TradingRules

LEVELS = 255  # steps up to the largest take-profit and, without short sales, the largest coefficient, in observations
MOST_HELD = 255  # days in observations; only a column without prices keeps a position longer than 250
MAX_GAIN_PCT = 1e30  # bound of realised gains, as the loss of a short sale is unbounded
TARGET, GAP, HOLDING, HALTED, DELISTED, WINDOW_END, SIGNAL = range(len(CLOSE_REASONS))
NO_ORDERS = (NO_FILLS.cell, NO_FILLS.stake, NO_FILLS)


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


class TradingEnvironment(MarketEnvironment):
    """Steps `agents` x `windows` accounts through the market; the agents do not move prices.

    At the close of each trading day of a window an agent gives every column a coefficient and a take-profit. Of the
    columns that have a price that day and that it does not hold, those with the highest coefficients of at least 1 are
    ordered; a draw (`tie_breaks`) decides between equal ones. An order takes coefficient x unit_share of the account's
    equity, or what is left of it (see `Accounts`); one that cannot be paid for does not open. Later no order is given
    and positions run out (settlement). The last day sells what is left, so an episode always terminates and is never
    truncated: the time left is part of the observation.

    A position is sold at entry x (1 + target / 100) on the day whose high reaches it, or at the open if that is already
    above it; otherwise at the close once it has been held long enough or the window ends. An order whose column has no
    price at the next open is dropped. With membership (see `MarketPanel.prices`) no order opens a column on a day on
    which it is no member; a position that it has runs on as any other. A position in a column without a price keeps its
    last valid close. If it must be sold on such a day, it is sold at the next price, mostly an open, with the reason
    "halted"; the end of the window does not wait for that day, but takes its price, or the last close where there is
    none before the next of `stops` or the end of the table. Where the column has stopped trading for good (see
    `market_table`), the last close, changed by `delisting_return`, is the price, and the reason "delisted".

    With `TradingRules.early_close` agents close positions too, on settlement days as well: on a day with a price, a
    coefficient that would not open the position of its column orders it to be sold. That order fills and is dropped as
    those that open.

    With `TradingRules.allow_short` a coefficient of -1 or less sells short, and orders are ranked by absolute value.
    Up and down are exchanged: a short sale is bought back at entry x (1 - target / 100). With c the commission and
    slippage per side, as a fraction of the price, the gain of a position bought is 100 x (exit (1 - c) / (entry (1 +
    c)) - 1) percent, that of a short sale 100 x (1 - exit (1 + c) / (entry (1 - c))), less
    `AccountRules.borrow_fee_pct`. The reward is the gain in basis points of the equity at the order (100 x percent gain
    x the share taken), or |coefficient| x percent gain where `TradingRules.reward` is shaped; losses times
    `loss_penalty`.

    Observations are dictionaries of compact tensors, ready to be stored: `day` (1, windows) int32, `days_left`
    (1, windows) int16 until the end of the window; (agents, windows) float16: `cash`, as a share of the equity, and
    `room`, the share that is left for orders; and (agents, windows, columns): `held_days` uint8 (0: not held),
    `gain` float16 (unrealised, a fraction, positive where the position gains), `target` and `coefficient` uint8, in
    1/255 of the largest allowed; with `allow_short`, `coefficient` is int8 in 1/127, negative for short sales.

    With `credit_orders`, `info["credit"]` names the steps, at most `credit_steps` earlier, that ordered the closed
    positions, and what they earned. Of a position that the agent closed that is what it would have earned if kept, so
    that the step that closed it keeps the difference; agents do not move prices.
    """

    def __init__(
        self,
        prices: Float[np.ndarray, "days columns bars"] | Float[Tensor, "days columns bars"],
        rules: TradingRules,
        agents: int,
        windows: int = 1,
        device: torch.device | str = "cpu",
        credit_orders: bool = False,
        account: AccountRules = AccountRules(),
        capacity: Capacity = None,
        stops: Sequence[int] = (),
    ) -> None:
        super().__init__(prices, rules, agents, windows, device, account, capacity, stops)
        self._draws = tie_breaks(np.asarray(prices, np.float32))
        columns, accounts = self.num_columns, agents * windows
        self.credit_steps = rules.max_holding_days - 1 if credit_orders else 0
        self.action_shape = (columns, 2)
        self._least_room = account.least_room(rules, columns)
        self._borrow_fee_pct = account.borrow_fee_pct if rules.allow_short else 0.0
        self._low, self._high = np.array(rules.action_range, np.float32)
        coefficient_type = torch.int8 if rules.allow_short else torch.uint8
        self.observation_fields = {
            **MONEY_FIELDS,
            "held_days": Field((columns,), torch.uint8),
            "gain": Field((columns,), torch.float16),
            "target": Field((columns,), torch.uint8),
            "coefficient": Field((columns,), coefficient_type),
        }
        levels = np.array([torch.iinfo(coefficient_type).max, LEVELS])
        self._levels = (levels / [rules.max_coefficient, rules.max_target]).astype(np.float32)
        # what costs leave of a position at a constant price
        self._cost_factor = (1 - rules.side_cost) / (1 + rules.side_cost)
        # Prices of a short sale are negative here, so that every position closes at prices of at least its take-profit,
        # and gains last close / entry - side. Infinite prices, where nothing is held, neither close nor gain.
        self._floats = np.zeros((5, accounts * columns), np.float32)
        self._entry, self._take_profit, self._side, self._reward_per_pct, self._scratch = self._floats
        self._held_days = np.zeros(accounts * columns, np.int16)
        self._shown = np.zeros((2, accounts * columns), np.uint8)
        self._target_level, coefficient_level = self._shown
        self._coefficient_level = coefficient_level.view(np.int8 if rules.allow_short else np.uint8)
        self._counts = np.zeros((5, accounts), np.int64)  # statistics of the episode
        self._trades, self._wins, self._losses, self._days_with_position, self._unfunded = self._counts
        self._sums = np.zeros((2, accounts))
        self._reward, self._gain_pct = self._sums
        self._clear(slice(None))

    def _clear(self, cell: slice | Int[np.ndarray, " closed"]) -> None:
        """Forget the positions of some cells."""
        self._entry[cell] = self._take_profit[cell] = np.inf
        for state in (self._side, self._held_days, self._target_level, self._coefficient_level):
            state[cell] = 0

    @staticmethod
    def needed_bytes(days: int, columns: int, agents: int, windows: int) -> int:
        """Return the bytes of an environment: its market, one day of it a window, and the state of every account."""
        market = days * columns * 2 + (days + windows) * columns * 5 * 4
        return market + agents * windows * (columns * (5 * 4 + 4 + 8) + 11 * 8 + 1)

    @property
    def nbytes(self) -> int:
        """Return the bytes of market and state, and of the record of an agent."""
        state = (self._draws, self._held_days, self._shown, self._floats, self._counts, self._sums)
        return super().nbytes + sum(part.nbytes for part in state)

    def _clear_episode(self) -> None:
        self._clear(slice(None))
        self._counts.fill(0)
        self._sums.fill(0)

    def step(
        self, action: Float[Tensor, "agents windows columns 2"]
    ) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        """Give orders at the close of the current day, then advance to the next close.

        Actions are coefficients and take-profits in native units; they are clipped to their ranges. Returns the
        observation, reward (agents, windows) float32, terminated and truncated (agents, windows) bool, and info:
        `ordered`, the cells in which an order was given, and `stakes`, the share of the equity that each takes before
        rounding to whole shares, 0 if it cannot be paid for; `exits`, the cells that agents ordered to be closed;
        `fills` and `closes`, what opened and closed (see `OpenedPositions`, `ClosedPositions`); `last_close` (windows,
        columns), the last valid closes, 0 before a column's first; with `credit_orders` also `credit`.

        Raises:
            RuntimeError: the episode is over.
            ValueError: the action is not one for every account and column.
        """
        self._require_step(action)
        trading = self._step < self._trading_length
        self._step += 1
        last_day = self._step == self._length - 1
        previous_bars, self._bars = self._bars, self._current_bars()
        fill_price = self._bars[OPEN] if self.rules.execution == "next_open" else previous_bars[CLOSE]
        self.accounts.accrue()
        exits = self._early_closes(action, previous_bars) if self.rules.early_close else NO_CLOSES.cell
        exits_filled = exits[fill_price.take(exits % fill_price.size) > 0]
        self._held_days += self._held_days > 0
        ordered, stakes, fills = self._fill_orders(action, previous_bars, fill_price) if trading else NO_ORDERS
        self.accounts.open(fills)
        if last_day:
            self._settle_prices()
        closing = self._closing_cells(last_day, exits_filled)
        steps_ago = self._held_days[closing].astype(np.int64) - 1
        kept = self._rewards_if_kept(closing) if self.credit_steps and len(exits) else None
        closes = self._close_positions(closing, exits_filled, fill_price)
        earned = self._count_day(fills, closes, trading, last_day)
        self._unfunded += np.bincount(ordered[stakes == 0] // self.num_columns, minlength=len(earned))
        shares = self.accounts.shares[closing]
        self.accounts.close(closing, closes.price)
        self.accounts.mark(self._bars[CLOSE])
        if self._record is not None:
            self._record.trade(fills, closes, shares)
            self._record.mark()
        info = {"ordered": ordered, "stakes": stakes, "exits": exits, "fills": fills, "closes": closes}
        info["last_close"] = self._bars[CLOSE].copy()
        if self.credit_steps:
            # an order earns what its position would have earned if kept; an exit earns the difference
            amount = closes.reward if kept is None else kept
            known = steps_ago <= self.credit_steps  # a position whose column had no price may be older
            info["credit"] = Credit(closing[known] // self.num_columns, steps_ago[known], amount[known])
        return self._result(earned, last_day, info)

    def _fill_orders(
        self,
        actions: Float[Tensor, "agents windows columns 2"],
        previous_bars: Float32[np.ndarray, "5 windows columns"],
        fill_price: Float32[np.ndarray, "windows columns"],
    ) -> tuple[Int[np.ndarray, " ordered"], Float[np.ndarray, " ordered"], OpenedPositions]:
        """Fill the orders of the last close: the largest coefficients of at least 1 among columns not held."""
        rules, action = self.rules, actions.detach().to("cpu", torch.float32).numpy()
        size = action[..., 0].copy()  # contiguous, which makes all that follows much faster
        size.clip(self._low[0], self._high[0], out=size)
        if rules.allow_short:
            np.abs(size, out=size)
        free = size >= previous_bars[LEAST_SIZE]
        free &= (self._held_days == 0).reshape(self._shape)
        bits = size.view(np.int32)
        bits *= free  # as integers, which clears not-a-number too
        draws = self._draws.take(self._start + self._step - 1, axis=0)
        ordered = largest_orders(size, draws, rules.max_opens_per_day)
        # a target that is not a number becomes the lowest
        chosen = np.fmin(np.fmax(action.reshape(-1, 2)[ordered], self._low), self._high)
        coefficient, price = chosen[:, 0], fill_price.take(ordered % fill_price.size)
        stakes = self.accounts.stakes(ordered, coefficient.astype(np.float64), previous_bars[CLOSE], self._least_room)
        stake = self.accounts.filled_stakes(ordered, np.sign(coefficient), stakes, price)
        filled = stake > 0
        cell, price, chosen, stake = (values[filled] for values in (ordered, price, chosen, stake))
        coefficient, side = chosen[:, 0], np.sign(chosen[:, 0])
        self._entry[cell] = side * price
        self._take_profit[cell] = side * price * (1 + side * chosen[:, 1] / 100)
        self._side[cell] = side
        self._reward_per_pct[cell] = 100 * stake if rules.reward == "account" else side * coefficient
        self._held_days[cell] = 1
        self._coefficient_level[cell], self._target_level[cell] = np.rint(chosen * self._levels).T
        return ordered, stakes, OpenedPositions(cell, price, coefficient, stake)

    def _early_closes(
        self,
        actions: Float[Tensor, "agents windows columns 2"],
        previous_bars: Float32[np.ndarray, "5 windows columns"],
    ) -> Int[np.ndarray, " exits"]:
        """Return the cells whose positions agents close: those with a price and a coefficient that would not open."""
        held = self._held_days.nonzero()[0]
        coefficient = actions.detach().to("cpu", torch.float32).numpy().reshape(-1, 2)[held, 0]
        priced = has_close(previous_bars).take(held % previous_bars[0].size)
        return held[priced & (self._side[held] * coefficient < 1)]

    def _closing_cells(self, last_day: bool, exits: Int[np.ndarray, " exits"]) -> Int[np.ndarray, " closed"]:
        """Return the cells whose positions close today."""
        reached = self._bars[HIGHEST]
        if self.rules.allow_short:
            reached = np.where(self._side.reshape(self._shape) < 0, -self._bars[LOWEST], reached)
        closed: np.ndarray = reached >= self._take_profit.reshape(self._shape)
        due = (self._held_days >= (1 if last_day else self.rules.max_holding_days)).reshape(self._shape)
        closed |= due & (last_day | can_close(self._bars))
        cells = closed.reshape(-1)
        cells[exits] = True
        return cells.nonzero()[0]

    def _close_positions(
        self,
        cell: Int[np.ndarray, " closed"],
        exits: Int[np.ndarray, " exits"],
        fill_price: Float32[np.ndarray, "windows columns"],
    ) -> ClosedPositions:
        """Sell, or buy back, positions at today's prices, exits at those of fills, and clear their cells."""
        if not cell.size:
            return NO_CLOSES
        take_profit, side = self._take_profit[cell], self._side[cell]
        bars = side * self._bars.reshape(len(self._bars), -1).take(cell % self._bars[0].size, axis=1)
        overdue = self._held_days[cell] > self.rules.max_holding_days
        reached, price = exit_prices(bars, side, take_profit, overdue)
        exited = np.searchsorted(cell, exits)
        price[exited] = side[exited] * fill_price.take(exits % fill_price.size)
        gain_pct, reward = self._earned(cell, price, np.zeros_like(cell))
        reason = np.where(self._held_days[cell] >= self.rules.max_holding_days, HOLDING, WINDOW_END)
        reason[overdue | halted(bars)] = HALTED
        reason[delisted(bars)] = DELISTED
        reason[reached] = TARGET
        reason[bars[OPEN] >= take_profit] = GAP
        reason[exited] = SIGNAL
        self._clear(cell)
        return ClosedPositions(cell, side * price, reason, gain_pct, reward)

    def _earned(
        self,
        cell: Int[np.ndarray, " closed"],
        price: Float32[np.ndarray, " closed"],
        days_left: Int[np.ndarray, " closed"],
    ) -> tuple[Float64[np.ndarray, " closed"], Float64[np.ndarray, " closed"]]:
        """Return net gain in percent and reward of positions that close in some days.

        Prices are those of the exits, negative for short sales.
        """
        side = self._side[cell]
        kept = np.where(side > 0, self._cost_factor, 1 / self._cost_factor)
        gain_pct = 100 * side * (np.divide(price, self._entry[cell], dtype=np.float64) * kept - 1)
        if self._borrow_fee_pct:
            gain_pct -= self._borrow_fees_pct(cell, days_left)
        gain_pct = np.minimum(np.maximum(gain_pct, -MAX_GAIN_PCT), MAX_GAIN_PCT)
        reward = self._reward_per_pct[cell] * gain_pct
        reward[gain_pct < 0] *= self.rules.loss_penalty
        return gain_pct, reward

    def _borrow_fees_pct(
        self, cell: Int[np.ndarray, " closed"], days_left: Int[np.ndarray, " closed"]
    ) -> Float64[np.ndarray, " closed"]:
        """Return the fees on positions sold short, in percent of what these brought, see `Accounts.accrue`; else 0."""
        window, column = np.divmod(cell % self._bars[0].size, self.num_columns)
        charged = self._held_days[cell] - 1 + days_left  # days, at the closes before the exit
        ago = np.arange(1, charged.max(initial=0) + 1)
        day = (self._start[window] + self._step + days_left)[:, None] - ago
        closes = self._market[day.clip(0), CLOSE, column[:, None]].astype(np.float64)
        value = (closes * (ago <= charged[:, None])).sum(1)
        brought = np.abs(self._entry[cell]).astype(np.float64) * (1 - self.rules.side_cost)
        return (self._side[cell] < 0) * (self._borrow_fee_pct / YEAR) * value / brought

    def _rewards_if_kept(self, cell: Int[np.ndarray, " closed"]) -> Float64[np.ndarray, " closed"]:
        """Return the rewards of positions that are sold at their targets, after all days allowed or with the window."""
        window, column = np.divmod(cell % self._bars[0].size, self.num_columns)
        days_left = self.rules.max_holding_days - self._held_days[cell].astype(np.int64)[:, None]
        side, take_profit, end = self._side[cell, None], self._take_profit[cell, None], self._length - 1 - self._step
        for last in (min(end, max(days_left.max(initial=0), 0)), end):  # beyond only where a column has no price
            days = np.arange(last + 1)
            bars = self._market[(self._start[window] + self._step)[:, None] + days, :, column[:, None]]
            bars = np.moveaxis(bars, -1, 0)
            closed = (days >= days_left) & can_close(bars)
            if last == end:
                final = self._start[window] + self._length - 1
                bars[CLOSE, :, -1], closed[:, -1] = final_closes(self._market, final, column, self._stops), True
            reached, price = exit_prices(side * bars, side, take_profit, days > days_left)
            closed |= reached
            if closed.any(1).all():
                break
        exit_ = closed.argmax(1)
        return self._earned(cell, price[np.arange(len(cell)), exit_], exit_)[1]

    def _count_day(
        self, fills: OpenedPositions, closes: ClosedPositions, trading: bool, last_day: bool
    ) -> Float64[np.ndarray, " accounts"]:
        """Count a day; return the reward of each account, penalties included."""
        accounts, account, won = len(self._trades), closes.cell // self.num_columns, closes.gain_pct > 0
        reward = np.bincount(account, closes.reward, accounts).astype(np.float64)  # bincount returns integers for none
        self._trades += np.bincount(fills.cell // self.num_columns, minlength=accounts)
        if trading:
            holding = self._trades > self._wins + self._losses
            self._days_with_position += holding
            reward -= self.rules.inaction_penalty * ~holding
        if last_day:
            reward -= self.rules.zero_trade_penalty * (self._trades == 0)
        self._wins += np.bincount(account[won], minlength=accounts)
        self._losses += np.bincount(account[~won], minlength=accounts)
        self._gain_pct += np.bincount(account, closes.gain_pct, accounts)
        self._reward += reward
        return reward

    def _observation(self) -> dict[str, Tensor]:
        gain = np.divide(self._bars[CLOSE], self._entry.reshape(self._shape), out=self._scratch.reshape(self._shape))
        gain -= self._side.reshape(self._shape)
        gain.clip(-MAX_OBSERVED, MAX_OBSERVED, out=gain)
        held_days = np.minimum(self._held_days, MOST_HELD).astype(np.uint8).reshape(self._shape)
        target, coefficient = self._shown.reshape(2, *self._shape).copy()
        return {
            **self._money_observation(),
            "held_days": self._tensor(held_days),
            "gain": self._tensor(gain).to(torch.float16),
            "target": self._tensor(target),
            "coefficient": self._tensor(coefficient.view(self._coefficient_level.dtype)),
        }

    def scores(self, returns: Float64[Tensor, "agents windows"]) -> Float64[Tensor, "agents windows"]:
        """Return the fitness of the last episode, see the base class.

        `zero_trade_penalty` / 100 is subtracted without a trade; shaped rewards are summed instead.
        """
        if self.rules.reward == "shaped":
            return returns
        penalty = self.rules.zero_trade_penalty / 100 * (self._trades == 0)
        return super().scores(returns) - self._tensor(penalty.reshape(self.agents, -1))

    def get_episode_summary(self, windows: slice = slice(None)) -> dict[str, Tensor]:
        """Return sums since `reset` over some windows, (agents,) each: trades, days with a position, earnings.

        `wins` and `losses` count closed positions net of costs (a gain of exactly 0 is a loss); days are trading days;
        `unfunded` counts orders that could not be paid for, `log_return_pct` is the account's, in percent.
        """
        names = "trades wins losses days_with_position unfunded days_without_position reward gain_pct log_return_pct"
        idle = min(self._step, self._trading_length) - self._days_with_position
        counts = (*self._counts, idle, *self._sums, self.accounts.log_return_pct())
        parts = (count.reshape(self.agents, -1)[:, windows].sum(1) for count in counts)
        values = (part.astype(np.float32) if part.dtype == np.float64 else part for part in parts)
        return {name: self._tensor(part) for name, part in zip(names.split(), values, strict=True)}
