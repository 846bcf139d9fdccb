"""Whether agents use what a feature shows them.

A market without any signal, positions of one day. `FEATURE` shows agents, by variant, tomorrow's return of each column
from open to close, that of two days ago, or itself. Only the first lets them earn more than luck: what the perfect rule
earns, which orders the column that will rise most.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import Benchmark, Row, Settings, Task, train
from benchmarks.learning.planted import holdout_reward, holdout_starts
from eigen2.core.environment import play
from eigen2.erl.module import ERLModule
from eigen2.market.data.panel import FEATURES
from eigen2.market.datamodule import MarketDataModule
from eigen2.market.simulation.environment import TradingEnvironment
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.synthetic.generator import SyntheticMarket

FEATURE = "trix"
DELAYS = {"tomorrow": -1, "past": 2, "without": None}
"""Days from a return to the day on whose evening it is shown; None shows none."""
RULES = TradingRules(max_holding_days=1)
SIZES = {"context_days": 4, "trading_days": 60, "settlement_days": 2, "replay_capacity": 100_000}


def returns_shown(prices: np.ndarray, delay: int) -> np.ndarray:
    """Return returns (days, columns) from open to close `delay` days before each, in deviations; 0 if unknown."""
    gain = np.nan_to_num(np.log(prices[..., 3] / prices[..., 0]))
    shown = np.roll(gain, delay, axis=0)
    shown[slice(delay, None) if delay < 0 else slice(delay)] = 0
    return np.asarray(shown / gain.std(), np.float32)


class OracleMarket(MarketDataModule):
    """Market with one feature that shows the return of another day, see `returns_shown`; with None, itself."""

    def __init__(self, delay: int | None, **settings: Any) -> None:
        super().__init__(**settings)
        self.delay = delay

    def setup(self, stage: str) -> None:
        """Load the panel and plant the feature."""
        super().setup(stage)
        if self.delay is None:
            return
        features, valid = self.panel.features.copy(), self.panel.valid.copy()
        features[..., FEATURES.index(FEATURE)] = returns_shown(self.panel.prices, self.delay).clip(-10, 10)
        valid[..., FEATURES.index(FEATURE)] = True
        self.panel = dataclasses.replace(self.panel, features=features, valid=valid)


def perfect_reward(data: MarketDataModule) -> float:
    """Return the mean holdout reward of ordering, each day, the column that rises most the next day, if any does."""
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


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Train on the market of a seed; return the rewards of champion and perfect rule on the holdout."""
    market = SyntheticMarket(seed=task.seed, days=1500, signal=0.0)
    data, module = OracleMarket(DELAYS[task.case], synthetic=market, rules=RULES, **SIZES), ERLModule()
    train(module, data, task.seed, settings["generations"], folder)
    return {"champion": holdout_reward(module, data), "perfect": perfect_reward(data)}


BENCHMARKS = {
    "oracle": Benchmark(
        measure,
        lambda own: [Task(variant, seed) for seed in range(own["seeds"]) for variant in DELAYS],
        {"seeds": 5, "generations": 25},
        {"generations": 1},
        fresh=True,
    )
}
