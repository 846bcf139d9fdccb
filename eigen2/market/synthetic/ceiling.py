"""The ceiling of a synthetic market: what rules that know its hidden drift earn in the trading environment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor

from eigen2.errors import UserError, require_range
from eigen2.market.data.source import CLOSE, OPEN
from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.environment import TradingEnvironment
from eigen2.market.simulation.policies import momentum_pct, order_largest
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.simulate import Policy, play_days
from eigen2.market.simulation.windows import window_options
from eigen2.market.synthetic.generator import SyntheticMarket

TARGETS = 3  # take-profits tried by every rule, evenly spaced in their logarithms over the range allowed
# Thresholds tried by every rule, in percent of expected gain: a held column cannot be ordered again, so it can pay to
# wait for a better moment
THRESHOLDS_PCT = (0.0, 1.0, 2.0, 4.0)
WARM_UP_DAYS = 60  # history of filter and momentum before the first window, if the market has so many days
MAX_WINDOWS = 32
RULES = ("informed", "filtered", "momentum", "random")
Agent = tuple[str, float, float]  # rule, take-profit and threshold in percent


@dataclass(frozen=True)
class Play:
    """Result of one rule with the best target and threshold of those tried on the same days."""

    target_pct: float
    threshold_pct: float
    fitness: Float[np.ndarray, " windows"]
    """See `TradingEnvironment.scores`; the mean over agents."""

    @property
    def mean_fitness(self) -> float:
        """Return the mean over windows."""
        return float(self.fitness.mean())


@dataclass(frozen=True)
class Ceiling:
    """Result of each of `RULES` on a synthetic market in windows that start on `starts`; `str` gives a table."""

    market: SyntheticMarket
    rules: TradingRules
    starts: list[int]
    window_days: int
    plays: dict[str, Play]

    def __str__(self) -> str:
        market, rules = self.market, self.rules
        coefficient = market.signal / math.sqrt(1 + market.signal**2)
        rows = [
            f"{name:<10}{play.mean_fitness:>17.2f}{play.target_pct:>7.1f} %{play.threshold_pct:>6g} %"
            for name, play in self.plays.items()
        ]
        return "\n".join(
            [
                f"Ceiling of {market.days:,} days x {market.columns:,} columns, signal {market.signal:g}, half-life "
                f"{market.half_life_days:g} days",
                f"{len(self.starts)} windows of {self.window_days} days, execution {rules.execution}, costs "
                f"{200 * rules.side_cost:g} % a trade\n",
                "rule       fitness a window   target   least",
                *rows,
                f"\ninformation coefficient of the drift {coefficient:.4f}",
                "target and least are each rule's best on these very days: a ceiling, no forecast",
            ]
        )


def ceiling(
    market: SyntheticMarket,
    rules: TradingRules,
    account: AccountRules = AccountRules(),
    *,
    trading_days: int = 125,
    settlement_days: int = 20,
    starts: Sequence[int] | None = None,
    random_agents: int = 32,
    seed: int = 0,
) -> Ceiling:
    """Play rules of more and less knowledge through the same windows, in one environment.

    At each close a rule orders the columns with the highest expected gain, as many as the trading rules allow, at the
    largest coefficient, if the gain exceeds a threshold; where short sales are allowed, a fall is as good as a rise.
    With `early_close` it closes positions in columns without an expected gain. The rules:

    - informed knows the hidden drift and expects the percent gain, net of costs, of `expected_gain_pct`;
    - filtered does the same with the best linear estimate of the drift from the column's past returns: it knows the
      market's settings but sees only its prices;
    - momentum expects the percent gain of the last 20 days;
    - random draws its expectations from `seed`, with `random_agents` agents (1 or more) for each take-profit.

    The market must fit into memory, with about 150 bytes per day and column. Without `starts`, windows walk evenly from
    day 60 to the last day, as many as fit without overlap, 32 at most.

    Raises:
        UserError: a setting is out of range, `volume_cap` is set, the market is shorter than a window, a window does
            not fit into its days, or its prices leave the float32 range.
    """
    length = trading_days + settlement_days
    given = {"random_agents": random_agents, "trading_days": trading_days, "settlement_days": settlement_days}
    for name, value in given.items():
        require_range(name, value, least=1, whole=True)
    first_days = _walk(market.days, length) if starts is None else [int(start) for start in starts]
    require_range("number of starts", len(first_days), least=1)
    if rules.mode == "weights":
        raise UserError("the ceiling is known for orders alone; set data.rules.mode to orders")
    if account.volume_cap:
        raise UserError(f"data.account.volume_cap is {account.volume_cap:g}, but the ceiling has no cap; set it to 0")
    prices = market.prices()
    momentum = momentum_pct(prices)
    known = [(market.drift(), np.zeros(1)), filtered_drift(market, prices)]
    scores = np.stack([expected_gain_pct(market, rules, *drift).clip(min=0) for drift in known] + [momentum])
    if rules.allow_short:
        for score, drift in zip(scores, known, strict=False):
            score -= expected_gain_pct(market, rules, *drift, short=True).clip(min=0)
    else:
        scores.clip(min=0, out=scores)
    scores[:, np.isnan(prices[..., CLOSE])] = np.nan
    agents = [
        (rule, target, threshold)
        for rule in RULES
        for target in np.geomspace(rules.min_target, rules.max_target, TARGETS).tolist()
        for threshold in ([0.0] * random_agents if rule == "random" else THRESHOLDS_PCT)
    ]
    env = TradingEnvironment(prices, rules, len(agents), len(first_days), account=account)
    table = torch.from_numpy(scores.astype(np.float32))
    policy = _policy(env, agents, table, random_agents, np.random.default_rng(seed))
    rewards = torch.zeros(env.agents, env.windows, dtype=torch.float64)
    for day in play_days(env, policy, window_options(first_days, trading_days, length)):
        rewards += day.reward
    fitness = env.scores(rewards).numpy()
    return Ceiling(market, rules, first_days, length, {rule: _best(rule, agents, fitness) for rule in RULES})


def _walk(days: int, length: int) -> list[int]:
    """Return the first days of windows that walk evenly to the last day, without overlap."""
    if days < length:
        raise UserError(
            f"the market has {days} days, but a window takes {length}: draw more days, or shorten the window"
        )
    first = min(WARM_UP_DAYS, days - length)
    count = min((days - first) // length, MAX_WINDOWS)
    return [round(start) for start in np.linspace(first, days - length, count).tolist()]


def _policy(
    env: TradingEnvironment,
    agents: Sequence[Agent],
    scores: Float32[Tensor, "known days columns"],
    random_agents: int,
    rng: np.random.Generator,
) -> Policy:
    """Return a policy for all agents, from the gains that the first three `RULES` expect, NaN without a price."""
    target, threshold = torch.tensor([agent[1:] for agent in agents], dtype=torch.float32).T[..., None, None]
    # rows of a day's scores: those of the rules, then the random ones, which agents of all targets share
    known_rows = torch.tensor([RULES.index(rule) for rule, *_ in agents if rule != "random"])
    row = torch.cat([known_rows, len(scores) + torch.arange(random_agents).repeat(TARGETS)])

    def policy(observation: dict[str, Tensor]) -> Tensor:
        """Order the largest scores; random ones lie within (0, 1] or, with short sales, (-1, 1]."""
        known = scores[:, observation["day"][0].long()]
        fractions = rng.random((random_agents, env.windows, env.num_columns), dtype=np.float32)
        drawn = 1 - torch.from_numpy(fractions) * (2 if env.rules.allow_short else 1)
        score = torch.cat([known, drawn.where(~known[0].isnan(), torch.nan)])[row]
        held = observation["held_days"] > 0
        coefficient = order_largest(score.where(score.abs() > threshold * ~held, 0), held, env.rules)
        return torch.stack([coefficient, target.expand_as(coefficient)], -1)

    return policy


def _best(rule: str, agents: Sequence[Agent], fitness: Float[np.ndarray, "agents windows"]) -> Play:
    """Return the result of a rule with the target and threshold of the highest mean fitness, the first of ties."""
    rows = {choice: [i for i, agent in enumerate(agents) if agent == choice] for choice in agents if choice[0] == rule}
    best = max(rows, key=lambda choice: float(fitness[rows[choice]].mean()))
    return Play(*best[1:], fitness[rows[best]].mean(0))


def filtered_drift(
    market: SyntheticMarket, prices: Float32[np.ndarray, "days columns 4"]
) -> tuple[Float[np.ndarray, "days columns"], Float[np.ndarray, "days columns"]]:
    """Estimate mean and variance of each column's drift[t], as log returns, from its own intraday returns up to day t.

    A Kalman filter of log(close / open) that knows the market's settings; other columns, which share some of the noise,
    would add a little. Prices are NaN on days without a row.
    """
    # variances of the intraday noise and of the drift's innovation, in units of the squared volatility
    noise, innovation, phi = 1 - market.gap**2, market.signal**2 * (1 - market.phi**2), market.phi
    seen = np.log(prices[..., CLOSE].astype(np.float64) / prices[..., OPEN]) / market.volatility
    estimate, variance = np.zeros_like(seen), np.full_like(seen, market.signal**2)
    # day 0's return holds no drift
    for day in range(1, len(seen)):
        mean, spread = estimate[day - 1], variance[day - 1]
        gain = np.where(np.isnan(seen[day]), 0.0, spread / np.maximum(spread + noise, np.finfo(np.float64).tiny))
        estimate[day] = phi * (mean + gain * (np.nan_to_num(seen[day]) - mean))
        variance[day] = phi**2 * (1 - gain) * spread + innovation
    return estimate * market.volatility, variance * market.volatility**2


def expected_gain_pct(
    market: SyntheticMarket,
    rules: TradingRules,
    drift: Float[np.ndarray, "days columns"],
    variance: Float[np.ndarray, ...],
    *,
    short: bool = False,
) -> Float[np.ndarray, "days columns"]:
    """Return the expected percent gain, net of costs, of a position ordered now and held for `max_holding_days`.

    With A(h) = 1 + phi + ... + phi^(h-1), the log return of h days has the mean A(h) drift. Its variance is that of h
    days' noise (at `next_open` without the first gap), of the innovations to come, each of which moves the drift for
    the days left, and of the error of the drift (`variance`, where it is an estimate). The gain is that of a normal log
    return, for a short sale relative to what was received; take-profits, delistings and a window's end are left out.
    """
    days = rules.max_holding_days
    noise = days - (market.gap**2 if rules.execution == "next_open" else 0)
    reach = np.cumsum(market.phi ** np.arange(days))
    to_come = market.signal**2 * (1 - market.phi**2) * (reach[:-1] ** 2).sum()
    log_variance = market.volatility**2 * (noise + to_come) + reach[-1] ** 2 * variance
    ratio: Float[np.ndarray, "days columns"] = np.exp(reach[-1] * drift + log_variance / 2)
    kept = (1 - rules.side_cost) / (1 + rules.side_cost)
    return 100 * (1 - ratio / kept) if short else 100 * (ratio * kept - 1)
