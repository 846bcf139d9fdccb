"""The environment: episodes by hand, a plain reference, no memory of the past and none of the future."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eigen2.errors import UserError
from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.bars import market_table, tie_breaks
from eigen2.market.simulation.environment import TradingEnvironment, largest_orders
from eigen2.market.simulation.rules import CLOSE_REASONS, TradingRules
from eigen2.market.simulation.windows import window_options
from tests.market.simulation.episodes import (
    EXECUTIONS,
    NAN,
    both,
    flat,
    play,
    random_account_rules,
    random_actions,
    random_capacities,
    random_prices,
    random_rules,
    random_windows,
    rules,
    with_delistings,
)
from tests.market.simulation.reference import ReferenceAccount

NAN_BAR = (NAN, NAN, NAN, NAN)
seeds = st.integers(0, 2**32 - 1)
NOTHING_HELD = {"held_days": [0], "gain": [0], "target": [0]}
COSTS = {"cost_bps": 10, "slippage_bps": 5}

# By hand. An order is given at the close of day 0: `next_open` buys at the open of day 1, `close` at that close


class Case(NamedTuple):
    """One order in a market of flat prices but for some bars, and the one day on which it is closed."""

    bars: dict[int, tuple[float, ...] | float]
    """Bars by day; a single number stands for all four prices of that day and all after it."""
    reason: str
    exit_day: int
    reward: float | dict[str, float]
    """Shaped, coefficient x percent gain; by execution if they differ."""
    order: tuple[float, float] = (2, 10)
    rules: dict[str, Any] | None = None
    days: int = 6
    window: int | None = None  # days of the episode, if not all


CASES = {
    # next_open: bought at 100, aim 110; close: bought at 98, aim 107.8. The high of 112 is above both: sold at the aim
    "high touches the target": Case({0: (99, 99, 97, 98), 2: (105, 112, 104, 108)}, "target", 2, 20),
    # the open of 115 is above 110 and 107.8, so it is the price: 15 %, or 115/98 - 1 = 17.346939 %, times 2
    "open gaps above the target": Case(
        {0: (99, 99, 97, 98), 2: (115, 118, 104, 108)}, "gap", 2, {"next_open": 30, "close": 34.693878}
    ),
    "high just below the target": Case({2: (100, 109.99, 100, 100)}, "window_end", 5, 0),
    # days 1, 2 and 3 are held; sold at day 3's close of 95: -5 %, losses count twice. Day 4 would have doubled it
    "held for all days allowed": Case(
        {2: (99, 99, 98, 98), 3: (97, 98, 94, 95), 4: 200.0}, "holding", 3, -20, rules={"loss_penalty": 2}
    ),
    # it has to be sold on day 3, has no price until day 5, and is sold at that open: -15 %
    "halted when it must be sold": Case({2: NAN, 3: NAN_BAR, 4: NAN_BAR, 5: (85, 99, 80, 98)}, "halted", 5, -30),
    # on day 3 it has a close of 95, and nothing else
    "only the close is known": Case({3: (NAN, NAN, NAN, 95), 4: 200.0}, "holding", 3, -10),
    # it has an open of 90 on day 3, and no close
    "only the open is known": Case({3: (90, NAN, NAN, NAN), 4: 200.0}, "halted", 3, -20),
    # it last closed at 104, on day 1, and the table ends without another price
    "halted to the end": Case({1: (100, 105, 99, 104), 2: NAN}, "halted", 5, 8),
    # it is worth 104 at the end of the window, but cannot be sold before day 4, at 80
    "halted beyond the end": Case(
        {1: (100, 105, 99, 104), 2: NAN_BAR, 3: NAN_BAR, 4: 80.0}, "halted", 3, -40, window=4
    ),
    # 15 bps a side: paid 100.15, received 110 x 0.9985 = 109.835, gain 9.685 / 100.15 = 9.670494 %, times 2
    "costs on both sides": Case({2: (105, 112, 104, 108)}, "target", 2, 19.340988, rules=COSTS),
    # received 100.25 x 0.9985 = 100.099625 for 100.15: -0.0502995 %, which counts three times
    "costs turn a gain into a loss": Case(
        {2: (100, 100.25, 100, 100.25)}, "window_end", 2, -0.301797, days=3, rules={**COSTS, "loss_penalty": 3}
    ),
    "order beyond its range": Case({2: (105, 125, 105, 120)}, "target", 2, 50, order=(100, -40)),
    # Short sales: a coefficient of -1 or less sells at the fill. next_open: at 100, aim 90; close: at 102, aim 91.8
    "low touches the target": Case({0: (99, 103, 97, 102), 2: (95, 96, 88, 92)}, "target", 2, 20, order=(-2, 10)),
    # received 99.85, paid 90 x 1.0015 = 90.135, gain 9.715 / 99.85 = 9.729594 %, times 2
    "a short sale's costs": Case({2: (95, 96, 88, 92)}, "target", 2, 19.459189, order=(-2, 10), rules=COSTS),
    "a short sale loses more than it brought": Case({2: 350.0}, "window_end", 2, -500, order=(-2, 10), days=3),
}


@both
@pytest.mark.parametrize("kind", ["shaped", "account"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_one_order_by_hand(case: Case, kind: str, execution: str) -> None:
    reward = case.reward[execution] if isinstance(case.reward, dict) else case.reward
    prices = flat(case.days)
    for day, bar in case.bars.items():
        prices[slice(day, None) if isinstance(bar, float) else day] = bar
    holding = {"max_holding_days": 3} if case.reason in ("holding", "halted") else {}
    changes = {**holding, **(case.rules or {})}
    chosen = rules(execution=execution, allow_short=case.order[0] < 0, reward=kind, **changes)
    played = play(prices, chosen, {0: {0: case.order}}, days=case.window)
    # a coefficient of 1 takes 1 % of the equity, of which 1 % is a basis point: both kinds are equal
    assert played.earned == ({case.exit_day: pytest.approx(reward, rel=1e-5)} if reward else {})
    assert played.closed == [case.reason]
    won = reward > 0  # no gain counts as a loss
    assert [played.summary[name] for name in ("trades", "wins", "losses")] == [1, won, not won]
    gain = reward / min(abs(case.order[0]), 5) / (1 if won else chosen.loss_penalty)
    assert played.summary["gain_pct"] == pytest.approx(gain, rel=1e-5)
    assert [played.seen[day]["held_days"] for day in range(case.exit_day)] == [[day] for day in range(case.exit_day)]
    assert played.seen[case.exit_day] == NOTHING_HELD


@pytest.mark.parametrize(
    ("silent", "delisting_return", "coefficient", "gain_pct", "reason"),
    [
        (20, -0.3, 2, -16, "delisted"),  # 100 to 120, less 30 % is 84
        (20, -0.3, -2, 16, "delisted"),
        (20, -1, 2, -100, "delisted"),
        (20, 0, 2, 20, "halted"),
        (19, -0.3, 2, 20, "halted"),  # the table may end before the ticker's next row, for which the position waits
    ],
)
def test_a_column_that_stops_trading_for_good(
    silent: int, delisting_return: float, coefficient: float, gain_pct: float, reason: str
) -> None:
    prices = flat(3 + silent)
    prices[2], prices[3:] = 120, NAN
    chosen = rules(delisting_return=delisting_return, allow_short=True, max_holding_days=9)
    played = play(prices, chosen, {0: {0: (coefficient, 50)}})
    assert played.closed == [reason]
    assert played.earned == {9 if reason == "delisted" else len(prices) - 1: pytest.approx(2 * gain_pct)}
    equity = played.env.record.equity()["equity"]
    assert equity[2] == pytest.approx(1e5 * (1 + 0.2 * coefficient / 100))
    assert equity[3:].tolist() == pytest.approx([1e5 * (1 + 0.02 * gain_pct / 100)] * silent)  # at once


@pytest.mark.parametrize(
    ("highest", "closes", "gain_pct"),
    [
        (100.99, 10, 0),  # a deal was announced: the last price is what is paid
        (101.01, 10, -30),
        (100, 9, -30),  # too few closes to tell
    ],
)
def test_a_column_bought_for_cash_keeps_its_last_price(highest: float, closes: int, gain_pct: float) -> None:
    days = 14
    prices = flat(days + 20)
    prices[: days - closes] = NAN_BAR  # no close: the missing ones do not count
    prices[days - 3, 0, 3] = highest
    prices[days:] = NAN
    played = play(prices, rules(max_holding_days=20), {days - 2: {0: (1, 50)}}, trading_days=days)
    assert played.closed == ["delisted"]
    assert played.summary["gain_pct"] == pytest.approx(gain_pct)


@both
@pytest.mark.parametrize(
    ("opens", "short", "coefficients", "held"),
    [
        (1, False, (2, 3, 1.5, 3), [0, 1, 0, 0]),  # the higher, and of two equal ones the lower column
        (9, False, (2, 3, 0.99, 1), [1, 1, 0, 1]),  # below 1 is no order, 1 is one
        (2, False, (8, 5, 6, 99), [1, 1, 0, 0]),  # clipped to 5 first, then all are equal
        (2, False, (NAN, 0.5, 1, 2), [0, 0, 1, 1]),
        (1, True, (3, -2.5, 1.5, -3), [1, 0, 0, 0]),  # by absolute value
        (4, True, (-0.99, 0.99, -1, 1), [0, 0, 1, 1]),
    ],
)
def test_what_a_day_opens(
    execution: str, opens: int, short: bool, coefficients: tuple[float, ...], held: list[int]
) -> None:
    orders = {0: {column: (coefficient, 10.0) for column, coefficient in enumerate(coefficients)}}
    chosen = rules(execution=execution, max_opens_per_day=opens, allow_short=short)
    assert play(flat(4, 4), chosen, orders).seen[1]["held_days"] == held


@both
def test_penalties_for_doing_nothing(execution: str) -> None:
    chosen = rules(execution=execution, inaction_penalty=0.5, zero_trade_penalty=10, max_holding_days=2)
    # five trading days (0 to 4) of 0.5, and 10 once, on the last day
    assert play(flat(8), chosen, {}, trading_days=5).earned == {1: -0.5, 2: -0.5, 3: -0.5, 4: -0.5, 5: -0.5, 7: -10}
    played = play(flat(8), chosen, {1: {0: (1, 10)}}, trading_days=5)
    # idle on day 0; held after the decisions of days 1 and 2; idle after those of days 3 and 4; flat prices earn 0
    assert played.earned == {1: -0.5, 4: -0.5, 5: -0.5}
    assert (played.summary["days_with_position"], played.summary["days_without_position"]) == (2, 3)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("limits", [{}, {"max_target": 1000.0}, {"cost_bps": 1000.0, "slippage_bps": 1000.0}])
def test_no_price_makes_a_number_infinite(limits: dict[str, float]) -> None:
    prices = flat(5, 4)
    prices[:, :2], prices[3:, :2] = 1e-30, 1e35
    prices[:, 2:], prices[3:, 2:] = 3.4e38, 1e-38
    chosen = rules(allow_short=True, max_opens_per_day=4, max_coefficient=1000, loss_penalty=1000, **limits)
    env = TradingEnvironment(prices, chosen, agents=1)
    env.reset(options=window_options([0], 1, 5))
    for _ in range(4):
        action = torch.tensor([[1000.0, 1000.0], [-1000, 50], [-1000, 50], [1000, 50]])[None, None]
        observation, reward, *_ = env.step(action)
        assert torch.isfinite(reward).all()
        assert torch.isfinite(observation["gain"]).all()
    assert int(env.get_episode_summary()["trades"]) == 4
    assert all(torch.isfinite(value).all() for value in env.get_episode_summary().values())


# The interface


@pytest.mark.parametrize("short", [False, True])
def test_actions_of_networks_span_what_is_allowed(short: bool) -> None:
    chosen = rules(max_coefficient=4, min_target=10, max_target=30, allow_short=short)
    unit = torch.tensor([-1.0, 0.0, 0.5, 1.0])[:, None, None].expand(4, 2, 2)
    native = TradingEnvironment(flat(3, 2), chosen, agents=1).native_action(unit)
    coefficients = [-4.0, 0.0, 2.0, 4.0] if short else [0.0, 2.0, 3.0, 4.0]
    torch.testing.assert_close(
        native[:, 0], torch.tensor([coefficients, [10.0, 20.0, 25.0, 30.0]]).T, atol=0, rtol=4e-5
    )


@pytest.mark.parametrize("short", [False, True])
def test_observations_have_the_declared_fields(short: bool) -> None:
    env = TradingEnvironment(flat(6, 3), rules(allow_short=short), agents=4, windows=2)
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


def test_actions_of_any_precision_are_taken() -> None:
    seen = []
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        env = TradingEnvironment(flat(4, 3), rules(max_opens_per_day=2), agents=1)
        env.reset()
        action = torch.tensor([[2.0, 16.0], [0.5, 20.0], [3.0, NAN]], dtype=dtype)[None, None].requires_grad_()
        observation = env.step(action)[0]
        seen.append((observation["held_days"].tolist(), observation["target"].tolist()))
    # in 1/255 of 50: 16 is 81.6, and a target that is not a number is the lowest, 10 or 51
    assert seen == [([[[1, 0, 1]]], [[[82, 0, 51]]])] * 3


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seeds, st.integers(1, 3), st.integers(1, 2), st.integers(1, 9), st.integers(1, 9))
def test_the_largest_orders_are_those_of_a_sort(seed: int, agents: int, windows: int, columns: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    size = rng.choice([0, 0.5, 1, 1.5, 2, 5], (agents, windows, columns)).astype(np.float32)
    draws = rng.integers(0, 3, (windows, columns)).astype(np.int16)
    order = np.lexsort((np.arange(columns) + np.zeros_like(size), -draws + np.zeros_like(size), -size))[..., :count]
    expected = [
        (agent * windows + window) * columns + order[agent, window, rank]
        for rank in range(order.shape[2])
        for agent, window in np.ndindex(agents, windows)
        if size[agent, window, order[agent, window, rank]] >= 1
    ]
    assert largest_orders(size, draws, count).tolist() == expected


def plain_draw(close: float) -> int:
    """Return the upper 15 bits of MurmurHash3's finalizer of a price in single precision."""
    bits = int(np.float32(close).view(np.uint32))
    for factor, shift in ((0x85EBCA6B, 13), (0xC2B2AE35, 16)):
        bits = (bits ^ (bits >> 16)) * factor % 2**32
        bits ^= bits >> shift
    return bits >> 17


