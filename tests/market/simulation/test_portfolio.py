"""The portfolio environment against a plain account that is rebalanced cell by cell."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eigen2.errors import UserError
from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.bars import tie_breaks
from eigen2.market.simulation.portfolio import PortfolioEnvironment, make_environment
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.windows import window_options
from tests.market.simulation.episodes import EXECUTIONS, NAN, flat, random_prices, random_windows, with_delistings
from tests.market.simulation.reference import ReferenceAccount

FREE = TradingRules(mode="weights", rebalance_days=2, cost_bps=0, slippage_bps=0)

weight_rules = st.builds(
    TradingRules,
    mode=st.just("weights"),
    rebalance_days=st.integers(1, 6),
    concentration=st.sampled_from([0.0, 4.0, 50.0]),
    allow_short=st.booleans(),
    execution=st.sampled_from(EXECUTIONS),
    cost_bps=st.sampled_from([0.0, 12.0, 900.0]),
    risk_aversion=st.sampled_from([0.0, 0.5]),
    delisting_return=st.sampled_from([0.0, -0.3, -1.0]),
)
leverages = st.sampled_from([0.5, 1.0, 3.0])


def plain_weights(scores: list[float], priced: list[bool], rules: TradingRules) -> list[float]:
    """Weigh by a softmax, written with plain numbers."""
    if not any(priced):
        return [0.0] * len(scores)
    sides = []
    for sign in (1, -1):
        parts = [math.exp(sign * rules.concentration * s) * p for s, p in zip(scores, priced, strict=True)]
        sides.append([part / sum(parts) for part in parts])
    return [(a - b) / 2 for a, b in zip(*sides, strict=True)] if rules.allow_short else sides[0]


class PlainAccount:
    """One account in one window, with plain numbers; it finds the equity after costs by bisection."""

    def __init__(self, rules: TradingRules, money: AccountRules, columns: int, most: float | None) -> None:
        self.rules, self.money, self.cash, self.most = rules, money, money.initial_cash, most or math.inf
        self.shares, self.ruined = [0.0] * columns, False

    def equity(self, price: list[float]) -> float:
        return self.cash + sum(s * p for s, p in zip(self.shares, price, strict=True))

    def accrue(self, price: list[float]) -> None:
        owed = sum(max(-s * p, 0) for s, p in zip(self.shares, price, strict=True))
        self.cash += (self.money.cash_rate_pct * self.cash - self.money.borrow_fee_pct * owed) / 100 / 252

    def rebalance(self, weights: list[float], price: list[float], trades: list[bool]) -> None:
        held = [s * p for s, p in zip(self.shares, price, strict=True)]
        leverage, cost, own = self.money.max_leverage, self.rules.side_cost, range(len(held))
        kept = sum(abs(held[c]) for c in own if not trades[c])
        most = 0.0 if self.ruined else max(0.0, self.equity(price) - kept / leverage)

        def change(basis: float) -> list[float]:
            return [leverage * weights[c] * basis - held[c] if trades[c] else 0.0 for c in own]

        low, high = 0.0, most
        for _ in range(200):
            middle = (low + high) / 2
            if middle + cost * sum(map(abs, change(middle))) > most:
                high = middle
            else:
                low = middle
        for c, money in enumerate(change(low)):
            wanted = held[c] + money
            if abs(wanted) > (limit := self.most + abs(held[c]) * (held[c] * wanted > 0)):
                money = math.copysign(limit, wanted) - held[c]
            if trades[c] and self.money.whole_shares:
                count = math.floor(abs(self.shares[c] + money / price[c]) + 1e-6)
                money = math.copysign(count, self.shares[c] + money / price[c]) * price[c] - held[c]
            self.cash -= money + cost * abs(money)
            if abs(money) > 1e-9 * self.money.initial_cash:
                self.cash -= max(0.0, self.money.min_commission - abs(money) * self.rules.cost_bps / 10_000)
            if money:
                self.shares[c] += money / price[c]


def plain_episode(
    prices: np.ndarray,
    rules: TradingRules,
    money: AccountRules,
    options: dict[str, Any],
    window: int,
    scores: Any,
    most: float | None,
) -> tuple[list[float], list[float]]:
    """Return the daily equity and the reward of each step of one account."""
    start, length = options["starts"][window], options["window_days"]
    columns = range(prices.shape[1])
    market = ReferenceAccount(prices, rules, money, tie_breaks(prices))  # which knows delistings
    account, last = PlainAccount(rules, money, len(columns), most), [0.0] * len(columns)

    def closes(day: int) -> list[float]:
        """Return the last closes, 0 before a column's first."""
        known = [(prices[: day + 1, c, 3] > 0).any() for c in columns]
        return [market.last_close(day, c) if known[c] else 0.0 for c in columns]

    equity: list[float] = []
    rewards: list[float] = []
    last = closes(start)
    equity.append(account.equity(last))
    weights: list[float] = []
    for day in range(1, length):
        today, before = prices[start + day], prices[start + day - 1]
        account.accrue(last)
        if day == 1 or ((day - 1) % rules.rebalance_days == 0 and day - 1 < options["trading_days"]):
            priced = [bool(before[c, 3] > 0) for c in columns]
            weights = plain_weights(scores[len(rewards)], priced, rules)
            fill = today[:, 0] if rules.execution == "next_open" else before[:, 3]
            trades = [bool(priced[c] and fill[c] > 0) for c in columns]
            paid = [float(fill[c]) if trades[c] else last[c] for c in columns]
            gone = [market.delisted(start + day - 1, c) and last[c] > 0 for c in columns]
            account.rebalance(weights, paid, [t or g for t, g in zip(trades, gone, strict=True)])
            rewards.append(-_log(equity[-1], money))
        last = closes(start + day)
        if day == length - 1:
            following_bars = [prices[start + day :, c] for c in columns]
            waiting = [[p for bar in bars for p in bar[[0, 3]] if p > 0] for bars in following_bars]
            last = [last[c] if today[c, 3] > 0 or not waiting[c] else float(waiting[c][0]) for c in columns]
            account.rebalance([0.0] * len(columns), last, [price > 0 for price in last])
        equity.append(account.equity(last))
        account.ruined |= equity[-1] <= 0
        following = day % rules.rebalance_days == 0 and day < options["trading_days"]
        if following or day == length - 1:
            rewards[-1] += _log(equity[-1], money)
    return equity, rewards


