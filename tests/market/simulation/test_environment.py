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
from eigen2.market.simulation.environment import TradingEnvironment, TradingRules, _largest_orders
from eigen2.market.simulation.windows import window_options
from eigen2.market.synthetic.generator import SyntheticMarket
from tests.market.simulation import reference
from tests.market.simulation.episodes import (
    EXECUTIONS,
    NAN,
    both,
    flat,
    play,
    random_actions,
    random_prices,
    random_rules,
    random_windows,
    rules,
)
from tests.market.simulation.reference import ReferenceAccount

NOTHING_HELD = {"held_days": [0], "gain": [0], "target": [0]}

# Hand-computed episodes. An order is given at the close of day 0: `next_open` buys at the open of day 1, `close` at the
# close of day 0.


class Case(NamedTuple):
    """One order in a market of flat prices but for some bars, and the one day on which it is closed."""

    bars: dict[int, tuple[float, ...] | float]
    """Bars by day; a single number stands for all four prices of that day and all after it."""
    reason: str
    exit_day: int
    reward: float | dict[str, float]
    """By execution if they differ; an execution without one is left out."""
    order: tuple[float, float] = (2, 10)
    rules: dict[str, Any] | None = None
    days: int = 6
    window: dict[str, int] | None = None


CASES = {
    # next_open: bought at 100, aim 110; close: bought at 98, aim 107.8. The high of 112 is above both: sold at the aim
    "high touches the target": Case({0: (99, 99, 97, 98), 2: (105, 112, 104, 108)}, "target", 2, 20),
    # the open of 115 is above 110 and 107.8, so it is the price: 15 %, or 115/98 - 1 = 17.346939 %, times 2
    "open gaps above the target": Case(
        {0: (99, 99, 97, 98), 2: (115, 118, 104, 108)}, "gap", 2, {"next_open": 30, "close": 34.693878}
    ),
    "open at the target": Case({2: (110, 115, 109, 111)}, "gap", 2, 20),
    "high at the target": Case({2: (109, 110, 108, 109)}, "target", 2, 20),
    "open above the day's high": Case({2: (115, 105, 99, 104)}, "gap", 2, 30),
    "high just below the target": Case({2: (100, 109.99, 100, 100)}, "window_end", 5, 0),
    # bought at 80, aim 88, high 89
    "target on the day of the fill": Case({1: (80, 89, 75, 76)}, "target", 1, {"next_open": 20}),
    # the high of 150 came before the purchase at the close
    "high before the fill": Case({0: (100, 150, 100, 100)}, "window_end", 5, {"close": 0}),
    # days 1, 2 and 3 are held; sold at day 3's close of 95: -5 %, losses count twice. Day 4 would have doubled it
    "held for all days allowed": Case(
        {2: (99, 99, 98, 98), 3: (97, 98, 94, 95), 4: 200.0}, "holding", 3, -20, rules={"loss_penalty": 2}
    ),
    "held for one day": Case({1: (100, 109, 96, 104)}, "holding", 1, 8, rules={"max_holding_days": 1}),
    # it last closed at 104, on day 1, and is sold at that on day 3; the days without a price count
    "halted when it must be sold": Case({1: (100, 105, 99, 104), 2: NAN}, "halted", 3, 8),
    "halted at the window's end": Case({1: (100, 105, 90, 90), 2: NAN}, "halted", 2, -20, days=3),
    "back from a halt": Case({1: NAN, 2: (120, 130, 110, 115)}, "gap", 2, {"close": 40}),
    "sold at the window's end": Case({2: (103, 104, 102, 103), 3: 200.0}, "window_end", 2, 6, window={"end_idx": 3}),
    "held out on the last day": Case({}, "holding", 2, 0, days=3, rules={"max_holding_days": 2}),
    "target on the last day": Case({2: (100, 112, 100, 100)}, "target", 2, 20, days=3, rules={"max_holding_days": 2}),
    "gap on the last day": Case({2: (111, 112, 100, 100)}, "gap", 2, 22, days=3, rules={"max_holding_days": 2}),
    # 15 bps a side: paid 100.15, received 110 x 0.9985 = 109.835, gain 9.685 / 100.15 = 9.670494 %, times 2
    "costs on both sides": Case(
        {2: (105, 112, 104, 108)}, "target", 2, 19.340988, rules={"cost_bps": 10, "slippage_bps": 5}
    ),
    # received 100.25 x 0.9985 = 100.099625 for 100.15: -0.0502995 %, which counts three times
    "costs turn a gain into a loss": Case(
        {2: (100, 100.25, 100, 100.25)},
        *("window_end", 2, -0.301797),
        days=3,
        rules={"cost_bps": 10, "slippage_bps": 5, "loss_penalty": 3},
    ),
    "a gain without loss penalty": Case({2: 104.0}, "window_end", 2, 8, days=3, rules={"loss_penalty": 3}),
    "coefficient above the largest": Case({2: (105, 125, 105, 120)}, "target", 2, 50, order=(100, 10)),
    "target below the least": Case({2: (105, 125, 105, 120)}, "target", 2, 20, order=(2, -40)),
    "target above the largest": Case({2: (105, 125, 105, 120)}, "window_end", 2, 40, order=(2, 999), days=3),
    # Short sales: a coefficient of -1 or less sells at the fill. next_open: at 100, aim 90; close: at 102, aim 91.8
    "low touches the target": Case({0: (99, 103, 97, 102), 2: (95, 96, 88, 92)}, "target", 2, 20, order=(-2, 10)),
    # 1 - 85/100 = 15 %, 1 - 85/102 = 16.666667 %
    "open gaps below the target": Case(
        {0: (99, 103, 97, 102), 2: (85, 103, 84, 102)},
        *("gap", 2, {"next_open": 30, "close": 33.333333}),
        order=(-2, 10),
    ),
    "open at a short sale's target": Case({2: (90, 95, 85, 94)}, "gap", 2, 20, order=(-2, 10)),
    "low at the target": Case({2: (91, 95, 90, 94)}, "target", 2, 20, order=(-2, 10)),
    "open below the day's low": Case({2: (85, 101, 95, 96)}, "gap", 2, 30, order=(-2, 10)),
    # nor is a high enough that would have been for a position bought
    "low just above the target": Case({2: (100, 120, 90.01, 100)}, "window_end", 5, 0, order=(-2, 10)),
    "a short sale that loses": Case(
        {2: (101, 102, 98, 102), 3: (103, 106, 102, 105), 4: 10.0},
        *("holding", 3, -20),
        order=(-2, 10),
        rules={"loss_penalty": 2},
    ),
    "a halted short sale": Case({1: (100, 105, 95, 96), 2: NAN}, "halted", 3, 8, order=(-2, 10)),
    # received 99.85, paid 90 x 1.0015 = 90.135, gain 9.715 / 99.85 = 9.729594 %, times 2
    "a short sale's costs": Case(
        {2: (95, 96, 88, 92)}, "target", 2, 19.459189, order=(-2, 10), rules={"cost_bps": 10, "slippage_bps": 5}
    ),
    "a short sale loses more than it brought": Case({2: 350.0}, "window_end", 2, -500, order=(-2, 10), days=3),
    "a short sale gains 100 percent at most": Case(
        {2: (0.5, 0.5, 0.01, 0.02)}, "window_end", 2, 199.96, order=(-2, 150), days=3, rules={"max_target": 150}
    ),
}


