"""The environment: hand-computed episodes, a plain reference, no memory of the past and none of the future."""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eigen2.errors import UserError
from eigen2.market.data.panel import build_panel
from eigen2.market.features.encoding import AverageEncoder
from eigen2.market.simulation import environment
from eigen2.market.simulation.environment import TradingEnvironment, TradingRules
from eigen2.market.synthetic.generator import SyntheticMarket
from tests.market.simulation import reference
from tests.market.simulation.reference import ReferenceAccount

NAN = float("nan")
EXECUTIONS = ("next_open", "close")
both = pytest.mark.parametrize("execution", EXECUTIONS)
Orders = dict[int, dict[int, tuple[float, float]]]


def rules(**changes: Any) -> TradingRules:
    """No costs and no penalties, unless a test asks for them."""
    return TradingRules(**{"cost_bps": 0.0, "slippage_bps": 0.0, "zero_trade_penalty": 0.0, **changes})


def flat(days: int, columns: int = 1) -> np.ndarray:
    """Every bar is 100, 100, 100, 100."""
    return np.full((days, columns, 4), 100, np.float32)


def live(
    prices: np.ndarray, rules: TradingRules, orders: Orders, **window: Any
) -> tuple[dict[int, float], dict[str, float], dict[int, dict[str, list[float]]]]:
    """Play one agent's window.

    Args:
        prices: (days, columns, 4).
        rules: the environment's.
        orders: by day of the decision and column: coefficient and sale target.
        window: keywords of reset.

    Returns:
        Rewards other than 0 by day, what is not 0 in the summary, and held_days, gain and target by day.
    """
    env = TradingEnvironment(prices, rules, agents=1)
    observation, _ = env.reset(**window)
    rewards, seen, over = {}, {}, False
    while True:
        day = int(observation["day"])
        seen[day] = {name: observation[name][0, 0].tolist() for name in ("held_days", "gain")}
        target = observation["target"][0, 0] * (rules.max_target / 255)  # from steps back to percent
        seen[day]["target"] = [round(percent, 1) for percent in target.tolist()]
        if over:
            break
        action = torch.zeros(1, 1, env.num_columns, 2)
        for column, order in orders.get(day, {}).items():
            action[0, 0, column] = torch.tensor(order)
        observation, reward, terminated, truncated, _ = env.step(action)
        rewards[day + 1] = reward.item()
        over = bool(terminated)
        assert not truncated.any()
    summary = {name: value.item() for name, value in env.get_episode_summary().items()}
    earned = {day: reward for day, reward in rewards.items() if reward}
    return earned, {name: value for name, value in summary.items() if value}, seen


def closes(summary: dict[str, float]) -> dict[str, float]:
    return {name.removeprefix("closed_"): n for name, n in summary.items() if name.startswith("closed_")}


# Hand-computed episodes. An order is given at the close of day 0 unless said otherwise: `next_open` buys at the open of
# day 1, `close` at the close of day 0.


@both
def test_the_high_touches_the_sale_target(execution: str) -> None:
    prices = flat(6)
    prices[0] = (99, 99, 97, 98)
    prices[2] = (105, 112, 104, 108)
    earned, summary, seen = live(prices, rules(execution=execution), {0: {0: (2, 10)}}, trading_end_idx=5)
    # next_open: bought at 100, aim 110; close: bought at 98, aim 107.8. Day 2 opens at 105, below both, and its high
    # is 112, above both: sold at the aim, +10 %, times coefficient 2
    assert earned == {2: pytest.approx(20, rel=1e-5)}
    assert closes(summary) == {"target": 1}
    assert (summary["trades"], summary["wins"], summary["win_rate"]) == (1, 1, 1)
    assert summary["gain_pct"] == pytest.approx(10, rel=1e-5)
    assert summary["reward"] == pytest.approx(20, rel=1e-5)
    # day 1 closes at 100: unrealised 100/100 - 1 = 0, or 100/98 - 1 = 0.020408
    assert seen[1]["held_days"] == [1]
    assert seen[1]["target"] == [10]
    assert seen[1]["gain"] == [pytest.approx(0 if execution == "next_open" else 0.020408, rel=1e-3)]
    assert seen[0] == seen[2] == {"held_days": [0], "gain": [0], "target": [0]}


@both
def test_the_open_gaps_above_the_sale_target(execution: str) -> None:
    prices = flat(6)
    prices[0] = (99, 99, 97, 98)
    prices[2] = (115, 118, 104, 108)
    earned, summary, _ = live(prices, rules(execution=execution), {0: {0: (2, 10)}})
    # the open of 115 is above 110 and 107.8, so it is the price: 115/100 - 1 = 15 %, 115/98 - 1 = 17.346939 %, times 2
    assert earned == {2: pytest.approx(30 if execution == "next_open" else 34.693878, rel=1e-5)}
    assert closes(summary) == {"gap": 1}


@pytest.mark.parametrize(("bar", "reason"), [((110, 115, 109, 111), "gap"), ((109, 110, 108, 109), "target")])
def test_a_price_at_the_sale_target_is_enough(bar: tuple[float, ...], reason: str) -> None:
    prices = flat(4)
    prices[2] = bar
    earned, summary, _ = live(prices, rules(), {0: {0: (1, 10)}})
    assert earned == {2: pytest.approx(10, rel=1e-5)}
    assert closes(summary) == {reason: 1}


def test_an_open_outside_the_days_range_is_a_price_too() -> None:
    prices = flat(4, 2)
    prices[2] = [(115, 105, 99, 104), (85, 101, 95, 96)]  # an open above the high, and one below the low
    orders = {0: {0: (2.0, 10.0), 1: (-1.0, 10.0)}}
    earned, summary, _ = live(prices, rules(allow_short=True, max_opens_per_day=2), orders)
    assert earned == {2: pytest.approx(30 + 15, rel=1e-6)}
    assert closes(summary) == {"gap": 2}


def test_a_high_just_below_the_sale_target_is_not_enough() -> None:
    prices = flat(4)
    prices[2] = (100, 109.99, 100, 100)
    assert closes(live(prices, rules(), {0: {0: (1, 10)}})[1]) == {"window_end": 1}


def test_the_target_can_be_touched_on_the_day_of_the_fill() -> None:
    prices = flat(4)
    prices[1] = (80, 89, 75, 76)
    earned, summary, seen = live(prices, rules(), {0: {0: (2, 10)}})
    # bought at 80, aim 88, high 89: sold at 88, +10 %, times 2
    assert earned == {1: pytest.approx(20, rel=1e-5)}
    assert closes(summary) == {"target": 1}
    assert seen[1] == {"held_days": [0], "gain": [0], "target": [0]}


