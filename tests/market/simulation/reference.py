"""The trading environment for one agent in one window, day by day and column by column: slow and obviously right."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Float32

from eigen2.market.simulation.environment import TradingRules

OPEN, HIGH, LOW, CLOSE = range(4)
STATISTICS = ("trades", "wins", "losses", "days_with_position", "days_without_position", "reward", "gain_pct")


@dataclass
class Position:
    """What an account holds in one column, or owes where the coefficient is negative."""

    day: int
    entry: float
    coefficient: float
    target: float
    held_days: int = 0

    @property
    def short(self) -> bool:
        return self.coefficient < 0

    @property
    def aim(self) -> float:
        """The price it is to be closed at; in single precision, because it decides whether the position closes."""
        share = np.float32(self.target) / np.float32(100)
        return float(np.float32(self.entry) * (np.float32(1) + (-share if self.short else share)))


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
        # column, position, day, price, reason, percent gain and reward of each exit
        self.trades: list[tuple[int, Position, int, float, str, float, float]] = []
        self.summary: dict[str, float] = dict.fromkeys(STATISTICS, 0)
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
            rise = self.last_close(self.day, column) / position.entry - 1
            held_days[column] = position.held_days
            gain[column] = -rise if position.short else rise
            target[column] = 255 * position.target / self.rules.max_target
            steps = 127 if self.rules.allow_short else 255
            coefficient[column] = steps * position.coefficient / self.rules.max_coefficient
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
            exit_ = self.exit(column)
            if exit_ is not None:
                reward += self.settle(column, *exit_)
                closed[column] = True
        reward -= self.penalty(trading, held_today)
        self.summary["reward"] += reward
        return self.observation(), reward, self.day == self.last_day, closed

    def open_positions(self, action: Float32[np.ndarray, "columns 2"]) -> None:
        """Fill the day's orders."""
        rules, orders = self.rules, []
        for column, (coefficient, target) in enumerate(action):
            most = np.float32(rules.max_coefficient).item()
            clipped = min(max(float(coefficient), -most if rules.allow_short else 0.0), most)
            aim = min(max(float(target), np.float32(rules.min_target).item()), np.float32(rules.max_target).item())
            # what does not trade at the moment of the decision cannot be ordered
            if abs(clipped) >= 1 and column not in self.positions and self.traded(self.day, column):
                orders.append((-abs(clipped), column, clipped, aim))
        for _, column, clipped, aim in sorted(orders)[: rules.max_opens_per_day]:
            day, price = (self.day + 1, OPEN) if rules.execution == "next_open" else (self.day, CLOSE)
            if self.traded(day, column):
                self.positions[column] = Position(day, self.prices[day][column][price], clipped, aim)
                self.summary["trades"] += 1

    def exit(self, column: int) -> tuple[float, str] | None:
        """Price and reason if the position is closed today."""
        position, (open_, high, low, _) = self.positions[column], self.prices[self.day][column]
        traded, aim = self.traded(self.day, column), position.aim
        if traded and (open_ <= aim if position.short else open_ >= aim):
            return open_, "gap"
        if traded and (low <= aim if position.short else high >= aim):
            return aim, "target"
        held_out = position.held_days >= self.rules.max_holding_days
        if held_out or self.day == self.last_day:
            reason = "halted" if not traded else "holding" if held_out else "window_end"
            return self.last_close(self.day, column), reason
        return None

    def settle(self, column: int, price: float, reason: str) -> float:
        """Book the exit; return its reward."""
        position = self.positions.pop(column)
        side = (self.rules.cost_bps + self.rules.slippage_bps) / 10_000
        bought, sold = (price, position.entry) if position.short else (position.entry, price)
        paid, received = bought * (1 + side), sold * (1 - side)
        gain_pct = (received - paid) / (received if position.short else paid) * 100
        reward = abs(position.coefficient) * gain_pct * (self.rules.loss_penalty if gain_pct < 0 else 1)
        self.trades.append((column, position, self.day, price, reason, gain_pct, reward))
        self.summary["wins" if gain_pct > 0 else "losses"] += 1
        self.summary["gain_pct"] += gain_pct
        return reward

    def penalty(self, trading: bool, held_today: bool) -> float:
        """What the day costs for doing nothing."""
        idle = none = 0.0
        if trading:
            self.summary["days_with_position" if held_today else "days_without_position"] += 1
            idle = 0.0 if held_today else self.rules.inaction_penalty
        if self.day == self.last_day and self.summary["trades"] == 0:
            none = self.rules.zero_trade_penalty
        return idle + none