@both
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_one_order_by_hand(case: Case, execution: str) -> None:
    reward = case.reward if isinstance(case.reward, dict) else dict.fromkeys(EXECUTIONS, case.reward)
    if execution not in reward:
        pytest.skip("the same market says nothing about this execution")
    prices = flat(case.days)
    for day, bar in case.bars.items():
        prices[slice(day, None) if isinstance(bar, float) else day] = bar
    holding = {"max_holding_days": 3} if case.reason in ("holding", "halted") else {}
    chosen = rules(**{"execution": execution, "allow_short": case.order[0] < 0, **holding, **(case.rules or {})})
    played = play(prices, chosen, {0: {0: case.order}}, **{"trading_end_idx": 2, **(case.window or {})})
    expected = {case.exit_day: pytest.approx(reward[execution], rel=1e-5)} if reward[execution] else {}
    assert played.earned == expected
    assert played.closed == {case.reason: 1}
    won = reward[execution] > 0  # no gain counts as a loss
    assert (played.summary["trades"], played.summary.get("wins", 0), played.summary.get("losses", 0)) == (
        1,
        won,
        not won,
    )
    gain = played.earned.get(case.exit_day, 0) / min(abs(case.order[0]), 5) / (1 if won else chosen.loss_penalty)
    assert played.summary.get("gain_pct", 0) == pytest.approx(gain, rel=1e-5)
    assert [played.seen[day]["held_days"] for day in range(case.exit_day)] == [[day] for day in range(case.exit_day)]
    assert played.seen[case.exit_day] == NOTHING_HELD


