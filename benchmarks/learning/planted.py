"""What agents learn of a drift that is hidden in prices.

Every seed is a market of its own. On its holdout the champion plays against rules that know more and less of the drift,
whose settings are the best in hindsight on those very days. All variants but one play as many agent-days.
"""

import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import Benchmark, Figures, Row, Settings, Task, quiet_trainer, rows_by_case
from eigen2.core.environment import play
from eigen2.erl.evolution import (
    Elitism,
    MagnitudeMutation,
    Operator,
    PlateauGrowth,
    ProximalMutation,
    Reinjection,
    TournamentCrossover,
)
from eigen2.erl.learners import TD3
from eigen2.erl.module import ERLModule
from eigen2.market.datamodule import MarketDataModule
from eigen2.market.networks.columns import Choice, ColumnActor, ColumnCritic
from eigen2.market.simulation.environment import TradingEnvironment
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.synthetic.ceiling import ceiling
from eigen2.market.synthetic.generator import SyntheticMarket

WINDOWS = 8
MARKET: dict[str, Any] = {"days": 3000, "columns": 40, "signal": 0.3, "half_life_days": 20.0, "gap": 0.7}
"""A slow drift; half of the variance of prices moves overnight, without any of it."""
SIZES: dict[str, Any] = {"validation_days": 400, "holdout_days": 600, "context_days": 64}
"""A context of three half-lives: longer ones say nothing more and leave fewer days to train on."""
SMALL: dict[str, dict[str, Any]] = {  # sizes that replace those of a variant for a run of seconds
    "market": {"days": 220, "columns": 4, "signal": 2.0},
    "sizes": {"context_days": 8, "validation_days": 30, "holdout_days": 40, "trading_days": 15, "settlement_days": 5}
    | {"replay_capacity": 4000, "replay_min_size": 100, "batch_size": 4},
    "model": {"population_size": 3, "gradient_steps": 1, "accumulate": 1},
}
RULES = ("random", "momentum", "filtered", "informed")
MAIN = ("erl", "gradients alone", "evolution alone", "evolution alone, as long")
PROMISING = (  # variants that looked better on one market, to be confirmed on others
    *("erl", "gradients alone", "noise 0.1", "reward scale 0.02", "proximal mutation", "adaptive mutation"),
    *("no mutation", "mutation scale 0.3", "champion reinjected"),
)


def _evolving(*operators: Operator, elites: float = 0.5, crossover: float = 0.375) -> dict[str, Any]:
    """Return the settings of evolution by elitism, crossover and these operators."""
    return {"model": {"evolution": [Elitism(elites), *operators[:-1], TournamentCrossover(crossover), operators[-1]]}}


def _hidden(units: int) -> dict[str, Any]:
    def actor(sizes: Any) -> ColumnActor:
        return ColumnActor(sizes, units)

    def critic(sizes: Any) -> ColumnCritic:
        return ColumnCritic(sizes, units)

    return {"model": {"actor": actor, "critic": critic}}


def _sharpness(value: float) -> dict[str, Any]:
    def critic(sizes: Any) -> ColumnCritic:
        return ColumnCritic(sizes, choice=Choice(sharpness=value))

    return {"model": {"critic": critic}}


VARIANTS: dict[str, dict[str, Any]] = {
    "erl": {},
    "gradients alone": {"model": {"evolution": None}},
    "evolution alone": {"model": {"gradient_steps": 0}},
    "evolution alone, as long": {"model": {"gradient_steps": 0}, "times": 5},
    "rewards where positions close": {"data": {"credit": "close"}},
    "half the gradient steps": {"model": {"gradient_steps": 48}},
    "twice the gradient steps": {"model": {"gradient_steps": 192}},
    "gamma 0.99": {"model": {"gamma": 0.99}},
    "gamma 0": {"model": {"gamma": 0.0}},
    "reward scale 0.02": {"model": {"reward_scale": 0.02}},
    "reward scale 0.5": {"model": {"reward_scale": 0.5}},
    "learning rates 3e-4": {"model": {"actor_lr": 3e-4, "critic_lr": 3e-4}},
    "noise 0.1": {"model": {"noise": 0.1}},
    "noise 0.3 throughout": {"model": {"noise_decay": 1.0}},
    "4 windows a generation": {"data": {"windows_per_generation": 4}},
    "replay of 50,000": {"data": {"replay_capacity": 50_000}},
    "context of 504 days": {"data": {"context_days": 504}},
    "16 units a layer": _hidden(16),
    "64 units a layer": _hidden(64),
    "sharpness 0.5": _sharpness(0.5),
    "sharpness 5": _sharpness(5.0),
    "3 orders a day": {"data": {"rules": TradingRules(max_opens_per_day=3)}},
    "TD3": {"model": {"learner": TD3()}},
    "no crossover": _evolving(MagnitudeMutation(), crossover=0.0),
    "no mutation": _evolving(MagnitudeMutation(), crossover=0.5),
    "a quarter are elites": _evolving(MagnitudeMutation(), elites=0.25, crossover=0.5),
    "mutation scale 0.3": _evolving(MagnitudeMutation(scale=0.3)),
    "adaptive mutation": _evolving(MagnitudeMutation(growth=PlateauGrowth())),
    "proximal mutation": _evolving(ProximalMutation()),
    "champion reinjected": _evolving(Reinjection(3), MagnitudeMutation()),
}
"""Settings of each variant beside the defaults; `times` as many generations, to take as long as those that train."""


