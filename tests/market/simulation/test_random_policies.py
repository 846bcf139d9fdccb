"""Random policies make the decisions of another policy at random: as often, for as long, with as much money."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from eigen2.market.performance import mean_exposure, turnover
from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.policies import order_largest
from eigen2.market.simulation.random_policies import permute_among, random_baseline
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.simulate import Policy, Prices, Simulation, order_table, simulate
from eigen2.market.synthetic.generator import SyntheticMarket
from tests.market.simulation.episodes import NAN, flat, rules

DAYS = range(20, 110)
NOTHING = Simulation(np.zeros((1, 1)), np.zeros((1, 1)), np.zeros(1), np.zeros(1, np.int64), pd.DataFrame())


def other(days: list[int]) -> Simulation:
    """Return a simulation with an order of its own size on each of the days, whose position the rules closed."""
    count = len(days)
    sizes = np.column_stack([days, np.linspace(1, 5, count), np.linspace(10, 50, count), np.full(count, np.inf)])
    return replace(NOTHING, orders=order_table(sizes))


def seen(day: int, held: Any, room: float = 1.0) -> dict[str, Tensor]:
    held_days = torch.as_tensor(held)[None]
    return {
        "day": torch.full((1, held_days.shape[1]), day),
        "held_days": held_days,
        "room": torch.full((1, held_days.shape[1]), room),
    }


def play(opens: int = 1, accounts: int = 20, seed: int = 0, **changes: Any) -> Simulation:
    prices, trading = SyntheticMarket(days=120, columns=20, seed=5).prices(), rules(max_opens_per_day=opens)
    account, orders = AccountRules(**changes), other([20 + 3 * opens * (i // opens) for i in range(30)])
    policy = random_baseline(prices, trading, account, orders, DAYS, accounts, np.random.default_rng(seed))
    return simulate(prices, trading, account, DAYS, policy, accounts)


@pytest.mark.parametrize("opens", [1, 3])
def test_every_account_gives_each_order_once(opens: int) -> None:
    simulation = play(opens, max_leverage=100.0)
    names = ["coefficient", "target"]
    found = simulation.orders.sort_values(names)[names].to_numpy()
    np.testing.assert_allclose(found, np.repeat(other([0] * 30).orders[names].to_numpy(), 20, axis=0), rtol=1e-6)
    assert simulation.trades.tolist() == [30] * 20


def test_columns_that_take_less_money_than_the_champions_are_left_out() -> None:
    """Else random policies would be less invested where the market rises."""
    prices, trading = SyntheticMarket(days=120, columns=20, seed=5).prices(), rules(max_opens_per_day=2)
    account, capacity = AccountRules(unit_share=0.1), np.repeat([1e6, 100.0], 10)
    liquid = np.where(np.arange(20) < 10, np.random.default_rng(1).random(prices.shape[:2]), 0.0)

    def best(seen: dict[str, Tensor]) -> Tensor:
        free = torch.from_numpy(liquid[int(seen["day"].flatten()[0])]) * (seen["held_days"] == 0)
        sizes = torch.where(free > 0.8, 1.0, 0.0)
        return torch.stack([sizes, torch.full_like(sizes, 50.0)], -1)

    champion = simulate(prices, trading, account, DAYS, best, capacity=capacity)
    policy = random_baseline(prices, trading, account, champion, DAYS, 20, np.random.default_rng(0), capacity)
    found = simulate(prices, trading, account, DAYS, policy, 20, capacity)
    assert set(found.closed["column"]) == set(range(10))
    exposures = [float((each.exposure / each.equity).mean()) for each in (champion, found)]
    assert exposures[1] == pytest.approx(exposures[0], rel=0.1)


def test_accounts_differ_and_the_seed_decides() -> None:
    first, again, another = (play(seed=seed, accounts=5).equity for seed in (0, 0, 1))
    assert len(set(first[:, -1])) == 5
    np.testing.assert_array_equal(first, again)
    assert (first[:, -1] != another[:, -1]).all()


def test_orders_are_given_on_their_days_in_columns_drawn_evenly() -> None:
    prices, days, columns = flat(41, 4), [0, 1, 5, 20], np.zeros(4)
    policy = random_baseline(prices, rules(), AccountRules(), other(days), range(0, 41), 400, np.random.default_rng(1))
    for day in range(40):
        coefficient = policy(seen(day, np.zeros((400, 4))))[0, :, :, 0].numpy()
        columns += (coefficient > 0).sum(0)
        size = np.float32(1 + 4 / 3 * days.index(day)) if day in days else 0
        np.testing.assert_allclose(coefficient.sum(1), size)
    assert abs(columns - 400).max() < 90  # deviation 17
    assert columns.sum() == 1600


def test_nothing_held_or_without_a_price_is_ordered() -> None:
    """Nor what has none at the next open, where an order would not fill."""
    prices = flat(6, 5)
    prices[:, 0] = prices[1:, 4] = NAN
    trading = rules(max_opens_per_day=4)
    policy = random_baseline(
        prices,
        trading,
        AccountRules(),
        other([0] * 4 + [1] * 4 + [2] * 4 + [3] * 4),
        range(0, 6),
        1,
        np.random.default_rng(2),
    )
    for day in range(4):
        assert (policy(seen(day, [[0, 1, 0, 0, 0]]))[0, 0, :, 0] >= 1).tolist() == [False, False, True, True, False]


def test_an_order_waits_until_there_is_a_column_and_money() -> None:
    policy = random_baseline(
        flat(5, 2), rules(), AccountRules(), other([0, 1, 2]), range(0, 4), 1, np.random.default_rng(2)
    )
    states = ((1, 1), 1.0), ((1, 0), 1.0), ((0, 0), 0.0), ((0, 0), 1.0)
    given = [(policy(seen(day, [held], room))[0, 0, :, 0] >= 1).sum().item() for day, (held, room) in enumerate(states)]
    assert given == [0, 1, 0, 1]


def random_walks(days: int, columns: int) -> Prices:
    returns = 0.015 * np.random.default_rng(days).standard_normal((days, columns))
    close = 100 * np.exp(returns.cumsum(0))
    before = np.vstack([close[:1], close[:-1]])
    bars = [before, np.maximum(before, close), np.minimum(before, close), close]
    return np.stack(bars, axis=-1).astype(np.float32)


def without_skill(trading: TradingRules, days: int, columns: int, sells_after: float) -> Policy:
    """Order random columns every day, and sell what was held for some days."""
    scores = torch.from_numpy(np.random.default_rng(1).random((days, columns)).astype(np.float32))

    def policy(seen: dict[str, Tensor]) -> Tensor:
        held = seen["held_days"]
        size = order_largest(scores[seen["day"].long()].expand(held.shape), held > 0, trading)
        return torch.stack(
            [torch.where(held >= sells_after, 0.0, size), torch.full(held.shape, trading.max_target)], -1
        )

    return policy


@pytest.mark.parametrize(
    ("days", "account", "rules", "sells_after"),
    [
        (68, {}, {}, np.inf),
        (68, {}, {}, 5),
        (120, {"unit_share": 0.05}, {}, np.inf),  # there is not always money for an order
        (120, {}, {"max_opens_per_day": 2}, 12),
        (80, {}, {"max_holding_days": 250}, np.inf),
        (80, {"whole_shares": True, "initial_cash": 10_000}, {}, np.inf),  # half of the columns are too dear
    ],
)
def test_exposure_and_turnover_are_those_of_the_other_policy(
    days: int, account: dict[str, Any], rules: dict[str, Any], sells_after: float
) -> None:
    """Also of short spans, whose end cuts most positions, and of prices with gaps."""
    prices, money = random_walks(days, 40), AccountRules(**account)
    prices[:, ::2] *= 20 if "whole_shares" in account else 1
    prices[np.random.default_rng(2).random((days, 40)) < 0.05] = NAN
    trading = TradingRules(**{"cost_bps": 0, "slippage_bps": 0, **rules})
    own = simulate(prices, trading, money, range(days), without_skill(trading, days, 40, sells_after))
    policy = random_baseline(prices, trading, money, own, range(days), 50, np.random.default_rng(0))
    found = simulate(prices, trading, money, range(days), policy, 50)
    for measure, kind in ((mean_exposure, "exposure"), (turnover, "traded")):
        theirs, expected = (np.mean(measure(each.equity, getattr(each, kind))) for each in (found, own))
        assert theirs == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize("execution", ["next_open", "close"])
def test_positions_are_held_as_long_as_those_of_the_other_policy(execution: str) -> None:
    prices = SyntheticMarket(days=120, columns=20, seed=5, missing=0.02).prices()
    trading, account = rules(execution=execution, early_close=True, min_target=60, max_target=90), AccountRules()

    def for_days(seen: dict[str, Tensor]) -> Tensor:
        """Buy a column a day, and sell after 2 or, what was bought on an even day, 6 days."""
        day, held = int(seen["day"].flatten()[0]), seen["held_days"]
        action = torch.zeros(*held.shape, 2)
        long = (day - held) % 2 == 1
        action[..., 0] = 2.0 * ((held > 0) & (held < torch.where(long, 6, 2)))
        action[..., day * 7 % 20, 0] = 2
        return action

    simulation = simulate(prices, trading, account, DAYS, for_days)
    # a day without a price is one more
    assert {2, 6} <= {*simulation.orders[:-9]["held_days"]} <= {2, 3, 6, 7}
    policy = random_baseline(prices, trading, account, simulation, DAYS, 100, np.random.default_rng(0))
    others = simulate(prices, trading, account, DAYS, policy, 100)
    ends = others.closed.query("exit_day < 109 and reason == 'signal'")
    days = (ends["exit_day"] - ends["entry_day"]).value_counts(normalize=True)
    own = simulation.closed.query("exit_day < 109 and reason == 'signal'")
    assert len(own) > 20
    assert len(ends) > 1000
    expected = (own["exit_day"] - own["entry_day"]).value_counts(normalize=True)
    assert days[expected.index].to_numpy() == pytest.approx(expected.to_numpy(), abs=0.05)


def test_a_gap_in_prices_changes_no_score_of_another_column() -> None:
    prices, days = random_walks(60, 12), range(10, 60)
    prices[np.random.default_rng(3).random((60, 12)) < 0.1] = NAN
    trading = TradingRules(mode="weights", rebalance_days=1)
    champion = replace(NOTHING, scores=np.tile(np.linspace(-1, 1, 12), (49, 1)))
    policy = random_baseline(prices, trading, AccountRules(), champion, days, 20, np.random.default_rng(0))
    first, *others = (policy({"day": torch.full((1, 20), day)}) for day in range(15, 55))
    assert all(torch.equal(first, scores) for scores in others)


@given(st.integers(1, 9), st.integers(0, 2**16))
def test_chosen_columns_are_permuted_among_each_other(columns: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    permutations, chosen = np.argsort(rng.random((20, columns)), axis=1), rng.random(columns) < 0.5
    found = permute_among(permutations, chosen)
    assert (found[:, ~chosen] == np.flatnonzero(~chosen)).all()
    assert (np.sort(found[:, chosen], axis=1) == np.flatnonzero(chosen)).all()
    fewer = chosen & (np.arange(columns) != rng.integers(columns))
    changed = (permute_among(permutations, fewer) != found)[:, fewer]
    assert (changed.sum(1) <= 1).all(), "but for that of the column that is gone, each stays"


def test_all_permutations_of_the_chosen_are_alike() -> None:
    permutations = np.argsort(np.random.default_rng(0).random((6000, 6)), axis=1)
    found = permute_among(permutations, np.array([True, False, True, False, False, True]))
    _, counts = np.unique(found, axis=0, return_counts=True)
    assert len(counts) == 6
    assert abs(counts - 1000).max() < 130  # deviation 29