def test_a_high_before_the_fill_at_the_close_touches_nothing() -> None:
    prices = flat(4)
    prices[0] = (100, 150, 100, 100)
    earned, summary, _ = live(prices, rules(execution="close"), {0: {0: (2, 10)}})
    # the high of 150 came before the purchase at the close; the window ends at 100: no gain, which counts as a loss
    assert earned == {}
    assert closes(summary) == {"window_end": 1}
    assert (summary["losses"], summary.get("wins", 0)) == (1, 0)


@both
def test_held_for_max_holding_days(execution: str) -> None:
    prices = flat(8)
    prices[2:5, 0] = [(99, 99, 98, 98), (97, 98, 94, 95), (200, 200, 200, 200)]
    settings_ = rules(execution=execution, max_holding_days=3, loss_penalty=2)
    earned, summary, seen = live(prices, settings_, {0: {0: (3, 10)}}, trading_end_idx=5)
    # bought at 100 either way; days 1, 2 and 3 are the three days held; sold at day 3's close of 95: -5 %, coefficient
    # 3, losses count twice: -30. Day 4 would have doubled it
    assert earned == {3: pytest.approx(-30, rel=1e-5)}
    assert closes(summary) == {"holding": 1}
    assert summary["losses"] == 1
    assert summary["gain_pct"] == pytest.approx(-5, rel=1e-5)
    assert [seen[day]["held_days"] for day in range(5)] == [[0], [1], [2], [0], [0]]


def test_held_for_one_day_is_bought_at_the_open_and_sold_at_the_close() -> None:
    prices = flat(4)
    prices[1] = (100, 109, 96, 104)
    earned, summary, _ = live(prices, rules(max_holding_days=1), {0: {0: (1, 10)}})
    assert earned == {1: pytest.approx(4, rel=1e-5)}  # 104/100 - 1
    assert closes(summary) == {"holding": 1}


@both
def test_halted_on_the_day_it_must_be_sold(execution: str) -> None:
    prices = flat(8)
    prices[1] = (100, 105, 99, 104)
    prices[2:] = NAN
    settings_ = rules(execution=execution, max_holding_days=3)
    earned, summary, seen = live(prices, settings_, {0: {0: (2, 10)}}, trading_end_idx=5)
    # it last closed at 104, on day 1, and is sold at that on day 3: +4 %, times 2; the days without a price count
    assert earned == {3: pytest.approx(8, rel=1e-5)}
    assert closes(summary) == {"halted": 1}
    assert seen[2]["held_days"] == [2]
    assert seen[2]["gain"] == [pytest.approx(0.04, rel=1e-3)]


@both
def test_halted_at_the_end_of_the_window(execution: str) -> None:
    prices = flat(5)
    prices[1] = (100, 105, 90, 90)
    prices[2:] = NAN
    earned, summary, _ = live(prices, rules(execution=execution), {0: {0: (1, 10)}}, end_idx=4)
    assert earned == {3: pytest.approx(-10, rel=1e-5)}
    assert closes(summary) == {"halted": 1}


@both
def test_back_from_a_halt_it_can_be_sold(execution: str) -> None:
    prices = flat(8)
    prices[2:4] = NAN
    prices[4] = (120, 130, 110, 115)
    earned, summary, seen = live(prices, rules(execution=execution), {0: {0: (1, 15)}}, trading_end_idx=5)
    # aim 115, and the first open after the halt is 120
    assert earned == {4: pytest.approx(20, rel=1e-5)}
    assert closes(summary) == {"gap": 1}
    assert [seen[day]["held_days"] for day in (2, 3)] == [[2], [3]]


@both
def test_the_window_ends(execution: str) -> None:
    prices = flat(8)
    prices[4] = (103, 104, 102, 103)
    prices[5] = (200, 200, 200, 200)
    earned, summary, seen = live(prices, rules(execution=execution), {1: {0: (2, 10)}}, start_idx=1, end_idx=5)
    # the window is days 1 to 4: sold at day 4's close of 103, +3 %, times 2
    assert earned == {4: pytest.approx(6, rel=1e-5)}
    assert closes(summary) == {"window_end": 1}
    assert sorted(seen) == [1, 2, 3, 4]


def test_held_out_on_the_last_day_is_holding() -> None:
    assert closes(live(flat(3), rules(max_holding_days=2), {0: {0: (1, 10)}})[1]) == {"holding": 1}


@both
@pytest.mark.parametrize("reason", ["target", "gap"])
def test_a_target_reached_on_the_last_day_is_sold_at_it(execution: str, reason: str) -> None:
    prices = flat(3)
    prices[2] = (100, 112, 100, 100) if reason == "target" else (111, 112, 100, 100)
    earned, summary, _ = live(prices, rules(execution=execution, max_holding_days=2), {0: {0: (1, 10)}})
    assert earned == {2: pytest.approx(10 if reason == "target" else 11, rel=1e-5)}
    assert closes(summary) == {reason: 1}


@both
def test_costs_and_slippage_are_paid_on_both_sides(execution: str) -> None:
    prices = flat(4)
    prices[2] = (105, 112, 104, 108)
    settings_ = rules(execution=execution, cost_bps=10, slippage_bps=5)
    earned, summary, _ = live(prices, settings_, {0: {0: (2, 10)}})
    # 15 bps a side: paid 100.15, received 110 x 0.9985 = 109.835, gain 9.685 / 100.15 = 9.670494 %, times 2
    assert earned == {2: pytest.approx(19.340988, rel=1e-5)}
    assert summary["gain_pct"] == pytest.approx(9.670494, rel=1e-5)


def test_costs_turn_a_small_gain_into_a_loss() -> None:
    prices = flat(3)
    prices[2, 0, 3] = 100.2
    earned, summary, _ = live(prices, rules(cost_bps=10, slippage_bps=5, loss_penalty=3), {0: {0: (1, 10)}})
    # received 100.2 x 0.9985 = 100.0497 for 100.15: -0.1003 / 100.15 = -0.100150 %, and losses count three times
    assert earned == {2: pytest.approx(-0.300449, rel=1e-3)}
    assert (summary["losses"], summary.get("wins", 0)) == (1, 0)


def test_a_gain_is_not_multiplied_by_the_loss_penalty() -> None:
    prices = flat(3)
    prices[2, 0] = (104, 104, 104, 104)
    assert live(prices, rules(loss_penalty=3), {0: {0: (1, 10)}})[0] == {2: pytest.approx(4, rel=1e-5)}