def holdout_starts(data: MarketDataModule) -> list[int]:
    """Return the first days of windows that lie evenly over the holdout."""
    days = data.panel.splits.holdout
    return [round(float(start)) for start in np.linspace(days.start, days.stop - data.window_days, WINDOWS)]


def holdout_rewards(module: ERLModule, data: MarketDataModule, champion: bool = True) -> np.ndarray:
    """Return rewards (agents, windows) on the holdout, of the champion alone or of all agents as they are."""
    starts = holdout_starts(data)
    prices = torch.from_numpy(np.ascontiguousarray(data.panel.prices[:, data.investable_columns]))
    env = TradingEnvironment(prices, data.rules, 1 if champion else module.population_size, len(starts))
    policy = module.population.policy(module.population.champion if champion else None)
    with torch.inference_mode():
        returns = play(env, lambda seen: policy(data.network_inputs(seen)).float(), data.window_options(starts))
    return returns.numpy()


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Train a variant on the market of a seed; play the champion, all agents and the rules on its holdout."""
    variant, small = VARIANTS[task.case], SMALL if settings["small"] else {}
    os.environ["PL_GLOBAL_SEED"] = str(task.seed)
    market = SyntheticMarket(seed=task.seed, **small.get("market", MARKET))
    module = ERLModule(**variant.get("model", {}) | small.get("model", {}))
    data = MarketDataModule(synthetic=market, **SIZES | variant.get("data", {}) | small.get("sizes", {}))
    with tempfile.TemporaryDirectory(dir=folder) as run:
        trainer = quiet_trainer(settings["generations"] * variant.get("times", 1), run)
        began = time.perf_counter()
        trainer.fit(module, datamodule=data)
        seconds = time.perf_counter() - began
        champion, agents = (float(holdout_rewards(module, data, alone).mean()) for alone in (True, False))
    windows = {"trading_days": data.trading_days, "settlement_days": data.settlement_days}
    bars = ceiling(market, data.rules, **windows, starts=holdout_starts(data))
    return {
        "champion": champion,
        "agents": agents,
        **{rule: bars.plays[rule].reward for rule in RULES},
        "generation": int(module.population.champion_generation),
        "validation": float(module.population.champion_fitness),
        "generations": trainer.current_epoch,
        "seconds": seconds,
    }


def figures(measured: Any) -> Figures:
    """Return the runs by variant, and the market they are of."""
    return {"market": MARKET, **rows_by_case(measured)}


def _benchmark(*groups: tuple[Iterable[str], Iterable[int]], generations: int = 45) -> Benchmark:
    """Return the benchmark of groups of variants, each on the markets of some seeds."""
    tasks = [Task(variant, seed) for variants, seeds in groups for variant in variants for seed in seeds]
    settings = {"generations": generations, "small": False}
    smallest = {"generations": 2, "small": True}
    return Benchmark(measure, lambda _: tasks, settings, smallest, figures, lambda task, _: [MARKET, SIZES])


BENCHMARKS = {
    "planted": _benchmark((MAIN[:3], range(5))),
    "planted-long": _benchmark((MAIN[3:], range(5))),
    "planted-fresh": _benchmark((MAIN[:2], range(5, 15))),
    "planted-short": _benchmark((MAIN[:2], range(15, 31)), generations=25),
    "ablations": _benchmark((VARIANTS, [100]), (PROMISING, [101, 102]), generations=20),
}
