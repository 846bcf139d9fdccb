"""Policies that make the decisions of another one at random, to tell its knowledge from luck."""

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eigen2.market.data.panel_rows import orderable
from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.simulate import Policy, Prices, Simulation


def random_baseline(
    prices: Prices,
    rules: TradingRules,
    account: AccountRules,
    other: Simulation,
    days: range,
    accounts: int,
    rng: np.random.Generator,
) -> Policy:
    """Return the policy that makes the decisions of another one at random: its turnover and exposure, no knowledge.

    Every account gives all orders of the other policy that filled, with their coefficients and take-profits, in their
    sequence and at their intervals, but begins with a random one: all are moved by as many days, and those moved beyond
    the last decision come first. Columns are drawn uniformly from the members that have a price and are not held. An
    order for which no column or no money is left waits. A position is closed after as many days as that of the other
    policy, unless the rules closed that.

    Where agents decide on target weights, every account gives the scores of all rebalancings to the columns in one
    random permutation of its own, in which each column that can be held gets the score of one that can.
    """
    may_order = orderable(prices)
    if rules.mode == "weights":
        return _weigh(other.scores, may_order, rules.rebalance_days, days, accounts, rng)
    orders, decisions, most = other.orders, len(days) - 1, min(rules.max_opens_per_day, prices.shape[1])
    moved = (orders["day"].to_numpy() - days.start + rng.integers(decisions, size=(accounts, 1))) % decisions
    order = np.argsort(moved, axis=1, kind="stable")  # of the other policy, by account and place in its sequence
    due = days.start + np.take_along_axis(moved, order, axis=1)
    held_days = np.take_along_axis(_held_days(orders, accounts, rng), order, axis=1)
    sizes = orders[["coefficient", "target"]].to_numpy(np.float32)
    least_room = account.least_room(rules, prices.shape[1])
    placed = np.zeros(accounts, np.int64)
    # of the last order of each column: its side, and the days that its position is held
    side, close_after = np.zeros((2, accounts, prices.shape[1]))

    def policy(seen: dict[str, Tensor]) -> Tensor:
        """Place the orders that are due: free columns sort first, in random order."""
        day = int(seen["day"].flatten()[0])
        held = seen["held_days"][0].numpy()
        free = may_order[day] & (held == 0)
        waiting = ((due <= day).sum(1) - placed) * (seen["room"][0].float().numpy() >= least_room)
        columns = np.argsort(np.where(free, rng.random(free.shape), 2.0), axis=1)[:, :most]
        row, ordered = np.nonzero(np.arange(most) < np.minimum(waiting, free.sum(1))[:, None])
        action = np.zeros((*free.shape, 2), np.float32)
        if rules.early_close:  # keep what is held for less
            action[..., 0] = rules.max_coefficient * side * ((held > 0) & (held < close_after))
        place, column = placed[row] + ordered, columns[row, ordered]
        action[row, column] = sizes[order[row, place]]
        side[row, column], close_after[row, column] = np.sign(action[row, column, 0]), held_days[row, place]
        placed[:] += np.bincount(row, minlength=accounts)
        return torch.from_numpy(action)[None]

    return policy


def _held_days(orders: pd.DataFrame, accounts: int, rng: np.random.Generator) -> Float[np.ndarray, "accounts orders"]:
    """Return for how many days each account holds the position of every order.

    Those that the last day cut short are held as long as a random other one that was held no less.
    """
    days = np.tile(orders["held_days"].to_numpy(np.float64), (accounts, 1))
    whole = days[0, ~orders["cut"].to_numpy(bool)]
    for order in np.flatnonzero(orders["cut"]):
        longer = whole[whole >= days[0, order]]
        days[:, order] = rng.choice(longer, accounts) if len(longer) else np.inf
    return days


def _weigh(
    scores: Float[np.ndarray, "rebalancings columns"],
    may_hold: Bool[np.ndarray, "days columns"],
    every: int,
    days: range,
    accounts: int,
    rng: np.random.Generator,
) -> Policy:
    """Return the policy that gives the scores of the columns that can be held to others of these."""
    columns = np.argsort(rng.random((accounts, may_hold.shape[1])), axis=1)
    table = torch.from_numpy(scores.astype(np.float32))

    def policy(seen: dict[str, Tensor]) -> Tensor:
        day = int(seen["day"].flatten()[0])
        among = torch.from_numpy(permute_among(columns, may_hold[day]))
        return table[(day - days.start) // every][among][None, ..., None]

    return policy


def permute_among(
    columns: Int[np.ndarray, "accounts columns"], chosen: Bool[np.ndarray, " columns"]
) -> Int[np.ndarray, "accounts columns"]:
    """Return permutations that map chosen columns to each other, as uniform as the given ones, and leave the others.

    Each is followed from a chosen column until it meets one, so that few change where a column is no longer chosen.
    """
    result: np.ndarray = np.where(chosen, columns, np.arange(len(chosen)))
    row, column = np.nonzero(chosen & ~chosen[result])
    while len(row):
        result[row, column] = columns[row, result[row, column]]
        going_on = ~chosen[result[row, column]]
        row, column = row[going_on], column[going_on]
    return result