def _log(equity: float, money: AccountRules) -> float:
    return 10_000 * math.log(max(equity / money.initial_cash, 1e-6))


def play(env: PortfolioEnvironment, options: dict[str, Any], rng: np.random.Generator) -> tuple[Any, Any]:
    """Play scores drawn at random; return scores and rewards (steps, agents, windows, ...)."""
    env.reset(options=options)
    scores, rewards, over = [], [], False
    while not over:
        scores.append(rng.uniform(-1.2, 1.2, (env.agents, env.windows, *env.action_shape)).astype(np.float32))
        _, reward, terminated, truncated, _ = env.step(torch.from_numpy(scores[-1]))
        rewards.append(reward.numpy())
        over = bool(terminated.all())
        assert not truncated.any()
    return np.stack(scores), np.stack(rewards)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    rules=weight_rules,
    leverage=leverages,
    holes=st.sampled_from([0.0, 0.3]),
    whole_shares=st.booleans(),
    rate=st.sampled_from([0.0, 200.0]),
    min_commission=st.sampled_from([0.0, 0.2]),
    most=st.sampled_from([None, 50.0]),
)
def test_accounts_equal_plain_ones(
    seed: int,
    rules: TradingRules,
    leverage: float,
    holes: float,
    whole_shares: bool,
    rate: float,
    min_commission: float,
    most: float | None,
) -> None:
    rng = np.random.default_rng(seed)
    prices = with_delistings(rng, random_prices(rng, 24, 4, holes, coarse=False))
    money = AccountRules(1000, max_leverage=leverage, whole_shares=whole_shares, min_commission=min_commission)
    money, options = replace(money, cash_rate_pct=rate / 4, borrow_fee_pct=rate), random_windows(rng, 24, 2)
    capacity = None if most is None else np.full(4, most)
    env = PortfolioEnvironment(prices, rules, agents=2, windows=2, account=money, capacity=capacity)
    env.record_agent(1)
    scores, rewards = play(env, options, rng)
    fitness = env.scores(torch.from_numpy(rewards).double().sum(0)).numpy()
    curves = env.record.equity().groupby("window")["equity"]
    for window in range(2):
        own = scores[:, 1, window, :, 0].clip(-1, 1).astype(float).tolist()
        equity, expected = plain_episode(prices, rules, money, options, window, own, most)
        kept = curves.get_group(window).to_numpy()
        np.testing.assert_allclose(kept, equity, rtol=1e-9, atol=1e-9 * 1000)
        np.testing.assert_allclose(rewards[:, 1, window], expected, rtol=1e-6, atol=1e-3)
        if (kept > 0).all():
            falls = np.log(kept[1:] / kept[:-1]).clip(max=0)
            score = 100 * np.log(max(kept[-1] / 1000, 1e-6)) - 100 * rules.risk_aversion * np.sqrt((falls**2).sum())
            assert fitness[1, window] == pytest.approx(score, abs=1e-9)
    log_return_pct = env.accounts.log_return_pct().reshape(2, 2)
    rounding = 1e-3 + 1e-6 * np.abs(rewards).sum(0)  # rewards are single precision, and a ruin's is -138,155
    assert (np.abs(rewards.sum(0, dtype=np.float64) - 100 * log_return_pct) <= rounding).all()


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**31), rules=weight_rules, leverage=leverages)
def test_rebalancing_keeps_the_books(seed: int, rules: TradingRules, leverage: float) -> None:
    rng = np.random.default_rng(seed)
    prices = random_prices(rng, 3, 6, 0.0, coarse=False).astype(float)
    env = PortfolioEnvironment(prices, rules, agents=3, windows=1, account=AccountRules(max_leverage=leverage))
    accounts, price = env.accounts, prices[0, None, :, 0]
    weights = rng.uniform(-1 if rules.allow_short else 0, 1, (2, 3, 1, 6))
    weights /= np.abs(weights).sum(-1, keepdims=True)
    all_trade, some = np.ones((1, 6), bool), rng.random((1, 6)) < 0.7
    for target, trades in zip(weights, (all_trade, some), strict=True):
        shares, cash = accounts.shares.reshape(3, 6).copy(), accounts.cash.copy()
        traded, equity = accounts.rebalance(target, price, trades)
        held = accounts.shares.reshape(3, 6) * price
        after = accounts.cash + held.sum(1)
        np.testing.assert_allclose(equity, cash + (shares * price).sum(1), rtol=1e-12)
        np.testing.assert_allclose(equity - after, rules.side_cost * traded, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(traded, np.abs(held - shares * price).sum(1), rtol=1e-9, atol=1e-6)
        assert np.array_equal(accounts.shares.reshape(3, 6)[:, ~trades[0]], shares[:, ~trades[0]])
        if trades.all():
            np.testing.assert_allclose(held, leverage * target[:, 0] * after[:, None], rtol=1e-9, atol=1e-6)
        kept = np.abs(held[:, ~trades[0]]).sum(1)
        assert (np.abs(held).sum(1) <= np.maximum(leverage * after, kept) * (1 + 1e-12)).all()
        if not rules.allow_short:
            assert (held >= 0).all()
    before = accounts.shares.copy(), accounts.cash.copy()
    held = accounts.shares.reshape(3, 1, 6) * price
    same = held / (leverage * (accounts.cash.reshape(3, 1, 1) + held.sum(-1, keepdims=True)))
    traded, equity = accounts.rebalance(same, price, all_trade)
    assert (traded <= 1e-9 * equity).all()  # no change, no cost
    for now, then in zip((accounts.shares, accounts.cash), before, strict=True):
        np.testing.assert_allclose(now, then, rtol=1e-9, atol=1e-6)


def test_a_reversal_is_within_the_volume_cap() -> None:
    """Ten rebalancings build a position of ten times the cap; turned around at once, no more than the cap is short."""
    rules = TradingRules(mode="weights", allow_short=True, cost_bps=0, slippage_bps=0)
    env = PortfolioEnvironment(np.ones((3, 1, 4)), rules, agents=1, windows=1, capacity=np.array([1000.0]))
    price, trades, held = np.ones((1, 1)), np.ones((1, 1), bool), []
    for weight in [1.0] * 10 + [-1.0] * 2:
        env.accounts.rebalance(np.full((1, 1, 1), weight), price, trades)
        held.append(float(env.accounts.shares[0]))
    assert held == pytest.approx([*range(1000, 10_001, 1000), -1000, -2000])


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), rules=weight_rules)
def test_the_order_of_columns_is_irrelevant(seed: int, rules: TradingRules) -> None:
    rng = np.random.default_rng(seed)
    prices, order = random_prices(rng, 20, 5, 0.2, coarse=False), rng.permutation(5)
    rewards: list[list[float]] = []
    for columns in (slice(None), order):
        env, unit = PortfolioEnvironment(prices[:, columns], rules, 1), np.random.default_rng(seed)
        env.reset()
        rewards.append([])
        over = False
        while not over:
            score = torch.from_numpy(unit.uniform(-1, 1, 5).astype(np.float32)[columns])
            _, reward, terminated, _, _ = env.step(score.reshape(1, 1, 5, 1))
            rewards[-1].append(reward.item())
            over = bool(terminated)
    assert rewards[0] == pytest.approx(rewards[1], rel=1e-4, abs=0.05)


