"""The ceiling against exact algebra, a scalar reference, and markets whose answer is known."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from eigen2.errors import UserError
from eigen2.market.simulation.environment import TradingEnvironment, TradingRules
from eigen2.market.simulation.policies import momentum_pct
from eigen2.market.simulation.windows import window_options
from eigen2.market.synthetic.ceiling import RULES, THRESHOLDS_PCT, Ceiling, Play, ceiling
from eigen2.market.synthetic.forecast import drift_ic, expected_gain_pct, filter_ic, filtered_drift
from eigen2.market.synthetic.generator import SyntheticMarket

OPEN, CLOSE = 0, 3
MARKET = SyntheticMarket(
    days=260, columns=6, seed=2, signal=0.4, half_life_days=8.0, missing=0.05, delistings=0.2, halts=1.0
)
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
    rules = TradingRules(max_holding_days=6)
    expected = expected_gain_pct(market, rules, market.drift(), np.zeros(1))
    log = np.log(market.prices().astype(np.float64))
    # ordered at the close of day t, bought at the next open, sold at the close of day t + 6
    days = np.arange(0, market.days - 6, 6)
    cost = 100 * math.log(0.9985 / 1.0015)
    realised = 100 * (np.exp(log[days + 6, :, CLOSE] - log[days + 1, :, OPEN] + cost / 100) - 1)
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


def test_information_coefficients_are_those_of_theory() -> None:
    market = SyntheticMarket(
        days=3000, columns=60, signal=0.3, half_life_days=10.0, volatility=0.01, market_share=0.0, gap=0.3
    )
    figures = ceiling(market, TradingRules(), **WINDOW, starts=[100])
    assert drift_ic(market) == pytest.approx(0.3 / math.sqrt(1.09))
    # standard error: 1 / sqrt(180,000) = 0.0024
    assert figures.drift_ic == (drift_ic(market), pytest.approx(drift_ic(market), abs=0.008))
    assert figures.filter_ic == (filter_ic(market), pytest.approx(filter_ic(market), abs=0.008))
    # the variance that the recursion settles at
    _, variance = filtered_drift(market, market.prices()[:400])
    left = variance[-1, 0] / market.volatility**2
    assert filter_ic(market) == pytest.approx(math.sqrt((0.09 - left) / 1.09), rel=1e-9)


@pytest.mark.parametrize("signal", [0.0, 0.5])
def test_without_intraday_noise_the_filter_knows_the_last_drift(signal: float) -> None:
    market = SyntheticMarket(days=30, columns=2, signal=signal, gap=1.0)
    estimate, _ = filtered_drift(market, market.prices())
    np.testing.assert_allclose(estimate[1:], market.phi * market.drift()[:-1], atol=1e-7)
    assert filter_ic(market) == pytest.approx(market.phi * drift_ic(market), abs=1e-12)
    if not signal:  # there is nothing to know
        assert drift_ic(market) == filter_ic(market) == 0
        assert not estimate.any()


def test_momentum_by_hand() -> None:
    prices = np.full((23, 2, 4), 100, np.float32)
    prices[20, 0, CLOSE], prices[21, 0, CLOSE] = 110, 95
    prices[1, 1] = np.nan
    prices[21, 1, CLOSE] = 50
    past = momentum_pct(prices)
    assert not past[:20].any()
    np.testing.assert_allclose(past[20:, 0], [10, -5, 0], atol=1e-12)
    assert not past[20:, 1].any()


def test_estimates_do_not_know_the_future() -> None:
    day, market = 40, replace(MARKET, days=60)
    prices = market.prices()
    changed = prices.copy()
    changed[day + 1 :] *= 2
    changed[day + 1 :, :, CLOSE] *= 1.5
    for known in (lambda p: filtered_drift(market, p)[0], momentum_pct):
        before, after = known(prices), known(changed)
        np.testing.assert_array_equal(after[: day + 1], before[: day + 1])
        assert (after[day + 1 :] != before[day + 1 :]).any()


def replay(
    market: SyntheticMarket, rules: TradingRules, play: Play, score: np.ndarray, starts: tuple[int, ...]
) -> tuple[list[float], dict[str, float]]:
    """Apply the rule day by day and column by column; return the windows' rewards, and their summary."""
    env = TradingEnvironment(market.prices(), rules, agents=1, windows=len(starts))
    observation, _ = env.reset(options=window_options(starts, 20, 30))
    rewards, over = torch.zeros(len(starts)), False
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
        rewards += reward[0]
        over = bool(terminated.all())
    return rewards.tolist(), {name: float(value) for name, value in env.get_episode_summary().items()}


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
        TradingRules(max_holding_days=10, min_target=2, max_target=8),
        TradingRules(
            max_holding_days=4, min_target=3, max_target=9, execution="close", max_opens_per_day=2, loss_penalty=2
        ),
        TradingRules(max_holding_days=30, min_target=50, cost_bps=0, slippage_bps=0, max_opens_per_day=9),
        TradingRules(max_holding_days=6, min_target=5, allow_short=True),
    ],
    ids=["few", "at the close", "all at once", "short"],
)
def test_equals_rules_played_one_by_one(rules: TradingRules) -> None:
    figures = ceiling(MARKET, rules, **WINDOW, starts=[30, 90, 150])
    scores = scores_of(MARKET, rules)
    for name, score in scores.items():
        play = figures.plays[name]
        rewards, summary = replay(MARKET, rules, play, score, figures.starts)
        assert play.rewards == pytest.approx(rewards, rel=1e-4, abs=1e-3)
        trades = summary["trades"]
        assert play.trades == trades / len(figures.starts)
        assert play.gain_pct == pytest.approx(summary["gain_pct"] / max(trades, 1), rel=1e-4)
        assert play.win_rate == pytest.approx(summary["win_rate"])
    if rules.max_opens_per_day > 1:
        return
    # no other setting earns more
    play = figures.plays["informed"]
    for target_pct in np.geomspace(rules.min_target, rules.max_target, 3).tolist():
        for threshold_pct in THRESHOLDS_PCT:
            other = replace(play, target_pct=target_pct, threshold_pct=threshold_pct)
            rewards, _ = replay(MARKET, rules, other, scores["informed"], figures.starts)
            assert np.mean(rewards) <= play.reward + 1e-2