def test_no_price_on_the_day_of_the_fill_drops_the_order() -> None:
    prices = flat(6, 2)
    prices[1, 0] = NAN
    earned, summary, seen = live(prices, rules(), {0: {0: (2, 10), 1: (1, 10)}}, trading_end_idx=4)
    # the order for column 0 is neither filled later nor passed on to column 1
    assert summary == {"unfilled": 1, "days_without_position": 4}
    assert earned == {}
    assert all(seen[day]["held_days"] == [0, 0] for day in seen)


@both
def test_no_price_at_the_decision_is_no_order(execution: str) -> None:
    prices = flat(4, 2)
    prices[0, 0] = NAN
    _, summary, seen = live(prices, rules(execution=execution), {0: {0: (2, 10), 1: (1, 10)}})
    assert seen[1]["held_days"] == [0, 1]
    assert (summary["trades"], summary.get("unfilled", 0)) == (1, 0)


@both
@pytest.mark.parametrize(
    ("opens", "coefficients", "held"),
    [
        (1, (2, 3, 1.5, 3), [0, 1, 0, 0]),  # the higher, and of two equal ones the lower column
        (2, (2, 3, 1.5, 3), [0, 1, 0, 1]),
        (2, (2, 2, 2, 2), [1, 1, 0, 0]),
        (3, (2, 3, 1.5, 3), [1, 1, 0, 1]),
        (9, (2, 3, 0.99, 1), [1, 1, 0, 1]),  # below 1 is no order, 1 is one
        (2, (0.99, 0.5, 1, -7), [0, 0, 1, 0]),
        (2, (8, 5, 6, 99), [1, 1, 0, 0]),  # clipped to 5 first, then all are equal
    ],
)
def test_what_a_day_opens(execution: str, opens: int, coefficients: tuple[float, ...], held: list[int]) -> None:
    orders = {0: {column: (coefficient, 10.0) for column, coefficient in enumerate(coefficients)}}
    settings_ = rules(execution=execution, max_opens_per_day=opens)
    _, summary, seen = live(flat(4, 4), settings_, orders)
    assert seen[1]["held_days"] == held
    assert summary["trades"] == sum(held)


@both
def test_a_held_column_is_not_opened_again(execution: str) -> None:
    prices = flat(6, 2)
    always = {day: {0: (5.0, 10.0 + 10 * day), 1: (2.0, 20.0)} for day in range(5)}
    _, summary, seen = live(prices, rules(execution=execution), always, trading_end_idx=5)
    # column 0 has the higher coefficient and opens on day 0; then it is held, so column 1 opens; then nothing is left
    assert [seen[day]["held_days"] for day in range(5)] == [[0, 0], [1, 0], [2, 1], [3, 2], [4, 3]]
    assert seen[4]["target"] == [10, 20]
    assert summary["trades"] == 2


@both
def test_a_column_can_be_opened_again_on_the_day_it_closed(execution: str) -> None:
    always = {day: {0: (1.0, 10.0)} for day in range(7)}
    _, summary, seen = live(flat(7), rules(execution=execution, max_holding_days=2), always, trading_end_idx=6)
    # sold at the closes of days 2, 4 and 6; ordered anew at those of days 2 and 4
    assert [seen[day]["held_days"] for day in range(7)] == [[0], [1], [0], [1], [0], [1], [0]]
    assert closes(summary) == {"holding": 3}


@both
def test_positions_closing_on_one_day_add_up(execution: str) -> None:
    prices = flat(4, 3)
    prices[2, 0] = (105, 112, 104, 108)
    prices[2, 1] = (130, 131, 129, 130)
    prices[2:, 2] = (95, 95, 95, 95)
    orders = {0: {0: (2.0, 10.0), 1: (3.0, 20.0), 2: (1.0, 50.0)}}
    settings_ = rules(execution=execution, max_opens_per_day=3, max_holding_days=2)
    earned, summary, _ = live(prices, settings_, orders)
    # target 10 % x 2, gap 30 % x 3, held out at -5 % x 1
    assert earned == {2: pytest.approx(20 + 90 - 5, rel=1e-5)}
    assert closes(summary) == {"target": 1, "gap": 1, "holding": 1}
    assert (summary["wins"], summary["losses"]) == (2, 1)
    assert summary["win_rate"] == pytest.approx(2 / 3)
    assert summary["gain_pct"] == pytest.approx(35, rel=1e-5)


@both
@pytest.mark.parametrize(
    ("order", "reward", "target"),
    [
        ((100.0, 10.0), 50, 10),  # coefficient 5 x 10 %
        ((2.0, 1.0), 20, 10),  # target 10
        ((2.0, 999.0), 40, 50),  # target 50; the close of day 2 is 20 % up and the window ends
        ((2.0, -40.0), 20, 10),
    ],
)
def test_actions_are_clipped(execution: str, order: tuple[float, float], reward: float, target: float) -> None:
    prices = flat(3)
    prices[2] = (105, 125, 105, 120)
    earned, _, seen = live(prices, rules(execution=execution), {0: {0: order}})
    assert seen[1]["target"] == [target]
    assert earned == {2: pytest.approx(reward, rel=1e-5)}


@both
def test_nothing_opens_in_settlement(execution: str) -> None:
    for day, trades in [(2, 1), (3, 0), (4, 0), (5, 0)]:
        _, summary, _ = live(flat(8), rules(execution=execution), {day: {0: (1, 10)}}, trading_end_idx=3)
        assert summary.get("trades", 0) == trades, day


def test_trading_ends_max_holding_days_before_the_end_by_default() -> None:
    for day, trades in [(5, 1), (6, 0)]:
        _, summary, _ = live(flat(10), rules(max_holding_days=4), {day: {0: (1, 10)}})
        assert summary.get("trades", 0) == trades, day


@both
def test_settlement_of_max_holding_days_lets_all_run_out(execution: str) -> None:
    orders = {day: {day: (1.0, 10.0)} for day in range(4)}
    settings_ = rules(execution=execution, max_holding_days=4)
    _, summary, _ = live(flat(8, 4), settings_, orders, trading_end_idx=4)
    assert closes(summary) == {"holding": 4}


@both
def test_penalties_for_doing_nothing(execution: str) -> None:
    settings_ = rules(execution=execution, inaction_penalty=0.5, zero_trade_penalty=10, max_holding_days=2)
    earned, summary, _ = live(flat(8), settings_, {}, trading_end_idx=5)
    # five trading days (0 to 4) of 0.5, and 10 once, on the last day
    assert earned == {1: -0.5, 2: -0.5, 3: -0.5, 4: -0.5, 5: -0.5, 7: -10}
    assert (summary["inaction_penalty"], summary["zero_trade_penalty"], summary["reward"]) == (2.5, 10, -12.5)
    earned, summary, _ = live(flat(8), settings_, {1: {0: (1, 10)}}, trading_end_idx=5)
    # idle on day 0; held after the decisions of days 1 and 2; idle after those of days 3 and 4; flat prices earn 0
    assert earned == {1: -0.5, 4: -0.5, 5: -0.5}
    assert (summary["days_with_position"], summary["days_without_position"]) == (2, 3)


