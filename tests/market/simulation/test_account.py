"""The account: money worked out by hand, a plain reference, and the record of one agent among many."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eigen2.errors import UserError
from eigen2.market.simulation.account import TRADE_COLUMNS, Account, AccountRules
from eigen2.market.simulation.environment import CLOSE_REASONS, TradingEnvironment, TradingRules
from eigen2.market.simulation.windows import window_options
from tests.market.simulation.episodes import (
    NAN,
    Orders,
    flat,
    play,
    random_account_rules,
    random_actions,
    random_prices,
    random_rules,
    rules,
)
from tests.market.simulation.reference import ReferenceAccount

DATA = Path(__file__).parents[4] / "shared" / "data"


def account_of(
    prices: np.ndarray, trading: TradingRules, orders: Orders, money: AccountRules | None = None, **window: int
) -> Account:
    """Play one agent's window and return its account."""
    return play(prices, trading, orders, money, **window).env.account


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


def test_a_position_sold_short() -> None:
    prices = flat(5)
    prices[1] = (100, 105, 95, 104)
    prices[2] = (95, 96, 88, 92)
    account = account_of(prices, rules(cost_bps=10, slippage_bps=5, allow_short=True), {0: {0: (-2, 10)}})
    # selling 10,000 / 99.85 = 100.150225 shares brings 10,000; day 1 closes at 104: 10,415.6234 are owed. Buying them
    # back at 90.135 takes 9,027.0406: a profit of 972.9594, 9.729594 % of the stake
    curve = account.equity()
    assert curve["cash"].tolist() == close_to(100_000, 110_000, *[100_972.9594] * 3)
    assert curve["equity"].tolist() == close_to(100_000, 99_584.3766, *[100_972.9594] * 3)
    assert curve["exposure"].tolist() == [0, pytest.approx(10_415.6234), 0, 0, 0]
    (trade,) = account.trades().to_dict("records")
    assert (trade["coefficient"], trade["reason"]) == (-2, "target")
    assert (trade["shares"], trade["profit"]) == (pytest.approx(-100.150225), pytest.approx(972.9594))


def test_an_order_at_the_close_is_filled_on_its_day() -> None:
    prices = flat(4)
    prices[0] = (99, 103, 98, 102)
    account = account_of(prices, rules(execution="close"), {0: {0: (1, 10)}})
    (trade,) = account.trades().to_dict("records")
    assert (trade["entry_day"], trade["entry_price"], trade["exit_day"], trade["reason"]) == (0, 102, 3, "window_end")
    # the first day's row is before the order; on the next day 5,000 x 100/102 are left of the stake
    assert account.equity()["equity"].tolist() == close_to(100_000, *[95_000 + 5_000 * 100 / 102] * 3)


def test_a_stake_is_a_share_of_the_equity_at_the_decision() -> None:
    prices = flat(8, 2)
    prices[2:, 0] = (150, 150, 150, 150)  # gaps to +50 % on day 2: 25,000 become 37,500, the equity 112,500
    orders = {0: {0: (5.0, 10.0)}, 2: {1: (2.0, 10.0)}}
    account = account_of(prices, rules(max_holding_days=3), orders, trading_end_idx=5)
    assert account.trades()["profit"].tolist() == close_to(12_500, 0)
    assert account.trades()["shares"].tolist() == close_to(250, 112.5)  # 10 % of 112,500 at 100


@pytest.mark.parametrize(("leverage", "bought"), [(1.0, (1000, 0, 0)), (1.5, (1000, 500, 0)), (0.4, (400, 0, 0))])
def test_orders_get_what_leverage_leaves_of_the_equity(leverage: float, bought: tuple[float, ...]) -> None:
    money = AccountRules(unit_share=0.5, max_leverage=leverage)
    orders = {0: {0: (2.0, 10.0)}, 1: {1: (2.0, 10.0)}, 2: {2: (2.0, 10.0)}}
    account = account_of(flat(6, 3), rules(), orders, money, trading_end_idx=4)
    assert account.trades()["shares"].tolist() == close_to(*bought)  # each would take 1000
    assert account.equity()["exposure"].max() == pytest.approx(leverage * 100_000)
    assert account.equity()["cash"].min() == pytest.approx((1 - leverage) * 100_000, abs=1e-6)