def test_known_answer_with_costs_and_a_missing_price() -> None:
    prices = flat(6, 2)
    prices[1:, 0] = 110  # the first column opens 10 % higher on the day of the fill, so nothing is gained
    prices[2:, 1] = 120  # the second gains 20 % once bought
    prices[3:5, 0] = NAN  # and the first cannot be traded at the second rebalancing
    rules = replace(FREE, cost_bps=100.0, concentration=0.0)
    env = PortfolioEnvironment(prices, rules, agents=1, account=AccountRules(initial_cash=1000))
    env.record_agent(0)
    env.reset(options=window_options([0], 5, 6))
    first, reward, *_ = env.step(torch.zeros(1, 1, 2, 1))
    bought = 1000 / 1.01 / 2  # of each
    assert env.accounts.cash[0] == pytest.approx(0, abs=1e-9)
    assert reward.item() == pytest.approx(10_000 * math.log(2.2 * bought / 1000), rel=1e-5)
    assert first["weight"][0, 0].tolist() == pytest.approx([1 / 2.2, 1.2 / 2.2], abs=1e-3)
    assert (first["day"].item(), first["days_left"].item()) == (2, 3)
    _, _, terminated, _, info = env.step(torch.zeros(1, 1, 2, 1))
    # only the second had an open on day 3: half of the equity beside the first would be its target
    assert info["traded"].tolist() == [[False, True]]
    free = 1.2 * bought
    basis = (free - 0.01 * free) / (1 - 0.01 * 0.5)  # basis + cost of selling free - basis / 2 = free
    assert env.accounts.cash[0] == pytest.approx(basis / 2, rel=1e-9)
    assert not terminated
    *_, terminated, _, _ = env.step(torch.zeros(1, 1, 2, 1))
    curve = env.record.equity()
    assert terminated.item()
    assert curve["exposure"].iloc[-1] == 0
    assert curve["equity"].tolist()[:2] == [1000, pytest.approx(1000 / 1.01)]
    assert env.record.traded()[0] > 2 * bought
    assert env.record.trades().empty


