"""What agents learn of a drift that is hidden in prices: `python -m benchmarks.learning.planted --out FILE.json`.

Every seed is a market of its own, with 2,400 days to train and validate on and 600 days that nothing but the end of a
run sees. There the champion plays against rules that know more and less of the drift
(`eigen2.market.synthetic.ceiling`), whose settings are
the best in hindsight on those very days. All variants but one play the same number of agent-days. A run is
a row in a folder; rows that are there are not run again, so that hours can be spread over several calls.
"""

import argparse
import hashlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.learning.silent import silence, silent_trainer
from benchmarks.machine import describe_machine
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

DAYS, HOLDOUT, VALIDATION = 3000, 600, 400
WINDOWS = 8
MARKET: dict[str, Any] = {"days": DAYS, "columns": 40, "signal": 0.3, "half_life_days": 20.0, "gap": 0.7}
"""A slow drift; half of the variance of prices moves overnight, without any of it."""
SIZES: dict[str, Any] = {"validation_days": VALIDATION, "holdout_days": HOLDOUT, "context_days": 64}
"""A context of three half-lives: longer ones say nothing more and leave fewer days to train on."""
GENERATIONS = 45
RULES = ("random", "momentum", "filtered", "informed")
PROMISING = (
    *("erl", "gradients alone", "noise 0.1", "reward scale 0.02", "proximal mutation", "adaptive mutation"),
    *("no mutation", "mutation scale 0.3", "champion reinjected"),
)
"""Some that looked better on one market, for others to confirm."""
MAIN = ("erl", "gradients alone", "evolution alone", "evolution alone, as long")

Runs = dict[str, list[dict[str, Any]]]


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
    """First days of windows that walk evenly over the holdout."""
    days = data.panel.splits.holdout
    return [round(float(start)) for start in np.linspace(days.start, days.stop - data.window_days, WINDOWS)]


def holdout_rewards(module: ERLModule, data: MarketDataModule, champion: bool = True) -> np.ndarray:
    """Rewards in each holdout window, (agents, windows): of the champion alone or of all agents as they are."""
    starts = holdout_starts(data)
    prices = torch.from_numpy(np.ascontiguousarray(data.panel.prices[:, data.investable_columns]))
    env = TradingEnvironment(prices, data.rules, 1 if champion else module.population_size, len(starts))
    policy = module.population.policy(module.population.champion if champion else None)
    with torch.inference_mode():
        returns = play(env, lambda seen: policy(data.network_inputs(seen)).float(), data.window_options(starts))
    return returns.numpy()


def run(seed: int, generations: int, variant: dict[str, Any]) -> dict[str, Any]:
    """Train on the market of a seed, and play the champion and the rules on its holdout."""
    os.environ["PL_GLOBAL_SEED"] = str(seed)
    market = SyntheticMarket(seed=seed, **MARKET)
    module = ERLModule(**variant.get("model", {}))
    data = MarketDataModule(synthetic=market, **{**SIZES, **variant.get("data", {})})
    with tempfile.TemporaryDirectory() as folder:
        trainer = silent_trainer(generations * variant.get("times", 1), folder)
        began = time.perf_counter()
        trainer.fit(module, datamodule=data)
        seconds = time.perf_counter() - began
        champion, agents = (float(holdout_rewards(module, data, alone).mean()) for alone in (True, False))
    bars = ceiling(
        market,
        data.rules,
        trading_days=data.trading_days,
        settlement_days=data.settlement_days,
        starts=holdout_starts(data),
    )
    return {
        "seed": seed,
        "champion": champion,
        "agents": agents,
        **{rule: bars.plays[rule].reward for rule in RULES},
        "generation": int(module.population.champion_generation),
        "validation": float(module.population.champion_fitness),
        "generations": trainer.current_epoch,
        "seconds": seconds,
    }


def kept_row(folder: Path, name: str, seed: int, generations: int) -> dict[str, Any]:
    """The row of a variant and a seed: from the folder if it is there, else run now and put there."""
    key = hashlib.blake2b(f"{name} {seed} {generations} {MARKET} {SIZES}".encode(), digest_size=8).hexdigest()
    file = folder / f"{key}.json"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        row = {"variant": name, "commit": describe_machine()["commit"], **run(seed, generations, VARIANTS[name])}
        draft = file.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(row) + "\n")
        draft.replace(file)
        print(name, {key: round(value, 1) for key, value in row.items() if isinstance(value, (int, float))}, flush=True)
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def merged(kept: Runs, new: Runs) -> Runs:
    """Runs by variant, one a market; the new ones count."""
    return {
        name: sorted({row["seed"]: row for row in [*kept.get(name, []), *new.get(name, [])]}.values(), key=_seed)
        for name in {**kept, **new}
    }


def _seed(row: dict[str, Any]) -> int:
    return int(row["seed"])


def main() -> None:
    """Run variants over seeds and say how their champions compare with the rules."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--rows", type=Path, default=Path("lightning_logs/planted"), help="folder of the rows")
    parser.add_argument("--seeds", type=int, default=5, help="markets")
    parser.add_argument("--first", type=int, default=0, help="seed of the first market")
    parser.add_argument("--generations", type=int, default=GENERATIONS, help="generations of a run")
    parser.add_argument(
        "--variants", nargs="+", choices=[*VARIANTS, "all", "promising"], default=list(MAIN), help="what to train"
    )
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    silence()
    seeds = range(args.first, args.first + args.seeds)
    groups = {"all": tuple(VARIANTS), "promising": PROMISING}
    names = dict.fromkeys(name for word in args.variants for name in groups.get(word, (word,)))
    runs = {name: [kept_row(args.rows, name, seed, args.generations) for seed in seeds] for name in names}
    for name, each in runs.items():
        mean = {rule: np.mean([one[rule] for one in each]) for rule in ("champion", *RULES)}
        share = {rule: 100 * mean["champion"] / mean[rule] for rule in RULES[1:]}
        print(
            f"{name}: {mean['champion']:.0f}, {', '.join(f'{value:.1f} % of {rule}' for rule, value in share.items())}"
        )
    if args.out is not None:
        kept = json.loads(args.out.read_text())["runs"] if args.out.exists() else {}
        found = {"machine": describe_machine(), "market": MARKET, "runs": merged(kept, runs)}
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
