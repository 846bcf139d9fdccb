"""Simulations and policies without learning: money by hand, against the environment, and without look-ahead."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import optimize
from torch import Tensor

from eigen2.errors import UserError
from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.policies import (
    best_of_rank,
    buy_and_hold,
    equal_weights,
    minimum_variance,
    momentum,
    momentum_pct,
    monthly,
)
from eigen2.market.simulation.random_policies import random_baseline
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.simulate import Policy, Simulation, hide_window_end, preferences, simulate
from eigen2.market.synthetic.generator import SyntheticMarket
from tests.market.simulation.episodes import NAN, flat, rules

MONEY = AccountRules(unit_share=0.05)
MARKET = SyntheticMarket(days=120, columns=8, seed=5, missing=0.05)


def always(column: int, coefficient: float, target: float) -> Policy:
    def policy(seen: dict[str, Tensor]) -> Tensor:
        action = torch.zeros(*seen["held_days"].shape, 2)
        action[..., column, :] = torch.tensor([coefficient, target])
        return action

    return policy


class TestSimulate:
    def test_one_position_by_hand(self) -> None:
        prices = flat(4)
        prices[2:] = 110
        simulation = simulate(prices, rules(cost_bps=10), MONEY, range(0, 4), always(0, 2, 10))
        # 10,000 buy 10,000 / 100.1 shares at the open of day 1; sold at the target of 110, of which 0.1 % are lost, at
        # the open of day 2; bought anew at the open of day 3, with 10 % of the equity, and sold at its close
        shares = 10_000 / 100.1
        equity = 90_000 + shares * 110 * 0.999
        assert simulation.equity[0, :3] == pytest.approx([100_000, 90_000 + shares * 100, equity])
        second = equity / 10 / (110 * 1.001)
        assert simulation.equity[0, 3] == pytest.approx(equity * 0.9 + second * 110 * 0.999)
        assert simulation.traded == pytest.approx([shares * 210 + second * 220])
        assert simulation.trades.tolist() == [2]
        assert simulation.exposure[0] == pytest.approx([0, shares * 100, 0, 0])
        assert simulation.orders.to_numpy(float).tolist() == [[0, 2, 10, np.inf], [2, 2, 10, np.inf]]

    def test_targets_of_orders_are_those_that_counted(self) -> None:
        for asked, target in ((1e9, 50), (-5, 10), (NAN, 10)):
            orders = simulate(flat(3), rules(), MONEY, range(0, 3), always(0, 2, asked)).orders
            assert (orders["coefficient"][0], orders["target"][0]) == (2, target)

    def test_an_order_without_money_opens_nothing(self) -> None:
        poor, everything = AccountRules(unit_share=1.0), torch.full((1, 1, 2, 2), 5.0)
        for opens, trades in ((1, [1]), (2, [2])):  # two orders a day share the money, later ones get none
            simulation = simulate(flat(4, 2), rules(max_opens_per_day=opens), poor, range(0, 4), lambda _: everything)
            assert simulation.trades.tolist() == trades
            assert len(simulation.orders) == opens

    def test_returns_are_means_over_accounts(self) -> None:
        curves = np.array([[100.0, 110, 121], [100, 100, 100]])
        simulation = Simulation(curves, 0 * curves, np.array([200.0, 0]), np.array([2, 0]), pd.DataFrame())
        np.testing.assert_allclose(simulation.returns, [0.05, 0.05])


def test_every_day_is_the_first_of_a_window() -> None:
    shown: list[list[int]] = []

    def policy(seen: dict[str, Tensor]) -> Tensor:
        shown.append(seen["days_left"].flatten().tolist())
        return torch.zeros(1)

    seen = {"days_left": torch.tensor([[200, 30, 0]], dtype=torch.int16)}
    hide_window_end(policy, 145)(seen)
    assert shown == [[144, 144, 144]]
    assert seen["days_left"].tolist() == [[200, 30, 0]]


class TestBuyAndHold:
    def test_by_hand(self) -> None:
        prices = flat(4, 2)
        prices[2, 0], prices[3, 0] = 120, 150
        simulation = buy_and_hold(prices, rules(cost_bps=10), MONEY, range(0, 4))
        shares = 50_000 / 100.1
        assert simulation.equity[0] == pytest.approx([100_000, shares * 200, shares * 220, shares * 250 * 0.999])
        assert simulation.traded == pytest.approx([shares * (200 + 250)])

    @pytest.mark.parametrize(("delisting_return", "left"), [(-0.3, 85_000), (-1.0, 50_000)])
    def test_delisted_columns_lose_the_delisting_return(self, delisting_return: float, left: float) -> None:
        prices = flat(30, 2)
        prices[3:, 0] = NAN
        simulation = buy_and_hold(prices, rules(delisting_return=delisting_return), MONEY, range(0, 6))
        assert simulation.equity[0] == pytest.approx([100_000] * 3 + [left] * 3)
        assert simulation.closed["profit"].sum() == pytest.approx(left - 100_000)

    @pytest.mark.parametrize("most", [None, 300.0])
    @pytest.mark.parametrize("execution", ["next_open", "close"])
    @pytest.mark.parametrize(
        "money", [{}, {"initial_cash": 1000, "whole_shares": True, "cash_rate_pct": 5, "min_commission": 9}]
    )
    def test_one_column_is_what_the_environment_makes_of_it(
        self, execution: str, money: dict[str, Any], most: float | None
    ) -> None:
        """All money in one column, never sold before the end; it halts now and then, on its last day too."""
        prices = MARKET.prices()[:, :1].copy()
        prices[[40, 41, 99]] = NAN
        trading = rules(cost_bps=10, slippage_bps=5, max_holding_days=250, max_target=1000, execution=execution)
        days = range(20, 100)
        capacity, own = None if most is None else np.array([most]), AccountRules(unit_share=1.0, **money)
        bought = simulate(prices, trading, own, days, always(0, 1, 1000), capacity=capacity)
        held = buy_and_hold(prices, trading, AccountRules(**money), days, capacity)
        assert bought.trades.tolist() == [1]
        np.testing.assert_allclose(held.equity, bought.equity, rtol=1e-6)
        np.testing.assert_allclose(held.exposure, bought.exposure, rtol=1e-6)
        np.testing.assert_allclose(held.traded, bought.traded, rtol=1e-6)

    def test_profits_count_least_commissions(self) -> None:
        prices, money = MARKET.prices(), AccountRules(min_commission=20.0)
        held = buy_and_hold(prices, rules(cost_bps=10), money, range(20, 100))
        assert held.closed["profit"].sum() == pytest.approx(held.equity[0, -1] - held.equity[0, 0])

    def test_columns_without_a_price_at_the_start_are_left_out(self) -> None:
        prices = flat(4, 3)
        prices[:2, 1] = NAN
        prices[2:, 1] = 1000
        simulation = buy_and_hold(prices, rules(), MONEY, range(0, 4))
        assert simulation.equity[0] == pytest.approx([100_000] * 4)
        assert simulation.trades.tolist() == [2]
        with pytest.raises(UserError, match="nothing can be bought and held"):
            buy_and_hold(prices[:, 1:2], rules(), MONEY, range(0, 4))
        prices[1:, 1] = 1000  # listed on the day after the decision, when the environment would not have ordered it
        assert buy_and_hold(prices, rules(), MONEY, range(0, 4)).trades.tolist() == [2]


def reference_momentum(prices: np.ndarray, day: int, held: list[bool]) -> int | None:
    """The column not held that gained most since its last close 20 days ago, if any gained."""
    past = [close[close > 0][-1:] for close in prices[: max(day - 19, 0), :, 3].T]
    gains = {
        column: prices[day, column, 3] / past[column][0] - 1
        for column in range(prices.shape[1])
        if not held[column] and len(past[column])
    }
    gains = {column: gain for column, gain in gains.items() if gain > 0}
    return max(gains, key=lambda column: gains[column]) if gains else None


def test_momentum_orders_what_gained_most() -> None:
    prices, trading = MARKET.prices(), TradingRules()
    policy = momentum(prices, trading)
    rng, ordered = np.random.default_rng(0), 0
    for day in range(15, 120):
        held = rng.random(8) < 0.3
        seen = {"day": torch.tensor([[day]]), "held_days": torch.from_numpy(held).to(torch.uint8)[None, None]}
        action = policy(seen)[0, 0]
        best = reference_momentum(prices, day, held.tolist())
        expected = np.zeros(8)
        if best is not None:
            expected[best] = trading.max_coefficient
            ordered += 1
        kept = held & (momentum_pct(prices)[day] > 0)  # what matters where positions may be closed
        expected[kept] = trading.max_coefficient
        assert action[:, 0].tolist() == expected.tolist(), day
        assert (action[:, 1] == trading.max_target).all()
    assert ordered > 80


def test_momentum_sells_short_where_it_may() -> None:
    prices = flat(30, 2)
    prices[25:, 0], prices[25:, 1] = 105, 80
    seen = {"day": torch.tensor([[26]]), "held_days": torch.zeros(1, 1, 2)}
    for short, expected in ((False, [5, 0]), (True, [0, -5])):
        assert momentum(prices, rules(allow_short=short))(seen)[0, 0, :, 0].tolist() == expected


def test_momentum_of_a_year_without_its_last_month() -> None:
    prices = SyntheticMarket(days=300, columns=3, seed=5, missing=0.05).prices()
    gains, close = momentum_pct(prices, 252, 21), prices[..., 3].astype(np.float64)
    valid = pd.DataFrame(close).ffill().to_numpy()
    expected = [100 * (valid[day - 21] / valid[day - 252] - 1) for day in range(252, 300)]
    np.testing.assert_array_equal(gains[252:], np.where(close[252:] > 0, expected, NAN))
    assert np.isnan(gains[:252]).all()


def test_momentum_counts_from_the_last_close_before_a_hole() -> None:
    """A row that is missing 20 days ago is no reason to sell."""
    prices = flat(30, 2)
    prices[4:] = 110
    prices[5, 0] = prices[:8, 1] = prices[27] = NAN
    gains = momentum_pct(prices)
    assert gains[23:26, 0].tolist() == pytest.approx([10, 0, 0])
    assert np.isnan(gains[27]).all()
    assert np.isnan(gains[:28, 1]).all()
    assert gains[28].tolist() == [0, 0]


@pytest.mark.parametrize(("short", "expected"), [(False, [0.0, 1.0, -1.0]), (True, [0.0, 1.0, 0.0])])
def test_a_column_without_a_score_has_no_weight(short: bool, expected: list[float]) -> None:
    prices = flat(30, 3)
    prices[25:, 1], prices[:20, 2] = 122, NAN
    policy = momentum(prices, rules(mode="weights", reward="account", allow_short=short))
    seen = {"day": torch.tensor([28]), "weight": torch.zeros(1, 1, 3)}
    assert policy(seen)[0, 0, :, 0].tolist() == expected


@pytest.mark.parametrize("make", [momentum, None])
def test_no_order_depends_on_later_days(make: Callable[..., Policy] | None) -> None:
    prices, trading, days, change = MARKET.prices(), rules(), range(30, 110), 70
    altered = prices.copy()
    altered[change:] *= np.random.default_rng(0).uniform(0.5, 2, (1, 8, 1)).astype(np.float32)

    def play(prices: np.ndarray) -> np.ndarray:
        policy = make(prices, trading) if make else random_baseline(prices, trading, MONEY, other, days, 1, rng(3))
        return simulate(prices, trading, MONEY, days, policy).equity[0]

    rng = np.random.default_rng
    other = simulate(prices, trading, MONEY, days, momentum(prices, trading))
    before, after = play(prices), play(altered)
    np.testing.assert_array_equal(before[: change - 30], after[: change - 30])
    assert (before[change - 30 :] != after[change - 30 :]).all()


def test_equal_weights_are_restored_every_month() -> None:
    """One column rises 1 % a day, the other stands still: each month earns the mean of what the columns earn."""
    prices = np.full((44, 2, 4), 100, np.float32)
    prices[:, 0] *= (1.01 ** np.arange(44, dtype=np.float32))[:, None]
    free = monthly(rules(execution="close"))
    simulation = simulate(prices, free, AccountRules(), range(44), equal_weights(prices))
    month = (1 + 1.01**21) / 2
    expected = [1, month, month**2, month**2 * (1 + 1.01) / 2]
    assert simulation.equity[0, [0, 21, 42, 43]] == pytest.approx(np.array(expected) * 100_000, rel=1e-5)


def weights_at(prices: np.ndarray, day: int) -> np.ndarray:
    """The target weights of minimum variance at the close of a day."""
    seen = {"day": torch.tensor([[day]]), "weight": torch.zeros(1, 1, prices.shape[1])}
    score = minimum_variance(prices)(seen)[0, 0, :, 0]
    return monthly(rules()).target_weights(score, torch.from_numpy(prices[day, :, 3] > 0)).numpy()


class TestMinimumVariance:
    prices = SyntheticMarket(days=320, columns=6, market_share=0.6, seed=2).prices()

    def test_no_other_weights_have_less_variance(self) -> None:
        covariance = pytest.importorskip("sklearn.covariance")
        prices = self.prices.copy()
        prices[:, 3:] **= 2.5  # more volatile columns, which are not held
        returns = prices[49:301:, :, 3] / prices[48:300, :, 3] - 1
        shrunk = covariance.LedoitWolf().fit(100 * returns.astype(np.float64)).covariance_
        best = optimize.minimize(
            lambda weight: weight @ shrunk @ weight,
            np.full(6, 1 / 6),
            jac=lambda weight: 2 * shrunk @ weight,
            bounds=[(0, 1)] * 6,
            constraints={"type": "eq", "fun": lambda weight: weight.sum() - 1},
            options={"ftol": 1e-12},
        )
        found = weights_at(prices, 300)
        np.testing.assert_allclose(found, best.x, atol=1e-4)
        assert (found < 1e-6).any()
        assert found.sum() == pytest.approx(1)

    def test_weights_depend_on_the_last_year_alone(self) -> None:
        pytest.importorskip("sklearn")
        prices, later, earlier = self.prices, self.prices.copy(), self.prices.copy()
        later[301:] *= np.random.default_rng(0).uniform(0.5, 2, later[301:].shape).astype(np.float32)
        earlier[:48] *= np.random.default_rng(0).uniform(0.5, 2, earlier[:48].shape).astype(np.float32)
        for changed in (later, earlier):
            np.testing.assert_array_equal(weights_at(changed, 300), weights_at(prices, 300))

    def test_columns_without_a_past_have_no_weight(self) -> None:
        pytest.importorskip("sklearn")
        prices = self.prices.copy()
        prices[:100, 0] = NAN
        prices[300, 1] = NAN
        found = weights_at(prices, 300)
        assert (found[:2] < 1e-60).all()
        # a column that cannot be bought hedges nothing: the others are weighed as without it
        assert found[2:] == pytest.approx(weights_at(prices[:, 2:], 300), abs=1e-9)
        assert weights_at(self.prices, 1).tolist() == pytest.approx([1 / 6] * 6)


def test_the_best_of_a_rank_are_held_as_long_as_they_may() -> None:
    """Scores below 0 rank too, and a position is not closed early."""
    scores = np.tile([-3.0, -1.0, -2.0], (8, 1))
    simulation = simulate(flat(8, 3), rules(max_holding_days=3), MONEY, range(8), best_of_rank(scores, rules()))
    held = simulation.closed.sort_values("entry_day")
    assert held["column"].tolist()[:3] == [1, 2, 0]
    assert (held["exit_day"] - held["entry_day"]).tolist()[:3] == [2, 2, 2]


def test_of_equal_scores_the_last_column_is_ordered_first_and_none_without_a_score() -> None:
    """So that no order depends on how a processor sorts."""
    scores = np.tile([NAN, *[2.0] * 20, NAN], (4, 1))
    simulation = simulate(flat(4, 22), rules(), MONEY, range(4), best_of_rank(scores, rules()))
    assert simulation.closed.sort_values("entry_day")["column"].tolist()[:2] == [20, 19]


def test_preferences_are_what_a_policy_gives_on_each_day_while_it_holds_nothing() -> None:
    prices = MARKET.prices()
    policy, days = momentum(prices, rules()), range(60, 70)
    found = preferences(prices, rules(), MONEY, days, policy)
    past = momentum_pct(prices)
    for day in range(60, 69):
        assert np.flatnonzero(found[day]).tolist() == [np.nanargmax(past[day])]
    assert np.isnan(found[:60]).all()
    assert np.isnan(found[69:]).all()