@pytest.mark.parametrize(
    ("share", "orders", "shares"),
    [
        # 80 % for the highest rank, column 1; the 20 % left for the short sale of column 2; nothing for column 0
        (0.2, {0: {0: (2.0, 10.0), 1: (4.0, 10.0), 2: (-3.0, 10.0)}}, {0: 0, 1: 800, 2: -200}),
        # the cash that a short sale brings leaves no room for more
        (0.5, {0: {0: (-2.0, 10.0)}, 1: {1: (2.0, 10.0)}}, {0: -1000, 1: 0}),
    ],
)
def test_orders_are_served_by_rank_until_nothing_is_left(
    share: float, orders: Orders, shares: dict[int, float]
) -> None:
    trading = rules(max_opens_per_day=3, allow_short=True)
    account = account_of(flat(5, 3), trading, orders, AccountRules(unit_share=share), trading_end_idx=4)
    assert account.trades().set_index("column")["shares"].to_dict() == pytest.approx(shares)


def test_what_does_not_trade_is_marked_at_its_last_close() -> None:
    prices = flat(7)
    prices[1] = (100, 105, 99, 104)
    prices[2:4] = NAN
    prices[4] = (101, 103, 99, 102)
    account = account_of(prices, rules(), {0: {0: (2, 10)}}, trading_end_idx=5)
    assert account.equity()["exposure"].tolist() == close_to(0, 10_400, 10_400, 10_400, 10_200, 10_000, 0)


def test_a_ruined_account_stays_ruined() -> None:
    prices = flat(9, 2)
    prices[2, 0] = (250, 260, 240, 250)  # 100,000 sold short now owe 250,000
    money = AccountRules(unit_share=0.5, max_leverage=3)
    orders = {0: {0: (-2.0, 50.0)}, 3: {1: (1.0, 10.0)}, 4: {1: (-1.0, 10.0)}}
    account = account_of(prices, rules(allow_short=True, max_holding_days=4), orders, money, trading_end_idx=6)
    assert account.equity()["equity"].tolist()[1:4] == close_to(100_000, -50_000, 100_000)
    assert account.ruined.tolist() == [True]
    # the equity is back at 100,000, with room for 200,000 more, but nobody trades with it any more
    assert account.trades().set_index("column")["shares"].to_dict() == {0: pytest.approx(-1000), 1: 0}
    assert account.equity()["exposure"].iloc[-1] == 0


def test_leverage_can_ruin_too() -> None:
    prices = flat(6)
    prices[2:] = (60, 60, 60, 60)
    account = account_of(prices, rules(), {0: {0: (5, 10)}}, AccountRules(unit_share=1, max_leverage=3))
    assert account.equity()["equity"].iloc[-1] == pytest.approx(100_000 - 0.4 * 300_000)
    assert account.ruined.tolist() == [True]


# What is kept


def test_days_and_dates_index_the_curves() -> None:
    env = TradingEnvironment(flat(30), rules(), agents=1, windows=2)
    env.record(0)
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
    assert list(env.account.trades().columns) == ["window", *TRADE_COLUMNS]


def random_episode(env: TradingEnvironment, seed: int, starts: list[int], account: Account | None = None) -> np.ndarray:
    """Play random actions through windows of 20 days; return the rewards, summed over days."""
    rng = np.random.default_rng(seed)
    env.reset(options=window_options(starts, 14, 20))
    if account is not None:
        account.reset(starts, 20, 14)
    rewards = np.zeros((env.agents, env.windows))
    for _ in range(19):
        action = random_actions(rng, (env.agents, env.windows, env.num_columns))
        _, reward, _, _, info = env.step(torch.from_numpy(action))
        rewards += reward.numpy()
        if account is not None:
            account.step(info["fills"], info["closes"], info["last_close"])
    return rewards