def test_no_trade_costs_its_penalties() -> None:
    rules = TradingRules(zero_trade_penalty=7, inaction_penalty=0.5)
    play = ceiling(MARKET, rules, **WINDOW).plays["no trade"]
    assert play.rewards == (-7 - 20 * 0.5,) * len(play.rewards)
    assert (play.trades, play.gain_pct, play.win_rate) == (0, 0, 0)


def test_random_agents_trade_every_day_they_can() -> None:
    market = replace(MARKET, columns=60, missing=0.0, delistings=0.0, halts=0.0)
    figures = ceiling(market, TradingRules(), **WINDOW)
    play = figures.plays["random"]
    assert play.trades == 20
    assert figures.random_low <= play.reward <= figures.random_high
    one = ceiling(market, TradingRules(), **{**WINDOW, "random_agents": 1})
    assert one.random_low == one.random_high == pytest.approx(one.plays["random"].reward)


def test_holding_by_hand() -> None:
    market = SyntheticMarket(days=60, columns=2, delistings=0.0)
    prices = market.prices().astype(np.float64)
    figures = ceiling(market, TradingRules(), **WINDOW, starts=[3, 7])
    gains = [prices[start + 29, :, CLOSE] / prices[start + 1, :, OPEN] * 0.9985 / 1.0015 - 1 for start in (3, 7)]
    assert figures.hold_gain_pct == pytest.approx(100 * np.mean(gains), rel=1e-5)


def played(signal: float, seed: int) -> Ceiling:
    market = SyntheticMarket(days=360, columns=8, seed=seed, signal=signal)
    return ceiling(market, TradingRules(), trading_days=30, random_agents=6)


