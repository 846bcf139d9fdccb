"""What holds for all markets and actions: money is conserved, no column or currency is special, costs only cost."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eigen2.market.simulation.account import Account, AccountRules
from eigen2.market.simulation.environment import TradingEnvironment, TradingRules
from eigen2.market.simulation.episode_statistics import Closes, Fills
from eigen2.market.simulation.windows import window_options
from tests.market.simulation.episodes import NAN, random_account_rules, random_actions, random_prices, random_rules
from tests.market.simulation.reference import ReferenceAccount

AGENTS, WINDOWS, COLUMNS, DAYS, LENGTH = 2, 2, 5, 22, 18
STARTS = [0, 4]
many = settings(max_examples=10, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)


def market(seed: int, coarse: bool = False) -> np.ndarray:
    """Return prices with holes, a column that is halted for days and one that is delisted for good."""
    rng = np.random.default_rng(seed)
    prices = random_prices(rng, DAYS, COLUMNS, float(rng.choice([0, 0.1, 0.3])), coarse)
    first, days = int(rng.integers(0, DAYS)), int(rng.integers(0, 8))
    prices[first : first + days, 0] = NAN
    prices[int(rng.integers(4, DAYS)) :, 1] = NAN
    return prices


def actions(seed: int) -> np.ndarray:
    """Return (days, agents, windows, columns, 2), no two coefficients of a day alike."""
    return random_actions(np.random.default_rng(seed), (LENGTH - 1, AGENTS, WINDOWS, COLUMNS))


class Episode:
    """Random actions in every account, and all that came of them.

    Attributes:
        observations: by day, from the first.
        rewards: (days, agents, windows).
        events: each day's fills, closes and last closes.
        summary: the environment's, by agent.
        account: told of every day.
    """

    def __init__(
        self, prices: np.ndarray, rules: TradingRules, given: np.ndarray, money: AccountRules | None = None
    ) -> None:
        env = TradingEnvironment(prices, rules, AGENTS, WINDOWS)
        trading = LENGTH - 4
        self.window = trading, LENGTH
        self.account = Account(money or AccountRules(), rules, (AGENTS, WINDOWS), prices.shape[1])
        self.account.reset(STARTS, LENGTH, trading)
        observation, _ = env.reset(options=window_options(STARTS, trading, LENGTH))
        self.observations, rewards = [observation], []
        self.events: list[tuple[Fills, Closes, np.ndarray]] = []
        for action in given:
            observation, reward, *_, info = env.step(torch.from_numpy(action.copy()))
            self.observations.append(observation)
            rewards.append(reward.numpy())
            self.events.append((info["fills"], info["closes"], info["last_close"]))
            self.live(*self.events[-1])
        self.rewards = np.stack(rewards)
        self.summary = {name: value.numpy() for name, value in env.get_episode_summary().items()}

    def live(self, fills: Fills, closes: Closes, last_close: np.ndarray) -> None:
        self.account.step(fills, closes, last_close)

    @property
    def trades(self) -> pd.DataFrame:
        return self.account.trades()


def last_valid_close(prices: np.ndarray, day: int, column: int) -> float:
    closes = prices[: day + 1, column, 3]
    return float(closes[np.isfinite(closes)][-1])


class Audited(Episode):
    """An episode whose books are checked every evening."""

    def __init__(self, prices: np.ndarray, *rest: Any) -> None:
        self.prices, self.day = prices, 0
        super().__init__(prices, *rest)

    def live(self, fills: Fills, closes: Closes, last_close: np.ndarray) -> None:
        account = self.account
        super().live(fills, closes, last_close)
        self.day += 1
        for place in np.ndindex(AGENTS, WINDOWS):
            held = np.flatnonzero(account.shares[place])
            day = STARTS[place[1]] + self.day
            values = [account.shares[place][column] * last_valid_close(self.prices, day, column) for column in held]
            scale = account.cash[place] + sum(map(abs, values))
            assert account.cash[place] + sum(values) == pytest.approx(account.worth[place], rel=1e-9, abs=1e-9 * scale)
            assert sum(map(abs, values)) == pytest.approx(account.exposure[place], rel=1e-9)


@many
@given(seeds, random_rules, random_account_rules, st.booleans())
def test_cash_and_positions_are_the_equity_every_evening(
    seed: int, rules: TradingRules, money: AccountRules, coarse: bool
) -> None:
    episode = Audited(market(seed, coarse), rules, actions(seed), money)
    account, trades = episode.account, episode.trades
    # nothing is held any more, and all that was gained or lost is in the list of trades
    assert not account.shares.any()
    assert not account.exposure.any()
    profit = np.zeros((AGENTS, WINDOWS))
    np.add.at(profit, (trades["agent"], trades["window"]), trades["profit"])
    turnover = money.initial_cash + (trades["shares"].abs() * trades[["entry_price", "exit_price"]].max(axis=1)).sum()
    np.testing.assert_allclose(account.cash, money.initial_cash + profit, rtol=1e-9, atol=1e-12 * turnover)
    assert (account.worth == account.cash).all()
    last = account.equity().groupby(["agent", "window"])["equity"].last().to_numpy()
    assert (last == account.worth.reshape(-1)).all()
    if money.max_leverage <= 1 and not rules.allow_short:
        assert (account.equity()["cash"] >= -1e-9 * money.initial_cash).all()
        assert not account.ruined.any()


@many
@given(seeds, random_rules, random_account_rules)
def test_a_stake_is_what_its_coefficient_and_leverage_allow(
    seed: int, rules: TradingRules, money: AccountRules
) -> None:
    episode = Episode(market(seed), rules, actions(seed), money)
    trades = episode.trades.assign(decided=lambda t: t["entry_day"] - (rules.execution == "next_open"))
    curve = episode.account.equity().set_index(["agent", "window"], append=True)
    then = curve.loc[pd.MultiIndex.from_frame(trades[["decided", "agent", "window"]])].reset_index(drop=True)
    stake = trades["shares"].abs() * trades["entry_price"] * (1 + np.sign(trades["coefficient"]) * rules.side_cost)
    assert (trades["shares"] * np.sign(trades["coefficient"]) >= 0).all()
    most = trades["coefficient"].abs() * money.unit_share * then["equity"].clip(lower=0)
    assert (stake <= most * (1 + 1e-9)).all()
    together = stake.groupby([trades[name] for name in ("agent", "window", "decided")]).transform("sum")
    room = (money.max_leverage * then["equity"] - then["exposure"]).clip(lower=0)
    assert (together <= room * (1 + 1e-9)).all()
    # nobody lends to the ruined; any other order that got less than its share got all that was left
    ruins = curve[curve["equity"] <= 0].reset_index().groupby(["agent", "window"])["day"].min()
    ruin = pd.MultiIndex.from_frame(trades[["agent", "window"]]).map(ruins.to_dict().get)
    ruined = trades["decided"] >= pd.Series(ruin, dtype=float)
    assert not stake[ruined].any()
    scaled = (stake < most * (1 - 1e-9)) & ~ruined
    np.testing.assert_allclose(together[scaled], room[scaled], rtol=1e-9, atol=1e-9 * money.initial_cash)
    np.testing.assert_allclose(trades["profit"], stake * trades["gain_pct"] / 100, rtol=1e-9, atol=1e-9 * stake.max())


@many
@given(seeds, random_rules, st.booleans())
def test_rewards_are_those_of_the_trades_less_penalties(seed: int, rules: TradingRules, coarse: bool) -> None:
    prices, given_actions = market(seed, coarse), actions(seed)
    episode = Episode(prices, rules, given_actions)
    penalties = episode.summary["inaction_penalty"] + episode.summary["zero_trade_penalty"]
    listed = episode.trades.groupby("agent")["reward"].sum().reindex(range(AGENTS), fill_value=0)
    earned = episode.rewards.sum((0, 2), dtype=np.float64)
    np.testing.assert_allclose(earned + penalties, listed, rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(episode.summary["reward"], earned, rtol=1e-5, atol=1e-3)
    assert len(episode.trades) == episode.summary["trades"].sum()
    by_reference = np.zeros(AGENTS)
    for agent, window in np.ndindex(AGENTS, WINDOWS):
        plain, start = ReferenceAccount(prices, rules), STARTS[window]
        plain.reset(start, start + episode.window[0], start + episode.window[1])
        for action in given_actions:
            plain.step(action[agent, window])
        by_reference[agent] += sum(trade[-1] for trade in plain.trades)
    np.testing.assert_allclose(listed, by_reference, rtol=1e-6, atol=1e-6)


@many
@given(seeds, random_rules)
def test_no_position_outlives_the_episode(seed: int, rules: TradingRules) -> None:
    episode = Episode(market(seed), rules, actions(seed))
    last, trades = episode.observations[-1], episode.trades
    for name in ("held_days", "gain", "target", "coefficient"):
        assert not last[name].any()
    assert (trades["exit_day"] <= np.array(STARTS)[trades["window"]] + LENGTH - 1).all()
    held = trades["exit_day"] - trades["entry_day"]
    bought_at_the_close = rules.execution == "close"
    assert (held >= bought_at_the_close).all()
    assert (held <= rules.max_holding_days - 1 + bought_at_the_close).all()


@many
@given(seeds, random_rules)
def test_no_column_is_special(seed: int, rules: TradingRules) -> None:
    """Columns in another order, and the actions with them, give the same results in that order."""
    prices, given_actions = market(seed), actions(seed)
    clipped = np.abs(given_actions[..., 0]).clip(max=np.float32(rules.max_coefficient))
    # coefficients beyond the largest are all alike, and the lower column wins: those are told apart first
    given_actions[..., 0] = np.sign(given_actions[..., 0]) * clipped * np.linspace(0.9, 1, COLUMNS, dtype=np.float32)
    order = np.random.default_rng(seed).permutation(COLUMNS)
    ours = Episode(prices, rules, given_actions)
    theirs = Episode(prices[:, order], rules, given_actions[:, :, :, order])
    for left, right in zip(ours.observations, theirs.observations, strict=True):
        for name, value in left.items():
            expected = value if name in ("day", "days_left") else value[..., torch.from_numpy(order)]
            assert torch.equal(expected, right[name]), name
    np.testing.assert_allclose(ours.rewards, theirs.rewards, rtol=1e-6, atol=1e-6)  # sums in another order
    left, right = ours.trades, theirs.trades.assign(column=order[theirs.trades["column"]])
    keys = ["agent", "window", "exit_day", "column"]
    left, right = (trades.sort_values(keys).reset_index(drop=True) for trades in (left, right))
    pd.testing.assert_frame_equal(left, right, rtol=1e-9)


@many
@given(seeds, random_rules, st.integers(-8, 8), st.booleans())
def test_prices_in_units_of_a_power_of_two_change_nothing(
    seed: int, rules: TradingRules, power: int, coarse: bool
) -> None:
    prices, given_actions = market(seed, coarse), actions(seed)
    ours, theirs = (Episode(unit * prices, rules, given_actions) for unit in (np.float32(1), np.float32(2.0**power)))
    for left, right in zip(ours.observations, theirs.observations, strict=True):
        for name in left:
            assert torch.equal(left[name], right[name]), name
    np.testing.assert_array_equal(ours.rewards, theirs.rewards)
    np.testing.assert_array_equal(ours.account.equity().to_numpy(), theirs.account.equity().to_numpy())


@many
@given(seeds, random_rules, st.floats(1e-3, 1e3))
def test_prices_in_any_unit_change_next_to_nothing(seed: int, rules: TradingRules, unit: float) -> None:
    """Prices are rounded anew; off the coarse grid nobody stands exactly at an aim, so every decision is the same."""
    prices, given_actions = market(seed), actions(seed)
    ours, theirs = (Episode((prices * factor).astype(np.float32), rules, given_actions) for factor in (1.0, unit))
    assert (ours.trades["reason"] == theirs.trades["reason"]).all()
    np.testing.assert_allclose(ours.rewards, theirs.rewards, rtol=1e-4, atol=1e-2)
    worths = (episode.account.equity()["equity"] for episode in (ours, theirs))
    np.testing.assert_allclose(*worths, rtol=1e-5, atol=1)


@many
@given(seeds, random_rules, st.sampled_from(["cost_bps", "slippage_bps"]), st.floats(0, 300))
def test_higher_costs_never_earn_more(seed: int, rules: TradingRules, name: str, more: float) -> None:
    """Exactly so: aims count from prices before costs, so costs move no order, no exit and no observation.

    The gain of each position falls with its costs, and its reward with its gain. Rounding keeps the order, and so does
    a sum in a fixed order.
    """
    prices, given_actions = market(seed), actions(seed)
    dearer = replace(rules, **{name: getattr(rules, name) + more})
    cheap, dear = (Episode(prices, which, given_actions) for which in (rules, dearer))
    for left, right in zip(cheap.observations, dear.observations, strict=True):
        assert all(torch.equal(left[name], right[name]) for name in left)
    where = ["agent", "window", "column", "entry_day", "entry_price", "exit_day", "exit_price", "reason", "coefficient"]
    pd.testing.assert_frame_equal(cheap.trades[where], dear.trades[where])
    assert (dear.trades["gain_pct"] <= cheap.trades["gain_pct"]).all()
    assert (dear.trades["reward"] <= cheap.trades["reward"]).all()
    assert (dear.rewards <= cheap.rewards).all()
    if more >= 1 and len(cheap.trades):
        assert (dear.trades["gain_pct"] < cheap.trades["gain_pct"]).all()


def test_the_markets_hold_what_they_should() -> None:
    """Every reason to close, both sides, ruin and scaled orders occur, so that the properties above say something."""
    seen: dict[str, set[Any]] = {"reason": set(), "short": set(), "ruined": set(), "scaled": set()}
    for seed in range(12):
        rules = TradingRules(max_opens_per_day=3, max_holding_days=6, allow_short=seed % 2 == 0, min_target=2.0)
        episode = Episode(market(seed), rules, actions(seed), AccountRules(unit_share=1, max_leverage=20))
        seen["reason"] |= set(episode.trades["reason"])
        seen["short"] |= set(episode.trades["coefficient"] < 0)
        seen["ruined"] |= set(episode.account.ruined.reshape(-1).tolist())
        seen["scaled"] |= set(episode.trades["shares"] == 0)
    assert seen["reason"] == {"target", "gap", "holding", "halted", "window_end"}
    assert seen["short"] == seen["ruined"] == seen["scaled"] == {True, False}
