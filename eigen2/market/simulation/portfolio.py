"""The portfolio environment: target weights of all columns, to which accounts are rebalanced every few days."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64
from torch import Tensor

from eigen2.core.replay import Field
from eigen2.errors import UserError
from eigen2.market.data.source import CLOSE, OPEN
from eigen2.market.simulation.account import AccountRules, Capacity
from eigen2.market.simulation.bars import delisted, has_close, may_open
from eigen2.market.simulation.base import MAX_OBSERVED, MONEY_FIELDS, MarketEnvironment
from eigen2.market.simulation.environment import TradingEnvironment
from eigen2.market.simulation.rules import TradingRules


class PortfolioEnvironment(MarketEnvironment):
    """Steps `agents` x `windows` accounts from one rebalancing to the next; the agents do not move prices.

    At the close of the first day of a window, and of every `rebalance_days`-th trading day after it, an agent gives
    every column a score in [-1, 1]. The scores become target weights of the columns that have a price that day, see
    `TradingRules.target_weights`, and the account is rebalanced to them at the next open, or at that very close, see
    `Accounts.rebalance`: costs are paid on what changes. A column without a price at either keeps its holding; one that
    has stopped trading for good is sold at its last close, see `market_table`. With membership (see
    `MarketPanel.prices`) a column that is no member has a target weight of 0. Then holdings drift with their prices,
    also through the settlement days; the last day of the window sells everything at its closes, or what has none at its
    next price, so an episode always terminates and is never truncated.

    A step is one rebalancing and the days until the next, or until the window ends. Its reward is the log return of
    the account's equity at the last valid closes, in basis points; the sum of an episode is 100 x the log return in
    percent, which is the fitness before `risk_aversion`.

    Observations hold `MONEY_FIELDS` and `weight` (agents, windows, columns) float16: what is held, as a share of the
    equity, negative where sold short.
    """

    def __init__(
        self,
        prices: Float[np.ndarray, "days columns bars"] | Float[Tensor, "days columns bars"],
        rules: TradingRules,
        agents: int,
        windows: int = 1,
        device: torch.device | str = "cpu",
        account: AccountRules = AccountRules(),
        capacity: Capacity = None,
        stops: Sequence[int] = (),
    ) -> None:
        if (cost := rules.side_cost * account.max_leverage) >= 1:
            raise UserError(
                f"data.rules.cost_bps + slippage_bps at data.account.max_leverage {account.max_leverage:g} take "
                f"{100 * cost:g} % of the equity: lower one of them below 100 %"
            )
        super().__init__(prices, rules, agents, windows, device, account, capacity, stops)
        self.action_shape = (self.num_columns, 1)
        self.observation_fields = {**MONEY_FIELDS, "weight": Field((self.num_columns,), torch.float16)}
        self._sums = np.zeros((2, agents * windows))  # statistics of the episode
        self._turnover, self._reward = self._sums

    @staticmethod
    def needed_bytes(days: int, columns: int, agents: int, windows: int) -> int:
        """Return the bytes of an environment: its market, one day of it a window, and the state of every account."""
        return (days + windows) * columns * 5 * 4 + agents * windows * (columns * 8 + 6 * 8 + 1)

    @property
    def nbytes(self) -> int:
        """Return the bytes of market and accounts, and of the record of an agent."""
        return super().nbytes + self._sums.nbytes

    def _clear_episode(self) -> None:
        self._sums.fill(0)

    def step(
        self, action: Float[Tensor, "agents windows columns 1"]
    ) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        """Decide on target weights at the close of the current day, then advance to the close of the next decision.

        Actions are scores, clipped to [-1, 1]; an account with one that is not a number goes to cash. Returns the
        observation, reward (agents, windows) float32, terminated and truncated (agents, windows) bool, and info:
        `weights` (agents, windows, columns), the target weights, and `traded`, the columns that were traded.

        Raises:
            RuntimeError: the episode is over.
            ValueError: the action is not one for every account and column.
        """
        self._require_step(action)
        before_pct, before, end = self.accounts.log_return_pct(), self._bars, self._length - 1
        first, following = self._step + 1, self._step + self.rules.rebalance_days
        following = following if following < min(self._trading_length, end) else end
        weights = self._targets(action, before)
        for self._step in range(first, following + 1):
            self._bars = self._current_bars()
            self.accounts.accrue()
            if self._step == first:
                price = self._bars[OPEN] if self.rules.execution == "next_open" else before[CLOSE]
                traded = has_close(before) & (price > 0)
                gone = delisted(before) & (before[CLOSE] > 0)  # for good: paid out at its last close
                self._rebalance(weights, np.where(traded, price, before[CLOSE]), traded | gone)
            if self._step == end:
                self._settle_prices()
                self._rebalance(np.zeros(self._shape), self._bars[CLOSE], self._bars[CLOSE] > 0)
            self.accounts.mark(self._bars[CLOSE])
            if self._record is not None:
                self._record.mark()
        earned = 100 * (self.accounts.log_return_pct() - before_pct)
        self._reward += earned
        return self._result(earned, following == end, {"weights": weights, "traded": traded})

    def _targets(
        self, action: Float[Tensor, "agents windows columns 1"], bars: Float32[np.ndarray, "5 windows columns"]
    ) -> Float64[np.ndarray, "agents windows columns"]:
        """Return the target weights of scores; 0 where they are not numbers."""
        tradable = torch.from_numpy(may_open(bars))
        score = action.detach().to("cpu", torch.float64)[..., 0].clamp(-1, 1)
        return self.rules.target_weights(score, tradable).nan_to_num(0).numpy()

    def _rebalance(
        self,
        weights: Float64[np.ndarray, "agents windows columns"],
        price: Float32[np.ndarray, "windows columns"],
        trades: Bool[np.ndarray, "windows columns"],
    ) -> None:
        """Rebalance the accounts, and count what is traded."""
        money, equity = self.accounts.rebalance(weights, price.astype(np.float64), trades)
        self._turnover += np.divide(money / 2, equity, out=np.zeros_like(equity), where=equity > 0)
        if self._record is not None:
            self._record.rebalance(money)

    def held_weights(self) -> Float64[np.ndarray, "agents windows columns"]:
        """Return what is held at the current close, as a share of the equity, negative where sold short."""
        value = self.accounts.shares.reshape(self._shape) * self._bars[CLOSE]
        equity = np.where(self.accounts.ruined, np.inf, self.accounts.equity).reshape(*self._shape[:2], 1)
        return value / equity

    def _observation(self) -> dict[str, Tensor]:
        weight = self.held_weights().clip(-MAX_OBSERVED, MAX_OBSERVED).astype(np.float16)
        return {**self._money_observation(), "weight": self._tensor(weight)}

    def get_episode_summary(self, windows: slice = slice(None)) -> dict[str, Tensor]:
        """Return sums since `reset` over some windows, (agents,) each.

        `turnover` is half of what was bought and sold, in units of the equity; `log_return_pct` is the account's.
        """
        sums = {"turnover": self._turnover, "reward": self._reward, "log_return_pct": self.accounts.log_return_pct()}
        parts = {name: part.reshape(self.agents, -1)[:, windows].sum(1) for name, part in sums.items()}
        return {name: self._tensor(part.astype(np.float32)) for name, part in parts.items()}


def make_environment(
    prices: Float[np.ndarray, "days columns bars"] | Float[Tensor, "days columns bars"],
    rules: TradingRules,
    agents: int,
    windows: int = 1,
    device: torch.device | str = "cpu",
    account: AccountRules = AccountRules(),
    capacity: Capacity = None,
    credit_orders: bool = False,
    stops: Sequence[int] = (),
) -> MarketEnvironment:
    """Return the environment of the rules' mode; `credit_orders` has an effect on orders alone."""
    if rules.mode == "weights":
        return PortfolioEnvironment(prices, rules, agents, windows, device, account, capacity, stops)
    return TradingEnvironment(prices, rules, agents, windows, device, credit_orders, account, capacity, stops)


def needed_bytes(rules: TradingRules, days: int, columns: int, agents: int, windows: int) -> int:
    """Return the bytes that `make_environment` takes."""
    environment = PortfolioEnvironment if rules.mode == "weights" else TradingEnvironment
    return environment.needed_bytes(days, columns, agents, windows)
