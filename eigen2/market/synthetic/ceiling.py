"""The ceiling of a synthetic market: what rules that know its hidden drift earn in the trading environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float32
from torch import Tensor

from eigen2.errors import UserError, require_range
from eigen2.market.simulation.environment import TradingEnvironment, TradingRules
from eigen2.market.simulation.policies import CLOSE, OPEN, momentum_pct
from eigen2.market.simulation.simulate import play_days
from eigen2.market.simulation.windows import window_options
from eigen2.market.synthetic.forecast import drift_ic, expected_gain_pct, filter_ic, filtered_drift, net_of_costs
from eigen2.market.synthetic.generator import SyntheticMarket

TARGETS = 3
"""Sale targets tried by every rule, evenly spaced in their logarithms from the lowest allowed to the highest."""
THRESHOLDS_PCT = (0.0, 1.0, 2.0, 4.0)
"""Expected gains in percent above which a rule orders, all tried: a held column cannot be ordered again, so that it can
pay to wait for a better moment."""
WARM_UP_DAYS = 60
"""Days before the first window, where the market has them, from which filter and momentum learn."""
MAX_WINDOWS = 32
RULES = ("informed", "filtered", "momentum", "random", "no trade")


@dataclass(frozen=True)
class Play:
    """What one rule earned with the best target and threshold of those tried on the same days."""

    target_pct: float
    threshold_pct: float
    rewards: tuple[float, ...]
    """Of each window: the sum of coefficient x percent gain less penalties; the mean of all agents."""
    trades: float
    """Positions opened per window and agent."""
    gain_pct: float
    """Mean percent gain of a position, net of costs; 0 without any."""
    win_rate: float
    """Fraction of positions with a gain above 0; 0 without any."""

    @property
    def reward(self) -> float:
        """Return the mean reward of a window."""
        return _mean_and_error(np.array(self.rewards))[0]

    @property
    def standard_error(self) -> float:
        """Return the standard error of the mean reward over the windows; NaN with one window."""
        return _mean_and_error(np.array(self.rewards))[1]


@dataclass(frozen=True)
class Ceiling:
    """What rules earn on a synthetic market, and how much of it can be known; `str` gives a table.

    Attributes:
        market, rules, starts, trading_days, settlement_days: what was played.
        plays: what each of `RULES` earned.
        random_agents: number of agents that ordered at random.
        random_low, random_high: 5th and 95th percentile of the random agents' mean reward per window.
        hold_gain_pct: mean percent gain of buying a column at a window's second open and selling it at its last close.
        drift_ic: correlation of drift and next day's log return: (in theory, measured over all days).
        filter_ic: the same for the drift as the filter estimates it.
    """

    market: SyntheticMarket
    rules: TradingRules
    starts: tuple[int, ...]
    trading_days: int
    settlement_days: int
    plays: dict[str, Play]
    random_agents: int
    random_low: float
    random_high: float
    hold_gain_pct: float
    drift_ic: tuple[float, float]
    filter_ic: tuple[float, float]

    @property
    def advantage(self) -> tuple[float, float]:
        """Return mean and standard error (NaN with one window) of the informed rule's reward over random's."""
        informed, random = (np.array(self.plays[name].rewards) for name in ("informed", "random"))
        return _mean_and_error(informed - random)

    def __str__(self) -> str:
        market, rules = self.market, self.rules
        lines = [
            f"Ceiling of {market.days:,} days x {market.columns:,} columns, signal {market.signal:g}, half-life "
            f"{market.half_life_days:g} days",
            f"{len(self.starts)} windows of {self.trading_days} + {self.settlement_days} days, execution "
            f"{rules.execution}, costs {200 * rules.side_cost:g} % a trade",
            "",
            "rule           reward a window  % gain a trade   trades   wins   target   least",
            *(_line(name, self.plays[name]) for name in RULES),
            "",
            f"informed over random, window by window: {self.advantage[0]:+.1f} +- {self.advantage[1]:.1f}",
            f"5 to 95 % of {self.random_agents} random agents: {self.random_low:.1f} to {self.random_high:.1f}",
            f"holding a column for the window: {self.hold_gain_pct:+.2f} %",
            "information coefficient of the drift: {:.4f} in theory, {:.4f} measured".format(*self.drift_ic),
            "of its estimate from past returns:    {:.4f} in theory, {:.4f} measured".format(*self.filter_ic),
            "target and least are each rule's best on these very days: a ceiling, no forecast",
        ]
        return "\n".join(lines)


def _line(name: str, play: Play) -> str:
    line = f"{name:<10}{f'{play.reward:.1f} +- {play.standard_error:.1f}':>20}"
    if not play.trades:
        return line
    line += f"{play.gain_pct:>+16.3f}{play.trades:>9.1f}{play.win_rate:>7.0%}{f'{play.target_pct:.1f} %':>9}"
    return line if name == "random" else line + f"{f'{play.threshold_pct:g} %':>8}"


def _mean_and_error(values: Float[np.ndarray, " windows"]) -> tuple[float, float]:
    error = float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return float(values.mean()), error


def ceiling(
    market: SyntheticMarket,
    rules: TradingRules,
    *,
    trading_days: int = 125,
    settlement_days: int = 20,
    starts: Sequence[int] | None = None,
    random_agents: int = 32,
    seed: int = 0,
) -> Ceiling:
    """Play rules of more and less knowledge through the same windows, in one environment.

    At each close a rule orders the columns of which it expects most, as many as the rules allow, at the largest
    coefficient, unless it expects too little of them; where short sales are allowed, a fall is as good as a rise:

    - informed knows the hidden drift and expects the percent gain, net of costs, of `expected_gain_pct`;
    - filtered does the same with the best linear estimate of the drift from the column's own past returns, for which
      it knows the market's settings but sees only its prices;
    - momentum expects the percent gain of the last 20 days;
    - random draws its expectations, for each sale target so many agents (1 or more) with orders of the given seed;
    - no trade orders nothing.

    Rules are greedy, so that a better one may earn a little more. The market must fit into memory, with about 150 bytes
    per day and column. A window has 1 or more trading days and 1 or more settlement days; without `starts`, windows
    walk evenly from day 60 to the last day, as many as fit without overlap, 32 at most.

    Raises:
        UserError: a setting is out of range, the market is shorter than a window, a window does not fit into its days,
            or its prices leave the float32 range.
    """
    require_range("seed", seed, least=0)
    lengths = {"trading_days": trading_days, "settlement_days": settlement_days}
    for name, value in {"random_agents": random_agents, **lengths}.items():
        require_range(name, value, least=1)
    length = trading_days + settlement_days
    first_days = _walk(market.days, length) if starts is None else [int(start) for start in starts]
    require_range("number of starts", len(first_days), least=1)
    prices, drift = market.prices(), market.drift()
    estimate, variance = filtered_drift(market, prices)
    scores = np.empty((3, *drift.shape), dtype=np.float32)
    scores[0] = _best_side(market, rules, drift, np.zeros(1))
    scores[1] = _best_side(market, rules, estimate, variance)
    scores[2] = momentum_pct(prices) if rules.allow_short else momentum_pct(prices).clip(min=0)
    scores[:, np.isnan(prices[..., CLOSE])] = np.nan
    candidates = _candidates(rules, random_agents)
    env = TradingEnvironment(prices, rules, candidates[-1].agents.stop, len(first_days))
    options = window_options(first_days, trading_days, length)
    rewards = _play(env, options, candidates, torch.from_numpy(scores), np.random.default_rng(seed))
    plays = {name: _best([c for c in candidates if c.rule == name], rewards, env) for name in RULES}
    low, high = np.percentile(rewards[plays["random"][1]].mean(1), (5, 95)).tolist()
    returns = np.diff(np.log(prices[..., CLOSE].astype(np.float64)), axis=0)
    return Ceiling(
        market=market,
        rules=rules,
        starts=tuple(first_days),
        trading_days=trading_days,
        settlement_days=settlement_days,
        plays={name: play for name, (play, _) in plays.items()},
        random_agents=random_agents,
        random_low=low,
        random_high=high,
        hold_gain_pct=_hold_pct(prices, rules, [slice(start + 1, start + length) for start in first_days]),
        drift_ic=(drift_ic(market), _correlation(drift[:-1], returns)),
        filter_ic=(filter_ic(market), _correlation(estimate[:-1], returns)),
    )


def _best_side(
    market: SyntheticMarket,
    rules: TradingRules,
    drift: Float[np.ndarray, "days columns"],
    variance: Float[np.ndarray, ...],
) -> Float[np.ndarray, "days columns"]:
    """Return the expected gain of the side that has one, negative for a short sale; 0 where neither has."""
    score = expected_gain_pct(market, rules, drift, variance).clip(min=0)
    if rules.allow_short:
        score -= expected_gain_pct(market, rules, drift, variance, short=True).clip(min=0)
    return score


def _walk(days: int, length: int) -> list[int]:
    """Return the first days of windows that walk evenly to the last day, without overlap."""
    if days < length:
        raise UserError(
            f"the market has {days} days, but a window takes {length}: draw more days, or shorten trading_days or"
            " settlement_days"
        )
    first = min(WARM_UP_DAYS, days - length)
    count = min((days - first) // length, MAX_WINDOWS)
    return [round(start) for start in np.linspace(first, days - length, count).tolist()]


class _Candidate(NamedTuple):
    """A rule with settings to try, and the agents that play it."""

    rule: str
    target_pct: float
    threshold_pct: float
    agents: range


def _candidates(rules: TradingRules, random_agents: int) -> list[_Candidate]:
    settings: list[tuple[str, float, float, int]] = []
    for target in np.geomspace(rules.min_target, rules.max_target, TARGETS).tolist():
        settings += [(rule, target, threshold, 1) for rule in RULES[:-2] for threshold in THRESHOLDS_PCT]
        settings.append(("random", target, 0.0, random_agents))
    settings.append(("no trade", rules.min_target, float("inf"), 1))
    ends = np.cumsum([agents for *_, agents in settings]).tolist()
    return [
        _Candidate(rule, target, threshold, range(end - agents, end))
        for (rule, target, threshold, agents), end in zip(settings, ends, strict=True)
    ]


def _play(
    env: TradingEnvironment,
    options: dict[str, list[int]],
    candidates: Sequence[_Candidate],
    scores: Float32[Tensor, "known days columns"],
    rng: np.random.Generator,
) -> Float[np.ndarray, "agents windows"]:
    """Play one episode and return the sums of rewards.

    `scores` are the percent expected by the first of `RULES`: negative for a short sale, NaN without a price.
    """
    sizes = torch.tensor([len(c.agents) for c in candidates])
    settings = torch.tensor([(c.target_pct, c.threshold_pct) for c in candidates], dtype=torch.float32)
    target, threshold = settings.repeat_interleave(sizes, 0).T[..., None, None]
    # the rows of a day's scores: of the rules, then those drawn, which the random agents of all candidates share
    row = torch.cat([torch.arange(len(c.agents)) + min(RULES.index(c.rule), len(scores)) for c in candidates])
    drawn_shape = (int(sizes.max()), env.windows, env.num_columns)
    most_orders = min(env.rules.max_opens_per_day, env.num_columns)

    def policy(observation: dict[str, Tensor]) -> Tensor:
        known = scores[:, observation["day"][0].long()]
        # within (0, 1] or, with short sales, (-1, 1]
        drawn = 1 - torch.from_numpy(rng.random(drawn_shape, dtype=np.float32)) * (2 if env.rules.allow_short else 1)
        score = torch.cat([known, drawn.where(~known[0].isnan(), torch.nan)])[row]
        wanted = (score.abs() > threshold) & (observation["held_days"] == 0)
        best = score.abs().where(wanted, 0).topk(most_orders)
        order = (score.gather(-1, best.indices).sign() * env.rules.max_coefficient).where(best.values > 0, 0)
        coefficient = torch.zeros_like(score).scatter_(-1, best.indices, order)
        return torch.stack([coefficient, target.expand_as(coefficient)], -1)

    rewards = np.zeros((env.agents, env.windows))
    for day in play_days(env, policy, options):
        rewards += day.reward.numpy()
    return rewards


def _best(
    candidates: Sequence[_Candidate], rewards: Float[np.ndarray, "agents windows"], env: TradingEnvironment
) -> tuple[Play, range]:
    """Return what the candidate of the highest mean reward, the first of several, earned, and its agents."""
    best = max(candidates, key=lambda c: float(rewards[c.agents].mean()))
    summary = env.get_episode_summary()
    trades, wins, gain = (float(summary[name][best.agents].sum()) for name in ("trades", "wins", "gain_pct"))
    play = Play(
        target_pct=best.target_pct,
        threshold_pct=best.threshold_pct,
        rewards=tuple(rewards[best.agents].mean(0).tolist()),
        trades=trades / rewards[best.agents].size,
        gain_pct=gain / max(trades, 1),
        win_rate=wins / max(trades, 1),
    )
    return play, best.agents


def _hold_pct(prices: Float32[np.ndarray, "days columns 4"], rules: TradingRules, held: list[slice]) -> float:
    """Return the mean percent gain, net of costs, of the columns with a price on the first of the days held."""
    entry = prices[[days.start for days in held], :, OPEN].astype(np.float64)
    sale = [pd.DataFrame(prices[days, :, CLOSE]).ffill().iloc[-1] for days in held]
    return float(np.nanmean(100 * (np.array(sale) / entry * net_of_costs(rules) - 1)))


def _correlation(x: Float[np.ndarray, "days columns"], y: Float[np.ndarray, "days columns"]) -> float:
    """Return the correlation over all pairs without NaN; 0 where one of them does not vary."""
    complete = np.isfinite(x) & np.isfinite(y)
    x, y = x[complete] - x[complete].mean(), y[complete] - y[complete].mean()
    spread = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum()) / spread if spread > 0 else 0.0
