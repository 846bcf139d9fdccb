"""Play policies through days of the market, and record equity and trades."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from eigen2.errors import require_range
from eigen2.market.performance import daily_returns
from eigen2.market.simulation.account import AccountRules, Capacity
from eigen2.market.simulation.base import MarketEnvironment
from eigen2.market.simulation.portfolio import make_environment
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.windows import window_options

Prices = Float32[np.ndarray, "days columns bars"]  # see `MarketPanel.prices`
Policy = Callable[[dict[str, Tensor]], Tensor]
"""From observations of some accounts to actions in native units (agents, windows, columns, 2 or 1): coefficients and
take-profits, see `TradingEnvironment`, or scores, see `PortfolioEnvironment`."""


ORDER = ("day", "coefficient", "target", "held_days")


class Day(NamedTuple):
    """A decision at a close, and the result of the days until the next, see the environments' `step`."""

    observation: dict[str, Tensor]
    action: Tensor
    reward: Float32[Tensor, "agents windows"]
    info: dict[str, Any]


def play_days(env: MarketEnvironment, policy: Policy, options: dict[str, Any]) -> Iterator[Day]:
    """Play one episode and yield each decision once its days are over."""
    observation, _ = env.reset(options=options)
    over = False
    while not over:
        action = policy(observation).to(torch.float32)
        following, reward, terminated, _, info = env.step(action)
        yield Day(observation, action, reward, info)
        observation, over = following, bool(terminated.all())


@dataclass(frozen=True)
class Simulation:
    """Result of a policy over a span of days, in one or several accounts."""

    equity: Float[np.ndarray, "accounts days"]  # money at each close; the first is before any order
    exposure: Float[np.ndarray, "accounts days"]  # gross, at each close
    traded: Float[np.ndarray, " accounts"]  # money bought and sold together
    trades: Int[np.ndarray, " accounts"]  # positions
    closed: pd.DataFrame  # a row for each closed position, see `AccountRecord.trades`
    orders: pd.DataFrame = field(default_factory=lambda: order_table(np.zeros((0, len(ORDER)))))
    """A row for every order that filled, by day: the `day` of the decision, `coefficient`, `target` (take-profit in
    percent), and the `held_days` until the policy closed the position (infinity: the rules or the last day did)."""
    scores: Float[np.ndarray, "rebalancings columns"] = field(default_factory=lambda: np.zeros((0, 0)))
    """Scores of the first account at every rebalancing, where it gives target weights."""
    by_weights: bool = False  # it holds target weights, so no position is opened or closed
    unfunded: int = 0  # orders of all accounts that could not be paid for

    @property
    def returns(self) -> Float[np.ndarray, " returns"]:
        """Return the daily returns, the mean of the accounts."""
        return daily_returns(self.equity).mean(0)


def simulate(
    prices: Prices,
    rules: TradingRules,
    account: AccountRules,
    days: range,
    policy: Policy,
    accounts: int = 1,
    capacity: Capacity = None,
) -> Simulation:
    """Play a policy through 2 or more days as one window of the rules' environment, each account with its own money.

    Orders are given at every close but the last, on which what is still held is sold.
    """
    require_range("days to trade", len(days), least=2)
    env = make_environment(prices, rules, 1, accounts, account=account, capacity=capacity)
    env.record_agent(0)
    played = play_days(env, policy, window_options([days.start] * accounts, len(days) - 1, len(days)))
    decisions: dict[str, Any] = {}
    if rules.mode == "weights":
        decisions["scores"] = np.concatenate([day.action[0, :1, :, 0].numpy() for day in played])
    else:
        decisions["orders"] = _orders(played, rules, accounts * prices.shape[1])
    curves, trades = env.record.equity(), env.record.trades()
    return Simulation(
        equity=curves["equity"].to_numpy().reshape(accounts, -1),
        exposure=curves["exposure"].to_numpy().reshape(accounts, -1),
        traded=env.record.traded(),
        trades=np.bincount(trades["window"], minlength=accounts),
        closed=trades,
        **decisions,
        by_weights=rules.mode == "weights",
        unfunded=int(env.get_episode_summary().get("unfunded", torch.tensor(0))),
    )


def order_table(rows: Float[np.ndarray, "orders 4"]) -> pd.DataFrame:
    """Return numbers of orders as a table, see `Simulation.orders`."""
    return pd.DataFrame(rows, columns=list(ORDER)).astype({"day": np.int64})


def _orders(played: Iterator[Day], rules: TradingRules, cells: int) -> pd.DataFrame:
    """Return the orders that filled, see `Simulation`."""
    orders, exits = [np.zeros((0, len(ORDER)))], [np.zeros((2, 0))]
    count, order_of = 0, np.zeros(cells, np.int64)  # the order that opened the position of a cell
    for day in played:
        held, fills = day.observation["held_days"].flatten().numpy(), day.info["fills"]
        asked = day.action.reshape(-1, 2)[fills.cell, 1].nan_to_num(rules.min_target)
        target = asked.clamp(rules.min_target, rules.max_target).numpy()
        exits.append(np.stack([order_of[day.info["exits"]], held[day.info["exits"]]]))
        decided = np.full(len(target), int(day.observation["day"].flatten()[0]))
        orders.append(np.column_stack([decided, fills.coefficient, target, np.full(len(target), np.inf)]))
        order_of[fills.cell] = np.arange(count, count := count + len(target))
    result = np.concatenate(orders)
    order, days = np.concatenate(exits, axis=1)
    np.minimum.at(result[:, 3], order.astype(np.int64), days)  # an exit that did not fill was ordered again
    return order_table(result)


def preferences(
    prices: Prices, rules: TradingRules, account: AccountRules, days: range, policy: Policy
) -> Float[np.ndarray, "days columns"]:
    """Return the size, or score, that a policy gives to every column at each close if it holds nothing.

    It is NaN on other days than `days`, and on the last, after which nothing can be ordered.
    """
    env = make_environment(prices, rules, 1, 1, account=account)
    scores = np.full(prices.shape[:2], np.nan)
    for day in days[:-1]:
        observation, _ = env.reset(options=window_options([day], 1, 2))
        scores[day] = policy(observation)[0, 0, :, 0].numpy()
    return scores


def hide_window_end(policy: Policy, window_days: int) -> Policy:
    """Return a policy that sees every day as the first of a window of `window_days`.

    Its decisions must not depend on how many days of prices follow.
    """
    return lambda seen: policy({**seen, "days_left": torch.full_like(seen["days_left"], window_days - 1)})
