"""The trading environment for one agent in one window, day by day and column by column: slow and obviously right."""

import copy
import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Int16

from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.rules import TradingRules

OPEN, HIGH, LOW, CLOSE = range(4)
STATISTICS = (
    *("trades", "wins", "losses", "days_with_position", "unfunded"),
    *("days_without_position", "reward", "gain_pct", "log_return_pct"),
)


def half_below(value: float) -> float:
    """Return the largest number of half precision up to a value of 0 or more."""
    bits = struct.pack("e", value)
    if struct.unpack("e", bits)[0] > value:
        bits = struct.pack("H", struct.unpack("H", bits)[0] - 1)
    return float(struct.unpack("e", bits)[0])


@dataclass
class Position:
    """What an account holds in one column, or owes where the coefficient is negative."""

    day: int
    entry: float
    coefficient: float
    target: float
    stake: float  # share of the equity
    shares: float = 0.0  # negative where sold short
    held_days: int = 0
    fees: float = 0.0  # paid to borrow a share

    @property
    def short(self) -> bool:
        return self.coefficient < 0

    @property
    def aim(self) -> float:
        """The price it is to be closed at; in single precision, because it decides whether the position closes."""
        share = np.float32(self.target) / np.float32(100)
        return float(np.float32(self.entry) * (np.float32(1) + (-share if self.short else share)))


@dataclass
class Trade:
    """A position that was closed."""

    column: int
    position: Position
    day: int
    price: float
    reason: str
    gain_pct: float
    reward: float
    profit: float
    kept_reward: float  # what the order earns: the reward without the signal that closed the position, if one did


