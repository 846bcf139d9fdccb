"""Events of a day in the trading environment, and the statistics of an episode that are counted from them."""

from typing import NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float32, Float64, Int

from eigen2.market.simulation.rules import CLOSE_REASONS, TradingRules


class Fills(NamedTuple):
    """Positions that a step opened, by rank and then by account.

    Cells are indices into the flattened (agents, windows, columns). Prices are those before costs; the coefficient of
    a short sale is negative.
    """

    cell: Int[np.ndarray, " filled"]
    price: Float32[np.ndarray, " filled"]
    coefficient: Float32[np.ndarray, " filled"]


class Closes(NamedTuple):
    """Positions that a step closed, by account and then by column.

    Cells are indices into the flattened (agents, windows, columns), reasons into `CLOSE_REASONS`. Prices are those
    before costs, gains are net of them; the rewards are parts of the accounts' rewards.
    """

    cell: Int[np.ndarray, " closed"]
    price: Float32[np.ndarray, " closed"]
    reason: Int[np.ndarray, " closed"]
    gain_pct: Float64[np.ndarray, " closed"]
    reward: Float64[np.ndarray, " closed"]


NO_FILLS = Fills(np.zeros(0, np.int64), *np.zeros((2, 0), np.float32))
NO_CLOSES = Closes(np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros(0, np.int64), *np.zeros((2, 0)))
Events = TypeVar("Events", Fills, Closes)


def events_of_agent(events: Events, agent: int, cells: int) -> Events:
    """Return the events of one agent, which has the given number of cells, as if there were no other."""
    own = events.cell // cells == agent
    return type(events)(events.cell[own] - agent * cells, *(values[own] for values in events[1:]))


class EpisodeStatistics:
    """Counts and sums of an episode's events for each of agents x windows accounts, of so many columns."""

    def __init__(self, rules: TradingRules, agents: int, windows: int, columns: int) -> None:
        self._rules, self._shape, self._columns = rules, (agents, windows), columns
        self._accounts = agents * windows
        self._counts = np.zeros((4, self._accounts), np.int64)
        self._orders, self._trades, self._closed, self._days_with_position = self._counts
        # closed positions by account, reason and whether they gained
        self._kinds = np.zeros(self._accounts * len(CLOSE_REASONS) * 2, np.int64)
        self._sums = np.zeros((2, self._accounts))
        self._reward, self._gain_pct = self._sums
        self._trading_days, self._over = 0, False

    @staticmethod
    def needed_bytes(accounts: int) -> int:
        """Return the bytes that the statistics of so many accounts take."""
        return accounts * 8 * (6 + 2 * len(CLOSE_REASONS))

    @property
    def nbytes(self) -> int:
        """Return the bytes held."""
        return self._counts.nbytes + self._kinds.nbytes + self._sums.nbytes

    def reset(self) -> None:
        """Set everything to 0."""
        for part in (self._counts, self._kinds, self._sums):
            part.fill(0)
        self._trading_days, self._over = 0, False

    def count_orders(self, ordered: Int[np.ndarray, " ordered"], filled: Int[np.ndarray, " filled"]) -> None:
        """Count a day's orders and fills, given by their cells."""
        self._orders += np.bincount(ordered // self._columns, minlength=self._accounts)
        self._trades += np.bincount(filled // self._columns, minlength=self._accounts)

    def count_day(self, closes: Closes, trading: bool, last_day: bool) -> Float64[np.ndarray, " accounts"]:
        """Count a day after its fills; return the reward of each account, penalties included."""
        rules, account = self._rules, closes.cell // self._columns
        reward = np.bincount(account, closes.reward, self._accounts)
        if trading:
            holding = self._trades > self._closed
            self._trading_days += 1
            self._days_with_position += holding
            if rules.inaction_penalty:
                reward = reward - rules.inaction_penalty * ~holding
        if last_day:
            self._over = True
            reward = reward - rules.zero_trade_penalty * (self._trades == 0)
        self._closed += np.bincount(account, minlength=self._accounts)
        kind = (account * len(CLOSE_REASONS) + closes.reason) * 2 + (closes.gain_pct > 0)
        self._kinds += np.bincount(kind, minlength=len(self._kinds))
        self._gain_pct += np.bincount(account, closes.gain_pct, self._accounts)
        self._reward += reward
        return reward.astype(np.float64)  # bincount of nothing returns integers

    def summary(self, windows: slice) -> dict[str, np.ndarray]:
        """Return each agent's statistics over the given windows, see `TradingEnvironment.get_episode_summary`."""
        kinds = self._kinds.reshape(-1, len(CLOSE_REASONS), 2)
        idle_days = self._trading_days - self._days_with_position
        statistics = {
            "trades": self._trades,
            "wins": kinds[:, :, 1].sum(1),
            "losses": kinds[:, :, 0].sum(1),
            "unfilled": self._orders - self._trades,
            "days_with_position": self._days_with_position,
            "days_without_position": idle_days,
            **{f"closed_{reason}": kinds[:, i].sum(1) for i, reason in enumerate(CLOSE_REASONS)},
            "reward": self._reward,
            "gain_pct": self._gain_pct,
            "inaction_penalty": self._rules.inaction_penalty * idle_days,
            "zero_trade_penalty": self._rules.zero_trade_penalty * ((self._trades == 0) & self._over),
        }
        summary = {name: values.reshape(self._shape)[:, windows].sum(1) for name, values in statistics.items()}
        summary["win_rate"] = summary["wins"] / (summary["wins"] + summary["losses"]).clip(min=1)
        return {name: v.astype(np.float32) if v.dtype == np.float64 else v for name, v in summary.items()}