def test_draws_are_a_hash_of_the_close_and_favour_no_column() -> None:
    prices = random_prices(np.random.default_rng(3), 4000, 5, 0.1, coarse=False)
    draws, traded = tie_breaks(prices), np.isfinite(prices[..., 3])
    assert (draws[~traded] == -1).all()
    assert draws[:20][traded[:20]].tolist() == [plain_draw(close) for close in prices[:20, :, 3][traded[:20]]]
    np.testing.assert_array_equal(tie_breaks(prices[100:, 2:]), draws[100:, 2:])  # the same in any panel
    first = np.bincount(draws.argmax(1), minlength=5) / len(draws)
    assert np.abs(first - 0.2).max() < 0.03  # 5 standard errors: each column is as often first as any other


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
        assert (env.get_episode_summary()["reward"] == -20 * last).all()
    with pytest.raises(RuntimeError, match="over"):
        env.step(action)
    with pytest.raises(ValueError, match=r"action of shape \(1, 2, 1, 2\) for 2 agents, 2 windows"):
        env.step(action[:1])


@pytest.mark.parametrize(
    ("starts", "trading_days", "window_days", "words"),
    [
        ([-1, 0], 2, 6, r"^starts \[-1, 0\]: give 2, each on day 0 to 4, as a window takes 6 of 10 days$"),
        ([2, 5], 2, 6, "each on day 0 to 4"),
        ([0, 1, 2], 2, 4, "give 2, each on day 0 to 6"),
        ([4, 4], 1, 1, "^windows of 1 days, 1 of them to trade: give 2 to 10 days, 1 or more of them to trade$"),
        ([4, 4], 0, 4, "4 days, 0 of them"),
        ([4, 4], 5, 4, "4 days, 5 of them"),
        ([0, 0], 5, 11, "give 2 to 10 days"),
    ],
)
def test_bad_windows_are_refused(starts: list[int], trading_days: int, window_days: int, words: str) -> None:
    env = TradingEnvironment(flat(10), rules(), agents=1, windows=2)
    with pytest.raises(UserError, match=words):
        env.reset(options=window_options(starts, trading_days, window_days))


