"""Whether agents use what a feature tells them: `python -m benchmarks.learning.oracle --out FILE.json`.

A market without any signal, positions of one day. In place of one feature (`FEATURE`) agents see, by variant,
tomorrow's return of each column from open to close, that of two days ago, or what the feature always says. With
tomorrow's return they can do what the perfect rule does, which orders the column that will rise most; the other
variants tell nothing, and can earn no more than luck.
"""

import argparse
import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.learning.planted import holdout_rewards, holdout_starts
from benchmarks.learning.silent import silence, silent_trainer
from benchmarks.machine import describe_machine
from eigen2.core.environment import play
from eigen2.erl.module import ERLModule
from eigen2.market.data.panel import FEATURES
from eigen2.market.datamodule import MarketDataModule
from eigen2.market.simulation.environment import TradingEnvironment
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.synthetic.generator import SyntheticMarket

FEATURE = "trix"
DELAYS = {"tomorrow": -1, "past": 2, "without": None}
"""Days from a return to the day on whose evening it is told; None tells none."""
RULES = TradingRules(max_holding_days=1)
SIZES = {"context_days": 4, "trading_days": 60, "settlement_days": 2, "replay_capacity": 100_000}


def returns_told(prices: np.ndarray, delay: int) -> np.ndarray:
    """The return from open to close, in units of its deviation, of `delay` days before each day; 0 where none is known.

    Args:
        prices: (days, columns, 4) open, high, low, close.
        delay: below 0 for a coming day's.
    """
    gain = np.nan_to_num(np.log(prices[..., 3] / prices[..., 0]))
    told = np.zeros_like(gain)
    if delay < 0:
        told[:delay] = gain[-delay:]
    else:
        told[delay:] = gain[: len(gain) - delay]
    scaled: np.ndarray = (told / gain.std()).astype(np.float32)
    return scaled


class OracleRollouts(MarketDataModule):
    """The market with one feature that may tell another day's return.

    Args:
        delay: see `returns_told`; None leaves the feature as it is.
        settings: of `MarketDataModule`.
    """

    def __init__(self, delay: int | None, **settings: Any) -> None:
        super().__init__(**settings)
        self.delay = delay

    def setup(self, stage: str) -> None:
        """Load the panel and plant the feature."""
        super().setup(stage)
        if self.delay is None:
            return
        features, valid = self.panel.features.copy(), self.panel.valid.copy()
        features[..., FEATURES.index(FEATURE)] = returns_told(self.panel.prices, self.delay).clip(-10, 10)
        valid[..., FEATURES.index(FEATURE)] = True
        self.panel = dataclasses.replace(self.panel, features=features, valid=valid)


def perfect_reward(data: MarketDataModule) -> float:
    """Mean reward of a holdout window for who orders, each day, the column that rises most the next, if any does."""
    starts, prices = holdout_starts(data), data.panel.prices
    kept = (1 - RULES.side_cost) / (1 + RULES.side_cost)
    coming = np.full(prices.shape[:2], -1.0)
    coming[:-1] = prices[1:, :, 3] / prices[1:, :, 0] * kept - 1
    env = TradingEnvironment(prices, RULES, 1, len(starts))

    def act(seen: dict[str, torch.Tensor]) -> torch.Tensor:
        gain = torch.from_numpy(coming[seen["day"][0].long().numpy()])[None]
        best = gain == gain.amax(-1, keepdim=True)
        order = torch.where(best & (gain > 0), 1.0, -1.0)
        return torch.stack([order, torch.ones_like(order)], -1).float()

    return float(play(env, act, data.window_options(starts)).mean())


def run(seed: int, generations: int, variant: str) -> dict[str, float]:
    """Train on the market of a seed with what a variant tells; rewards of champion and perfect rule on the holdout."""
    os.environ["PL_GLOBAL_SEED"] = str(seed)
    data = OracleRollouts(
        DELAYS[variant], synthetic=SyntheticMarket(seed=seed, days=1500, signal=0.0), rules=RULES, **SIZES
    )
    module = ERLModule()
    with tempfile.TemporaryDirectory() as folder:
        silent_trainer(generations, folder).fit(module, datamodule=data)
        champion = float(holdout_rewards(module, data).mean())
    return {"seed": seed, "champion": champion, "perfect": perfect_reward(data)}


def main() -> None:
    """Run the variants over seeds and say what share of the perfect rule they earn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--seeds", type=int, default=5, help="markets")
    parser.add_argument("--generations", type=int, default=25, help="generations of a run")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    silence()
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in DELAYS}
    for seed in range(args.seeds):
        for name, found in runs.items():
            found.append(run(seed, args.generations, name))
            print(name, {key: round(value, 1) for key, value in found[-1].items()}, flush=True)
    for name, each in runs.items():
        share = 100 * sum(one["champion"] for one in each) / sum(one["perfect"] for one in each)
        print(f"{name}: {share:.1f} % of the perfect rule")
    if args.out is not None:
        args.out.write_text(json.dumps({"machine": describe_machine(), "runs": runs}, indent=1))


if __name__ == "__main__":
    main()
