"""What happened to the accounts of an environment: the events of a day and the counts of an episode."""

from typing import NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float32, Float64, Int

from eigen2.market.simulation.rules import CLOSE_REASONS, TradingRules


class Fills(NamedTuple):
    """Positions a step opened, by rank and then by account."""

    cell: Int[np.ndarray, " filled"]
    """Which position: the index into (agents, windows, columns), flattened."""
    price: Float32[np.ndarray, " filled"]
    """Entry price, before costs."""
    coefficient: Float32[np.ndarray, " filled"]
    """Negative for short sales."""

    @classmethod
    def none(cls) -> "Fills":
        """No position."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros(0, np.float32))


class Closes(NamedTuple):
    """Positions a step closed, by account and then by column."""

    cell: Int[np.ndarray, " closed"]
    """Which position: the index into (agents, windows, columns), flattened."""
    price: Float32[np.ndarray, " closed"]
    """Exit price, before costs."""
    reason: Int[np.ndarray, " closed"]
    """Index into `CLOSE_REASONS`."""
    gain_pct: Float64[np.ndarray, " closed"]
    """Percent gain net of costs."""
    reward: Float64[np.ndarray, " closed"]
    """Its share of the account's reward."""

    @classmethod
    def none(cls) -> "Closes":
        """No position."""
        nothing = np.zeros(0, np.int64)
        return cls(nothing, np.zeros(0, np.float32), nothing, np.zeros(0), np.zeros(0))


Events = TypeVar("Events", Fills, Closes)


def of_agent(events: Events, agent: int, cells: int) -> Events:
    """The events of one agent, which has so many cells, as if it were alone."""
    own = events.cell // cells == agent
    return type(events)(events.cell[own] - agent * cells, *(values[own] for values in events[1:]))


class Ledger:
    """Counts an episode's events by account, of which there are agents x windows.

    Args:
        rules: the environment's.
        agents: accounts in each window.
        windows: windows side by side.
        columns: of each account.
    """

    def __init__(self, rules: TradingRules, agents: int, windows: int, columns: int) -> None:
        self._rules = rules
        self._shape, self._columns = (agents, windows), columns
        accounts = agents * windows
        self._orders, self._trades, self._closed, self._days_with_position = np.zeros((4, accounts), np.int64)
        self._kinds = np.zeros(accounts * len(CLOSE_REASONS) * 2, np.int64)  # by reason and whether it gained
        self._reward, self._gain_pct = np.zeros((2, accounts))
        self._trading_days, self._over = 0, False

    @staticmethod
    def needed_bytes(accounts: int) -> int:
        """Bytes of the counts of so many accounts."""
        return accounts * 8 * (6 + 2 * len(CLOSE_REASONS))

    @property
    def nbytes(self) -> int:
        """Bytes of the counts."""
        return sum(count.nbytes for count in self._counts)

    @property
    def _counts(self) -> tuple[np.ndarray, ...]:
        counts = (self._orders, self._trades, self._closed, self._days_with_position)
        return (*counts, self._kinds, self._reward, self._gain_pct)

    def reset(self) -> None:
        """Forget everything."""
        for count in self._counts:
            count.fill(0)
        self._trading_days, self._over = 0, False

    def open(self, ordered: Int[np.ndarray, " ordered"], filled: Int[np.ndarray, " filled"]) -> None:
        """Count the orders and the fills of a day, given by their cells."""
        accounts = len(self._trades)
        self._orders += np.bincount(ordered // self._columns, minlength=accounts)
        self._trades += np.bincount(filled // self._columns, minlength=accounts)

    def close(self, closes: Closes, trading: bool, last_day: bool) -> Float64[np.ndarray, " accounts"]:
        """Count a day after its fills; return each account's reward, less what doing nothing costs."""
        account, accounts = closes.cell // self._columns, len(self._trades)
        reward = np.bincount(account, closes.reward, minlength=accounts)
        if trading:
            holding = self._trades > self._closed
            self._trading_days += 1
            self._days_with_position += holding
            if self._rules.inaction_penalty:
                reward = reward - self._rules.inaction_penalty * ~holding
        if last_day:
            self._over = True
            reward = reward - self._rules.zero_trade_penalty * (self._trades == 0)
        self._closed += np.bincount(account, minlength=accounts)
        kind = (account * len(CLOSE_REASONS) + closes.reason) * 2 + (closes.gain_pct > 0)
        self._kinds += np.bincount(kind, minlength=len(self._kinds))
        # of nothing, bincount makes integers
        self._gain_pct += np.bincount(account, closes.gain_pct, minlength=accounts)
        self._reward += reward
        return reward.astype(np.float64)

    def summary(self, windows: slice) -> dict[str, np.ndarray]:
        """Counts and sums of each agent over the given windows, see `TradingEnvironment.get_episode_summary`."""
        kinds = self._kinds.reshape(-1, len(CLOSE_REASONS), 2)
        without = self._trading_days - self._days_with_position
        none = (self._trades == 0) & self._over
        counts = {
            "trades": self._trades,
            "wins": kinds[:, :, 1].sum(1),
            "losses": kinds[:, :, 0].sum(1),
            "unfilled": self._orders - self._trades,
            "days_with_position": self._days_with_position,
            "days_without_position": without,
            **{f"closed_{reason}": kinds[:, which].sum(1) for which, reason in enumerate(CLOSE_REASONS)},
            "reward": self._reward,
            "gain_pct": self._gain_pct,
            "inaction_penalty": self._rules.inaction_penalty * without,
            "zero_trade_penalty": self._rules.zero_trade_penalty * none,
        }
        summary = {name: count.reshape(self._shape)[:, windows].sum(1) for name, count in counts.items()}
        closed = summary["wins"] + summary["losses"]
        summary["win_rate"] = summary["wins"] / closed.clip(min=1)
        return {
            name: value.astype(np.float32) if value.dtype == np.float64 else value for name, value in summary.items()
        }