def test_a_window_has_no_more_days_than_observations_count() -> None:
    env = TradingEnvironment(flat(32_768), rules(), agents=1)
    assert env.reset(options=window_options([0], 1, 32_767))[0]["days_left"].item() == 32_766
    with pytest.raises(UserError, match="give 2 to 32767 days"):
        env.reset()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("max_coefficient", value) for value in (1.0, float("inf"))),
        *(("max_target", value) for value in (9.9, 1e6)),
        *(("min_target", 0.0), ("max_opens_per_day", 0), ("slippage_bps", NAN), ("loss_penalty", -0.1)),
        *((name, value) for name in ("max_holding_days", "rebalance_days") for value in (0, 251)),
        *(("delisting_return", value) for value in (-1.1, 0.1)),
        *((name, value) for name in ("concentration", "risk_aversion") for value in (-0.1, 1000.1)),
        *((name, -1.0) for name in ("cost_bps", "inaction_penalty", "zero_trade_penalty")),
    ],
)
def test_rules_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"^data\.rules\.{name} is {value}; it must be [^\n]*$".replace("+", r"\+")):
        TradingRules(**{name: value})


# The batched environment is the plain one, for every agent and window


def assert_observation(observation: dict[str, Tensor], account: dict[str, Any], agent: int, window: int) -> None:
    for name in ("day", "days_left"):
        assert observation[name][0, window].item() == account[name], name
    assert observation["held_days"][agent, window].tolist() == account["held_days"]
    gain = observation["gain"][agent, window].float().numpy()
    np.testing.assert_allclose(gain, account["gain"], rtol=6e-4, atol=1e-6)  # stored in half precision
    cash, room = (observation[name][agent, window].item() for name in ("cash", "room"))
    assert cash == pytest.approx(account["cash"], rel=6e-4, abs=1e-6)
    assert account["room"] * (1 - 1e-3) - 1e-6 <= room <= account["room"] * (1 + 1e-12) + 1e-12  # rounded down
    for name in ("target", "coefficient"):  # stored in 255 steps, or 127 with a sign
        np.testing.assert_allclose(observation[name][agent, window].numpy(), account[name], atol=0.51, err_msg=name)


