"""Whether agents use the information in a feature.

The market has no signal and positions last one day. By variant, `FEATURE` contains the open-to-close return of each
column tomorrow, the return two days ago, or its usual values. Only with the first can agents earn more than luck, at
most the reward of the perfect rule, which orders the column that will rise most.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import Benchmark, Row, Settings, Task, train
from benchmarks.learning.planted import holdout_fitness, holdout_starts
from eigen2.core.environment import play
from eigen2.erl.module import ERLModule
from eigen2.market.data.panel import FEATURES
from eigen2.market.datamodule import MarketDataModule
from eigen2.market.simulation.environment import TradingEnvironment
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.synthetic.generator import SyntheticMarket

FEATURE = "trix"
DELAYS = {"tomorrow": -1, "past": 2, "without": None}
"""Days from a return to the day whose close reveals it; None keeps the feature."""
RULES = TradingRules(max_holding_days=1)
SIZES = {"context_days": 4, "trading_days": 60, "settlement_days": 2, "replay_capacity": 100_000}


def returns_shown(prices: np.ndarray, delay: int) -> np.ndarray:
    """Return open-to-close returns of `delay` days ago over their standard deviation, (days, columns); 0 if unknown."""
    gain = np.nan_to_num(np.log(prices[..., 3] / prices[..., 0]))
    shown = np.roll(gain, delay, axis=0)
    shown[slice(delay, None) if delay < 0 else slice(delay)] = 0
    return np.asarray(shown / gain.std(), np.float32)


class OracleMarket(MarketDataModule):
    """Market with `FEATURE` replaced by `returns_shown`, or kept if `delay` is None."""

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


def perfect_fitness(data: MarketDataModule) -> float:
    """Return the mean holdout fitness of ordering, each day, the column that rises most the next day, if any does."""
    starts, prices = holdout_starts(data), data.panel.prices
    after_costs = (1 - RULES.side_cost) / (1 + RULES.side_cost)
    next_return = np.full(prices.shape[:2], -1.0)
    next_return[:-1] = prices[1:, :, 3] / prices[1:, :, 0] * after_costs - 1
    env = TradingEnvironment(prices, RULES, 1, len(starts), account=data.account)

    def act(observation: dict[str, torch.Tensor]) -> torch.Tensor:
        gain = torch.from_numpy(next_return[observation["day"][0].long().numpy()])[None]
        best = gain == gain.amax(-1, keepdim=True)
        order = torch.where(best & (gain > 0), 1.0, -1.0)
        return torch.stack([order, torch.ones_like(order)], -1).float()

    return float(env.scores(play(env, act, data.window_options(starts))).mean())


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Train on the market of a seed; return the fitness of champion and perfect rule on the holdout."""
    market = SyntheticMarket(seed=task.seed, days=1500, signal=0.0)
    data, module = OracleMarket(DELAYS[task.case], synthetic=market, rules=RULES, **SIZES), ERLModule()
    train(module, data, task.seed, settings["generations"], folder)
    return {"champion": holdout_fitness(module, data), "perfect": perfect_fitness(data)}


BENCHMARKS = {
    "oracle": Benchmark(
        measure,
        lambda settings: [Task(variant, seed) for seed in range(settings["seeds"]) for variant in DELAYS],
        {"seeds": 5, "generations": 25},
        {"generations": 1},
        fresh=True,
    )
}
