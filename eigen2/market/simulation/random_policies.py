"""Policies that make the decisions of another one in random columns, to tell its knowledge from luck."""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eigen2.market.data.panel_rows import orderable
from eigen2.market.data.source import CLOSE, OPEN
from eigen2.market.simulation.account import AccountRules, Capacity
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
    capacity: Capacity = None,
) -> Policy:
    """Return the policy that makes the decisions of another one in random columns: its exposure and turnover.

    Every account gives all orders of the other policy that filled, on their days, with their coefficients and
    take-profits. Columns are drawn uniformly from the members that have a price, are not held, and in which an order of
    average size would fill. With `capacity`, a column must take such an order whole, or as much as the least that any
    of the other policy's columns takes. An order for which no column or no money is left waits. A position is closed
    after as many days as that of the other policy, if that closed it.

    Where agents decide on target weights, every account gives the scores of all rebalancings to the columns in one
    random permutation of its own, in which each column that can be held gets the score of one that can.
    """
    if rules.mode == "weights":
        return _weigh(
            other.scores,
            orderable(prices)[days.start : days.stop - 1 : rules.rebalance_days],
            days,
            rules,
            accounts,
            rng,
        )
    orders, most = other.orders, min(rules.max_opens_per_day, prices.shape[1])
    due, held_days = orders["day"].to_numpy(), orders["held_days"].to_numpy()
    sizes = orders[["coefficient", "target"]].to_numpy(np.float32)
    size = float(np.abs(sizes[:, 0]).mean()) if len(sizes) else 0.0
    may_fill = _may_fill(prices, rules, account, size)
    if capacity is not None and len(sizes):
        asked = size * account.unit_share * account.initial_cash
        may_fill &= capacity >= min(asked, capacity[other.closed["column"].to_numpy()].min())
    least_room = account.least_room(rules, prices.shape[1])
    placed = np.zeros(accounts, np.int64)
    # of the last order of each column: its side, and the days that its position is held
    side, close_after = np.zeros((2, accounts, prices.shape[1]))

    def policy(seen: dict[str, Tensor]) -> Tensor:
        """Place the orders that are due: free columns sort first, in random order."""
        day = int(seen["day"].flatten()[0])
        held = seen["held_days"][0].numpy()
        free = may_fill[day] & (held == 0)
        waiting = (np.searchsorted(due, day, "right") - placed) * (seen["room"][0].float().numpy() >= least_room)
        columns = np.argsort(np.where(free, rng.random(free.shape), 2.0), axis=1)[:, :most]
        row, ordered = np.nonzero(np.arange(most) < np.minimum(waiting, free.sum(1))[:, None])
        action = np.zeros((*free.shape, 2), np.float32)
        if rules.early_close:  # keep what is held for less
            action[..., 0] = rules.max_coefficient * side * ((held > 0) & (held < close_after))
        order, column = placed[row] + ordered, columns[row, ordered]
        action[row, column] = sizes[order]
        side[row, column], close_after[row, column] = np.sign(sizes[order, 0]), held_days[order]
        placed[:] += np.bincount(row, minlength=accounts)
        return torch.from_numpy(action)[None]

    return policy


def _may_fill(
    prices: Prices, rules: TradingRules, account: AccountRules, size: float
) -> Bool[np.ndarray, "days columns"]:
    """Return where an order of a size fills: only such orders of the other policy are given."""
    may_fill: np.ndarray = orderable(prices)
    if rules.execution == "next_open":
        may_fill &= np.append(prices[1:, :, OPEN] > 0, np.zeros_like(may_fill[:1]), axis=0)
    if account.whole_shares:
        may_fill &= prices[..., CLOSE] * (1 + rules.side_cost) <= size * account.unit_share * account.initial_cash
    return may_fill


def _weigh(
    scores: Float[np.ndarray, "rebalancings columns"],
    may_hold: Bool[np.ndarray, "rebalancings columns"],
    days: range,
    rules: TradingRules,
    accounts: int,
    rng: np.random.Generator,
) -> Policy:
    """Return the policy that gives the scores of the columns that can be held to others of these.

    A column takes part from the first to the last rebalancing at which it can be held, with its last score where a
    price is missing: a gap of a day must not change what other columns get.
    """
    columns = np.argsort(rng.random((accounts, may_hold.shape[1])), axis=1)
    began, goes_on = np.maximum.accumulate(may_hold, 0), np.maximum.accumulate(may_hold[::-1], 0)[::-1]
    known = np.maximum.accumulate(np.where(may_hold, np.arange(len(may_hold))[:, None], 0), axis=0)
    table = torch.from_numpy(np.take_along_axis(scores, known, axis=0).astype(np.float32))

    def policy(seen: dict[str, Tensor]) -> Tensor:
        rebalancing = (int(seen["day"].flatten()[0]) - days.start) // rules.rebalance_days
        among = torch.from_numpy(permute_among(columns, began[rebalancing] & goes_on[rebalancing]))
        return table[rebalancing][among][None, ..., None]

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