def test_a_failed_agent_goes_to_cash_and_leaves_the_others_alone() -> None:
    prices = random_prices(np.random.default_rng(0), 12, 3, 0.0, coarse=False)
    env = PortfolioEnvironment(prices, FREE, agents=2)
    results = []
    for broken in (0.5, NAN):
        env.reset()
        score = torch.tensor([[0.1, 0.2, 0.3], [broken, 0.0, 0.0]]).reshape(2, 1, 3, 1)
        _, reward, *_ = env.step(score)
        results.append(reward)
    assert results[0][0] == results[1][0]
    assert results[1][1] == 0


def test_an_environment_holds_what_it_said() -> None:
    env = PortfolioEnvironment(flat(50, 7), FREE, agents=5, windows=3)
    assert env.nbytes == PortfolioEnvironment.needed_bytes(50, 7, 5, 3)
    bare = env.nbytes
    env.record_agent(0)
    env.reset()
    assert env.nbytes == bare + env.record.nbytes > bare


def test_refusals() -> None:
    with pytest.raises(UserError, match="reward is shaped"):
        TradingRules(mode="weights", reward="shaped")
    dear = TradingRules(mode="weights", cost_bps=1000, slippage_bps=1000)
    with pytest.raises(UserError, match="take 100 % of the equity"):
        make_environment(flat(5), dear, 1, account=AccountRules(max_leverage=5))
    env = PortfolioEnvironment(flat(5), FREE, 1)
    env.reset(options=window_options([0], 2, 3))
    with pytest.raises(ValueError, match="action of shape"):
        env.step(torch.zeros(1, 2, 1, 1))
    env.step(torch.zeros(1, 1, 1, 1))
    with pytest.raises(RuntimeError, match="the episode is over"):
        env.step(torch.zeros(1, 1, 1, 1))
