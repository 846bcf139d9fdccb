"""How much agents learn of a drift that is hidden in prices.

Every seed is another market. On its holdout the champion plays against rules that know the drift to different degrees,
with settings that are best in hindsight on the same days, and against ridge regression with one setting. Variants play
the same number of windows for fitness, unless they say otherwise.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import Benchmark, Row, Settings, Task, train
from benchmarks.learning.heads import CrossEntropy, HeadsDDPG, OutputCrossover, OutputMutation, SoftUpdate
from eigen2.core.environment import play
from eigen2.core.networks import Sizes
from eigen2.erl.evolution import Elitism, Injection, MagnitudeMutation, TournamentCrossover
from eigen2.erl.learners import DDPG
from eigen2.erl.module import ERLModule
from eigen2.market.datamodule import MarketDataModule
from eigen2.market.features.encoding import AverageEncoder
from eigen2.market.networks.columns import RIDGE, ColumnActor, ColumnCritic, DayColumnActor, MarketSizes
from eigen2.market.simulation.environment import TradingEnvironment
from eigen2.market.simulation.policies import order_by_score
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.simulate import play_days
from eigen2.market.synthetic.ceiling import ceiling
from eigen2.market.synthetic.generator import SyntheticMarket

WINDOWS = 8
MARKET: dict[str, Any] = {"days": 3000, "columns": 40, "signal": 0.3, "half_life_days": 20.0, "gap": 0.7}
"""A slow drift; half of the variance of prices is overnight, where there is no drift."""
SIZES: dict[str, Any] = {"validation_days": 400, "holdout_days": 600, "context_days": 64}
"""A context of three half-lives: a longer one adds no information and leaves fewer days to train on."""
SMALL: dict[str, dict[str, Any]] = {  # settings that replace those of a variant in a run of seconds
    "market": {"days": 220, "columns": 4, "signal": 2.0},
    "sizes": {"context_days": 8, "validation_days": 30, "holdout_days": 40, "trading_days": 15, "settlement_days": 5}
    | {"replay_capacity": 4000, "replay_min_size": 100, "batch_size": 4},
    "model": {"population_size": 3, "gradient_steps": 1, "accumulate": 1},
}
RULES = ("random", "momentum", "ridge", "filtered", "informed")
HALVES = ("gradients alone", "evolution alone")
INJECTED = (Elitism(), Injection(), TournamentCrossover(), MagnitudeMutation())
SEEDS, OTHER_SEEDS, FRESH_SEEDS = range(21, 37), range(41, 45), range(201, 241)


def _without_ridge(sizes: MarketSizes) -> MarketSizes:
    return replace(sizes, inputs={name: shape for name, shape in sizes.inputs.items() if name != RIDGE})


def _plain_actor(sizes: Sizes) -> ColumnActor:
    return ColumnActor(_without_ridge(sizes))


def _plain_day_actor(sizes: Sizes) -> DayColumnActor:
    return DayColumnActor(_without_ridge(sizes))


def _plain_critic(sizes: Sizes) -> ColumnCritic:
    return ColumnCritic(_without_ridge(sizes))


def _shared(**changes: Any) -> dict[str, Any]:
    """Return the settings of one trunk with a head for each agent, and changes of them."""
    return {"model": {"representation": "shared", "evolution": INJECTED, "actor": DayColumnActor} | changes}


VARIANTS: dict[str, dict[str, Any]] = {
    "erl": {},
    "gradients alone": {"model": {"evolution": None}},
    "evolution alone": {"model": {"gradient_steps": 0}},
    "gamma 0.5": {"model": {"gamma": 0.5}},
    "gamma 0.9": {"model": {"gamma": 0.9}},
    "learning rates of 0.001": {"model": {"actor_lr": 1e-3, "critic_lr": 1e-3}},
    "learning rates of 0.0001": {"model": {"actor_lr": 1e-4, "critic_lr": 1e-4}},
    "without ridge forecasts": {"model": {"actor": _plain_actor, "critic": _plain_critic}},
    "without the critic's forecasts": {"model": {"learner": DDPG(forecast_weight=0.0)}},
    "4 windows a generation": {"data": {"windows_per_generation": 4}},
    "context of 504 days": {"data": {"context_days": 504}},
    "positions kept to their end": {"data": {"rules": TradingRules(early_close=False)}},
    "3 orders a day": {"data": {"rules": TradingRules(max_opens_per_day=3)}},
}
"""Settings of each variant that differ from the defaults."""
SHARED = {
    "shared representation of days": _shared(),
    "shared, learning rates of 0.0001": _shared(actor_lr=1e-4, critic_lr=1e-4),
    "shared, 4 times the micro-batches": _shared(accumulate=8),
    "shared, with both": _shared(accumulate=8, actor_lr=1e-4, critic_lr=1e-4),
    "shared, without ridge forecasts": _shared(actor=_plain_day_actor, critic=_plain_critic),
    "shared, without the critic's forecasts": _shared(learner=DDPG(forecast_weight=0.0)),
}
"""The same for agents with a shared representation."""
HALF = {"windows_per_generation": 4}
HEADS = {
    "shared representation of days": _shared(),
    "operators by outputs": _shared(evolution=(*INJECTED[:2], OutputCrossover(), OutputMutation())),
    "cross-entropy method": _shared(evolution=(*INJECTED[:2], CrossEntropy())),
    "trunk learns from 4 more heads": _shared(learner=HeadsDDPG(heads=4)),
    "learner moves towards the elites": {**_shared(), "module": SoftUpdate},
    "half of the windows, twice the generations": {**_shared(), "data": HALF, "generations": 2},
}
"""Changes of what heads learn and how they evolve."""


def holdout_starts(data: MarketDataModule, windows: int = WINDOWS) -> list[int]:
    """Return the first days of windows spread evenly over the holdout."""
    days = data.panel.splits.holdout
    return [round(float(start)) for start in np.linspace(days.start, days.stop - data.window_days, windows)]


def holdout_fitness(module: ERLModule, data: MarketDataModule, champion: bool = True, windows: int = WINDOWS) -> float:
    """Return the mean fitness on the holdout, of the champion or of the current population."""
    starts = holdout_starts(data, windows)
    prices = data.panel.prices[:, data.investable_columns]
    agents = 1 if champion else module.population_size
    env = TradingEnvironment(prices, data.rules, agents, len(starts), account=data.account)
    policy = module.population.policy("champion" if champion else None)
    with torch.inference_mode():
        returns = play(env, lambda state: policy(data.network_inputs(state)).float(), data.window_options(starts))
    return float(env.scores(returns).mean())


def ridge_fitness(data: MarketDataModule) -> float:
    """Return the mean fitness on the holdout of ordering the columns that a ridge regression ranks highest."""
    assert isinstance(data.encoder, AverageEncoder)
    return score_fitness(data.encoder.ridge_scores(data.panel, data.panel.splits.train), data)


def score_fitness(scores: np.ndarray, data: MarketDataModule, windows: int = WINDOWS) -> float:
    """Return the mean fitness on the holdout of ordering the columns of the highest scores, (days, columns)."""
    prices = data.panel.prices[:, data.investable_columns]
    starts = holdout_starts(data, windows)
    env = TradingEnvironment(prices, data.rules, 1, len(starts), account=data.account)
    days = play_days(env, order_by_score(scores, data.rules), data.window_options(starts))
    return float(env.scores(torch.stack([day.reward for day in days]).double().sum(0)).mean())


def _make(task: Task, settings: Settings) -> tuple[SyntheticMarket, ERLModule, MarketDataModule, int]:
    """Return market, module and data module of a variant, and its number of generations."""
    variant, small = (VARIANTS | SHARED | HEADS)[task.case], SMALL if settings["small"] else {}
    market = SyntheticMarket(seed=task.seed, **small.get("market", MARKET))
    module = variant.get("module", ERLModule)(**variant.get("model", {}) | small.get("model", {}))
    data = MarketDataModule(synthetic=market, **SIZES | variant.get("data", {}) | small.get("sizes", {}))
    return market, module, data, settings["generations"] * variant.get("generations", 1)


def all_settings(module: ERLModule, data: MarketDataModule) -> object:
    """Return what decides what is trained, the defaults included, as plain values."""
    return [type(module).__name__, module.model_config(), data.config()]


def _key(task: Task, settings: Settings) -> object:
    _, module, data, generations = _make(task, settings)
    return [all_settings(module, data), generations]


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Train a variant on the market of a seed; evaluate champion, population and rules on its holdout."""
    market, module, data, generations = _make(task, settings)
    seconds = train(module, data, task.seed, generations, folder)
    windows = {"trading_days": data.trading_days, "settlement_days": data.settlement_days}
    ceilings = ceiling(market, data.rules, data.account, **windows, starts=holdout_starts(data))
    return {
        "champion": holdout_fitness(module, data),
        "agents": holdout_fitness(module, data, champion=False),
        **{rule: play.mean_fitness for rule, play in ceilings.plays.items()},
        "ridge": ridge_fitness(data),
        "seconds": seconds,
    }


def _benchmark(variants: Sequence[str], seeds: Iterable[int], generations: int) -> Benchmark:
    """Return the benchmark of each variant on the market of each seed."""
    tasks = [Task(variant, seed) for seed in seeds for variant in variants]
    settings = {"generations": generations, "small": False}
    smallest = {"generations": 2, "small": True}
    return Benchmark(measure, lambda _: tasks, settings, smallest, key=_key)


BENCHMARKS = {
    "planted": _benchmark(["erl"], SEEDS, generations=25),
    "halves": _benchmark(HALVES, SEEDS, generations=25),
    "ablations": _benchmark([*VARIANTS], [100], generations=20),
    "trunks": _benchmark([next(iter(SHARED))], SEEDS, generations=25),
    "fresh": _benchmark([next(iter(SHARED)), "gradients alone", "erl"], FRESH_SEEDS, generations=25),
    "trunk-variants": _benchmark([*SHARED], OTHER_SEEDS, generations=25),
    "heads": _benchmark([*HEADS], OTHER_SEEDS, generations=25),
}
