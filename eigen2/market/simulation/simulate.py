"""A policy played through a span of days, and the money it made of them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from eigen2.errors import require_range
from eigen2.market.evaluation import performance
from eigen2.market.simulation.account import Account, AccountRules
from eigen2.market.simulation.environment import TradingEnvironment, TradingRules

Prices = Float32[np.ndarray, "days columns 4"]
Policy = Callable[[dict[str, Tensor]], Tensor]
"""Observations of one agent in some accounts (see `TradingEnvironment`) to coefficients and sale targets in native
units, (1, accounts, columns, 2)."""


@dataclass(frozen=True)
class Simulation:
    """What a policy made of a span of days, in one account or in several beside each other.

    Attributes:
        equity: (accounts, days) money at each close; the first is before any order.
        exposure: (accounts, days) gross exposure at each close.
        traded: (accounts,) money bought and sold together.
        trades: (accounts,) positions that money went into.
        closed: a row a closed position, see `Account.trades`; none where the environment did not trade.
        orders: (fills, 2) coefficient and sale target in percent of every order that filled, whether or not money was
            left for it, by day.
    """

    equity: Float[np.ndarray, "accounts days"]
    exposure: Float[np.ndarray, "accounts days"]
    traded: Float[np.ndarray, " accounts"]
    trades: Int[np.ndarray, " accounts"]
    closed: pd.DataFrame
    orders: Float[np.ndarray, "fills 2"]

    @property
    def returns(self) -> Float[np.ndarray, " returns"]:
        """Daily returns, the mean of the accounts."""
        mean: np.ndarray = performance.daily_returns(self.equity).mean(0)
        return mean

    @property
    def gains(self) -> Float[np.ndarray, " trades"]:
        """Money that each closed position gained after costs, of all accounts; none for one that no money went into."""
        bought = self.closed[self.closed["shares"] != 0]
        gains: np.ndarray = bought["profit"].to_numpy(np.float64)
        return gains

    def measures(self) -> dict[str, float]:
        """Means over the accounts of what `eigen2.market.evaluation.performance` tells, and of the trades."""
        each = {
            "total_return": performance.total_return(self.equity),
            "annual_return": performance.annualised_return(self.equity),
            "sharpe": performance.sharpe_ratio(self.equity),
            "max_drawdown": performance.max_drawdown(self.equity),
            "turnover": performance.turnover(self.equity, self.traded),
            "exposure": performance.mean_exposure(self.equity, self.exposure),
            "trades": self.trades,
        }
        return {name: float(np.mean(values)) for name, values in each.items()}


def simulate(
    prices: Prices, rules: TradingRules, account: AccountRules, days: range, policy: Policy, accounts: int = 1
) -> Simulation:
    """Play a policy through days as one window of the trading environment, without a break.

    Orders are given at every close but the last, on which what is still held is sold.

    Args:
        prices: of the columns that may be bought.
        rules: what the policy may do and what it costs.
        account: how its orders become money.
        days: first the day at whose close it orders first, before which it has seen nothing of the span (2 or more).
        policy: what it orders.
        accounts: that trade beside each other, each with its own money.
    """
    require_range("days to trade", len(days), least=2)
    env = TradingEnvironment(prices, rules, 1, accounts)
    env.record(0, account)
    observation, _ = env.reset(start_idx=days.start, trading_end_idx=days.stop - 1, end_idx=days.stop)
    orders = [np.zeros((0, 2))]
    over = False
    while not over:
        action = policy(observation).to(torch.float32)
        observation, _, terminated, _, info = env.step(action)
        fills = info["fills"]
        asked = action.reshape(-1, 2)[fills.cell, 1].nan_to_num(rules.min_target)
        target = asked.clamp(rules.min_target, rules.max_target)
        orders.append(np.column_stack([fills.coefficient, target.numpy()]))
        over = bool(terminated.all())
    return _simulation(env.account, accounts, np.concatenate(orders))


def _simulation(account: Account, accounts: int, orders: np.ndarray) -> Simulation:
    curves, trades = account.equity(), account.trades()
    shares = trades["shares"].abs()
    paid = shares * (trades["entry_price"] + trades["exit_price"])
    window = trades["window"].to_numpy()
    return Simulation(
        equity=curves["equity"].to_numpy().reshape(accounts, -1),
        exposure=curves["exposure"].to_numpy().reshape(accounts, -1),
        traded=np.bincount(window, paid, minlength=accounts).astype(np.float64),
        trades=np.bincount(window[shares > 0], minlength=accounts),
        closed=trades,
        orders=orders,
    )


def hide_window_end(policy: Policy, window_days: int) -> Policy:
    """The policy as if every day were the first of a window: what it does has nothing to do with when a span ends.

    An agent that was trained in windows has learned what to do with all of one left; and what it would do tomorrow must
    not depend on how many days of prices come after.

    Args:
        policy: what is told.
        window_days: of the windows it was trained in.
    """
    return lambda seen: policy({**seen, "days_left": torch.full_like(seen["days_left"], window_days - 1)})