def market() -> TradingEnvironment:
    prices = random_prices(np.random.default_rng(0), 60, 5, 0.1, coarse=False)
    return TradingEnvironment(prices, rules(max_opens_per_day=2, max_holding_days=5, allow_short=True), 3, windows=2)


def test_one_agent_of_many_is_recorded_and_nothing_else_changes() -> None:
    env, money = market(), AccountRules(unit_share=0.1)
    rewards = random_episode(env, seed=1, starts=[0, 30])
    everyone = Account(money, env.rules, (3, 2), 5)
    for agent in (2, 0):
        env.record(agent, money)
        np.testing.assert_array_equal(random_episode(env, 1, [0, 30], everyone), rewards)
        own = everyone.equity().query("agent == @agent").drop(columns="agent")
        pd.testing.assert_frame_equal(env.account.equity(), own)
        own = everyone.trades().query("agent == @agent").drop(columns="agent").reset_index(drop=True)
        pd.testing.assert_frame_equal(env.account.trades(), own)
        assert len(own) > 20
        assert own["window"].nunique() == 2


def test_a_reset_clears_the_record_in_the_same_memory() -> None:
    env = market()
    env.record(1)
    random_episode(env, seed=1, starts=[0, 30])
    nbytes, curve, trades = env.account.nbytes, env.account.equity(), env.account.trades()
    kept, memory = (curve.copy(), trades.copy()), (env.account._curves, env.account._trades)
    random_episode(env, seed=2, starts=[10, 35])
    assert not env.account.trades().equals(trades)
    for frame, before in zip((curve, trades), kept, strict=True):  # what was returned is a copy
        pd.testing.assert_frame_equal(frame, before)
    random_episode(env, seed=1, starts=[0, 30])
    pd.testing.assert_frame_equal(env.account.trades(), trades)
    assert env.account._curves is memory[0]
    assert env.account._trades is memory[1]
    assert env.account.nbytes == nbytes
    env.reset(options=window_options([0], 9, 20))
    assert len(env.account.trades()) == 0
    assert env.account.equity()["equity"].tolist() == [100_000] * 2
    assert env.account.nbytes < nbytes


def test_a_reset_ends_ruin() -> None:
    prices = flat(12)
    prices[3:5] = 400
    env = TradingEnvironment(prices, rules(allow_short=True), agents=1)
    env.record(0, AccountRules(unit_share=0.5))
    shares = []
    for start in (0, 6):
        env.reset(options=window_options([start], 1, 6))
        for _ in range(5):
            env.step(torch.tensor([[-2.0, 50.0]])[None, None])
        shares += env.account.trades()["shares"].tolist()
    assert shares == close_to(-1000, -1000)
    assert not env.account.ruined.any()


def test_memory_is_bounded_by_the_columns() -> None:
    sizes = [
        account_of(flat(30, 3), rules(max_opens_per_day=orders), {}, trading_end_idx=20).nbytes for orders in (3, 10**9)
    ]
    assert sizes[0] == sizes[1] < 10_000


def test_only_what_is_recorded_can_be_asked_for() -> None:
    env = market()
    with pytest.raises(RuntimeError, match="no agent is recorded"):
        _ = env.account
    env.reset(options=window_options([0], 9, 20))
    env.record(0)
    with pytest.raises(RuntimeError, match="reset"):  # an account that began in the middle would not add up
        env.step(torch.zeros(3, 2, 5, 2))
    env.record(None)
    with pytest.raises(RuntimeError, match="no agent is recorded"):
        _ = env.account
    for agent in (-1, 3):
        with pytest.raises(UserError, match=f"^recorded agent is {agent}; it must be at least 0 and at most 2$"):
            env.record(agent)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("initial_cash", value) for value in (0.0, -1.0, NAN, float("inf"))),
        *(("unit_share", value) for value in (0.0, 1.1, NAN)),
        *(("max_leverage", value) for value in (0.0, 101.0, NAN)),
    ],
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