@both
def test_an_observation_shows_the_open_position(execution: str) -> None:
    for order, closes in (((2, 10), (98, 104, 91)), ((-2, 10), (102, 96, 109))):
        prices = flat(6)
        prices[0, 0, 3] = closes[0]
        prices[1, 0, 3], prices[2] = closes[1], NAN
        prices[3, 0, 3] = closes[2]
        played = play(prices, rules(execution=execution, allow_short=True), {0: {0: order}}, trading_end_idx=5)
        entry, side = (100 if execution == "next_open" else closes[0]), np.sign(order[0])
        for day, close in ((1, closes[1]), (2, closes[1]), (3, closes[2])):
            seen = {"held_days": [day], "gain": [pytest.approx(side * (close / entry - 1), rel=1e-3)], "target": [10]}
            assert played.seen[day] == seen


def test_no_price_on_the_day_of_the_fill_drops_the_order() -> None:
    prices = flat(6, 2)
    prices[1, 0] = NAN
    played = play(prices, rules(), {0: {0: (2, 10), 1: (1, 10)}}, trading_end_idx=4)
    # the order for column 0 is neither filled later nor passed on to column 1
    assert played.summary == {"unfilled": 1, "days_without_position": 4}
    assert all(seen["held_days"] == [0, 0] for seen in played.seen.values())


@both
def test_no_price_at_the_decision_is_no_order(execution: str) -> None:
    prices = flat(4, 2)
    prices[0, 0] = NAN
    played = play(prices, rules(execution=execution), {0: {0: (2, 10), 1: (1, 10)}})
    assert played.seen[1]["held_days"] == [0, 1]
    assert (played.summary["trades"], played.summary.get("unfilled", 0)) == (1, 0)


@both
@pytest.mark.parametrize(
    ("opens", "short", "coefficients", "held"),
    [
        (1, False, (2, 3, 1.5, 3), [0, 1, 0, 0]),  # the higher, and of two equal ones the lower column
        (2, False, (2, 3, 1.5, 3), [0, 1, 0, 1]),
        (2, False, (2, 2, 2, 2), [1, 1, 0, 0]),
        (9, False, (2, 3, 0.99, 1), [1, 1, 0, 1]),  # below 1 is no order, 1 is one
        (2, False, (0.99, 0.5, 1, -7), [0, 0, 1, 0]),
        (2, False, (8, 5, 6, 99), [1, 1, 0, 0]),  # clipped to 5 first, then all are equal
        (2, False, (NAN, 0.5, 1, 2), [0, 0, 1, 1]),
        (1, True, (2, -3, 1.5, 3), [0, 1, 0, 0]),  # by absolute value
        (1, True, (3, -2.5, 1.5, -3), [1, 0, 0, 0]),
        (2, True, (2, -3, 1.5, 2.5), [0, 1, 0, 1]),
        (4, True, (-0.99, 0.99, -1, 1), [0, 0, 1, 1]),
        (2, True, (-8, 5, -6, 99), [1, 1, 0, 0]),
    ],
)
def test_what_a_day_opens(
    execution: str, opens: int, short: bool, coefficients: tuple[float, ...], held: list[int]
) -> None:
    orders = {0: {column: (coefficient, 10.0) for column, coefficient in enumerate(coefficients)}}
    chosen = rules(execution=execution, max_opens_per_day=opens, allow_short=short)
    played = play(flat(4, 4), chosen, orders)
    assert played.seen[1]["held_days"] == held
    assert played.summary["trades"] == sum(held)