def test_the_zero_trade_penalty_is_due_at_the_end() -> None:
    env = TradingEnvironment(flat(3), rules(zero_trade_penalty=10), agents=1)
    env.reset()
    due = []
    for _ in range(2):
        env.step(torch.zeros(1, 1, 1, 2))
        due.append(env.get_episode_summary()["zero_trade_penalty"].item())
    assert due == [0, 10]


@both
def test_an_unfilled_order_is_no_trade(execution: str) -> None:
    prices = flat(4)
    prices[0 if execution == "close" else 1] = NAN
    earned, _, _ = live(prices, rules(execution=execution, zero_trade_penalty=10), {0: {0: (1, 10)}})
    assert earned == {3: -10}


# Short sales: a coefficient of -1 or less sells at the fill and buys back lower, if all goes well


@both
def test_a_short_sale_is_bought_back_at_its_target(execution: str) -> None:
    prices = flat(6)
    prices[0] = (99, 103, 97, 102)
    prices[2] = (95, 96, 88, 92)
    earned, summary, seen = live(prices, rules(execution=execution, allow_short=True), {0: {0: (-2, 10)}})
    # next_open: sold at 100, aim 90; close: sold at 102, aim 91.8. Day 2 opens at 95, above both, and its low is 88,
    # below both: bought back at the aim, +10 %, times 2
    assert earned == {2: pytest.approx(20, rel=1e-6)}
    assert closes(summary) == {"target": 1}
    assert (summary["trades"], summary["wins"], summary["win_rate"]) == (1, 1, 1)
    # day 1 closes at 100: 1 - 100/100 = 0, or 1 - 100/102 = 0.0196078
    assert seen[1]["held_days"] == [1]
    assert seen[1]["target"] == [10]
    assert seen[1]["gain"] == [pytest.approx(0 if execution == "next_open" else 0.0196078, rel=1e-3)]
    assert seen[2] == {"held_days": [0], "gain": [0], "target": [0]}


@both
def test_the_open_gaps_below_the_target_of_a_short_sale(execution: str) -> None:
    prices = flat(6)
    prices[0] = (99, 103, 97, 102)
    prices[2] = (85, 103, 84, 102)
    earned, summary, _ = live(prices, rules(execution=execution, allow_short=True), {0: {0: (-2, 10)}})
    # the open of 85 is below 90 and 91.8: 1 - 85/100 = 15 %, 1 - 85/102 = 16.666667 %, times 2
    assert earned == {2: pytest.approx(30 if execution == "next_open" else 33.333333, rel=1e-6)}
    assert closes(summary) == {"gap": 1}


@pytest.mark.parametrize(("bar", "reason"), [((90, 95, 85, 94), "gap"), ((91, 95, 90, 94), "target")])
def test_a_price_at_the_target_of_a_short_sale_is_enough(bar: tuple[float, ...], reason: str) -> None:
    prices = flat(4)
    prices[2] = bar
    earned, summary, _ = live(prices, rules(allow_short=True), {0: {0: (-1, 10)}})
    assert earned == {2: pytest.approx(10, rel=1e-6)}
    assert closes(summary) == {reason: 1}


def test_a_low_just_above_the_target_of_a_short_sale_is_not_enough() -> None:
    prices = flat(4)
    prices[2] = (100, 120, 90.01, 100)  # nor is a high that would have been enough for a position bought
    assert closes(live(prices, rules(allow_short=True), {0: {0: (-1, 10)}})[1]) == {"window_end": 1}


def test_a_short_sale_held_out_at_a_higher_price_loses() -> None:
    prices = flat(8)
    prices[2:5, 0] = [(101, 102, 98, 102), (103, 106, 102, 105), (10, 10, 10, 10)]
    settings_ = rules(max_holding_days=3, loss_penalty=2, allow_short=True)
    earned, summary, seen = live(prices, settings_, {0: {0: (-3, 10)}}, trading_end_idx=5)
    # sold at 100, bought back on day 3 at 105: -5 %, coefficient 3, losses count twice
    assert earned == {3: pytest.approx(-30, rel=1e-6)}
    assert closes(summary) == {"holding": 1}
    assert (summary["losses"], summary.get("wins", 0)) == (1, 0)
    assert seen[2]["gain"] == [pytest.approx(-0.02, rel=1e-3)]


@both
def test_a_halted_short_sale_is_bought_back_at_the_last_price(execution: str) -> None:
    prices = flat(5)
    prices[1] = (100, 105, 95, 96)
    prices[2:] = NAN
    earned, summary, seen = live(prices, rules(execution=execution, allow_short=True), {0: {0: (-1, 10)}}, end_idx=4)
    assert earned == {3: pytest.approx(4, rel=1e-6)}
    assert closes(summary) == {"halted": 1}
    assert seen[2]["gain"] == [pytest.approx(0.04, rel=1e-3)]


@both
def test_a_short_sale_pays_costs_on_both_sides(execution: str) -> None:
    prices = flat(4)
    prices[2] = (95, 96, 88, 92)
    settings_ = rules(execution=execution, cost_bps=10, slippage_bps=5, allow_short=True)
    earned, summary, _ = live(prices, settings_, {0: {0: (-2, 10)}})
    # 15 bps a side: received 99.85, paid 90 x 1.0015 = 90.135, gain 9.715 / 99.85 = 9.729594 %, times 2
    assert earned == {2: pytest.approx(19.459189, rel=1e-6)}
    assert summary["gain_pct"] == pytest.approx(9.729594, rel=1e-6)


def test_a_short_sale_may_lose_more_than_it_brought() -> None:
    prices = flat(4)
    prices[2:] = (340, 360, 330, 350)
    earned, _, seen = live(prices, rules(allow_short=True), {0: {0: (-2, 10)}}, end_idx=4, trading_end_idx=4)
    assert earned == {3: pytest.approx(-500, rel=1e-6)}  # 1 - 350/100 = -250 %, times 2
    assert seen[2]["gain"] == [pytest.approx(-2.5, rel=1e-3)]


def test_a_short_sale_never_gains_100_percent() -> None:
    prices = flat(4)
    prices[2:] = (0.5, 0.5, 0.01, 0.02)
    for target in (100, 150):
        earned, summary, _ = live(prices, rules(allow_short=True, max_target=150), {0: {0: (-1, target)}})
        assert closes(summary) == {"window_end": 1}
        assert earned == {3: pytest.approx(99.98, rel=1e-6)}