def assert_money(env: TradingEnvironment, index: int, account: ReferenceAccount) -> None:
    ours = tuple(part[index] for part in (env.accounts.cash, env.accounts.equity, env.accounts.exposure))
    plain = (account.cash, account.equity, account.exposure)
    assert ours == pytest.approx(plain, rel=1e-9, abs=1e-9 * account.money.initial_cash)
    assert env.accounts.ruined[index] == account.ruined


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data(), random_rules, random_account_rules, random_capacities, seeds, st.booleans())
def test_equals_the_plain_reference(
    data: st.DataObject, rules: TradingRules, money: AccountRules, most: float | None, seed: int, coarse: bool
) -> None:
    rng = np.random.default_rng(seed)
    agents, windows, columns = (data.draw(st.integers(1, most)) for most in (3, 3, 5))
    days = data.draw(st.integers(2, 24), label="days")
    prices = random_prices(rng, days, columns, data.draw(st.sampled_from([0.0, 0.1, 0.5]), label="holes"), coarse)
    prices = with_delistings(rng, prices)
    options = random_windows(rng, days, windows)
    capacity = None if most is None else rng.uniform(0, 2 * most, columns)
    env = TradingEnvironment(prices, rules, agents, windows, credit_orders=True, account=money, capacity=capacity)
    own = (prices, rules, money, tie_breaks(prices), None if capacity is None else capacity.tolist())
    accounts = {place: ReferenceAccount(*own) for place in np.ndindex(agents, windows)}
    observation, _ = env.reset(options=options)
    for (agent, window), account in accounts.items():
        start = options["starts"][window]
        first = account.reset(start, start + options["trading_days"], start + options["window_days"])
        assert_observation(observation, first, agent, window)
    opened: dict[int, int] = {}
    for step in range(options["window_days"] - 1):
        action = random_actions(rng, (agents, windows, columns), coarse)
        observation, reward, terminated, truncated, info = env.step(torch.from_numpy(action))
        closed = np.zeros((agents, windows, columns), np.bool_)
        closed.reshape(-1)[info["closes"].cell] = True
        trades = []  # of this day
        for (agent, window), account in accounts.items():
            expected = account.step(action[agent, window])
            trades += account.trades[len(account.trades) - sum(expected[3]) :]
            assert_observation(observation, expected[0], agent, window)
            assert reward[agent, window].item() == pytest.approx(expected[1], rel=1e-6, abs=1e-4)
            assert terminated[agent, window].item() == expected[2]
            assert closed[agent, window].tolist() == expected[3]
        assert not truncated.any()
        if env.credit_steps:  # rewards go back to the step that ordered what closes
            opened |= {cell: step for cell in info["fills"].cell.tolist()}
            credit, closes = info["credit"], info["closes"]
            steps_ago = step - np.array([opened[cell] for cell in closes.cell.tolist()], np.int64)
            known = steps_ago <= env.credit_steps  # but for halts, positions are not kept longer
            late = np.isin(
                closes.reason, [CLOSE_REASONS.index(reason) for reason in ("halted", "gap", "delisted", "signal")]
            )
            assert (known | late).all()
            assert (credit.account == closes.cell[known] // columns).all()
            assert (credit.steps_ago == steps_ago[known]).all()
            signalled = closes.reason[known] == CLOSE_REASONS.index("signal")
            assert (credit.amount == closes.reward[known])[~signalled].all()
            kept = np.array([trade.kept_reward for trade in trades])[known]
            np.testing.assert_allclose(credit.amount, kept, rtol=1e-6, atol=1e-4)
        for index, account in enumerate(accounts.values()):
            assert_money(env, index, account)
    returns = torch.tensor([[accounts[agent, w].summary["reward"] for w in range(windows)] for agent in range(agents)])
    scores = [accounts[place].score for place in np.ndindex(agents, windows)]
    assert env.scores(returns.double()).flatten().tolist() == pytest.approx(scores, rel=1e-6, abs=1e-6)
    for window in range(windows):
        summary = env.get_episode_summary(slice(window, window + 1))
        for agent in range(agents):
            got = {name: value[agent].item() for name, value in summary.items()}
            assert got == pytest.approx(accounts[agent, window].summary, rel=1e-6, abs=2e-4)
    total = env.get_episode_summary()
    for agent in range(agents):
        ours = [accounts[agent, window].summary for window in range(windows)]
        for name, values in total.items():
            assert values[agent].item() == pytest.approx(sum(s[name] for s in ours), rel=1e-4, abs=5e-3), name


# One workspace for the life of a run

DAYS, COLUMNS, AGENTS, WINDOWS = 60, 4, 3, 2
Record = list[dict[str, Tensor]]


def workspace(prices: np.ndarray | None = None, chosen: TradingRules | None = None) -> TradingEnvironment:
    if prices is None:
        prices = random_prices(np.random.default_rng(0), DAYS, COLUMNS, 0.1, coarse=False)
    default = rules(max_opens_per_day=2, max_holding_days=5, inaction_penalty=0.1)
    return TradingEnvironment(prices, chosen or default, AGENTS, WINDOWS)


def record(
    env: TradingEnvironment,
    options: dict[str, Any],
    seed: int,
    steps: int = DAYS,
    returned: Callable[[Record], None] = lambda parts: None,
) -> Record:
    """Return everything that an episode of random actions returns; `returned` is called with it at once."""
    actions = random_actions(np.random.default_rng(seed), (DAYS, AGENTS, WINDOWS, COLUMNS))
    kept = [env.reset(options=options)[0], env.get_episode_summary()]
    returned(kept)
    action = torch.zeros(AGENTS, WINDOWS, COLUMNS, 2)
    for step in range(min(steps, options["window_days"] - 1)):
        action.copy_(torch.from_numpy(actions[step]))
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


def test_a_workspace_that_was_reset_is_a_fresh_one() -> None:
    rng, env, trades = np.random.default_rng(1), workspace(), 0
    nbytes = env.nbytes
    for episode in range(6):
        options = random_windows(rng, 30, WINDOWS)
        steps = 3 if episode % 3 == 2 else DAYS  # every third episode is broken off
        ours = record(env, options, episode, steps)
        assert all(not value.any() for value in ours[1].values()), "the summary right after reset"
        assert_identical(ours, record(workspace(), options, episode, steps))
        trades += int(ours[-1]["trades"].sum())
        assert env.nbytes == nbytes
    assert trades > 30


def test_what_was_given_and_returned_is_the_callers() -> None:
    """Neither does what was returned change later, nor does writing to it or to the prices reach the environment."""
    options = random_windows(np.random.default_rng(2), 30, WINDOWS)
    prices = random_prices(np.random.default_rng(0), DAYS, COLUMNS, 0.1, coarse=False)
    kept = record(workspace(prices), options, 0)
    at_once: Record = []

    def take_away(parts: Record) -> None:
        at_once.extend({name: value.clone() for name, value in part.items()} for part in parts)
        for part in parts:
            for value in part.values():
                value.fill_(1)

    env = workspace(prices)
    prices.fill(1)
    record(env, options, 0, returned=take_away)
    assert_identical(at_once, kept)


def test_nbytes_is_what_is_held() -> None:
    env = TradingEnvironment(flat(2000, 10), rules(), agents=50, windows=6)
    held = {}
    for value in (*vars(env).values(), *vars(env.accounts).values()):
        if isinstance(value, np.ndarray):
            owner = value if value.base is None else value.base
            held[id(owner)] = owner.nbytes
    # views share their owner's memory; scalars and bounds of actions aside
    assert 0.999 * sum(held.values()) <= env.nbytes <= sum(held.values())
    assert env.nbytes == TradingEnvironment.needed_bytes(2000, 10, agents=50, windows=6)
    bare = env.nbytes
    env.record_agent(7)
    env.reset(options=window_options([0] * 6, 80, 100))
    assert env.nbytes == bare + env.record.nbytes > bare


@settings(max_examples=16, deadline=None, derandomize=True)
@given(seeds, st.integers(3, 26), st.sampled_from(EXECUTIONS))
def test_later_prices_change_nothing_earlier(seed: int, last_known: int, execution: str) -> None:
    rng = np.random.default_rng(seed)
    prices = random_prices(rng, 30, COLUMNS, 0.1, coarse=False)
    changed = prices.copy()
    changed[last_known + 1 :] = random_prices(rng, 29 - last_known, COLUMNS, 0.4, coarse=False) * 3
    options, chosen = window_options([2, 2], 20, 26), rules(max_opens_per_day=2, execution=execution)
    episodes = [record(workspace(which, chosen), options, seed, steps=last_known - 1) for which in (prices, changed)]
    assert_identical(*(episode[:-4] for episode in episodes))
    assert not torch.equal(*(episode[-4]["gain"] for episode in episodes)) or not episodes[0][-4]["held_days"].any()


@pytest.mark.parametrize("layout", [np.asfortranarray, lambda prices: prices.swapaxes(0, 1).copy().swapaxes(0, 1)])
def test_a_day_is_read_in_one_piece_whatever_the_layout_of_prices(layout: Callable[[np.ndarray], np.ndarray]) -> None:
    """Otherwise every step would copy the whole market."""
    prices = random_prices(np.random.default_rng(0), days=30, columns=5, holes=0.1, coarse=False)
    table = market_table(layout(prices))
    assert table.flags.c_contiguous
    np.testing.assert_array_equal(table, market_table(prices))
