"""The account: money worked out by hand, a plain reference, and what is kept of one agent among many."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eigen2.errors import UserError
from eigen2.market.simulation.account import TRADE, Account, AccountRules
from eigen2.market.simulation.environment import TradingEnvironment, TradingRules, window_options
from tests.market.simulation.episodes import (
    NAN,
    Orders,
    flat,
    play,
    random_account_rules,
    random_actions,
    random_prices,
    random_rules,
    random_windows,
    rules,
)
from tests.market.simulation.reference import ReferenceAccount


def account_of(
    prices: np.ndarray, trading: TradingRules, orders: Orders, money: AccountRules | None = None, days: int = 2
) -> Account:
    """Play one agent and return its account; `days` are those with orders."""
    return play(prices, trading, orders, money, days).env.account


def close_to(*values: float) -> Any:
    return pytest.approx(list(values), rel=1e-6)


# By hand. Orders are given at the close of day 0; the account starts with 100,000 and puts 5 % of the equity into a
# coefficient of 1


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
        (1.0, 0.5, {day: {day: (2.0, 10.0)} for day in range(3)}, {0: 1000, 1: 0, 2: 0}),
        (1.5, 0.5, {day: {day: (2.0, 10.0)} for day in range(3)}, {0: 1000, 1: 500, 2: 0}),
        (0.4, 0.5, {day: {day: (2.0, 10.0)} for day in range(3)}, {0: 400, 1: 0, 2: 0}),
        # 80 % for the highest rank, column 1; the 20 % left for the short sale of column 2; nothing for column 0
        (1.0, 0.2, {0: {0: (2.0, 10.0), 1: (4.0, 10.0), 2: (-3.0, 10.0)}}, {0: 0, 1: 800, 2: -200}),
        # the cash that a short sale brings leaves no room for more
        (1.0, 0.5, {0: {0: (-2.0, 10.0)}, 1: {1: (2.0, 10.0)}}, {0: -1000, 1: 0}),
    ],
)
def test_orders_are_served_by_rank_until_nothing_is_left(
    leverage: float, share: float, orders: Orders, shares: dict[int, float]
) -> None:
    trading, money = rules(max_opens_per_day=3, allow_short=True), AccountRules(unit_share=share, max_leverage=leverage)
    account = account_of(flat(6, 3), trading, orders, money, days=4)
    assert account.trades().set_index("column")["shares"].to_dict() == pytest.approx(shares)
    assert account.equity()["exposure"].max() == pytest.approx(leverage * 100_000)


def test_a_ruined_account_stays_ruined_until_it_is_reset() -> None:
    prices = flat(18, 2)
    prices[2, 0] = (250, 260, 240, 250)  # 100,000 sold short now owe 250,000
    env = TradingEnvironment(prices, rules(allow_short=True, max_holding_days=4), agents=1)
    env.record(0, AccountRules(unit_share=0.5, max_leverage=3))
    orders = {0: (-2.0, 50.0, 0), 3: (1.0, 10.0, 1), 4: (-1.0, 10.0, 1)}
    shares = {}
    for start in (0, 9):
        env.reset(options=window_options([start], 6, 9))
        for day in range(8):
            action = torch.zeros(1, 1, 2, 2)
            if day in orders:
                action[0, 0, orders[day][2]] = torch.tensor(orders[day][:2])
            env.step(action)
        assert env.account.ruined.tolist() == [start == 0]
        if start == 0:
            assert env.account.equity()["equity"].tolist()[1:4] == close_to(100_000, -50_000, 100_000)
        shares[start] = env.account.trades().groupby("column")["shares"].sum().tolist()
    # the equity is back at 100,000, with room for 200,000 more, but nobody trades with it any more
    assert shares == {0: close_to(-1000, 0), 9: close_to(-1000, 500)}


# What is kept


def test_days_and_dates_index_the_curves() -> None:
    env = TradingEnvironment(flat(30), rules(), agents=1, windows=2)
    env.record(0, AccountRules())
    env.reset(options=window_options([3, 10], 2, 5))
    for _ in range(2):
        env.step(torch.zeros(1, 2, 1, 2))
    curve = env.account.equity()
    assert list(curve.columns) == ["window", "equity", "cash", "exposure"]
    assert curve["window"].tolist() == [0, 0, 0, 1, 1, 1]
    assert (curve.index.name, curve.index.tolist()) == ("day", [3, 4, 5, 10, 11, 12])
    dated = env.account.equity(np.datetime64("2020-02-27") + np.arange(30))
    assert (dated.index.name, str(dated.index[1].date())) == ("date", "2020-03-02")
    assert len(env.account.trades()) == 0
    assert list(env.account.trades().columns) == list(TRADE.names or ())


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
    env.record(1, AccountRules())
    np.testing.assert_array_equal(random_episode(env, 1, [0, 30]), rewards)
    nbytes, curve, trades = env.account.nbytes, env.account.equity(), env.account.trades()
    kept = (curve.copy(), trades.copy())
    random_episode(env, seed=2, starts=[10, 35])
    assert not env.account.trades().equals(trades)
    for frame, before in zip((curve, trades), kept, strict=True):  # what was returned is a copy
        pd.testing.assert_frame_equal(frame, before)
    random_episode(env, seed=1, starts=[0, 30])
    pd.testing.assert_frame_equal(env.account.trades(), trades)
    pd.testing.assert_frame_equal(env.account.equity(), curve)
    assert env.account.nbytes == nbytes


def test_only_what_is_recorded_can_be_asked_for() -> None:
    env = market()
    with pytest.raises(RuntimeError, match="no agent is recorded"):
        _ = env.account
    env.reset()
    env.record(0, AccountRules())
    with pytest.raises(RuntimeError, match="reset"):  # an account that began in the middle would not add up
        env.step(torch.zeros(3, 2, 5, 2))
    for agent in (-1, 3):
        with pytest.raises(UserError, match=f"^recorded agent is {agent}; it must be at least 0 and at most 2$"):
            env.record(agent, AccountRules())


@pytest.mark.parametrize(
    ("name", "value"),
    [("initial_cash", 0.0), ("initial_cash", float("inf")), ("unit_share", 1.1), ("max_leverage", NAN)],
)
def test_rules_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(UserError, match=rf"^data\.account\.{name} is {value}; it must be [^\n]*$"):
        AccountRules(**{name: value})


# The plain reference


class PlainMoney:
    """The money of a `ReferenceAccount`, position by position."""

    def __init__(self, account: ReferenceAccount, rules: AccountRules) -> None:
        self.account, self.rules = account, rules
        self.cash = self.equity = rules.initial_cash
        self.exposure, self.ruined = 0.0, False
        self.shares: dict[int, float] = {}
        self.trades: list[tuple[int, float, float]] = []  # column, shares, profit

    def price(self, quoted: float, buys: bool) -> float:
        """Return what a share costs or brings."""
        trading = self.account.rules
        side = (trading.cost_bps + trading.slippage_bps) / 10_000
        return quoted * (1 + side) if buys else quoted * (1 - side)

    def step(self, action: np.ndarray) -> None:
        """Live through a day with the account."""
        account, held, seen = self.account, set(self.account.positions), len(self.account.trades)
        account.step(action)
        closed = account.trades[seen:]
        opened = {trade[0]: trade[1] for trade in closed} | account.positions
        ranked = sorted((-abs(p.coefficient), column, p) for column, p in opened.items() if column not in held)
        room = self.rules.max_leverage * self.equity - self.exposure
        for size, column, position in ranked:
            stake = 0.0 if self.ruined else max(0.0, min(-size * self.rules.unit_share * self.equity, room))
            room -= stake
            shares = stake / self.price(position.entry, not position.short)
            self.shares[column] = -shares if position.short else shares
            self.cash += stake if position.short else -stake
        for column, position, _, price, *_ in closed:
            shares = self.shares.pop(column)
            before, after = (self.price(p, buys) for p, buys in ((position.entry, shares > 0), (price, shares < 0)))
            self.cash += shares * after
            self.trades.append((column, shares, shares * (after - before)))
        values = [shares * account.last_close(account.day, column) for column, shares in self.shares.items()]
        self.equity, self.exposure = self.cash + sum(values), sum(map(abs, values))
        self.ruined = self.ruined or self.equity <= 0


@settings(max_examples=30, deadline=None, derandomize=True)
@given(random_rules, random_account_rules, st.integers(0, 2**32 - 1), st.booleans())
def test_equals_the_plain_money(trading: TradingRules, money: AccountRules, seed: int, coarse: bool) -> None:
    rng = np.random.default_rng(seed)
    columns, days, windows, agent = 4, 18, 2, 1
    prices = random_prices(rng, days, columns, 0.15, coarse)
    env = TradingEnvironment(prices, trading, 2, windows)
    env.record(agent, money)
    options = random_windows(rng, days, windows)
    env.reset(options=options)
    account, plain = env.account, []
    for start in options["starts"]:
        single = ReferenceAccount(prices, trading)
        single.reset(start, start + options["trading_days"], start + options["window_days"])
        plain.append(PlainMoney(single, money))
    for _ in range(options["window_days"] - 1):
        action = random_actions(rng, (2, windows, columns), coarse)
        env.step(torch.from_numpy(action))
        for window, one in enumerate(plain):
            one.step(action[agent, window])
            state = (account.cash[window], account.worth[window], account.exposure[window])
            assert state == pytest.approx((one.cash, one.equity, one.exposure), rel=1e-9, abs=1e-6)
            assert account.ruined[window] == one.ruined
            held = {column: one.shares.get(column, 0) for column in range(columns)}
            assert dict(enumerate(account.shares[window])) == pytest.approx(held, rel=1e-9, abs=1e-9)
    assert account.equity().groupby("window")["equity"].last().tolist() == account.worth.tolist()
    listed = account.trades()
    for window, one in enumerate(plain):
        trades = listed[listed["window"] == window]
        got = trades[["column", "shares", "profit"]].to_numpy()
        np.testing.assert_allclose(got, np.array(one.trades).reshape(-1, 3), rtol=1e-7, atol=1e-6)
        rest = one.account.trades
        assert trades["reason"].tolist() == [trade[4] for trade in rest]
        numbers = trades[["entry_day", "entry_price", "coefficient", "exit_day", "exit_price", "gain_pct", "reward"]]
        expected = [(p.day, p.entry, p.coefficient, day, price, *both) for _, p, day, price, _, *both in rest]
        np.testing.assert_allclose(numbers.to_numpy(), np.array(expected).reshape(-1, 7), rtol=1e-7, atol=1e-7)