@both
@pytest.mark.parametrize(
    ("opens", "coefficients", "held"),
    [
        (1, (2, -3, 1.5, 3), [0, 1, 0, 0]),  # by absolute value, and of two equal ones the lower column
        (1, (3, -2.5, 1.5, -3), [1, 0, 0, 0]),
        (2, (2, -3, 1.5, 2.5), [0, 1, 0, 1]),
        (4, (-0.99, 0.99, -1, 1), [0, 0, 1, 1]),
        (2, (-8, 5, -6, 99), [1, 1, 0, 0]),  # clipped to 5 first, then all are equal
    ],
)
def test_what_a_day_opens_with_short_sales(
    execution: str, opens: int, coefficients: tuple[float, ...], held: list[int]
) -> None:
    orders = {0: {column: (coefficient, 10.0) for column, coefficient in enumerate(coefficients)}}
    settings_ = rules(execution=execution, max_opens_per_day=opens, allow_short=True)
    _, summary, seen = live(flat(4, 4), settings_, orders)
    assert seen[1]["held_days"] == held
    assert summary["trades"] == sum(held)


def test_long_and_short_on_one_day_add_up() -> None:
    prices = flat(4, 2)
    prices[2:] = (112, 113, 111, 112)
    orders = {0: {0: (2.0, 10.0), 1: (-3.0, 10.0)}}
    earned, summary, _ = live(prices, rules(allow_short=True, max_opens_per_day=2), orders)
    # column 0 gaps to +12 %, times 2, on day 2; column 1 is bought back at the end at -12 %, times 3
    assert earned == {2: pytest.approx(24, rel=1e-6), 3: pytest.approx(-36, rel=1e-6)}
    assert closes(summary) == {"gap": 1, "window_end": 1}


def test_an_observation_tells_a_short_sale_from_a_purchase() -> None:
    env = TradingEnvironment(flat(4, 3), rules(allow_short=True, max_opens_per_day=3), agents=1)
    env.reset()
    action = torch.tensor([[-2.0, 10.0], [4.0, 20.0], [-9.0, 50.0]])[None, None]
    observation = env.step(action)[0]
    # in 1/127 of 5: 2 is 50.8, 4 is 101.6
    assert observation["coefficient"].dtype == env.observation_fields["coefficient"].dtype == torch.int8
    assert observation["coefficient"].tolist() == [[[-51, 102, -127]]]
    assert observation["target"].tolist() == [[[51, 102, 255]]]
    panel = build_panel(SyntheticMarket(days=200, columns=3, seed=0).generate(), validation_days=30, holdout_days=10)
    encoder = AverageEncoder(panel, [0, 1, 2], 4, env.rules, window_days=4)
    portfolio = encoder({**observation, "day": observation["day"] + 20})["portfolio"][0, 0]
    torch.testing.assert_close(portfolio[:, 4], torch.tensor([-51 / 127, 102 / 127, -1.0]))
    torch.testing.assert_close(portfolio[:, 3], torch.tensor([0.2, 0.4, 1.0]))


def test_without_short_sales_a_coefficient_has_255_steps() -> None:
    env = TradingEnvironment(flat(4, 2), rules(max_opens_per_day=2), agents=1)
    env.reset()
    observation = env.step(torch.tensor([[-5.0, 10.0], [4.0, 20.0]])[None, None])[0]
    assert observation["coefficient"].dtype == torch.uint8
    assert observation["coefficient"].tolist() == [[[0, 204]]]


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_no_price_makes_a_number_infinite() -> None:
    prices = flat(5, 4)
    prices[:, 0], prices[3:, 0] = 1e-30, 1e35
    prices[:, 1], prices[3:, 1] = 1e-30, 1e35
    prices[:, 2], prices[3:, 2] = 3.4e38, 1e-38
    prices[:, 3], prices[3:, 3] = 3.4e38, 1e-38
    settings_ = rules(allow_short=True, max_opens_per_day=4, max_coefficient=1000, loss_penalty=1000)
    env = TradingEnvironment(prices, settings_, agents=1)
    env.reset(trading_end_idx=1)
    for _ in range(4):
        action = torch.tensor([[1000.0, 1000.0], [-1000, 50], [-1000, 50], [1000, 50]])[None, None]
        observation, reward, *_ = env.step(action)
        assert torch.isfinite(reward).all()
        assert torch.isfinite(observation["gain"]).all()
    assert int(env.get_episode_summary()["trades"]) == 4
    assert all(torch.isfinite(value).all() for value in env.get_episode_summary().values())


# The interface


def test_actions_of_networks_span_the_action_space() -> None:
    env = TradingEnvironment(flat(3, 2), rules(max_coefficient=4, min_target=10, max_target=30), agents=1)
    unit = torch.tensor([-1.0, 0.0, 1.0])[:, None, None].expand(3, 2, 2)
    native = env.native_action(unit)
    torch.testing.assert_close(native[:, 0], torch.tensor([[0.0, 10.0], [2.0, 20.0], [4.0, 30.0]]))
    assert all(env.action_space.contains(action.numpy()) for action in native)
    assert env.action_shape == env.action_space.shape == (2, 2)


def test_actions_of_networks_span_short_sales_too() -> None:
    settings_ = rules(max_coefficient=4, min_target=10, max_target=30, allow_short=True)
    env = TradingEnvironment(flat(3, 2), settings_, agents=1)
    unit = torch.tensor([-1.0, 0.0, 0.5])[:, None, None].expand(3, 2, 2)
    native = env.native_action(unit)
    torch.testing.assert_close(native[:, 0], torch.tensor([[-4.0, 10.0], [0.0, 20.0], [2.0, 25.0]]))
    assert all(env.action_space.contains(action.numpy()) for action in native)


