"""What agents learn of a drift that is hidden in prices: `python -m benchmarks.planted --out FILE.json`.

Every seed is a market of its own, with 2,400 days to train and validate on and 600 days that nothing but the end of a
run sees. There the champion plays against rules that know more and less of the drift (`eigen2.market.ceiling`), whose
settings are the best in hindsight on those very days. All variants play the same number of agent-days.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import describe_machine
from benchmarks.silent import silence, silent_trainer
from eigen2.erl.module import ERLModule
from eigen2.erl.rollouts import play
from eigen2.market.ceiling import ceiling
from eigen2.market.environment import TradingEnvironment
from eigen2.market.rollouts import RolloutDataModule
from eigen2.market.synthetic import SyntheticMarket

DAYS, HOLDOUT, VALIDATION = 3000, 600, 400
WINDOWS = 8
MARKET = {"days": DAYS, "columns": 20, "signal": 0.2, "half_life_days": 20.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "erl": {},
    "gradients alone": {"model": {"evolution": None}},
    "evolution alone": {"model": {"gradient_steps": 0}},
}
"""Settings of each variant beside the defaults."""


def holdout_starts(data: RolloutDataModule) -> list[int]:
    """First days of windows that walk evenly over the holdout."""
    days = data.panel.splits.holdout
    return [round(float(start)) for start in np.linspace(days.start, days.stop - data.window_days, WINDOWS)]


def holdout_rewards(module: ERLModule, data: RolloutDataModule) -> np.ndarray:
    """The champion's reward in each holdout window."""
    starts = holdout_starts(data)
    prices = torch.from_numpy(np.ascontiguousarray(data.panel.prices[:, data.investable_columns]))
    env = TradingEnvironment(prices, data.rules, 1, len(starts))
    policy = module.population.policy(module.population.champion)
    with torch.inference_mode():
        returns = play(env, lambda seen: policy(data.network_inputs(seen)).float(), data.window_options(starts))
    return returns[0].numpy()


def run(seed: int, generations: int, variant: dict[str, Any]) -> dict[str, Any]:
    """Train on the market of a seed, and play the champion and the rules on its holdout."""
    os.environ["PL_GLOBAL_SEED"] = str(seed)
    market = SyntheticMarket(seed=seed, **MARKET)
    module = ERLModule(**variant.get("model", {}))
    data = RolloutDataModule(
        synthetic=market, **{"validation_days": VALIDATION, "holdout_days": HOLDOUT, **variant.get("data", {})}
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = silent_trainer(generations, folder)
        began = time.perf_counter()
        trainer.fit(module, datamodule=data)
        seconds = time.perf_counter() - began
        rewards = holdout_rewards(module, data)
    bars = ceiling(
        market,
        data.rules,
        trading_days=data.trading_days,
        settlement_days=data.settlement_days,
        starts=holdout_starts(data),
    )
    return {
        "seed": seed,
        "champion": float(rewards.mean()),
        **{rule: play_.reward for rule, play_ in bars.plays.items()},
        "generation": int(module.population.champion_generation),
        "validation": float(module.population.champion_fitness),
        "generations": trainer.current_epoch,
        "seconds": seconds,
    }


def main() -> None:
    """Run variants over seeds and say how their champions compare with the rules."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--seeds", type=int, default=5, help="markets")
    parser.add_argument("--first", type=int, default=0, help="seed of the first market")
    parser.add_argument("--generations", type=int, default=25, help="generations of a run")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="what to train")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    silence()
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in args.variants}
    for seed in range(args.first, args.first + args.seeds):
        for name in args.variants:
            found = run(seed, args.generations, VARIANTS[name])
            runs[name].append(found)
            print(name, {key: round(value, 1) for key, value in found.items()}, flush=True)
    for name, each in runs.items():
        mean = {rule: np.mean([one[rule] for one in each]) for rule in ("champion", "momentum", "filtered", "informed")}
        share = {rule: 100 * mean["champion"] / mean[rule] for rule in ("momentum", "filtered", "informed")}
        print(name, f"{mean['champion']:.1f}", ", ".join(f"{value:.0f} % of {rule}" for rule, value in share.items()))
    if args.out is not None:
        args.out.write_text(json.dumps({"machine": describe_machine(), "market": MARKET, "runs": runs}, indent=1))


if __name__ == "__main__":
    main()
