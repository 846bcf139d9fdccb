"""Policies without learning, with which a champion is compared at equal money and costs."""

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from eigen2.errors import UserError
from eigen2.market.data.panel_rows import members, orderable
from eigen2.market.data.source import CLOSE, OPEN
from eigen2.market.performance import YEAR
from eigen2.market.simulation.account import SHARE_TOLERANCE, AccountRules, Capacity
from eigen2.market.simulation.bars import final_closes, last_valid, market_table
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.simulate import Policy, Prices, Simulation

MOMENTUM_DAYS = 20
MONTH_DAYS = 21
COVARIANCE_DAYS = 252  # days of returns from which covariances are estimated
MAX_CONCENTRATION = 100.0  # concentration at which scores in [-1, 1] give every weight down to e^-200 of the largest
HAS_SCIKIT_LEARN = find_spec("sklearn") is not None


def buy_and_hold(
    prices: Prices, rules: TradingRules, account: AccountRules, days: range, capacity: Capacity = None
) -> Simulation:
    """Divide all money equally over the columns at the start, hold, and sell on the last of 2 or more days.

    Columns are bought where the environment would fill an order of the first day: at the next open, or at its close;
    both sides pay commission and slippage, and the cash that is left earns interest. No more than its `capacity`, in
    money, goes into a column. Columns without a price there, or that are no members on the first day, are left out, a
    UserError if all are; those that stop trading stay at their last close, changed by `delisting_return` where it is
    for good, and are sold at their next price where they have none on the last day.
    """
    next_open = rules.execution == "next_open"
    span = prices[days.start : days.stop].astype(np.float64)
    entry = span[1, :, OPEN] if next_open else span[0, :, CLOSE]
    bought = np.flatnonzero((entry > 0) & (span[0, :, CLOSE] > 0) & members(prices)[days.start])
    if not bought.size:
        raise UserError("nothing can be bought and held from the first day on: begin on another day")
    table = market_table(prices[:, bought], rules.delisting_return)
    entry, close = entry[bought], table[days.start : days.stop, CLOSE].astype(np.float64)
    close[-1] = final_closes(table, np.full(len(bought), days.stop - 1), np.arange(len(bought)))
    close = np.ascontiguousarray(close)  # the order in memory decides rounding of sums
    paid = entry * (1 + rules.side_cost)
    shares = np.full(len(bought), account.initial_cash / len(bought))
    if capacity is not None:
        shares = np.minimum(shares, capacity[bought])
    shares /= paid
    if account.whole_shares:
        shares = np.floor(shares + SHARE_TOLERANCE)
    exposure = close @ shares
    growth = 1 + account.cash_rate_pct / (100 * YEAR)
    extra = [account.extra_commission(shares * price, rules) for price in (entry, close[-1])]
    cash = (account.initial_cash * growth - shares @ paid - extra[0].sum()) * growth ** np.arange(-1.0, len(days) - 1)
    equity = exposure + cash
    equity[0] = account.initial_cash
    equity[-1] -= rules.side_cost * exposure[-1] + extra[1].sum()
    traded = float(shares @ (entry + close[-1]))
    exposure[[0, -1]] = 0
    profit = shares * (close[-1] * (1 - rules.side_cost) - paid) - extra[0] - extra[1]
    closed = pd.DataFrame({"column": bought, "shares": shares, "profit": profit})
    trades = np.array([np.count_nonzero(shares)])
    return Simulation(equity[None], exposure[None], np.array([traded]), trades, closed)


def momentum_pct(prices: Prices, days: int = MOMENTUM_DAYS, skip: int = 0) -> Float[np.ndarray, "days columns"]:
    """Return the percent gain over the last `days` without the last `skip` of them, from last valid close to close.

    It is NaN on days without a close, and where the column had none yet.
    """
    close = prices[..., CLOSE].astype(np.float64)
    known = np.where((last := last_valid(close)) > 0, last, np.nan)
    gain = np.full(close.shape, np.nan)
    gain[days:] = 100 * (known[days - skip : len(close) - skip] / known[:-days] - 1)
    return np.where(close > 0, gain, np.nan)


def momentum(prices: Prices, rules: TradingRules) -> Policy:
    """Return the policy that orders what gained most over the last 20 days, see `order_by_score`."""
    return order_by_score(of_orderable(momentum_pct(prices), prices), rules)


def of_orderable(scores: Float[np.ndarray, "days columns"], prices: Prices) -> Float[np.ndarray, "days columns"]:
    """Return scores, NaN on days on which a column cannot be ordered."""
    return np.where(orderable(prices), scores, np.nan)