def test_what_is_not_a_number_orders_nothing() -> None:
    env = TradingEnvironment(flat(4, 3), rules(), agents=1)
    env.reset()
    observation = env.step(torch.tensor([[NAN, 10.0], [2.0, NAN], [1.5, 10.0]])[None, None])[0]
    assert observation["held_days"].tolist() == [[[0, 1, 0]]]
    assert observation["target"].tolist() == [[[0, 51, 0]]]  # the lowest, 10 of 50


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 9), st.integers(1, 9))
def test_the_largest_are_those_of_a_stable_sort(seed: int, accounts: int, columns: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    size = rng.choice([0, 0.5, 1, 1.5, 2, 5], (accounts, columns)).astype(np.float32)
    order = np.argsort(-size, axis=1, kind="stable")[:, :count]
    expected = [
        account * columns + order[account, rank]
        for rank in range(order.shape[1])
        for account in range(accounts)
        if size[account, order[account, rank]] >= 1
    ]
    assert environment._largest(size, count).tolist() == expected


def test_few_gains_are_rounded_as_many_are(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    for few in (0, 10**9):
        monkeypatch.setattr(environment, "FEW", few)
        runs.append(
            record(workspace(), {"start_idx": [3, 9], "trading_end_idx": [20, 26], "end_idx": [25, 31]}, seed=0)
        )
    assert_identical(*runs)


def test_actions_of_any_precision_are_taken() -> None:
    seen = []
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        env = TradingEnvironment(flat(4, 3), rules(max_opens_per_day=2), agents=1)
        env.reset()
        action = torch.tensor([[2.0, 16.0], [0.5, 20.0], [3.0, 32.0]], dtype=dtype)[None, None].requires_grad_()
        seen.append(env.step(action)[0]["held_days"].tolist())
    assert seen == [[[[1, 0, 1]]]] * 3


def test_observations_have_the_declared_fields() -> None:
    env = TradingEnvironment(flat(6, 3), rules(), agents=4, windows=2)
    first, info = env.reset(start_idx=[0, 2], trading_end_idx=[2, 4], end_idx=[4, 6])
    second = env.step(torch.full((4, 2, 3, 2), 20.0))[0]
    assert info == {}
    for observation, day, left in ((first, [0, 2], 3), (second, [1, 3], 2)):
        assert observation.keys() == env.observation_fields.keys()
        for name, field in env.observation_fields.items():
            agents = 1 if name in ("day", "days_left") else 4
            assert observation[name].shape == (agents, 2, *field.shape), name
            assert observation[name].dtype == field.dtype, name
        assert observation["day"].tolist() == [day]
        assert observation["days_left"].tolist() == [[left, left]]


def test_an_episode_is_over_when_it_says_so() -> None:
    env = TradingEnvironment(flat(6), rules(), agents=2, windows=2)
    action = torch.zeros(2, 2, 1, 2)
    with pytest.raises(RuntimeError, match="reset"):
        env.step(action)
    env.reset(start_idx=[0, 1], end_idx=[4, 5])
    flags = [env.step(action)[2:4] for _ in range(3)]
    assert [bool(terminated.all()) for terminated, _ in flags] == [False, False, True]
    assert not any(terminated.any() for terminated, _ in flags[:2])
    assert not any(truncated.any() for _, truncated in flags)
    with pytest.raises(RuntimeError, match="over"):
        env.step(action)


@pytest.mark.parametrize(
    ("window", "said"),
    [
        ({"start_idx": -1, "end_idx": 5}, "-1"),
        ({"start_idx": 2, "end_idx": 11}, "11"),
        ({"start_idx": 4, "end_idx": 5}, "2 days"),
        ({"start_idx": 4, "trading_end_idx": 4, "end_idx": 8}, "trading_end_idx"),
        ({"start_idx": 4, "trading_end_idx": 9, "end_idx": 8}, "9"),
        ({"start_idx": [0, 1], "trading_end_idx": [2, 3], "end_idx": [5, 7]}, "same length"),
        ({"start_idx": [0, 1], "trading_end_idx": [2, 4], "end_idx": [5, 6]}, "same length"),
        ({"start_idx": [0, 1, 2]}, "2 windows"),
    ],
)
def test_bad_windows_are_refused(window: dict[str, Any], said: str) -> None:
    env = TradingEnvironment(flat(10), rules(), agents=1, windows=2)
    with pytest.raises(UserError, match=said) as error:
        env.reset(**window)
    assert "\n" not in str(error.value)


def test_windows_come_by_options_or_keywords() -> None:
    env = TradingEnvironment(flat(20), rules(), agents=1)
    options = {"start_idx": 3, "trading_end_idx": 6, "end_idx": 9}
    observation, _ = env.reset(options=options)
    assert (int(observation["day"]), int(observation["days_left"])) == (3, 5)
    observation, _ = env.reset(options=options, start_idx=[4], end_idx=[12])
    assert (int(observation["day"]), int(observation["days_left"])) == (4, 7)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_coefficient", 1.0),
        ("min_target", 0.0),
        ("max_target", 9.9),
        ("max_opens_per_day", 0),
        ("max_holding_days", 0),
        ("max_holding_days", 251),
        ("cost_bps", -1.0),
        ("slippage_bps", NAN),
        ("loss_penalty", -0.1),
        ("inaction_penalty", -1.0),
        ("zero_trade_penalty", -1.0),
    ],
)
def test_rules_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"^data\.rules\.{name} is {value}; it must be [^\n]*$"):
        TradingRules(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_target", 1e6),  # half precision, which observations keep it in, ends at 65,504
        ("max_target", float("inf")),
        ("max_coefficient", float("inf")),
        ("cost_bps", float("inf")),
        ("inaction_penalty", float("inf")),
        ("zero_trade_penalty", float("inf")),
    ],
)
def test_allowed_rules_keep_observations_and_rewards_finite(name: str, value: Any) -> None:
    try:
        allowed = TradingRules(**{name: value})
    except UserError:
        return
    env = TradingEnvironment(flat(4), allowed, agents=1, windows=2)
    env.reset()
    action = env.native_action(torch.tensor([1.0, -1.0])[None, :, None, None].expand(1, 2, 1, 2))
    for _ in range(3):
        observation, reward, *_ = env.step(action)
        assert torch.isfinite(reward).all()
        assert all(torch.isfinite(value).all() for value in observation.values())


# The batched environment is the plain one, for every agent and window