@settings(max_examples=24, deadline=None, derandomize=True)
@given(random_rules, random_account_rules, st.integers(0, 2**32 - 1), st.booleans())
def test_equals_the_plain_money(trading: TradingRules, money: AccountRules, seed: int, coarse: bool) -> None:
    rng = np.random.default_rng(seed)
    columns, days, agents, windows = 4, 18, 2, 2
    prices = random_prices(rng, days, columns, 0.15, coarse)
    env = TradingEnvironment(prices, trading, agents, windows)
    account = Account(money, trading, (agents, windows), columns)
    starts, length, trading_length = [0, 3], 15, int(rng.integers(1, 16))
    env.reset(options=window_options(starts, trading_length, length))
    account.reset(starts, length, trading_length)
    plain = {}
    for place in np.ndindex(agents, windows):
        start = starts[place[1]]
        single = ReferenceAccount(prices, trading)
        single.reset(start, start + trading_length, start + length)
        plain[place] = PlainMoney(single, money)
    for _ in range(length - 1):
        action = random_actions(rng, (agents, windows, columns), coarse)
        info = env.step(torch.from_numpy(action))[4]
        account.step(info["fills"], info["closes"], info["last_close"])
        for place, one in plain.items():
            one.step(action[place])
            state = (account.cash[place], account.worth[place], account.exposure[place])
            assert state == pytest.approx((one.cash, one.equity, one.exposure), rel=1e-9, abs=1e-6)
            assert account.ruined[place] == one.ruined
            held = {column: one.shares.get(column, 0) for column in range(columns)}
            assert dict(enumerate(account.shares[place])) == pytest.approx(held, rel=1e-9, abs=1e-9)
    listed = account.trades()
    for place, one in plain.items():
        trades = listed[(listed["agent"] == place[0]) & (listed["window"] == place[1])]
        got = trades[["column", "shares", "profit"]].to_numpy()
        np.testing.assert_allclose(got, np.array(one.trades).reshape(-1, 3), rtol=1e-7, atol=1e-6)
        rest = one.account.trades
        assert trades["reason"].tolist() == [trade[4] for trade in rest]
        assert set(trades["reason"]) <= set(CLOSE_REASONS)
        numbers = trades[["entry_day", "entry_price", "coefficient", "exit_day", "exit_price", "gain_pct", "reward"]]
        expected = [(p.day, p.entry, p.coefficient, day, price, *both) for _, p, day, price, _, *both in rest]
        np.testing.assert_allclose(numbers.to_numpy(), np.array(expected).reshape(-1, 7), rtol=1e-7, atol=1e-7)


@pytest.mark.skipif(not DATA.exists(), reason="needs the market data beside the project")
def test_the_money_adds_up_on_real_prices() -> None:
    table = pd.read_parquet(DATA / "dow30.parquet")
    frames = [table.pivot(index="date", columns="ticker", values=name) for name in ("open", "high", "low", "close")]
    prices = np.stack(frames, axis=2).astype(np.float32)
    env = TradingEnvironment(prices, TradingRules(allow_short=True, max_opens_per_day=2), agents=2, windows=3)
    env.record(1)
    rng = np.random.default_rng(0)
    env.reset(options=window_options([0, 1500, 3000], 125, 145))
    for _ in range(144):
        action = env.native_action(torch.from_numpy(rng.uniform(-1, 1, (2, 3, prices.shape[1], 2)).astype(np.float32)))
        env.step(action)
    curve, trades = env.account.equity(), env.account.trades()
    assert len(trades) == env.get_episode_summary()["trades"][1] > 500
    final = curve.groupby("window")["equity"].last()
    np.testing.assert_allclose(final, 100_000 + trades.groupby("window")["profit"].sum(), rtol=1e-12)
    assert trades["reward"].sum() == pytest.approx(env.get_episode_summary()["reward"][1].item(), rel=1e-6)
    assert (curve["exposure"] <= curve["equity"] * 1.5).all()