@both
def test_a_held_column_is_not_opened_again(execution: str) -> None:
    always = {day: {0: (5.0, 10.0 + 10 * day), 1: (2.0, 20.0)} for day in range(5)}
    played = play(flat(6, 2), rules(execution=execution), always, trading_end_idx=5)
    # column 0 has the higher coefficient and opens on day 0; then it is held, so column 1 opens; then nothing is left
    assert [played.seen[day]["held_days"] for day in range(5)] == [[0, 0], [1, 0], [2, 1], [3, 2], [4, 3]]
    assert played.seen[4]["target"] == [10, 20]
    assert played.summary["trades"] == 2


@both
def test_a_column_can_be_opened_again_on_the_day_it_closed(execution: str) -> None:
    always = {day: {0: (1.0, 10.0)} for day in range(7)}
    played = play(flat(7), rules(execution=execution, max_holding_days=2), always, trading_end_idx=6)
    # sold at the closes of days 2, 4 and 6; ordered anew at those of days 2 and 4
    assert [played.seen[day]["held_days"] for day in range(7)] == [[0], [1], [0], [1], [0], [1], [0]]
    assert played.closed == {"holding": 3}


@both
def test_positions_closing_on_one_day_add_up(execution: str) -> None:
    prices = flat(4, 4)
    prices[2, 0] = (105, 112, 104, 108)
    prices[2, 1] = (130, 131, 129, 130)
    prices[2:, 2] = prices[2:, 3] = (95, 95, 95, 95)
    orders = {0: {0: (2.0, 10.0), 1: (3.0, 20.0), 2: (1.0, 50.0), 3: (-4.0, 50.0)}}
    chosen = rules(execution=execution, max_opens_per_day=4, max_holding_days=2, allow_short=True)
    played = play(prices, chosen, orders)
    # target 10 % x 2, gap 30 % x 3, held out at -5 % x 1 and, sold short, at 5 % x 4
    assert played.earned == {2: pytest.approx(20 + 90 - 5 + 20, rel=1e-5)}
    assert played.closed == {"target": 1, "gap": 1, "holding": 2}
    assert (played.summary["wins"], played.summary["losses"], played.summary["win_rate"]) == (3, 1, 0.75)
    assert played.summary["gain_pct"] == pytest.approx(40, rel=1e-5)


@both
def test_nothing_opens_in_settlement(execution: str) -> None:
    chosen = rules(execution=execution, max_holding_days=4)
    for day, trades in [(2, 1), (3, 0), (4, 0)]:
        assert play(flat(8), chosen, {day: {0: (1, 10)}}, trading_end_idx=3).summary.get("trades", 0) == trades, day
    for day, trades in [(5, 1), (6, 0)]:  # by default it lasts for max_holding_days, in which all run out
        assert play(flat(10), chosen, {day: {0: (1, 10)}}).closed == ({"holding": 1} if trades else {}), day