def test_the_reference_is_short_enough_to_be_read() -> None:
    source = Path(reference.__file__).read_text()
    prose = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr)]
    prose = [node for node in prose if isinstance(node.value, ast.Constant)]
    skipped = {line for node in prose for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    lines = [line.strip() for number, line in enumerate(source.splitlines(), 1) if number not in skipped]
    assert 100 < sum(1 for line in lines if line and not line.startswith("#")) <= 120


def random_prices(rng: np.random.Generator, days: int, columns: int, holes: float, coarse: bool) -> np.ndarray:
    """Wild prices, so that targets are touched; on a coarse grid, so that they are touched exactly."""
    shape = (days, columns)
    close = 100 * np.exp(np.cumsum(rng.normal(0, 0.07, shape), axis=0))
    open_ = close * np.exp(rng.normal(0, 0.05, shape))
    high = np.maximum(open_, close) * np.exp(np.abs(rng.normal(0, 0.04, shape)))
    low = np.minimum(open_, close) * np.exp(-np.abs(rng.normal(0, 0.04, shape)))
    prices = np.stack([open_, high, low, close], axis=2)
    if coarse:
        prices = np.maximum(5, np.round(prices / 5) * 5)
    prices[rng.random(shape) < holes] = NAN
    return prices.astype(np.float32)


def random_actions(rng: np.random.Generator, shape: tuple[int, ...], coarse: bool) -> np.ndarray:
    """Coefficients and targets in and out of their ranges; from few values, so that there are ties."""
    if coarse:
        coefficients = [-9, -4, -2, -1, 0.5, 1, 2, 4, 9]
        actions = [rng.choice(coefficients, shape), rng.choice([0, 10, 20, 50, 80], shape)]
    else:
        actions = [rng.uniform(-7, 7, shape), rng.uniform(0, 60, shape)]
    return np.stack(actions, axis=-1).astype(np.float32)


random_rules = st.builds(
    TradingRules,
    max_coefficient=st.sampled_from([1.5, 5.0]),
    allow_short=st.booleans(),
    min_target=st.sampled_from([2.0, 10.0]),
    max_target=st.sampled_from([10.0, 20.0, 50.0]),
    max_opens_per_day=st.integers(1, 4),
    max_holding_days=st.integers(1, 8),
    execution=st.sampled_from(EXECUTIONS),
    cost_bps=st.sampled_from([0.0, 12.0]),
    slippage_bps=st.sampled_from([0.0, 25.0]),
    loss_penalty=st.sampled_from([0.0, 1.0, 1.7]),
    inaction_penalty=st.sampled_from([0.0, 0.25]),
    zero_trade_penalty=st.sampled_from([0.0, 10.0]),
)


def assert_observation(observation: dict[str, Tensor], account: dict[str, Any], agent: int, window: int) -> None:
    for name in ("day", "days_left"):
        assert observation[name][0, window].item() == account[name], name
    assert observation["held_days"][agent, window].tolist() == account["held_days"]
    gain = observation["gain"][agent, window].float().numpy()
    np.testing.assert_allclose(gain, account["gain"], rtol=6e-4, atol=1e-6)  # stored in half precision
    for name in ("target", "coefficient"):  # stored in 255 steps, or 127 with a sign
        np.testing.assert_allclose(observation[name][agent, window].numpy(), account[name], atol=0.51, err_msg=name)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data(), random_rules, st.integers(0, 2**32 - 1), st.booleans())
def test_equals_the_plain_reference(data: st.DataObject, rules: TradingRules, seed: int, coarse: bool) -> None:
    rng = np.random.default_rng(seed)
    agents, windows, columns = (data.draw(st.integers(1, most)) for most in (3, 3, 5))
    days = data.draw(st.integers(2, 24), label="days")
    length = data.draw(st.integers(2, days), label="length")
    trading = data.draw(st.integers(1, length), label="trading")
    holes = data.draw(st.sampled_from([0.0, 0.1, 0.5]), label="holes")
    prices = random_prices(rng, days, columns, holes, coarse)
    starts = [int(start) for start in rng.integers(0, days - length + 1, windows)]
    env = TradingEnvironment(prices, rules, agents, windows)
    pairs = [(agent, window) for agent in range(agents) for window in range(windows)]
    accounts = {pair: ReferenceAccount(prices, rules) for pair in pairs}
    observation, _ = env.reset(
        start_idx=starts,
        trading_end_idx=[start + trading for start in starts],
        end_idx=[start + length for start in starts],
    )
    for (agent, window), account in accounts.items():
        start = starts[window]
        assert_observation(observation, account.reset(start, start + trading, start + length), agent, window)
    for _ in range(length - 1):
        action = random_actions(rng, (agents, windows, columns), coarse)
        observation, reward, terminated, truncated, info = env.step(torch.from_numpy(action))
        for (agent, window), account in accounts.items():
            expected = account.step(action[agent, window])
            assert_observation(observation, expected[0], agent, window)
            assert reward[agent, window].item() == pytest.approx(expected[1], rel=1e-6, abs=1e-4)
            assert terminated[agent, window].item() == expected[2]
            assert info["closed"][agent, window].tolist() == expected[3]
        assert not truncated.any()
    for window in range(windows):
        summary = env.get_episode_summary(slice(window, window + 1))
        for agent in range(agents):
            got = {name: value[agent].item() for name, value in summary.items()}
            assert got == pytest.approx(accounts[agent, window].summary, rel=1e-6, abs=2e-4)
    total = env.get_episode_summary()
    for agent in range(agents):
        ours = [accounts[agent, window].summary for window in range(windows)]
        for name in ("trades", "wins", "losses", "unfilled", "closed_target", "days_with_position", "reward"):
            assert total[name][agent].item() == pytest.approx(sum(s[name] for s in ours), rel=1e-4, abs=5e-3), name
        ended = sum(s["wins"] + s["losses"] for s in ours)
        wins = sum(s["wins"] for s in ours)
        assert total["win_rate"][agent].item() == pytest.approx(wins / max(1, ended))


# One workspace for the life of a run

DAYS, COLUMNS, AGENTS, WINDOWS = 60, 4, 3, 2


def workspace(seed: int = 0, **changes: Any) -> TradingEnvironment:
    prices = random_prices(np.random.default_rng(seed), DAYS, COLUMNS, 0.1, coarse=False)
    settings_ = rules(max_opens_per_day=2, max_holding_days=5, inaction_penalty=0.1, **changes)
    return TradingEnvironment(prices, settings_, AGENTS, WINDOWS)


def random_window(rng: np.random.Generator) -> dict[str, list[int]]:
    length = int(rng.integers(2, 30))
    trading = int(rng.integers(1, length + 1))
    starts = [int(start) for start in rng.integers(0, DAYS - length + 1, WINDOWS)]
    return {
        "start_idx": starts,
        "trading_end_idx": [start + trading for start in starts],
        "end_idx": [start + length for start in starts],
    }


def record(
    env: TradingEnvironment,
    window: dict[str, Any],
    seed: int,
    steps: int = DAYS,
    returned: Callable[[list[dict[str, Tensor]]], None] = lambda parts: None,
) -> list[dict[str, Tensor]]:
    """Everything an episode returns, as it was returned; `returned` is called with it at once."""
    rng = np.random.default_rng(seed)
    kept = [env.reset(**window)[0], env.get_episode_summary()]
    returned(kept)
    for _ in range(min(steps, window["end_idx"][0] - window["start_idx"][0] - 1)):
        action = torch.from_numpy(random_actions(rng, (AGENTS, WINDOWS, COLUMNS), coarse=False))
        observation, reward, terminated, truncated, info = env.step(action)
        ends = {"reward": reward, "terminated": terminated, "truncated": truncated, "closed": info["closed"]}
        events = {f"{name}_{field}": values for name in ("fills", "closes") for field, values in named(info[name])}
        events["last_close"] = torch.from_numpy(info["last_close"])
        kept += [observation, ends, events, env.get_episode_summary()]
        returned(kept[-4:])
    return kept


