"""The trading environment: every agent in every window, one day a step, on tensors that are allocated once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from jaxtyping import Float
from torch import Tensor

from eigen2.erl.replay import Field
from eigen2.errors import UserError, require_range

OPEN, HIGH, LOW, CLOSE = range(4)
LEVELS = 255
"""Steps in which an observation tells sale target and coefficient, as shares of the largest allowed."""
CLOSE_REASONS = ("target", "gap", "holding", "halted", "window_end")
"""Why a position closed: its sale target was reached, the open gapped above it, it was held long enough, its column had
no price on the day it had to close, or the window ended."""


@dataclass
class TradingRules:
    """What agents may do and what it costs."""

    max_coefficient: float = 5.0
    """Largest coefficient of a position; its reward is coefficient x percent gain (above 1, at most 1000).
    One below 1 opens nothing."""
    min_target: float = 10.0
    """Lowest sale target, percent above the entry price (0.1 or more)."""
    max_target: float = 50.0
    """Highest sale target, percent above the entry price (min_target to 1000)."""
    max_opens_per_day: int = 1
    """Orders an agent may give a day (1 or more); one that does not fill is not passed on."""
    max_holding_days: int = 20
    """Days after which a position is sold at the close (1 to 250)."""
    execution: Literal["next_open", "close"] = "next_open"
    """When an order fills: at the open of the day after the decision, or at the close the agent has just seen."""
    cost_bps: float = 10.0
    """Commission a side, in basis points of the price (0 to 1000)."""
    slippage_bps: float = 5.0
    """Slippage a side, in basis points of the price (0 to 1000)."""
    loss_penalty: float = 1.0
    """Factor on the reward of a losing position (0 to 1000; 1 treats losses as gains)."""
    inaction_penalty: float = 0.0
    """Subtracted for each trading day on which nothing was held at any time (0 to 1e6, in reward units)."""
    zero_trade_penalty: float = 10.0
    """Subtracted once at the end of a window without a single trade (0 to 1e6, in reward units)."""

    def __post_init__(self) -> None:
        require_range("data.rules.max_coefficient", self.max_coefficient, above=1, most=1000)
        require_range("data.rules.min_target", self.min_target, least=0.1)
        require_range("data.rules.max_target", self.max_target, least=self.min_target, most=1000)
        require_range("data.rules.max_opens_per_day", self.max_opens_per_day, least=1)
        require_range("data.rules.max_holding_days", self.max_holding_days, least=1, most=250)
        for name in ("cost_bps", "slippage_bps", "loss_penalty"):
            require_range(f"data.rules.{name}", getattr(self, name), least=0, most=1000)
        for name in ("inaction_penalty", "zero_trade_penalty"):
            require_range(f"data.rules.{name}", getattr(self, name), least=0, most=1e6)


class TradingEnvironment:
    """Steps `agents` x `windows` accounts through the market; the agents do not move prices.

    A window is the days start_idx <= day < end_idx. At the close of each day before trading_end_idx an agent gives
    every column a coefficient and a sale target. Of the columns that have a price that day and that it does not hold,
    those with the highest coefficients of at least 1 are ordered; orders fill at the next open or at this close (see
    `TradingRules.execution`). From trading_end_idx on no order is given and positions run out (settlement). The last
    day sells what is left, so an episode always terminates and is never truncated: the time left is part of the
    observation.

    An order whose column has no price at the next open is dropped. A position in a column without a price stays, at its
    last valid close, until it may be sold again or must be, then at that last price with the reason "halted".

    Observations are dictionaries of compact tensors, ready to be stored: `day` (1, windows) int32, `days_left`
    (1, windows) int16 until the end of the window, and (agents, windows, columns): `held_days` uint8 (0: not held),
    `gain` float16 (unrealised, fraction), `target` and `coefficient` uint8, in 1/255 of the largest allowed. The market
    itself is a function of the day (see `MarketEncoder`).

    Args:
        prices: (days, columns, 4) open, high, low, close of the investable columns; NaN where a column did not trade.
        rules: what agents may do and what it costs.
        agents: accounts in each window.
        windows: windows stepped side by side; all of one length.
        device: where the state lies.

    Attributes:
        action_space: of one account: coefficient in [0, max_coefficient] and target in [min_target, max_target]
            percent, shape (columns, 2).
    """

    def __init__(
        self,
        prices: Float[np.ndarray, "days columns 4"] | Float[Tensor, "days columns 4"],
        rules: TradingRules,
        agents: int,
        windows: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        self.prices = torch.as_tensor(prices).clone().to(device, torch.float32)
        self.traded = (torch.isfinite(self.prices) & (self.prices > 0)).all(-1)
        self.last_close = _forward_fill(self.prices[..., CLOSE].where(self.traded, torch.nan))
        self.rules = rules
        self.device = self.prices.device
        self.num_days, self.num_columns, _ = self.prices.shape
        self.agents, self.windows = agents, windows
        columns = self.num_columns
        low = np.tile(np.array([0.0, rules.min_target], np.float32), (columns, 1))
        high = np.tile(np.array([rules.max_coefficient, rules.max_target], np.float32), (columns, 1))
        self.action_space = spaces.Box(low, high)
        cost = (rules.cost_bps + rules.slippage_bps) / 10_000
        self._net_of_costs = (1 - cost) / (1 + cost)
        self._low, self._high = torch.from_numpy(low).to(device), torch.from_numpy(high).to(device)
        self.observation_fields = {
            "day": Field((), torch.int32),
            "days_left": Field((), torch.int16),
            "held_days": Field((columns,), torch.uint8),
            "gain": Field((columns,), torch.float16),
            "target": Field((columns,), torch.uint8),
            "coefficient": Field((columns,), torch.uint8),
        }
        self._allocate()

    def _allocate(self) -> None:
        account = (self.agents, self.windows)
        position = (*account, self.num_columns)

        def zeros(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        self._start = torch.zeros(self.windows, dtype=torch.int64)
        self._step = self._length = self._trading_length = 0
        self._entry_price = zeros(position)  # 0 where nothing is held
        self._held_days = zeros(position, torch.int16)
        self._coefficient = zeros(position)
        self._target = zeros(position)
        self._counts = {
            name: zeros(account, torch.int64)
            for name in (
                "trades",
                "wins",
                "losses",
                "unfilled",
                "days_with_position",
                "days_without_position",
            )
        }
        self._reasons = {reason: zeros(account, torch.int64) for reason in CLOSE_REASONS}
        self._sums = {name: zeros(account) for name in ("reward", "gain_pct", "inaction_penalty", "zero_trade_penalty")}

    @property
    def _state(self) -> list[Tensor]:
        positions = [self._held_days, self._entry_price, self._coefficient, self._target]
        return [*positions, *self._counts.values(), *self._reasons.values(), *self._sums.values()]

    @property
    def action_shape(self) -> tuple[int, ...]:
        """(columns, 2): coefficient and sale target of each."""
        return (self.num_columns, 2)

    @staticmethod
    def needed_bytes(days: int, columns: int, agents: int, windows: int) -> int:
        """Bytes of an environment: prices, validity and last closes, and the state of every account."""
        market = days * columns * (4 * 4 + 1 + 4)
        position, account = 3 * 4 + 2, (6 + len(CLOSE_REASONS)) * 8 + 4 * 4
        return market + agents * windows * (columns * position + account)

    @property
    def nbytes(self) -> int:
        """Bytes of prices and state."""
        return sum(t.nbytes for t in (self.prices, self.traded, self.last_close, *self._state))

    def native_action(self, unit: Tensor) -> Tensor:
        """Actions in [-1, 1] (..., columns, 2) as coefficients and percent."""
        return self._low + (unit + 1) * 0.5 * (self._high - self._low)

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
        options = options or {}
        starts = self._per_window(start_idx, options.get("start_idx"), 0)
        ends = self._per_window(end_idx, options.get("end_idx"), self.num_days)
        default_trading_end = [
            max(start + 1, end - self.rules.max_holding_days) for start, end in zip(starts, ends, strict=True)
        ]
        trading_ends = self._per_window(trading_end_idx, options.get("trading_end_idx"), default_trading_end)
        spans = zip(starts, trading_ends, ends, strict=True)
        shapes = {(trading_end - start, end - start) for start, trading_end, end in spans}
        if len(shapes) > 1:
            raise UserError(f"windows differ in (trading, total) days: {sorted(shapes)}; give all the same length")
        trading_length, length = shapes.pop()
        if min(starts) < 0 or max(ends) > self.num_days or length < 2 or not 1 <= trading_length <= length:
            raise UserError(
                f"window start_idx {starts}, trading_end_idx {trading_ends}, end_idx {ends} does not fit "
                f"0 <= start < trading end <= end <= {self.num_days} with at least 2 days"
            )
        for state in self._state:
            state.zero_()
        self._start = torch.tensor(starts)
        self._step, self._length, self._trading_length = 0, length, trading_length
        return self._observation(), {}

    def _per_window(self, keyword: Any, option: Any, default: int | list[int]) -> list[int]:
        value = next(v for v in (keyword, option, default) if v is not None)
        values = [int(v) for v in np.atleast_1d(np.asarray(value))]
        values = values * self.windows if len(values) == 1 else values
        if len(values) != self.windows:
            raise UserError(f"{len(values)} window bounds given for {self.windows} windows: give one or {self.windows}")
        return values

    def step(
        self, action: Float[Tensor, "agents windows columns 2"]
    ) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        """Decide at the close of the current day, then live through the next one.

        Args:
            action: coefficients and sale targets in native units; clipped to their ranges.

        Returns:
            observation, reward (agents, windows) float32, terminated and truncated (agents, windows) bool, info with
            `closed` (agents, windows, columns) bool.

        Raises:
            RuntimeError: the episode is over.
            ValueError: the action is not one for every account and column.
        """
        if action.shape != (self.agents, self.windows, *self.action_shape):
            raise ValueError(f"action of shape {tuple(action.shape)} for {self.agents} agents, {self.windows} windows")
        if self._step >= self._length - 1:
            raise RuntimeError("the episode is over: call reset() before step()")
        today = self._start + self._step
        trading = self._step < self._trading_length
        if trading:
            self._open_positions(action.clamp(self._low, self._high), today)
        self._step += 1
        last_day = self._step == self._length - 1
        held = self._entry_price > 0
        self._held_days += held
        closed, reward = self._close_positions(held, today + 1, last_day)
        reward -= self._penalties(held.any(-1), trading, last_day)
        self._sums["reward"] += reward
        terminated = torch.full_like(reward, last_day, dtype=torch.bool)
        return self._observation(), reward, terminated, torch.zeros_like(terminated), {"closed": closed}

    def _open_positions(self, action: Tensor, today: Tensor) -> None:
        """Fill the orders of today's close: the highest coefficients of at least 1 among columns not held."""
        coefficient, target = action.unbind(-1)
        wanted = (coefficient >= 1) & (self._entry_price == 0) & self.traded[today]
        # a stable sort, not topk: equal coefficients go to the lower column on every device
        order = torch.where(wanted, coefficient, -1.0).sort(dim=-1, descending=True, stable=True).indices
        first = order[..., : self.rules.max_opens_per_day]
        ordered = torch.zeros_like(wanted).scatter_(-1, first, True) & wanted
        day, price = (today + 1, OPEN) if self.rules.execution == "next_open" else (today, CLOSE)
        filled = ordered & self.traded[day]
        self._entry_price = torch.where(filled, self.prices[day][..., price], self._entry_price)
        self._coefficient = torch.where(filled, coefficient, self._coefficient)
        self._target = torch.where(filled, target, self._target)
        self._counts["trades"] += filled.sum(-1)
        self._counts["unfilled"] += (ordered & ~filled).sum(-1)

    def _close_positions(self, held: Tensor, day: Tensor, last_day: bool) -> tuple[Tensor, Tensor]:
        """Sell what is to be sold on `day`; return which positions closed and the reward of each account."""
        bar, traded = self.prices[day], self.traded[day]
        aim = self._entry_price * (1 + self._target / 100)
        gap = held & traded & (bar[..., OPEN] >= aim)
        target = held & traded & (bar[..., HIGH] >= aim) & ~gap
        held_out = self._held_days >= self.rules.max_holding_days
        due = held & ~gap & ~target & (held_out | last_day)
        closed = gap | target | due
        sale = torch.where(gap, bar[..., OPEN], torch.where(target, aim, self.last_close[day]))
        gain_pct = torch.where(closed, 100 * (sale / self._entry_price * self._net_of_costs - 1), 0.0)
        weight = torch.where(gain_pct < 0, self.rules.loss_penalty, 1.0) * self._coefficient
        reward = (weight * gain_pct).sum(-1)
        for reason, which in zip(
            CLOSE_REASONS,
            (target, gap, due & traded & held_out, due & ~traded, due & traded & ~held_out),
            strict=True,
        ):
            self._reasons[reason] += which.sum(-1)
        self._counts["wins"] += (gain_pct > 0).sum(-1)
        self._counts["losses"] += (closed & (gain_pct <= 0)).sum(-1)
        self._sums["gain_pct"] += gain_pct.sum(-1)
        for state in (self._entry_price, self._held_days, self._coefficient, self._target):
            state.masked_fill_(closed, 0)
        return closed, reward

    def _penalties(self, holding: Tensor, trading: bool, last_day: bool) -> Tensor:
        penalty = torch.zeros_like(self._sums["reward"])
        if trading:
            self._counts["days_with_position"] += holding
            self._counts["days_without_position"] += ~holding
            idle = torch.where(holding, 0.0, self.rules.inaction_penalty)
            self._sums["inaction_penalty"] += idle
            penalty += idle
        if last_day:
            none = torch.where(self._counts["trades"] == 0, self.rules.zero_trade_penalty, 0.0)
            self._sums["zero_trade_penalty"] += none
            penalty += none
        return penalty

    def _observation(self) -> dict[str, Tensor]:
        """Fresh tensors: what a caller keeps does not change with the next step."""
        day = self._start + self._step
        held = self._entry_price > 0
        gain = torch.where(held, self.last_close[day] / self._entry_price - 1, 0.0)
        left = torch.full((1, self.windows), self._length - 1 - self._step, dtype=torch.int16)
        return {
            "day": day.to(self.device, torch.int32)[None],
            "days_left": left.to(self.device),
            "held_days": self._held_days.to(torch.uint8),
            "gain": gain.to(torch.float16),
            "target": (self._target * (LEVELS / self.rules.max_target)).round().to(torch.uint8),
            "coefficient": (self._coefficient * (LEVELS / self.rules.max_coefficient)).round().to(torch.uint8),
        }

    def get_episode_summary(self, windows: slice = slice(None)) -> dict[str, Tensor]:
        """What happened since `reset`, per agent, summed over the given windows; copies, shape (agents,) each.

        `trades` opened, `wins` and `losses` closed net of costs (a gain of exactly 0 is a loss), `win_rate` of those
        closed (0 without any), `unfilled` orders, `days_with_position` and `days_without_position` of the trading
        days, `reward`, `gain_pct`, `inaction_penalty`, `zero_trade_penalty`, and `closed_<reason>` for each of
        `CLOSE_REASONS`.
        """
        summary = {name: count[:, windows].sum(1) for name, count in self._counts.items()}
        summary |= {f"closed_{reason}": count[:, windows].sum(1) for reason, count in self._reasons.items()}
        summary |= {name: total[:, windows].sum(1) for name, total in self._sums.items()}
        closed = summary["wins"] + summary["losses"]
        summary["win_rate"] = summary["wins"] / closed.clamp(min=1)
        return summary


def _forward_fill(close: Float[Tensor, "days columns"]) -> Float[Tensor, "days columns"]:
    """Each column's last valid close up to each day; NaN before its first."""
    days = torch.arange(len(close), device=close.device)[:, None]
    last = torch.where(torch.isfinite(close), days, -1).cummax(0).values
    return torch.where(last >= 0, close.gather(0, last.clamp(min=0)), torch.nan)
