"""The ceiling against exact algebra, a scalar reference, and markets whose answer is known."""

import math
from dataclasses import replace
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch

from eigen2.errors import UserError
from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.environment import TradingEnvironment
from eigen2.market.simulation.policies import momentum_pct
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.windows import window_options
from eigen2.market.synthetic.ceiling import (
    RULES,
    THRESHOLDS_PCT,
    Ceiling,
    Play,
    ceiling,
    expected_gain_pct,
    filtered_drift,
)
from eigen2.market.synthetic.generator import SyntheticMarket

OPEN, CLOSE = 0, 3
MARKET = SyntheticMarket(days=260, columns=6, seed=2, signal=0.4, half_life_days=8.0, missing=0.05, delistings=0.2)
WINDOW: dict[str, Any] = {"trading_days": 20, "settlement_days": 10, "random_agents": 6}


def test_expected_gain_by_hand() -> None:
    market = SyntheticMarket(volatility=0.02, signal=0.5, half_life_days=1.0, gap=0.1)
    rules = TradingRules(max_holding_days=2, cost_bps=10, slippage_bps=5)
    # phi 0.5: mean (1 + 0.5) 0.01 = 0.015; innovation's variance 0.25 x 0.75 = 0.1875, felt for one day; noise of two
    # days without a gap 1.99; (1.99 + 0.1875) 0.0004 / 2 = 0.0004355; net of costs 0.9985 / 1.0015
    by_hand = 100 * (math.exp(0.015 + 0.0004355) * 0.9985 / 1.0015 - 1)
    assert by_hand == pytest.approx(1.2513, abs=1e-4)
    drift = np.array([[0.01]])
    assert expected_gain_pct(market, rules, drift, np.zeros(1)) == pytest.approx(by_hand, rel=1e-12)
    # sold short, the same price is paid for what 0.9985 / 1.0015 of it was received for
    sold = expected_gain_pct(market, rules, -drift, np.zeros(1), short=True)
    assert sold == pytest.approx(100 * (1 - math.exp(-0.015 + 0.0004355) * 1.0015 / 0.9985), rel=1e-12)
    # at the close the gap counts: half of 0.01 x 0.0004 more; a variance of 0.0001 of the drift: half of 2.25 times it
    at_close = expected_gain_pct(market, replace(rules, execution="close"), drift, np.full((1, 1), 1e-4))
    assert at_close == pytest.approx(100 * (math.exp(0.0154375 + 0.0001125) * 0.9985 / 1.0015 - 1), rel=1e-12)


def test_expected_gain_is_what_positions_gain() -> None:
    market = SyntheticMarket(
        days=3000, columns=60, signal=0.4, half_life_days=5.0, volatility=0.01, gap=0.5, market_share=0
    )
    expected = expected_gain_pct(market, TradingRules(max_holding_days=6), market.drift(), np.zeros(1))
    log = np.log(market.prices().astype(np.float64))
    # ordered at the close of day t, bought at the next open, sold at the close of day t + 6
    days = np.arange(0, market.days - 6, 6)
    realised = 100 * (np.exp(log[days + 6, :, CLOSE] - log[days + 1, :, OPEN]) * 0.9985 / 1.0015 - 1)
    for low, high in ((0, 20), (40, 60), (80, 100)):
        bounds = np.percentile(expected[days], (low, high))
        chosen = (expected[days] >= bounds[0]) & (expected[days] <= bounds[1])
        error = realised[chosen].std() / chosen.sum() ** 0.5
        assert realised[chosen].mean() == pytest.approx(expected[days][chosen].mean(), abs=3 * error)
    assert error < 0.1 < expected[days][chosen].mean()


def test_filter_equals_the_conditional_expectation() -> None:
    """The recursion against the joint normal distribution of drifts and returns, inverted as a whole."""
    market = SyntheticMarket(days=14, columns=3, seed=1, signal=0.7, half_life_days=3.0, gap=0.4, missing=0.3)
    prices = market.prices()
    assert np.isnan(prices).any()
    estimate, variance = filtered_drift(market, prices)
    phi, spread = market.phi, (0.7 * market.volatility) ** 2
    returns = np.log(prices[..., CLOSE].astype(np.float64) / prices[..., OPEN])
    for column in range(market.columns):
        for day in range(market.days):
            seen = [t for t in range(1, day + 1) if np.isfinite(returns[t, column])]
            lag = np.abs(np.subtract.outer(seen, seen))
            # the return of day t holds the drift of day t - 1
            among = spread * phi**lag + np.eye(len(seen)) * market.volatility**2 * (1 - 0.4**2)
            with_drift = spread * phi ** (day - np.array(seen) + 1)
            weights = np.linalg.solve(among, with_drift) if seen else np.zeros(0)
            assert estimate[day, column] == pytest.approx(weights @ returns[seen, column], rel=1e-9, abs=1e-15)
            assert variance[day, column] == pytest.approx(spread - weights @ with_drift, rel=1e-9)


def replay(
    market: SyntheticMarket, rules: TradingRules, play: Play, score: np.ndarray, starts: list[int]
) -> list[float]:
    """Apply the rule day by day and column by column; return the windows' fitness."""
    env = TradingEnvironment(market.prices(), rules, agents=1, windows=len(starts))
    observation, _ = env.reset(options=window_options(starts, 20, 30))
    rewards, over = np.zeros(len(starts)), False
    while not over:
        action = torch.zeros(1, len(starts), market.columns, 2)
        for i, day in enumerate(observation["day"][0].tolist()):
            held = observation["held_days"][0, i].tolist()
            wishes = [
                (-abs(expected), column)
                for column, expected in enumerate(score[day].tolist())
                if abs(expected) > play.threshold_pct and not held[column] and (expected > 0 or rules.allow_short)
            ]
            for _, column in sorted(wishes)[: rules.max_opens_per_day]:
                side = 1 if score[day, column] > 0 else -1
                action[0, i, column] = torch.tensor([side * rules.max_coefficient, play.target_pct])
        observation, reward, terminated, _, _ = env.step(action)
        rewards += reward[0].numpy()
        over = bool(terminated.all())
    return env.scores(torch.from_numpy(rewards)[None])[0].tolist()