def named(events: NamedTuple) -> list[tuple[str, Tensor]]:
    return [(name, torch.from_numpy(values)) for name, values in events._asdict().items()]


def copied(episode: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    return [{name: value.clone() for name, value in part.items()} for part in episode]


def assert_identical(left: list[dict[str, Tensor]], right: list[dict[str, Tensor]]) -> None:
    """Bit for bit."""
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            assert a[name].dtype == b[name].dtype
            assert torch.equal(a[name], b[name]), name


@both
def test_a_workspace_that_was_reset_is_a_fresh_one(execution: str) -> None:
    rng = np.random.default_rng(1)
    env, trades = workspace(execution=execution), 0
    nbytes = env.nbytes
    for episode in range(10):
        window = random_window(rng)
        # every third episode is broken off
        steps = 3 if episode % 3 == 2 else DAYS
        ours = record(env, window, seed=episode, steps=steps)
        assert all(not value.any() for value in ours[1].values()), "the summary right after reset"
        assert_identical(ours, record(workspace(execution=execution), window, seed=episode, steps=steps))
        trades += int(ours[-1]["trades"].sum())
        assert env.nbytes == nbytes
    assert trades > 50


@both
def test_what_was_returned_is_the_callers(execution: str) -> None:
    """Neither does it change later, nor does writing to it reach the environment."""
    window = random_window(np.random.default_rng(2))
    kept = record(workspace(execution=execution), window, seed=0)
    at_once: list[dict[str, Tensor]] = []

    def take_away(parts: list[dict[str, Tensor]]) -> None:
        at_once.extend(copied(parts))
        for part in parts:
            for value in part.values():
                value.fill_(1)

    record(workspace(execution=execution), window, seed=0, returned=take_away)
    assert_identical(at_once, kept)


def test_nbytes_is_what_is_held() -> None:
    env = TradingEnvironment(flat(2000, 10), rules(), agents=50, windows=6)
    held = {}
    for value in (*vars(env).values(), *vars(env._ledger).values()):
        if isinstance(value, np.ndarray):
            owner = value if value.base is None else value.base
            held[id(owner)] = owner.nbytes
    # views share their owner's memory; scalars and bounds of actions aside
    assert 0.999 * sum(held.values()) <= env.nbytes <= sum(held.values())
    assert env.nbytes == TradingEnvironment.needed_bytes(2000, 10, agents=50, windows=6)
    bare = env.nbytes
    env.record(7)
    env.reset(start_idx=0, end_idx=100)
    assert env.nbytes == bare + env.account.nbytes > bare


def test_what_was_given_may_be_reused() -> None:
    prices = random_prices(np.random.default_rng(0), DAYS, COLUMNS, 0.1, coarse=False)
    window: dict[str, Any] = {"start_idx": 5, "trading_end_idx": 25, "end_idx": 30}
    actions = torch.from_numpy(random_actions(np.random.default_rng(3), (25, AGENTS, WINDOWS, COLUMNS), coarse=False))
    runs = []
    for overwrite in (False, True):
        given, action = prices.copy(), torch.empty_like(actions[0])
        env = TradingEnvironment(given, rules(), AGENTS, WINDOWS)
        if overwrite:
            given.fill(1)
        env.reset(**window)
        run = []
        for step in range(24):
            action.copy_(actions[step])
            observation, reward, *_ = env.step(action)
            run.append({**observation, "reward": reward})
            assert torch.equal(action, actions[step])
            if overwrite:
                action.fill_(9)
        runs.append(run)
    assert_identical(*runs)


# No look-ahead


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    last_known=st.integers(3, 26),
    execution=st.sampled_from(EXECUTIONS),
)
def test_later_prices_change_nothing_earlier(seed: int, last_known: int, execution: str) -> None:
    rng = np.random.default_rng(seed)
    prices = random_prices(rng, 30, COLUMNS, 0.1, coarse=False)
    changed = prices.copy()
    changed[last_known + 1 :] = random_prices(rng, 29 - last_known, COLUMNS, 0.4, coarse=False) * 3
    window = {"start_idx": [2, 2], "trading_end_idx": [22, 22], "end_idx": [28, 28]}
    settings_ = rules(execution=execution, max_opens_per_day=2, max_holding_days=4, inaction_penalty=0.1)
    environments = [TradingEnvironment(which, settings_, AGENTS, WINDOWS) for which in (prices, changed)]
    assert_identical(*(record(env, window, seed, steps=last_known - 2) for env in environments))


@both
def test_the_next_day_does_change_what_it_may(execution: str) -> None:
    prices = flat(6)
    changed = prices.copy()
    changed[2:] = (101, 102, 99, 99)
    known, other = (live(which, rules(execution=execution), {0: {0: (1, 10)}})[2] for which in (prices, changed))
    assert known[1] == other[1]
    assert known[2]["gain"] == [0]
    assert other[2]["gain"] == [pytest.approx(-0.01, rel=1e-3)]


@settings(max_examples=30)
@given(st.integers(0, 1000), st.integers(2, 6), st.booleans(), st.integers(1, 3))
def test_credit_says_which_step_ordered_what_closes(seed: int, holding: int, short: bool, opens: int) -> None:
    rng = np.random.default_rng(seed)
    prices = 100 * np.exp(np.cumsum(0.05 * rng.standard_normal((20, 3, 4)), 0)).astype(np.float32)
    prices[..., 1], prices[..., 2] = prices.max(2), prices.min(2)
    chosen = rules(max_holding_days=holding, allow_short=short, max_opens_per_day=opens, min_target=2.0)
    env = TradingEnvironment(prices, chosen, agents=2, windows=2, credit_orders=True)
    env.reset(start_idx=[0, 5], end_idx=[15, 20])
    opened: dict[int, int] = {}
    step, paid, over = 0, np.zeros(4), False
    while not over:
        action = torch.from_numpy(rng.uniform(env.action_space.low, env.action_space.high, (2, 2, 3, 2)))
        _, reward, terminated, _, info = env.step(action.float())
        opened |= {cell: step for cell in info["fills"].cell.tolist()}
        credit, closes = info["credit"], info["closes"]
        assert (credit.account == closes.cell // 3).all()
        assert (step - credit.steps_ago).tolist() == [opened[cell] for cell in closes.cell.tolist()]
        np.testing.assert_allclose(np.bincount(credit.account, credit.amount, 4), reward.flatten().numpy(), rtol=1e-5)
        assert (credit.steps_ago <= env.credit_steps).all()
        paid += reward.flatten().numpy()
        over, step = bool(terminated.all()), step + 1
    assert paid.any()
