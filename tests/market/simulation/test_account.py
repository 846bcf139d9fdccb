"""The account: money worked out by hand, a plain reference, and what is kept of one agent among many."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eigen2.errors import UserError
from eigen2.market.simulation.account import TRADE, AccountRecord, AccountRules, Accounts
from eigen2.market.simulation.bars import tie_breaks
from eigen2.market.simulation.environment import TradingEnvironment
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.windows import window_options
from tests.market.simulation.episodes import (
    NAN,
    Orders,
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


def account_of(
    prices: np.ndarray, trading: TradingRules, orders: Orders, money: AccountRules | None = None, days: int = 2
) -> AccountRecord:
    """Play one agent and return the record of its account; `days` are those with orders."""
    return play(prices, trading, orders, money or FIVE, days).env.record


def close_to(*values: float) -> Any:
    return pytest.approx(list(values), rel=1e-6)


# By hand. Orders are given at the close of day 0; the account starts with 100,000 and puts 5 % of the equity into a
# coefficient of 1
FIVE = AccountRules(unit_share=0.05)


def test_a_position_bought() -> None:
    prices = flat(5)
    prices[1] = (100, 105, 99, 104)
    prices[2] = (105, 112, 104, 108)
    account = account_of(prices, rules(cost_bps=10, slippage_bps=5), {0: {0: (2, 10)}})
    # 10,000 buy 10,000 / 100.15 = 99.850225 shares, worth 104 each on day 1: 10,384.4234. Sold at 110, of which 0.15 %
    # are lost: 99.850225 x 109.835 = 10,967.0494, a profit of 967.0494, 9.670494 % of the stake
    curve = account.equity()
    assert curve["cash"].tolist() == close_to(100_000, 90_000, *[100_967.0494] * 3)
    assert curve["equity"].tolist() == close_to(100_000, 100_384.4234, *[100_967.0494] * 3)
    assert curve["exposure"].tolist() == [0, pytest.approx(10_384.4234), 0, 0, 0]
    (trade,) = account.trades().to_dict("records")
    assert trade == {
        **{"window": 0, "column": 0, "entry_day": 1, "entry_price": 100},
        **{"exit_day": 2, "exit_price": pytest.approx(110), "reason": "target", "coefficient": 2},
        "shares": pytest.approx(99.850225),
        "gain_pct": pytest.approx(9.670494),
        "reward": pytest.approx(19.340988),
        "profit": pytest.approx(967.0494),
    }


@pytest.mark.parametrize(
    ("leverage", "share", "orders", "shares"),
    [
        # each of three days would take all of the equity
        (1.0, 0.5, {day: {day: (2.0, 10.0)} for day in range(3)}, {0: 1000}),
        (1.5, 0.5, {day: {day: (2.0, 10.0)} for day in range(3)}, {0: 1000, 1: 500}),
        (0.4, 0.5, {day: {day: (2.0, 10.0)} for day in range(3)}, {0: 400}),
        # orders of a day that ask for 180 % of the equity are scaled down to it
        (1.0, 0.2, {0: {0: (2.0, 10.0), 1: (4.0, 10.0), 2: (-3.0, 10.0)}}, {0: 2000 / 9, 1: 4000 / 9, 2: -3000 / 9}),
        # the cash that a short sale brings leaves no room for more
        (1.0, 0.5, {0: {0: (-2.0, 10.0)}, 1: {1: (2.0, 10.0)}}, {0: -1000}),
    ],
)
def test_orders_of_a_day_share_what_is_left(
    leverage: float, share: float, orders: Orders, shares: dict[int, float]
) -> None:
    trading, money = rules(max_opens_per_day=3, allow_short=True), AccountRules(unit_share=share, max_leverage=leverage)
    account = account_of(flat(6, 3), trading, orders, money, days=4)
    assert account.trades().set_index("column")["shares"].to_dict() == pytest.approx(shares)
    assert account.equity()["exposure"].max() == pytest.approx(leverage * 100_000)


def test_a_ruined_account_has_lost_all_though_it_recovers() -> None:
    account = Accounts(AccountRules(), TradingRules(), 2, 1)
    account.ruined[0] = True
    assert account.log_return_pct() == pytest.approx([100 * math.log(1e-6), 0])


def test_a_ruined_account_stays_ruined_until_it_is_reset() -> None:
    prices = flat(18, 2)
    prices[2, 0] = (250, 260, 240, 250)  # 100,000 sold short now owe 250,000
    money = AccountRules(unit_share=0.5, max_leverage=3)
    env = TradingEnvironment(prices, rules(allow_short=True, max_holding_days=4), agents=1, account=money)
    env.record_agent(0)
    orders = {0: (-2.0, 50.0, 0), 3: (1.0, 10.0, 1), 4: (-1.0, 10.0, 1)}
    shares, unfunded = {}, {}
    for start in (0, 9):
        env.reset(options=window_options([start], 6, 9))
        for day in range(8):
            action = torch.zeros(1, 1, 2, 2)
            if day in orders:
                action[0, 0, orders[day][2]] = torch.tensor(orders[day][:2])
            env.step(action)
        assert env.accounts.ruined.tolist() == [start == 0]
        if start == 0:
            assert env.record.equity()["equity"].tolist()[1:4] == close_to(100_000, -50_000, 100_000)
        shares[start] = env.record.trades().groupby("column")["shares"].sum().tolist()
        unfunded[start] = int(env.get_episode_summary()["unfunded"])
    # the equity is back at 100,000, with room for 200,000 more, but nobody trades with it any more
    assert shares == {0: close_to(-1000), 9: close_to(-1000, 500)}
    assert unfunded == {0: 2, 9: 0}


def test_an_account_that_is_full_opens_nothing_and_says_so() -> None:
    """After 99.99 % are taken, a hundredth of a percent is left, of which observations show less."""
    prices, everything = flat(6, 3), {0: {0: (1.0, 10.0)}, 1: {1: (1.0, 10.0)}, 2: {2: (1.0, 10.0)}}
    played = play(prices, rules(max_holding_days=4), everything, AccountRules(unit_share=0.9999), trading_days=4)
    assert played.env.record.trades()["column"].tolist() == [0]
    assert [played.summary[name] for name in ("trades", "unfunded")] == [1, 2]
    smaller = AccountRules(unit_share=0.9999, min_order=1e-6)
    played = play(prices, rules(max_holding_days=4), everything, smaller, trading_days=4)
    assert played.env.record.trades()["shares"].tolist() == close_to(999.9, 0.1)
    assert [played.summary[name] for name in ("trades", "unfunded")] == [2, 1]


def test_no_order_takes_dust() -> None:
    """What costs leave of a full account is little, and several orders of very different sizes share it."""
    rng = np.random.default_rng(0)
    trading = rules(max_opens_per_day=4, max_holding_days=9, cost_bps=15, allow_short=True)
    money = AccountRules(unit_share=0.1)
    env = TradingEnvironment(random_prices(rng, 60, 30, 0.0, coarse=False), trading, agents=40, account=money)
    env.reset()
    stakes = []
    for _ in range(59):
        action = random_actions(rng, (40, 1, 30))
        action[..., 0] *= rng.random(action.shape[:-1]) < 0.15  # so that the day's largest are small ones too
        stakes.append(env.step(torch.from_numpy(action))[-1]["fills"].stake)
    smallest, least = np.concatenate(stakes).min(), money.min_order
    assert least * (1 - 1e-6) <= smallest < 4 * least
    assert env.get_episode_summary()["unfunded"].sum() > 0


@pytest.mark.parametrize(
    ("cash", "coefficient", "close", "opens", "shares", "unfunded"),
    [
        (100_000, 2, 100, 100, [99], 0),  # 10,000 / 100.15 = 99.85
        (100_000, 2, 100, 130, [76], 0),  # 10,000 / 130.195 = 76.8
        (1000, -2, 100, 100, [-1], 0),  # a share sold brings 99.85
        (1000, 2, 100, 100, [], 1),  # a share costs 100.15
        (1000, 2, 90, 101, [], 0),  # it can be paid for at the decision, but not at the fill
        (1000, 2, 101, 90, [], 1),
    ],
)
def test_whole_shares(
    cash: float, coefficient: float, close: float, opens: float, shares: list[int], unfunded: int
) -> None:
    prices = flat(4)
    prices[0, 0, 3], prices[1, 0, 0] = close, opens
    chosen = rules(cost_bps=10, slippage_bps=5, allow_short=True, reward="account", max_target=100)
    played = play(prices, chosen, {0: {0: (coefficient, 90)}}, AccountRules(cash, 0.05, whole_shares=True))
    trades = played.env.record.trades()
    assert trades["shares"].tolist() == shares
    assert played.summary["unfunded"] == unfunded
    assert (trades["reward"] * cash / 10_000).tolist() == pytest.approx(trades["profit"].tolist())


def test_what_is_borrowed_and_what_cash_earns() -> None:
    prices = flat(6)
    prices[2:] = 110
    money = AccountRules(unit_share=0.05, borrow_fee_pct=252)  # 1 % a day
    account = account_of(prices, rules(allow_short=True, max_holding_days=3), {0: {0: (-2, 50)}}, money)
    # 100 shares sold at 100 on day 1 and bought back at 110 on day 3: a loss of 1,000, and 1 % of 10,000 and of 11,000
    assert account.equity()["equity"].tolist() == close_to(1e5, 1e5, 98_900, 98_790, 98_790, 98_790)
    (trade,) = account.trades().to_dict("records")
    assert (trade["profit"], trade["gain_pct"]) == (pytest.approx(-1210), pytest.approx(-12.1))
    # a halt of a year and more costs a fee for each of its days, though observations show no more than 255
    halt = flat(400)
    halt[2:390] = NAN
    cheap = AccountRules(unit_share=0.05, borrow_fee_pct=2.52)  # 0.01 % a day
    chosen = rules(allow_short=True, max_holding_days=3, reward="account")
    played = play(halt, chosen, {0: {0: (-2, 50)}}, cheap)
    assert played.seen[389]["held_days"] == [255]
    (trade,) = played.env.record.trades().to_dict("records")
    assert (trade["exit_day"], trade["gain_pct"]) == (390, pytest.approx(-3.89))
    assert (trade["profit"], trade["reward"]) == (pytest.approx(-389), pytest.approx(-38.9))
    idle = account_of(flat(4), rules(), {}, AccountRules(cash_rate_pct=25.2))  # 0.1 % a day
    assert idle.equity()["equity"].tolist() == close_to(1e5, 100_100, 100_200.1, 100_300.3001)
    geared = AccountRules(unit_share=0.5, max_leverage=2, cash_rate_pct=25.2)
    account = account_of(flat(4), rules(), {0: {0: (4, 50)}}, geared)
    # a night's interest on 100,000, then 200,000 are bought: 99,900 are borrowed
    assert account.equity()["cash"].tolist() == close_to(1e5, -99_900, -99_999.9, 99_900.1001)


def test_the_least_commission_is_paid_for_each_purchase_and_sale() -> None:
    trading = rules(cost_bps=10, allow_short=True, max_holding_days=2)
    money = AccountRules(unit_share=0.01, min_commission=2.5)
    # 10 basis points of 5,000 are 5, of 1,000 1: the small position pays 1.5 more on either side
    account = account_of(flat(5, 2), trading, {0: {0: (5, 50)}, 1: {1: (-1, 50)}}, money)
    trades = account.trades().set_index("column")
    assert trades["profit"].tolist() == [pytest.approx(-10, rel=2e-3), pytest.approx(-5, rel=2e-3)]
    assert trades["gain_pct"].tolist() == pytest.approx([-0.2, -0.2], rel=2e-3)
    assert account.equity()["equity"].iloc[-1] == pytest.approx(100_000 + trades["profit"].sum())


@pytest.mark.parametrize(("traded", "shares", "unfunded"), [(1e5, [50.0], 0), (900, [4.5], 0), (190, [], 1)])
def test_no_order_takes_more_than_its_share_of_the_volume(traded: float, shares: list[float], unfunded: int) -> None:
    money = AccountRules(unit_share=0.05, volume_cap=0.5, min_order=0.001)
    env = TradingEnvironment(
        flat(4), rules(), agents=1, account=money, capacity=money.capacity(np.array([float(traded)]))
    )
    env.record_agent(0)
    env.reset()
    for coefficient in (1.0, 0.0, 0.0):
        env.step(torch.tensor([[[[coefficient, 10.0]]]]))
    assert env.record.trades()["shares"].tolist() == pytest.approx(shares)
    assert env.get_episode_summary()["unfunded"].tolist() == [unfunded]


def test_a_volume_cap_without_volume_is_refused() -> None:
    with pytest.raises(UserError, match=r"^data.account.volume_cap is 0.1, but no investable column has volume on the"):
        AccountRules(volume_cap=0.1).capacity(np.zeros(3))
    assert AccountRules().capacity(np.zeros(3)) is None


def test_a_smallest_order_above_the_share_of_a_unit_is_refused() -> None:
    with pytest.raises(UserError, match=r"min_order is 0.0001; it must be at most data.account.unit_share 5e-05: l"):
        AccountRules(unit_share=5e-5)
    with pytest.raises(UserError, match=r"^data.account.unit_share is 5e-07; it must be at least 1e-06 and at most 1$"):
        AccountRules(unit_share=5e-7)
    AccountRules(unit_share=1e-6, min_order=1e-6)


def test_a_smallest_order_that_never_fits_is_refused() -> None:
    with pytest.raises(UserError, match=r"^data.account.min_order is 0.01: 30 orders a day [^\n]* need 1.46 x the eq"):
        TradingEnvironment(flat(3, 30), rules(max_opens_per_day=90), 1, account=AccountRules(min_order=0.01))


def test_the_score_is_the_log_return_less_its_downside() -> None:
    prices = flat(6)
    prices[1:, 0], prices[2:, 0], prices[3:, 0] = 100, 90, 99  # the fill, a fall of 10 %, a rise of 10 %
    chosen = rules(reward="account", risk_aversion=0.5, max_target=1000, max_holding_days=10, zero_trade_penalty=300)
    env = play(prices, chosen, {0: {0: (5.0, 1000.0)}}, AccountRules(unit_share=0.2)).env
    # all of the equity is in it: ln 0.99 = -1.005034 %; downside |ln 0.9| = 10.536052 %, half of which counts
    assert env.scores(torch.zeros(1, 1, dtype=torch.float64)).tolist() == [close_to(-1.005034 - 5.268026)]
    assert env.scores(torch.full((1, 1), NAN, dtype=torch.float64)).isnan().all(), "the episode failed"
    idle = play(prices, chosen, {}).env
    assert idle.scores(torch.zeros(1, 1, dtype=torch.float64)).tolist() == [close_to(-3)]


# What is kept


def test_days_and_dates_index_the_curves() -> None:
    env = TradingEnvironment(flat(30), rules(), agents=1, windows=2)
    env.record_agent(0)
    env.reset(options=window_options([3, 10], 2, 5))
    for _ in range(2):
        env.step(torch.zeros(1, 2, 1, 2))
    curve = env.record.equity()
    assert list(curve.columns) == ["window", "equity", "cash", "exposure"]
    assert curve["window"].tolist() == [0, 0, 0, 1, 1, 1]
    assert (curve.index.name, curve.index.tolist()) == ("day", [3, 4, 5, 10, 11, 12])
    dated = env.record.equity(np.datetime64("2020-02-27") + np.arange(30))
    assert (dated.index.name, str(dated.index[1].date())) == ("date", "2020-03-02")
    assert len(env.record.trades()) == 0
    assert list(env.record.trades().columns) == list(TRADE.names or ())


def random_episode(env: TradingEnvironment, seed: int, starts: list[int]) -> np.ndarray:
    """Play random actions through windows of 20 days; return the rewards, summed over days."""
    rng = np.random.default_rng(seed)
    env.reset(options=window_options(starts, 14, 20))
    rewards = np.zeros((env.agents, env.windows))
    for _ in range(19):
        rewards += env.step(torch.from_numpy(random_actions(rng, (env.agents, env.windows, env.num_columns))))[
            1
        ].numpy()
    return rewards


def market() -> TradingEnvironment:
    prices = random_prices(np.random.default_rng(0), 60, 5, 0.1, coarse=False)
    return TradingEnvironment(prices, rules(max_opens_per_day=2, max_holding_days=5, allow_short=True), 3, windows=2)


def test_a_record_changes_nothing_and_a_reset_clears_it() -> None:
    env = market()
    rewards = random_episode(env, seed=1, starts=[0, 30])
    env.record_agent(1)
    np.testing.assert_array_equal(random_episode(env, 1, [0, 30]), rewards)
    nbytes, curve, trades = env.record.nbytes, env.record.equity(), env.record.trades()
    kept = (curve.copy(), trades.copy())
    random_episode(env, seed=2, starts=[10, 35])
    assert not env.record.trades().equals(trades)
    for frame, before in zip((curve, trades), kept, strict=True):  # what was returned is a copy
        pd.testing.assert_frame_equal(frame, before)
    random_episode(env, seed=1, starts=[0, 30])
    pd.testing.assert_frame_equal(env.record.trades(), trades)
    pd.testing.assert_frame_equal(env.record.equity(), curve)
    assert env.record.nbytes == nbytes


def test_only_what_is_recorded_can_be_asked_for() -> None:
    env = market()
    with pytest.raises(RuntimeError, match="no agent is recorded"):
        _ = env.record
    env.reset()
    env.record_agent(0)
    with pytest.raises(RuntimeError, match="reset"):  # an account that began in the middle would not add up
        env.step(torch.zeros(3, 2, 5, 2))
    for agent in (-1, 3):
        with pytest.raises(UserError, match=f"^recorded agent is {agent}; it must be at least 0 and at most 2$"):
            env.record_agent(agent)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("initial_cash", 0.0),
        ("initial_cash", float("inf")),
        ("unit_share", 1.1),
        ("max_leverage", NAN),
        ("min_order", 0),
        ("volume_cap", 1.5),
        ("min_commission", -1.0),
        ("cash_rate_pct", -1.0),
        ("borrow_fee_pct", float("inf")),
        ("min_order", 0.02),  # more than the unit_share of the smallest order
    ],
)
def test_rules_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(UserError, match=rf"^data\.account\.{name} is {value}; it must be [^\n]*$"):
        AccountRules(**{name: value})


# The record of one agent among many is the plain reference's


@settings(max_examples=30, deadline=None, derandomize=True)
@given(random_rules, random_account_rules, random_capacities, st.integers(0, 2**32 - 1), st.booleans())
def test_the_record_equals_the_plain_reference(
    trading: TradingRules, money: AccountRules, most: float | None, seed: int, coarse: bool
) -> None:
    rng = np.random.default_rng(seed)
    columns, days, windows, agent = 4, 18, 2, 1
    prices = with_delistings(rng, random_prices(rng, days, columns, 0.15, coarse))
    capacity = None if most is None else rng.uniform(0, 2 * most, columns)
    env = TradingEnvironment(prices, trading, 2, windows, account=money, capacity=capacity)
    env.record_agent(agent)
    options = random_windows(rng, days, windows)
    env.reset(options=options)
    own = (prices, trading, money, tie_breaks(prices), None if capacity is None else capacity.tolist())
    plain = [ReferenceAccount(*own) for _ in range(windows)]
    for account, start in zip(plain, options["starts"], strict=True):
        account.reset(start, start + options["trading_days"], start + options["window_days"])
    curves = []
    for _ in range(options["window_days"] - 1):
        action = random_actions(rng, (2, windows, columns), coarse)
        env.step(torch.from_numpy(action))
        for window, account in enumerate(plain):
            account.step(action[agent, window])
        curves.append([(one.equity, one.cash, one.exposure) for one in plain])
    curve, listed = env.record.equity(), env.record.trades()
    for window, account in enumerate(plain):
        got = curve[curve["window"] == window][["equity", "cash", "exposure"]].to_numpy()[1:]
        np.testing.assert_allclose(got, np.array(curves)[:, window], rtol=1e-9, atol=1e-9 * money.initial_cash)
        # all money is somewhere: what trades and interest made is what the account has more
        trades, last = listed[listed["window"] == window], got[-1]
        interest = money.cash_rate_pct / 25_200 * curve[curve["window"] == window]["cash"][:-1].sum()
        made = money.initial_cash + trades["profit"].sum() + interest
        assert last[:2] == pytest.approx([made, made], rel=1e-9, abs=1e-9 * money.initial_cash)
        rest = account.trades
        assert trades["reason"].tolist() == [trade.reason for trade in rest]
        numbers = trades.drop(columns=["window", "reason"])
        expected = [
            (
                *(trade.column, trade.position.day, trade.position.entry, trade.day, trade.price),
                *(trade.position.coefficient, trade.position.shares, trade.gain_pct, trade.reward, trade.profit),
            )
            for trade in rest
        ]
        np.testing.assert_allclose(numbers.to_numpy(), np.array(expected).reshape(-1, 10), rtol=1e-7, atol=1e-6)
