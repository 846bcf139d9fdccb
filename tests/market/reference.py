"""The trading environment for one agent in one window, day by day and column by column: slow and obviously right."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Float32

from eigen2.market.environment import TradingRules

OPEN, HIGH, CLOSE = 0, 1, 3


@dataclass
class Position:
    """What an account holds in one column."""

    entry: float
    coefficient: float
    target: float
    held_days: int = 0

    @property
    def aim(self) -> float:
        """The price it is to be sold at; in single precision, because it decides whether the position closes."""
        return float(np.float32(self.entry) * (np.float32(1) + np.float32(self.target) / np.float32(100)))


class ReferenceAccount:
    """One agent in one window.

    Args:
        prices: (days, columns, 4) open, high, low, close; NaN where a column did not trade.
        rules: as for the environment.
    """

    def __init__(self, prices: Float[np.ndarray, "days columns 4"], rules: TradingRules) -> None:
        self.prices = [[[float(price) for price in bar] for bar in day] for day in prices]
        self.rules = rules
        self.columns = prices.shape[1]

    def reset(self, start: int, trading_end: int, end: int) -> dict[str, Any]:
        """Start a window; return the observation of its first day."""
        self.day, self.trading_end, self.last_day = start, trading_end, end - 1
        self.positions: dict[int, Position] = {}
        self.summary: dict[str, float] = dict.fromkeys(
            (
                *("trades", "wins", "losses", "unfilled", "days_with_position", "days_without_position"),
                *("closed_target", "closed_gap", "closed_holding", "closed_halted", "closed_window_end"),
                *("reward", "gain_pct", "inaction_penalty", "zero_trade_penalty", "win_rate"),
            ),
            0,
        )
        return self.observation()

    def traded(self, day: int, column: int) -> bool:
        """Whether the column has a complete bar."""
        return all(math.isfinite(price) for price in self.prices[day][column])

    def last_close(self, day: int, column: int) -> float:
        """The last valid close up to the day."""
        while not self.traded(day, column):
            day -= 1
        return self.prices[day][column][CLOSE]

    def observation(self) -> dict[str, Any]:
        """What the agent sees at the close of the day."""
        held_days, gain, target, coefficient = ([0.0] * self.columns for _ in range(4))
        for column, position in self.positions.items():
            held_days[column] = position.held_days
            gain[column] = self.last_close(self.day, column) / position.entry - 1
            target[column] = 255 * position.target / self.rules.max_target
            coefficient[column] = 255 * position.coefficient / self.rules.max_coefficient
        days_left = self.last_day - self.day
        positions = {"held_days": held_days, "gain": gain, "target": target, "coefficient": coefficient}
        return {"day": self.day, "days_left": days_left, **positions}

    def step(self, action: Float32[np.ndarray, "columns 2"]) -> tuple[dict[str, Any], float, bool, list[bool]]:
        """Live through the next day; return observation, reward, terminated and which columns closed."""
        trading = self.day < self.trading_end
        if trading:
            self.open_positions(action)
        self.day += 1
        held_today = bool(self.positions)
        closed, reward = [False] * self.columns, 0.0
        for column in sorted(self.positions):
            self.positions[column].held_days += 1
            sale = self.sale(column)
            if sale is not None:
                reward += self.settle(self.positions.pop(column), *sale)
                closed[column] = True
        reward -= self.penalty(trading, held_today)
        self.summary["reward"] += reward
        return self.observation(), reward, self.day == self.last_day, closed

    def open_positions(self, action: Float32[np.ndarray, "columns 2"]) -> None:
        """Fill the day's orders."""
        rules = self.rules
        orders = []
        for column, (coefficient, target) in enumerate(action):
            clipped = min(max(float(coefficient), 0.0), np.float32(rules.max_coefficient).item())
            aim = min(max(float(target), np.float32(rules.min_target).item()), np.float32(rules.max_target).item())
            # what does not trade at the moment of the decision cannot be ordered
            if clipped >= 1 and column not in self.positions and self.traded(self.day, column):
                orders.append((-clipped, column, aim))
        for negative, column, aim in sorted(orders)[: rules.max_opens_per_day]:
            day, price = (self.day + 1, OPEN) if rules.execution == "next_open" else (self.day, CLOSE)
            if self.traded(day, column):
                self.positions[column] = Position(self.prices[day][column][price], -negative, aim)
                self.summary["trades"] += 1
            else:
                self.summary["unfilled"] += 1

    def sale(self, column: int) -> tuple[float, str] | None:
        """Price and reason if the position is sold today."""
        position, bar = self.positions[column], self.prices[self.day][column]
        traded = self.traded(self.day, column)
        if traded and bar[OPEN] >= position.aim:
            return bar[OPEN], "gap"
        if traded and bar[HIGH] >= position.aim:
            return position.aim, "target"
        held_out = position.held_days >= self.rules.max_holding_days
        if held_out or self.day == self.last_day:
            reason = "halted" if not traded else "holding" if held_out else "window_end"
            return self.last_close(self.day, column), reason
        return None

    def settle(self, position: Position, price: float, reason: str) -> float:
        """Book the sale; return its reward."""
        side = (self.rules.cost_bps + self.rules.slippage_bps) / 10_000
        paid, received = position.entry * (1 + side), price * (1 - side)
        gain_pct = (received - paid) / paid * 100
        self.summary["wins" if gain_pct > 0 else "losses"] += 1
        self.summary[f"closed_{reason}"] += 1
        self.summary["gain_pct"] += gain_pct
        self.summary["win_rate"] = self.summary["wins"] / (self.summary["wins"] + self.summary["losses"])
        return position.coefficient * gain_pct * (self.rules.loss_penalty if gain_pct < 0 else 1)

    def penalty(self, trading: bool, held_today: bool) -> float:
        """What the day costs for doing nothing."""
        idle = none = 0.0
        if trading:
            self.summary["days_with_position" if held_today else "days_without_position"] += 1
            idle = 0.0 if held_today else self.rules.inaction_penalty
        if self.day == self.last_day and self.summary["trades"] == 0:
            none = self.rules.zero_trade_penalty
        self.summary["inaction_penalty"] += idle
        self.summary["zero_trade_penalty"] += none
        return idle + none