@both
def test_penalties_for_doing_nothing(execution: str) -> None:
    chosen = rules(execution=execution, inaction_penalty=0.5, zero_trade_penalty=10, max_holding_days=2)
    played = play(flat(8), chosen, {}, trading_end_idx=5)
    # five trading days (0 to 4) of 0.5, and 10 once, on the last day
    assert played.earned == {1: -0.5, 2: -0.5, 3: -0.5, 4: -0.5, 5: -0.5, 7: -10}
    assert [played.summary[name] for name in ("inaction_penalty", "zero_trade_penalty", "reward")] == [2.5, 10, -12.5]
    played = play(flat(8), chosen, {1: {0: (1, 10)}}, trading_end_idx=5)
    # idle on day 0; held after the decisions of days 1 and 2; idle after those of days 3 and 4; flat prices earn 0
    assert played.earned == {1: -0.5, 4: -0.5, 5: -0.5}
    assert (played.summary["days_with_position"], played.summary["days_without_position"]) == (2, 3)
    prices = flat(4)
    prices[0 if execution == "close" else 1] = NAN  # an order that cannot be filled is no trade
    assert play(prices, rules(execution=execution, zero_trade_penalty=10), {0: {0: (1, 10)}}).earned == {3: -10}


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("limits", [{}, {"max_target": 1000.0}, {"cost_bps": 1000.0, "slippage_bps": 1000.0}])
def test_no_price_makes_a_number_infinite(limits: dict[str, float]) -> None:
    prices = flat(5, 4)
    prices[:, :2], prices[3:, :2] = 1e-30, 1e35
    prices[:, 2:], prices[3:, 2:] = 3.4e38, 1e-38
    chosen = rules(allow_short=True, max_opens_per_day=4, max_coefficient=1000, loss_penalty=1000, **limits)
    env = TradingEnvironment(prices, chosen, agents=1)
    env.reset(options={"trading_end_idx": 1})
    for _ in range(4):
        action = torch.tensor([[1000.0, 1000.0], [-1000, 50], [-1000, 50], [1000, 50]])[None, None]
        observation, reward, *_ = env.step(action)
        assert torch.isfinite(reward).all()
        assert torch.isfinite(observation["gain"]).all()
    assert int(env.get_episode_summary()["trades"]) == 4
    assert all(torch.isfinite(value).all() for value in env.get_episode_summary().values())


# The interface


@pytest.mark.parametrize("short", [False, True])
def test_actions_of_networks_span_the_action_space(short: bool) -> None:
    chosen = rules(max_coefficient=4, min_target=10, max_target=30, allow_short=short)
    env = TradingEnvironment(flat(3, 2), chosen, agents=1)
    unit = torch.tensor([-1.0, 0.0, 0.5, 1.0])[:, None, None].expand(4, 2, 2)
    native = env.native_action(unit)
    coefficients = [-4.0, 0.0, 2.0, 4.0] if short else [0.0, 2.0, 3.0, 4.0]
    expected = torch.tensor([coefficients, [10.0, 20.0, 25.0, 30.0]]).T
    torch.testing.assert_close(native[:, 0], expected)
    assert all(env.action_space.contains(action.numpy()) for action in native)
    assert env.action_shape == env.action_space.shape == (2, 2)


def test_observations_have_the_declared_fields() -> None:
    env = TradingEnvironment(flat(6, 3), rules(), agents=4, windows=2)
    first, info = env.reset(options=window_options([0, 2], 2, 4))
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


@pytest.mark.parametrize(("short", "coefficients"), [(True, [-51, 102, -127]), (False, [0, 204, 0])])
def test_observations_hold_coefficients_and_targets_in_steps(short: bool, coefficients: list[int]) -> None:
    env = TradingEnvironment(flat(4, 3), rules(allow_short=short, max_opens_per_day=3), agents=1)
    env.reset()
    action = torch.tensor([[-2.0, 10.0], [4.0, 20.0], [-9.0, NAN]])[None, None]
    observation = env.step(action)[0]
    # in 1/127 of 5: 2 is 50.8, 4 is 101.6; in 1/255 of 50: 10 is 51; a target that is not a number is the lowest
    assert observation["coefficient"].dtype == env.observation_fields["coefficient"].dtype
    assert observation["coefficient"].tolist() == [[coefficients]]
    assert observation["target"].tolist() == [[[51, 102, 51] if short else [0, 102, 0]]]
    panel = build_panel(SyntheticMarket(days=200, columns=3, seed=0).generate(), validation_days=30, holdout_days=10)
    encoder = AverageEncoder(panel, [0, 1, 2], 4, env.rules, window_days=4)
    portfolio = encoder({**observation, "day": observation["day"] + 20})["portfolio"][0, 0]
    torch.testing.assert_close(portfolio[:, 4], torch.tensor(coefficients) / (127 if short else 255))
    torch.testing.assert_close(portfolio[:, 3], torch.tensor([0.2, 0.4, 0.2] if short else [0.0, 0.4, 0.0]))