def order_by_score(score: Float[np.ndarray, "days columns"], rules: TradingRules) -> Policy:
    """Order, at each close, the columns of the highest scores, at the largest coefficient and target.

    It orders as many columns as the rules allow, among those not held with a score above 0; where short sales are
    allowed, by absolute score. Where agents may close positions, it closes those whose score is not above 0. NaN is no
    score. Where agents decide on target weights, every column is weighed by its rank among the scores of the day
    instead.
    """
    if rules.mode == "weights":
        ranks = 2 * pd.DataFrame(score).rank(axis=1, pct=True).to_numpy(np.float32) - 1
        neutral = 0 if rules.allow_short else -1
        scaled = torch.from_numpy(np.nan_to_num(ranks, nan=neutral))[..., None]
        return lambda seen: scaled[seen["day"].long()].expand(*seen["weight"].shape, 1)
    size = np.abs(score) if rules.allow_short else score
    table = torch.from_numpy(np.where(size > 0, score, 0).astype(np.float32))

    def policy(seen: dict[str, Tensor]) -> Tensor:
        coefficient = order_largest(table[seen["day"].long()], seen["held_days"] > 0, rules)
        return torch.stack([coefficient, torch.full_like(coefficient, rules.max_target)], -1)

    return policy


def order_largest(score: Tensor, held: Tensor, rules: TradingRules) -> Tensor:
    """Return the largest coefficient for the largest scores by absolute value, as many as the rules allow, else 0.

    They are those of columns that are not held. Held ones get the largest coefficient too, which keeps their positions,
    or 0 for a score of 0. A score below 0 sells short; scores, held and coefficients are (..., columns).
    """
    size = score.sign() * rules.max_coefficient
    free = score.abs().masked_fill(held, 0)
    best = free.topk(min(rules.max_opens_per_day, score.shape[-1])).indices
    return size * (held | torch.zeros_like(free, dtype=torch.bool).scatter_(-1, best, True))


def best_of_rank(score: Float[np.ndarray, "days columns"], rules: TradingRules) -> Policy:
    """Return the policy that orders the columns of the highest ranks that are not held, whatever their scores."""
    ranks = pd.DataFrame(score).rank(axis=1, method="first")  # equal ones by their column, on every processor
    return order_by_score(ranks.to_numpy(), rules)


def monthly(rules: TradingRules) -> TradingRules:
    """Return rules of the same fills and costs under which policies of `give_weights` rebalance once a month."""
    changed: dict[str, Any] = {
        "rebalance_days": MONTH_DAYS,
        "concentration": MAX_CONCENTRATION,
        "allow_short": False,
        "reward": "account",
    }
    return replace(rules, mode="weights", **changed)


def give_weights(weights: Callable[[int], Float[np.ndarray, " columns"]]) -> Policy:
    """Return the policy that gives, at each day's close, the target weights of a function of the day, see `monthly`.

    Columns without a price that day are left out, and the others weighed in proportion.
    """

    def policy(seen: dict[str, Tensor]) -> Tensor:
        weight = weights(int(seen["day"].flatten()[0]))
        with np.errstate(divide="ignore"):
            score = 1 + np.log(weight / weight.max()) / MAX_CONCENTRATION
        return torch.from_numpy(score.clip(-1))[:, None].expand(*seen["weight"].shape, 1)

    return policy


def equal_weights(prices: Prices) -> Policy:
    """Return the policy that holds all columns in equal parts (1/N)."""
    return give_weights(lambda _: np.ones(prices.shape[1]))


def minimum_variance(prices: Prices) -> Policy:
    """Return the policy of least variance without short sales, by the covariance of the last 252 daily returns.

    The covariance is shrunk towards a multiple of the identity (Ledoit and Wolf, "A Well-Conditioned Estimator for
    Large-Dimensional Covariance Matrices", 2004). Columns that were not listed at its beginning, or cannot be bought on
    the day, have a weight of 0; all are equal where there is no other, or there are fewer than three days.
    """
    from scipy.optimize import nnls
    from sklearn.covariance import LedoitWolf

    closes, may_hold = last_valid(prices[..., CLOSE].astype(np.float64)), orderable(prices)

    def weights(day: int) -> Float[np.ndarray, " columns"]:
        """Return the weights by the closes up to a day."""
        past = closes[max(day - COVARIANCE_DAYS, 0) : day + 1]
        listed = (past[0] > 0) & may_hold[day]
        if len(past) < 3 or not listed.any():
            return np.ones(len(listed))
        returns = 100 * (past[1:, listed] / past[:-1, listed] - 1)
        covariance = LedoitWolf().fit(returns).covariance_ + 1e-9 * np.eye(listed.sum())
        # the least x'Cx / 2 - sum(x) over x >= 0 is in proportion to the weights, by their Kuhn-Tucker conditions
        root = np.linalg.cholesky(covariance)
        least: np.ndarray = np.zeros(len(listed))
        least[listed] = nnls(root.T, np.linalg.solve(root, np.ones(len(root))))[0]
        return least

    return give_weights(weights)