class ReferenceAccount:
    """One agent in one window.

    Args:
        prices: (days, columns, 4) open, high, low, close; NaN where a column did not trade.
        rules, money: as for the environment.
        draws: what decides between equal orders, see `tie_breaks`.
        capacity: the most money that an order puts into each column; None is any.
    """

    def __init__(
        self,
        prices: Float[np.ndarray, "days columns 4"],
        rules: TradingRules,
        money: AccountRules,
        draws: Int16[np.ndarray, "days columns"],
        capacity: list[float] | None = None,
    ) -> None:
        self.prices = [[[float(price) for price in bar] for bar in day] for day in prices]
        self.rules, self.money, self.draws = rules, money, draws.tolist()
        self.columns = prices.shape[1]
        self.capacity = capacity or [math.inf] * self.columns

    def reset(self, start: int, trading_end: int, end: int) -> dict[str, Any]:
        """Start a window; return the observation of its first day."""
        self.day, self.trading_end, self.last_day = start, trading_end, end - 1
        self.positions: dict[int, Position] = {}
        self.trades: list[Trade] = []
        self.cash = self.equity = self.money.initial_cash
        self.exposure, self.falls, self.ruined = 0.0, 0.0, False
        self.summary: dict[str, float] = dict.fromkeys(STATISTICS, 0)
        return self.observation()

    def known(self, day: int, column: int, price: int) -> bool:
        """Whether the column has this price."""
        return math.isfinite(self.prices[day][column][price])

    def traded(self, day: int, column: int) -> bool:
        """Whether the column has a close."""
        return self.known(day, column, CLOSE)

    def first_price(self, day: int, column: int) -> float | None:
        """The open, or else the close."""
        known = [price for price in (OPEN, CLOSE) if self.known(day, column, price)]
        return self.prices[day][column][known[0]] if known else None

    def delisted(self, day: int, column: int) -> bool:
        """Whether the column has had its last price, and the table goes on for 20 days without it."""
        days = [other for other, bars in enumerate(self.prices) if any(math.isfinite(price) for price in bars[column])]
        last = max(days, default=day)
        return self.rules.delisting_return < 0 and last < day and last + 20 < len(self.prices)

    def bought_for_cash(self, column: int) -> bool:
        """Whether the column has 10 closes or more, of which the last 10 are within 1 % of the lowest."""
        closes = [bars[column][CLOSE] for bars in self.prices if math.isfinite(bars[column][CLOSE])][-10:]
        return len(closes) == 10 and all(close / min(closes) - 1 < 0.01 for close in closes)

    def last_close(self, day: int, column: int) -> float:
        """The last valid close up to the day, changed by the return of a delisting that was no purchase."""
        failed = self.delisted(day, column) and not self.bought_for_cash(column)
        kept = 1 + self.rules.delisting_return if failed else 1.0
        while not self.traded(day, column):
            day -= 1
        return float(np.float32(self.prices[day][column][CLOSE]) * np.float32(kept))

    def share(self, quoted: float, buys: bool) -> float:
        """What a share costs or brings."""
        side = (self.rules.cost_bps + self.rules.slippage_bps) / 10_000
        return quoted * (1 + side) if buys else quoted * (1 - side)

    @property
    def room(self) -> float:
        """The share of the equity that is left for orders."""
        return 0.0 if self.ruined else max(0.0, self.money.max_leverage - self.exposure / self.equity)

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
        positions = {"held_days": held_days, "gain": gain, "target": target, "coefficient": coefficient}
        money = {"cash": 0.0 if self.ruined else self.cash / self.equity, "room": self.room}
        return {"day": self.day, "days_left": self.last_day - self.day, **money, **positions}

    def step(self, action: Float32[np.ndarray, "columns 2"]) -> tuple[dict[str, Any], float, bool, list[bool]]:
        """Live through the next day; return observation, reward, terminated and which columns closed."""
        trading = self.day < self.trading_end
        self.accrue()
        sold = self.signalled(action) if self.rules.early_close else {}
        if trading:
            self.open_positions(action)
        self.day += 1
        held_today = bool(self.positions)
        closed, reward = [False] * self.columns, 0.0
        for column in sorted(self.positions):
            self.positions[column].held_days += 1
            exit_ = sold.get(column) or self.exit(column)
            if exit_ is not None:
                reward += self.settle(column, *exit_)
                closed[column] = True
        reward -= self.penalty(trading, held_today)
        self.summary["reward"] += reward
        self.mark()
        return self.observation(), reward, self.day == self.last_day, closed

    def accrue(self) -> None:
        """Earn interest on cash, and pay what short positions cost for a day."""
        self.cash += self.cash * self.money.cash_rate_pct / 100 / 252
        for column, position in self.positions.items():
            if position.short:
                fee = self.last_close(self.day, column) * self.money.borrow_fee_pct / 100 / 252
                position.fees += fee
                self.cash += fee * position.shares

    def mark(self) -> None:
        """Value what is held at the last closes."""
        values = [p.shares * self.last_close(self.day, column) for column, p in self.positions.items()]
        before, self.equity, self.exposure = self.equity, self.cash + sum(values), sum(map(abs, values))
        if min(before, self.equity) > 0:
            self.falls += min(0.0, math.log(self.equity / before)) ** 2
        self.ruined = self.ruined or self.equity <= 0
        self.summary["log_return_pct"] = 100 * math.log(max(self.equity / self.money.initial_cash, 1e-6))

    def orders(self, action: Float32[np.ndarray, "columns 2"]) -> list[tuple[int, float, float]]:
        """Column, coefficient and take-profit of the orders of a day, the largest first."""
        rules, orders = self.rules, []
        for column, (coefficient, target) in enumerate(action):
            most = np.float32(rules.max_coefficient).item()
            clipped = min(max(float(coefficient), -most if rules.allow_short else 0.0), most)
            aim = min(max(float(target), np.float32(rules.min_target).item()), np.float32(rules.max_target).item())
            # what does not trade at the moment of the decision cannot be ordered
            if abs(clipped) >= 1 and column not in self.positions and self.traded(self.day, column):
                orders.append((-abs(clipped), -self.draws[self.day][column], column, clipped, aim))
        return [order[2:] for order in sorted(orders)[: rules.max_opens_per_day]]

    def open_positions(self, action: Float32[np.ndarray, "columns 2"]) -> None:
        """Fill the day's orders, which share the money that is left."""
        rules, orders, room, equity = self.rules, self.orders(action), self.room, self.equity
        largest = [rules.max_coefficient] * (min(rules.max_opens_per_day, self.columns) - 1)
        if half_below(room) / sum([1, *largest]) < self.money.min_order * (1 - 1e-9):  # the smallest order's part
            self.summary["unfunded"] += len(orders)
            return
        asked = {
            column: min(abs(coefficient) * self.money.unit_share, self.capacity[column] / equity)
            for column, coefficient, _ in orders
        }
        for column, coefficient, aim in orders:
            stake = asked[column] * min(1.0, room / max(sum(asked.values()), room))
            small = stake < self.money.min_order and asked[column] < self.money.unit_share
            if small or not self.affordable(stake, self.prices[self.day][column][CLOSE], coefficient < 0):
                self.summary["unfunded"] += 1
                continue
            day, price = (self.day + 1, OPEN) if rules.execution == "next_open" else (self.day, CLOSE)
            stake = self.affordable(stake, self.prices[day][column][price], coefficient < 0)
            if stake:
                position = Position(day, self.prices[day][column][price], coefficient, aim, stake)
                position.shares = stake * equity / self.share(position.entry, not position.short)
                self.cash += stake * equity if position.short else -stake * equity
                position.shares *= -1 if position.short else 1
                self.cash -= self.extra_commission(position.shares * position.entry)
                self.positions[column] = position
                self.summary["trades"] += 1

    def extra_commission(self, value: float) -> float:
        """What the commission on a trade is short of the least one."""
        if abs(value) <= 1e-9 * self.money.initial_cash:  # nothing, as of a share that is worth nothing
            return 0.0
        return max(0.0, self.money.min_commission - abs(value) * self.rules.cost_bps / 10_000)

    def affordable(self, stake: float, price: float, short: bool) -> float:
        """The share of the equity that an order takes at a price: with whole shares, what these cost; 0 for none."""
        if math.isnan(price) or not self.money.whole_shares:
            return 0.0 if math.isnan(price) else stake
        cost = self.share(price, not short)
        money = math.floor(stake * self.equity / cost + 1e-6) * cost
        return money / self.equity if money >= self.money.min_order * self.equity else 0.0

    def signalled(self, action: Float32[np.ndarray, "columns 2"]) -> dict[int, tuple[float, str]]:
        """Price and reason of the positions that the agent closes, which must trade at the decision and at the fill."""
        day, price = (self.day + 1, OPEN) if self.rules.execution == "next_open" else (self.day, CLOSE)
        return {
            column: (self.prices[day][column][price], "signal")
            for column, position in self.positions.items()
            if (-action[column, 0] if position.short else action[column, 0]) < 1
            and self.traded(self.day, column)
            and self.known(day, column, price)
        }

    def kept_reward(self, column: int) -> float:
        """The reward of a position without a signal: what the order earns, as the signal did not come with it."""
        later = copy.copy(self)
        later.positions = copy.deepcopy(self.positions)
        while (exit_ := later.exit(column)) is None:
            later.accrue()
            later.day += 1
            later.positions[column].held_days += 1
        return later.gain(column, exit_[0])[1]

    def exit(self, column: int) -> tuple[float, str] | None:
        """Price and reason if the position is closed today."""
        position, (open_, high, low, close) = self.positions[column], self.prices[self.day][column]
        aim, late = position.aim, position.held_days > self.rules.max_holding_days
        if open_ <= aim if position.short else open_ >= aim:  # false for what is not a number
            return open_, "gap"
        first = self.first_price(self.day, column)
        if late and first is not None:
            return first, "halted"
        end = low if position.short else high
        ends = [price for price in (open_, close if math.isnan(end) else end) if not math.isnan(price)]
        if ends and not late and (min(ends) <= aim if position.short else max(ends) >= aim):
            return aim, "target"
        held_out = position.held_days >= self.rules.max_holding_days
        if not held_out and self.day != self.last_day:
            return None
        if self.traded(self.day, column):
            return close, "holding" if held_out else "window_end"
        if self.delisted(self.day, column):
            return self.last_close(self.day, column), "delisted"
        if first is not None:
            return first, "halted"
        return (self.next_price(column), "halted") if self.day == self.last_day else None

    def next_price(self, column: int) -> float:
        """The first price after the window; the last close if the table has none."""
        later = (self.first_price(day, column) for day in range(self.day + 1, len(self.prices)))
        return next((price for price in later if price is not None), self.last_close(self.day, column))

    def gain(self, column: int, price: float) -> tuple[float, float]:
        """Percent gain and reward of a position that closes at a price."""
        position = self.positions[column]
        before, after = self.share(position.entry, not position.short), self.share(price, position.short)
        gain_pct = (1 - (after + position.fees) / before if position.short else after / before - 1) * 100
        weight = 100 * position.stake if self.rules.reward == "account" else abs(position.coefficient)
        return gain_pct, weight * gain_pct * (self.rules.loss_penalty if gain_pct < 0 else 1)

    def settle(self, column: int, price: float, reason: str) -> float:
        """Book the exit; return its reward."""
        (gain_pct, reward), kept_reward = self.gain(column, price), self.kept_reward(column)
        position = self.positions.pop(column)
        day = self.day - (reason == "signal" and self.rules.execution == "close")
        after = self.share(price, position.short)
        profit = position.shares * (after + position.fees - self.share(position.entry, not position.short))
        extra = [self.extra_commission(position.shares * quoted) for quoted in (position.entry, price)]
        self.cash += position.shares * after - extra[1]
        profit -= sum(extra)
        self.trades.append(Trade(column, position, day, price, reason, gain_pct, reward, profit, kept_reward))
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

    @property
    def score(self) -> float:
        """The fitness of the window."""
        if self.rules.reward == "shaped":
            return self.summary["reward"]
        missing = self.rules.zero_trade_penalty / 100 if self.summary["trades"] == 0 else 0.0
        return self.summary["log_return_pct"] - 100 * self.rules.risk_aversion * math.sqrt(self.falls) - missing