def test_actions_of_any_precision_are_taken() -> None:
    seen = []
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        env = TradingEnvironment(flat(4, 3), rules(max_opens_per_day=2), agents=1)
        env.reset()
        action = torch.tensor([[2.0, 16.0], [0.5, 20.0], [3.0, 32.0]], dtype=dtype)[None, None].requires_grad_()
        seen.append(env.step(action)[0]["held_days"].tolist())
    assert seen == [[[[1, 0, 1]]]] * 3


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 9), st.integers(1, 9))
def test_the_largest_orders_are_those_of_a_stable_sort(seed: int, accounts: int, columns: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    size = rng.choice([0, 0.5, 1, 1.5, 2, 5], (accounts, columns)).astype(np.float32)
    order = np.argsort(-size, axis=1, kind="stable")[:, :count]
    expected = [
        account * columns + order[account, rank]
        for rank in range(order.shape[1])
        for account in range(accounts)
        if size[account, order[account, rank]] >= 1
    ]
    assert _largest_orders(size, count).tolist() == expected


def test_an_episode_is_over_when_it_says_so() -> None:
    env = TradingEnvironment(flat(6), rules(zero_trade_penalty=10), agents=2, windows=2)
    action = torch.zeros(2, 2, 1, 2)
    with pytest.raises(RuntimeError, match="reset"):
        env.step(action)
    env.reset(options=window_options([0, 1], 1, 4))
    for last in (False, False, True):
        _, _, terminated, truncated, _ = env.step(action)
        assert (terminated == last).all()
        assert not truncated.any()
        assert (env.get_episode_summary()["zero_trade_penalty"] == 20 * last).all()
    with pytest.raises(RuntimeError, match="over"):
        env.step(action)
    with pytest.raises(ValueError, match=r"action of shape \(1, 2, 1, 2\) for 2 agents, 2 windows"):
        env.step(action[:1])


@pytest.mark.parametrize(
    ("window", "message"),
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
def test_bad_windows_are_refused(window: dict[str, Any], message: str) -> None:
    env = TradingEnvironment(flat(10), rules(), agents=1, windows=2)
    with pytest.raises(UserError, match=message) as error:
        env.reset(options=window)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("max_coefficient", value) for value in (1.0, float("inf"))),
        *(("max_target", value) for value in (9.9, 1e6, float("inf"))),
        ("min_target", 0.0),
        ("max_opens_per_day", 0),
        *(("max_holding_days", value) for value in (0, 251)),
        *(("cost_bps", value) for value in (-1.0, float("inf"))),
        ("slippage_bps", NAN),
        ("loss_penalty", -0.1),
        *((name, v) for name in ("inaction_penalty", "zero_trade_penalty") for v in (-1.0, float("inf"))),
    ],
)
def test_rules_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"^data\.rules\.{name} is {value}; it must be [^\n]*$".replace("+", r"\+")):
        TradingRules(**{name: value})


# The batched environment is the plain one, for every agent and window


def test_the_reference_is_short_enough_to_be_read() -> None:
    source = Path(reference.__file__).read_text()
    prose = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr)]
    prose = [node for node in prose if isinstance(node.value, ast.Constant)]
    skipped = {line for node in prose for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    lines = [line.strip() for number, line in enumerate(source.splitlines(), 1) if number not in skipped]
    assert sum(1 for line in lines if line and not line.startswith("#")) <= 120


def assert_observation(observation: dict[str, Tensor], account: dict[str, Any], agent: int, window: int) -> None:
    for name in ("day", "days_left"):
        assert observation[name][0, window].item() == account[name], name
    assert observation["held_days"][agent, window].tolist() == account["held_days"]
    gain = observation["gain"][agent, window].float().numpy()
    np.testing.assert_allclose(gain, account["gain"], rtol=6e-4, atol=1e-6)  # stored in half precision
    for name in ("target", "coefficient"):  # stored in 255 steps, or 127 with a sign
        np.testing.assert_allclose(observation[name][agent, window].numpy(), account[name], atol=0.51, err_msg=name)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.data(), random_rules, st.integers(0, 2**32 - 1), st.booleans())
