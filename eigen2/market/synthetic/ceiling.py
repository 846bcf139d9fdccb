"""The ceiling of a synthetic market: what rules that know its hidden drift earn in the trading environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor

from eigen2.errors import UserError, require_range
from eigen2.market.simulation.environment import TradingEnvironment, TradingRules, window_options
from eigen2.market.simulation.policies import CLOSE, momentum_pct
from eigen2.market.simulation.simulate import Policy, play_days
from eigen2.market.synthetic.forecast import drift_ic, expected_gain_pct, filter_ic, filtered_drift
from eigen2.market.synthetic.generator import SyntheticMarket

TARGETS = 3
"""Sale targets tried by every rule, evenly spaced in their logarithms from the lowest allowed to the highest."""
THRESHOLDS_PCT = (0.0, 1.0, 2.0, 4.0)
"""Expected gains in percent above which a rule orders, all tried: a held column cannot be ordered again, so that it can
pay to wait for a better moment."""
WARM_UP_DAYS = 60
"""Days before the first window, where the market has them, from which filter and momentum learn."""
MAX_WINDOWS = 32
RULES = ("informed", "filtered", "momentum", "random")


@dataclass(frozen=True)
class Play:
    """What one rule earned with the best target and threshold of those tried on the same days."""

    target_pct: float
    threshold_pct: float
    rewards: Float[np.ndarray, " windows"]
    """Sum of coefficient x percent gain less penalties; the mean of all agents."""
    trades: float
    """Positions opened per window and agent."""
    gain_pct: float
    """Mean percent gain of a position, net of costs; 0 without any."""

    @property
    def reward(self) -> float:
        """Return the mean reward of a window."""
        return float(self.rewards.mean())


@dataclass(frozen=True)
class Ceiling:
    """What each of `RULES` earns on a synthetic market in windows that start on `starts`; `str` gives a table."""

    market: SyntheticMarket
    rules: TradingRules
    starts: list[int]
    window_days: int
    plays: dict[str, Play]

    def __str__(self) -> str:
        market, rules, plays = self.market, self.rules, self.plays
        advantage = plays["informed"].rewards - plays["random"].rewards
        lines = [
            f"Ceiling of {market.days:,} days x {market.columns:,} columns, signal {market.signal:g}, half-life "
            f"{market.half_life_days:g} days",
            f"{len(self.starts)} windows of {self.window_days} days, execution {rules.execution}, costs "
            f"{200 * rules.side_cost:g} % a trade",
            "",
            "rule           reward a window  % gain a trade   trades   target   least",
        ]
        for name, play in plays.items():
            line = f"{name:<10}{_mean_and_error(play.rewards):>20}{play.gain_pct:>+16.3f}{play.trades:>9.1f}"
            lines.append(f"{line}{f'{play.target_pct:.1f} %':>9}{f'{play.threshold_pct:g} %':>8}")
        return "\n".join(
            [
                *lines,
                "",
                f"informed over random, window by window: {_mean_and_error(advantage, '+')}",
                f"information coefficient of the drift {drift_ic(market):.4f}, as estimated {filter_ic(market):.4f}",
                "target and least are each rule's best on these very days: a ceiling, no forecast",
            ]
        )


def _mean_and_error(values: Float[np.ndarray, " windows"], sign: str = "") -> str:
    """Return the mean and, where there are several windows, its standard error as text."""
    error = f" +- {values.std(ddof=1) / len(values) ** 0.5:.1f}" if len(values) > 1 else ""
    return f"{values.mean():{sign}.1f}{error}"


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
    - random draws its expectations, for each sale target so many agents (1 or more) with orders of the given seed.

    The market must fit into memory, with about 150 bytes per day and column. Without `starts`, windows walk evenly from
    day 60 to the last day, as many as fit without overlap, 32 at most.

    Raises:
        UserError: a setting is out of range, the market is shorter than a window, a window does not fit into its days,
            or its prices leave the float32 range.
    """
    length = trading_days + settlement_days
    for name, value in {"random_agents": random_agents, "trading_days": trading_days, "days": settlement_days}.items():
        require_range(name, value, least=1)
    first_days = _walk(market.days, length) if starts is None else [int(start) for start in starts]
    require_range("number of starts", len(first_days), least=1)
    prices = market.prices()
    momentum = momentum_pct(prices)
    scores = np.stack(
        [
            _best_side(market, rules, market.drift(), np.zeros(1)),
            _best_side(market, rules, *filtered_drift(market, prices)),
            momentum if rules.allow_short else momentum.clip(min=0),
        ]
    ).astype(np.float32)
    scores[:, np.isnan(prices[..., CLOSE])] = np.nan
    agents = [
        (rule, target, threshold)
        for rule in RULES
        for target in np.geomspace(rules.min_target, rules.max_target, TARGETS).tolist()
        for threshold in ([0.0] * random_agents if rule == "random" else THRESHOLDS_PCT)
    ]
    env = TradingEnvironment(prices, rules, len(agents), len(first_days))
    policy = _policy(env, agents, torch.from_numpy(scores), random_agents, np.random.default_rng(seed))
    rewards = np.zeros((env.agents, env.windows))
    for day in play_days(env, policy, window_options(first_days, trading_days, length)):
        rewards += day.reward.numpy()
    plays = {rule: _best([agent for agent in agents if agent[0] == rule], agents, rewards, env) for rule in RULES}
    return Ceiling(market, rules, first_days, length, plays)


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
            f"the market has {days} days, but a window takes {length}: draw more days, or shorten the window"
        )
    first = min(WARM_UP_DAYS, days - length)
    count = min((days - first) // length, MAX_WINDOWS)
    return [round(start) for start in np.linspace(first, days - length, count).tolist()]


Agent = tuple[str, float, float]
"""Rule, sale target and threshold in percent."""


def _policy(
    env: TradingEnvironment,
    agents: Sequence[Agent],
    scores: Float32[Tensor, "known days columns"],
    random_agents: int,
    rng: np.random.Generator,
) -> Policy:
    """Return the orders of all agents.

    `scores` are the percent expected by the first of `RULES`: negative for a short sale, NaN without a price.
    """
    target, threshold = torch.tensor([agent[1:] for agent in agents], dtype=torch.float32).T[..., None, None]
    # the rows of a day's scores: of the rules, then those drawn, which the random agents of all targets share
    known_rows = torch.tensor([RULES.index(rule) for rule, *_ in agents if rule != "random"])
    row = torch.cat([known_rows, len(scores) + torch.arange(random_agents).repeat(TARGETS)])
    most_orders = min(env.rules.max_opens_per_day, env.num_columns)

    def policy(observation: dict[str, Tensor]) -> Tensor:
        known = scores[:, observation["day"][0].long()]
        # within (0, 1] or, with short sales, (-1, 1]
        fractions = rng.random((random_agents, env.windows, env.num_columns), dtype=np.float32)
        drawn = 1 - torch.from_numpy(fractions) * (2 if env.rules.allow_short else 1)
        score = torch.cat([known, drawn.where(~known[0].isnan(), torch.nan)])[row]
        wanted = (score.abs() > threshold) & (observation["held_days"] == 0)
        best = score.abs().where(wanted, 0).topk(most_orders)
        order = (score.gather(-1, best.indices).sign() * env.rules.max_coefficient).where(best.values > 0, 0)
        coefficient = torch.zeros_like(score).scatter_(-1, best.indices, order)
        return torch.stack([coefficient, target.expand_as(coefficient)], -1)

    return policy


def _best(
    settings: Sequence[Agent],
    agents: Sequence[Agent],
    rewards: Float[np.ndarray, "agents windows"],
    env: TradingEnvironment,
) -> Play:
    """Return what the setting of the highest mean reward, the first of several, earned."""
    rows = {setting: [i for i, agent in enumerate(agents) if agent == setting] for setting in settings}
    best = max(rows, key=lambda setting: float(rewards[rows[setting]].mean()))
    own, summary = rows[best], env.get_episode_summary()
    trades, gain = (float(summary[name][own].sum()) for name in ("trades", "gain_pct"))
    return Play(*best[1:], rewards[own].mean(0), trades / rewards[own].size, gain / max(trades, 1))