def test_knowing_nothing_earns_nothing() -> None:
    margins = []
    for seed in range(6):
        plays = played(0.0, seed).plays
        # not to trade where all prices fell is hindsight, not knowledge: it is open to both
        best_guess = max(plays["random"].reward, plays["no trade"].reward)
        margins += [plays[name].reward - best_guess for name in ("informed", "filtered")]
    assert abs(np.mean(margins)) < 3 * np.std(margins) / len(margins) ** 0.5
    assert np.ptp(margins) > 0


def test_what_is_known_is_worth_more_the_stronger_the_signal() -> None:
    figures = [played(signal, seed=5) for signal in (0.0, 0.1, 0.3, 0.6)]
    for name in ("informed", "filtered"):
        # not to trade, or to trade every day, can be the better of two guesses by chance
        rewards = [f.plays[name].reward for f in figures[1:]]
        assert rewards == sorted(rewards)
    assert figures[0].plays["informed"].reward < figures[1].plays["informed"].reward
    for f in figures[2:]:
        mean, error = f.advantage
        assert mean > 3 * error
        assert f.plays["informed"].reward > f.plays["filtered"].reward
        assert f.plays["informed"].reward > f.random_high
        assert f.plays["filtered"].reward > f.random_high


def test_short_sales_are_a_second_source() -> None:
    rules = TradingRules(max_holding_days=8)
    long, both = (ceiling(MARKET, replace(rules, allow_short=short), **WINDOW).plays for short in (False, True))
    assert both["informed"].trades > long["informed"].trades
    assert both["informed"].reward > long["informed"].reward
    # random agents go either way: in a market without a trend they pay the costs
    assert abs(both["random"].gain_pct) < abs(both["informed"].gain_pct)


def test_reproducible_and_random_by_its_seed_alone() -> None:
    first, again, other = (ceiling(MARKET, TradingRules(), **WINDOW, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first.plays["random"] != other.plays["random"]
    assert all(first.plays[name] == other.plays[name] for name in RULES if name != "random")


@pytest.mark.parametrize(("days", "windows"), [(30, 1), (89, 1), (90, 1), (119, 1), (120, 2), (260, 6)])
def test_windows_walk_to_the_last_day(days: int, windows: int) -> None:
    starts = ceiling(replace(MARKET, days=days), TradingRules(), **WINDOW).starts
    assert len(starts) == windows
    assert all(later - earlier >= 30 for earlier, later in pairwise(starts))
    assert starts[0] == min(60, days - 30)
    assert windows == 1 or starts[-1] == days - 30


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"trading_days": 0}, "trading_days is 0"),
        ({"settlement_days": 0}, "settlement_days is 0"),
        ({"random_agents": 0}, "random_agents is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"trading_days": 251}, "260 days, but a window takes 261"),
        ({"starts": []}, "number of starts is 0"),
        ({"starts": [-1]}, r"start_idx \[-1\]"),
        ({"starts": [0, 231]}, r"start_idx \[0, 231\]"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        ceiling(MARKET, TradingRules(), **{**WINDOW, **settings})
    assert "\n" not in str(error.value)


def test_the_table_holds_the_figures() -> None:
    play = Play(target_pct=10, threshold_pct=0, rewards=(1.0, 2.0, 6.0), trades=1, gain_pct=1, win_rate=1)
    # deviations -2, -1, 3: variance 14 / 2 = 7
    assert (play.reward, play.standard_error) == (3, pytest.approx(math.sqrt(7 / 3)))
    assert math.isnan(replace(play, rewards=(1.0,)).standard_error)
    figures = ceiling(MARKET, TradingRules(), **WINDOW)
    text = str(figures)
    lines = text.split("\n")
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 20
    assert all(line == line.rstrip() for line in lines)
    table = {line[:10].strip(): line[10:].split() for line in lines[4:9]}
    assert tuple(table) == RULES
    for name in RULES[:-1]:
        play = figures.plays[name]
        assert table[name][0] == f"{play.reward:.1f}"
        assert table[name][2] == f"{play.standard_error:.1f}"
        assert table[name][3] == f"{play.gain_pct:+.3f}"
    assert f"{figures.random_low:.1f} to {figures.random_high:.1f}" in text
    assert f"{figures.drift_ic[1]:.4f} measured" in text
    assert "260 days x 6 columns, signal 0.4" in text