def test_equals_the_plain_reference(data: st.DataObject, rules: TradingRules, seed: int, coarse: bool) -> None:
    rng = np.random.default_rng(seed)
    agents, windows, columns = (data.draw(st.integers(1, most)) for most in (3, 3, 5))
    days = data.draw(st.integers(2, 24), label="days")
    prices = random_prices(rng, days, columns, data.draw(st.sampled_from([0.0, 0.1, 0.5]), label="holes"), coarse)
    options = random_windows(rng, days, windows)
    env = TradingEnvironment(prices, rules, agents, windows)
    accounts = {place: ReferenceAccount(prices, rules) for place in np.ndindex(agents, windows)}
    observation, _ = env.reset(options=options)
    bounds = list(zip(options["start_idx"], options["trading_end_idx"], options["end_idx"], strict=True))
    for (agent, window), account in accounts.items():
        assert_observation(observation, account.reset(*bounds[window]), agent, window)
    for _ in range(bounds[0][2] - bounds[0][0] - 1):
        action = random_actions(rng, (agents, windows, columns), coarse)
        observation, reward, terminated, truncated, info = env.step(torch.from_numpy(action))
        closed = np.zeros((agents, windows, columns), np.bool_)
        closed.reshape(-1)[info["closes"].cell] = True
        for (agent, window), account in accounts.items():
            expected = account.step(action[agent, window])
            assert_observation(observation, expected[0], agent, window)
            assert reward[agent, window].item() == pytest.approx(expected[1], rel=1e-6, abs=1e-4)
            assert terminated[agent, window].item() == expected[2]
            assert closed[agent, window].tolist() == expected[3]
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
        ended, wins = sum(s["wins"] + s["losses"] for s in ours), sum(s["wins"] for s in ours)
        assert total["win_rate"][agent].item() == pytest.approx(wins / max(1, ended))


# One workspace for the life of a run

DAYS, COLUMNS, AGENTS, WINDOWS = 60, 4, 3, 2
Record = list[dict[str, Tensor]]


def workspace(prices: np.ndarray | None = None, **changes: Any) -> TradingEnvironment:
    if prices is None:
        prices = random_prices(np.random.default_rng(0), DAYS, COLUMNS, 0.1, coarse=False)
    chosen = rules(max_opens_per_day=2, max_holding_days=5, inaction_penalty=0.1, **changes)
    return TradingEnvironment(prices, chosen, AGENTS, WINDOWS)


def record(
    env: TradingEnvironment,
    options: dict[str, Any],
    seed: int,
    steps: int = DAYS,
    returned: Callable[[Record], None] = lambda parts: None,
) -> Record:
    """Return everything that an episode returns; `returned` is called with it at once."""
    rng = np.random.default_rng(seed)
    kept = [env.reset(options=options)[0], env.get_episode_summary()]
    returned(kept)
    action = torch.zeros(AGENTS, WINDOWS, COLUMNS, 2)
    for _ in range(min(steps, options["end_idx"][0] - options["start_idx"][0] - 1)):
        action.copy_(torch.from_numpy(random_actions(rng, (AGENTS, WINDOWS, COLUMNS))))
        observation, reward, terminated, truncated, info = env.step(action)
        action.fill_(9)  # what was given may be used again
        ends = {"reward": reward, "terminated": terminated, "truncated": truncated}
        events = {
            f"{name}_{field}": torch.from_numpy(values)
            for name in ("fills", "closes")
            for field, values in info[name]._asdict().items()
        }
        events["last_close"] = torch.from_numpy(info["last_close"])
        kept += [observation, ends, events, env.get_episode_summary()]
        returned(kept[-4:])
    return kept