def scores_of(market: SyntheticMarket, rules: TradingRules) -> dict[str, np.ndarray]:
    """Return the percent expected of each day and column, of the better side; NaN without a price."""
    prices = market.prices()
    known = {"informed": (market.drift(), np.zeros(1)), "filtered": filtered_drift(market, prices)}
    scores = {"momentum": momentum_pct(prices)}
    for name, drift in known.items():
        up, down = (expected_gain_pct(market, rules, *drift, short=short) for short in (False, True))
        scores[name] = np.where(up > down, up, -down)
        # what loses either way is not worth an order
        scores[name][np.maximum(up, down) <= 0] = 0
    return {name: np.where(np.isnan(prices[..., CLOSE]), np.nan, score) for name, score in scores.items()}


@pytest.mark.parametrize(
    "rules",
    [
        TradingRules(max_holding_days=10, min_target=2, max_target=8, early_close=False),
        TradingRules(
            max_holding_days=4,
            min_target=3,
            max_target=9,
            execution="close",
            max_opens_per_day=2,
            loss_penalty=2,
            early_close=False,
        ),
        TradingRules(max_holding_days=6, min_target=5, allow_short=True, early_close=False),
    ],
    ids=["few", "at the close", "short"],
)
def test_equals_rules_played_one_by_one(rules: TradingRules) -> None:
    figures = ceiling(MARKET, rules, **WINDOW, starts=[30, 90, 150])
    scores = scores_of(MARKET, rules)
    for name, score in scores.items():
        play = figures.plays[name]
        assert play.fitness == pytest.approx(replay(MARKET, rules, play, score, figures.starts), rel=1e-6, abs=1e-6)
    if rules.max_opens_per_day > 1:
        return
    # no other setting earns more
    play = figures.plays["informed"]
    for target_pct in np.geomspace(rules.min_target, rules.max_target, 3).tolist():
        for threshold_pct in THRESHOLDS_PCT:
            other = replace(play, target_pct=target_pct, threshold_pct=threshold_pct)
            fitness = replay(MARKET, rules, other, scores["informed"], figures.starts)
            assert np.mean(fitness) <= play.mean_fitness + 1e-6


def played(signal: float, seed: int) -> Ceiling:
    market = SyntheticMarket(days=360, columns=8, seed=seed, signal=signal)
    return ceiling(market, TradingRules(zero_trade_penalty=0), trading_days=30, random_agents=6)


def test_what_is_known_is_worth_more_the_stronger_the_signal() -> None:
    figures = [played(signal, seed=5) for signal in (0.0, 0.1, 0.3, 0.6)]
    for name in ("informed", "filtered"):
        # not to trade, or to trade every day, can be the better of two guesses by chance
        fitness = [f.plays[name].mean_fitness for f in figures[1:]]
        assert fitness == sorted(fitness)
    assert figures[0].plays["informed"].mean_fitness < figures[1].plays["informed"].mean_fitness
    for f in figures[2:]:
        informed, filtered, random = (f.plays[name] for name in ("informed", "filtered", "random"))
        assert informed.mean_fitness > filtered.mean_fitness > random.mean_fitness
        margin = informed.fitness - random.fitness
        assert margin.mean() > 3 * margin.std() / len(margin) ** 0.5


def test_random_agents_differ_by_their_seed_alone() -> None:
    first, again, other = (ceiling(MARKET, TradingRules(), **WINDOW, seed=seed).plays for seed in (0, 0, 1))
    for name in RULES:
        np.testing.assert_array_equal(first[name].fitness, again[name].fitness)
        assert (first[name].fitness != other[name].fitness).any() == (name == "random")


@pytest.mark.parametrize(("days", "windows"), [(30, 1), (119, 1), (120, 2), (260, 6)])
def test_windows_walk_to_the_last_day(days: int, windows: int) -> None:
    figures = ceiling(replace(MARKET, days=days), TradingRules(), **WINDOW)
    starts, lines = figures.starts, str(figures).split("\n")
    assert f"{windows} windows of 30 days" in lines[1]
    assert [line.split()[:2] for line in lines[4:8]] == [
        [name, f"{play.mean_fitness:.2f}"] for name, play in figures.plays.items()
    ]
    assert len(starts) == windows
    assert (np.diff(starts) >= 30).all()
    assert starts[0] == min(60, days - 30)
    assert windows == 1 or starts[-1] == days - 30


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"trading_days": 0}, "trading_days is 0"),
        ({"random_agents": 0}, "random_agents is 0"),
        ({"trading_days": 10.5}, "trading_days is 10.5; it must be a whole number"),
        ({"random_agents": 1.5}, "random_agents is 1.5; it must be a whole number"),
        ({"account": AccountRules(volume_cap=0.1)}, "volume_cap is 0.1, but the ceiling has no cap; set it to 0"),
        ({"trading_days": 251}, "260 days, but a window takes 261"),
        ({"starts": []}, "number of starts is 0"),
        ({"starts": [0, 231]}, r"starts \[0, 231\]: give 2, each on day 0 to 230"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # which would refuse a fraction first
    with pytest.raises(UserError, match=words):
        ceiling(MARKET, TradingRules(), **{**WINDOW, **settings})