def assert_identical(left: Record, right: Record) -> None:
    """Compare bit for bit."""
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
    for episode in range(6):
        options = random_windows(rng, 30, WINDOWS)
        steps = 3 if episode % 3 == 2 else DAYS  # every third episode is broken off
        ours = record(env, options, seed=episode, steps=steps)
        assert all(not value.any() for value in ours[1].values()), "the summary right after reset"
        assert_identical(ours, record(workspace(execution=execution), options, seed=episode, steps=steps))
        trades += int(ours[-1]["trades"].sum())
        assert env.nbytes == nbytes
    assert trades > 30


@both
def test_what_was_given_and_returned_is_the_callers(execution: str) -> None:
    """Neither does what was returned change later, nor does writing to it or to the prices reach the environment."""
    options = random_windows(np.random.default_rng(2), 30, WINDOWS)
    prices = random_prices(np.random.default_rng(0), DAYS, COLUMNS, 0.1, coarse=False)
    kept = record(workspace(prices, execution=execution), options, seed=0)
    at_once: Record = []

    def take_away(parts: Record) -> None:
        at_once.extend({name: value.clone() for name, value in part.items()} for part in parts)
        for part in parts:
            for value in part.values():
                value.fill_(1)

    env = workspace(prices, execution=execution)
    prices.fill(1)
    record(env, options, seed=0, returned=take_away)
    assert_identical(at_once, kept)


def test_nbytes_is_what_is_held() -> None:
    env = TradingEnvironment(flat(2000, 10), rules(), agents=50, windows=6)
    held = {}
    for value in (*vars(env).values(), *vars(env._statistics).values()):
        if isinstance(value, np.ndarray):
            owner = value if value.base is None else value.base
            held[id(owner)] = owner.nbytes
    # views share their owner's memory; scalars and bounds of actions aside
    assert 0.999 * sum(held.values()) <= env.nbytes <= sum(held.values())
    assert env.nbytes == TradingEnvironment.needed_bytes(2000, 10, agents=50, windows=6)
    bare = env.nbytes
    env.record(7)
    env.reset(options={"start_idx": 0, "end_idx": 100})
    assert env.nbytes == bare + env.account.nbytes > bare


# No look-ahead


@settings(max_examples=24, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(3, 26), st.sampled_from(EXECUTIONS))
def test_later_prices_change_nothing_earlier(seed: int, last_known: int, execution: str) -> None:
    rng = np.random.default_rng(seed)
    prices = random_prices(rng, 30, COLUMNS, 0.1, coarse=False)
    changed = prices.copy()
    changed[last_known + 1 :] = random_prices(rng, 29 - last_known, COLUMNS, 0.4, coarse=False) * 3
    options = window_options([2, 2], 20, 26)
    environments = [workspace(which, execution=execution) for which in (prices, changed)]
    assert_identical(*(record(env, options, seed, steps=last_known - 2) for env in environments))


@both
def test_the_next_day_does_change_what_it_may(execution: str) -> None:
    prices = flat(6)
    changed = prices.copy()
    changed[2:] = (101, 102, 99, 99)
    known, other = (play(which, rules(execution=execution), {0: {0: (1, 10)}}).seen for which in (prices, changed))
    assert known[1] == other[1]
    assert known[2]["gain"] == [0]
    assert other[2]["gain"] == [pytest.approx(-0.01, rel=1e-3)]


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(0, 1000), st.integers(2, 6), st.booleans(), st.integers(1, 3))
def test_credit_names_the_step_that_ordered_what_closes(seed: int, holding: int, short: bool, opens: int) -> None:
    rng = np.random.default_rng(seed)
    prices = random_prices(rng, 20, 3, 0, coarse=False)
    chosen = rules(max_holding_days=holding, allow_short=short, max_opens_per_day=opens, min_target=2.0)
    env = TradingEnvironment(prices, chosen, agents=2, windows=2, credit_orders=True)
    env.reset(options={"start_idx": [0, 5], "end_idx": [15, 20]})
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
