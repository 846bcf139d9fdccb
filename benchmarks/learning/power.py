"""Power curve: the smallest edge that a method finds, by information coefficient, columns and days of history.

The information coefficient is the correlation of a column's hidden drift, the best possible forecast, with its log
return of the next day. Prices reveal only part of it: a Kalman filter that knows how the market was made is the most
that can be found. Every cell and seed is a market of its own, on whose holdout each method plays the same windows.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from benchmarks.harness import Benchmark, Row, Settings, Task, train
from benchmarks.learning.planted import SMALL, all_settings, holdout_fitness, score_fitness
from benchmarks.learning.study import champion_policy
from eigen2.erl.module import ERLModule
from eigen2.market.datamodule import MarketDataModule
from eigen2.market.evaluation.information import information
from eigen2.market.features.encoding import AverageEncoder
from eigen2.market.simulation.policies import momentum_pct
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.simulate import preferences
from eigen2.market.synthetic.ceiling import expected_gain_pct, filtered_drift
from eigen2.market.synthetic.generator import SyntheticMarket

COEFFICIENTS, COLUMNS, DAYS = (0.02, 0.05, 0.1, 0.3), (30, 100, 500), (1000, 3000, 5000)
RULES = TradingRules(cost_bps=1.0, slippage_bps=0.0)
"""Low costs, so that the filter earns something at the lower coefficients too."""
HOLDOUT_DAYS, WINDOWS = 2000, 13
"""As many windows as fit without overlap: what a weak edge earns shows in a long test only."""
SIZES: dict[str, Any] = {"validation_days": 400, "holdout_days": HOLDOUT_DAYS, "context_days": 64}
SCORES = ("filter", "ridge", "momentum")
RANDOM_DRAWS = 8


class Cell(NamedTuple):
    """A kind of market; its days are those before the holdout, of training and validation."""

    coefficient: float
    columns: int
    days: int

    def __str__(self) -> str:
        return f"{self.coefficient:g} {self.columns} {self.days}"


CELLS = [Cell(ic, columns, days) for columns in COLUMNS for days in DAYS for ic in COEFFICIENTS]


def signal_of(coefficient: float) -> float:
    """Return the `SyntheticMarket.signal` of an information coefficient (0 to below 1).

    The drift has the variance signal^2, the rest of a day's return 1, in units of the squared volatility; so their
    correlation is signal / sqrt(1 + signal^2).
    """
    return float(coefficient / np.sqrt(1 - coefficient**2))


def market_data(cell: Cell, seed: int, small: bool, **changes: Any) -> tuple[SyntheticMarket, MarketDataModule]:
    """Return the market of a cell and a seed, and its data; tiny ones if `small`."""
    size = {"days": cell.days + HOLDOUT_DAYS, "columns": cell.columns, "signal": signal_of(cell.coefficient)}
    market = SyntheticMarket(seed=seed, half_life_days=20.0, gap=0.7, **size | (SMALL["market"] if small else {}))
    settings = {"rules": RULES, **SIZES, **(SMALL["sizes"] if small else {}), **changes}
    return market, MarketDataModule(synthetic=market, **settings)


def measure_rules(task: Task, settings: Settings, folder: Path) -> Row:
    """Return the holdout fitness of filter, ridge, momentum and random orders, and what the first two forecast."""
    market, data = market_data(_cell(task.case), task.seed, settings["small"], cache_dir=str(folder))
    data.setup("fit")
    encoder = AverageEncoder(data.panel, data.investable_columns, data.context_days, data.episode)
    prices = data.panel.prices
    scores = {
        "filter": expected_gain_pct(market, RULES, *filtered_drift(market, prices)),
        "ridge": encoder.ridge_scores(data.panel, data.panel.splits.train),
        "momentum": momentum_pct(prices),
    }
    rng = np.random.default_rng(task.seed)
    draws = [score_fitness(rng.random(prices.shape[:2]), data, WINDOWS) for _ in range(RANDOM_DRAWS)]
    return {
        "random": float(np.mean(draws)),
        **{name: score_fitness(score, data, WINDOWS) for name, score in scores.items()},
        "ic": {name: mean_rank_ic(score, data) for name, score in scores.items()},
    }


def _make(task: Task, settings: Settings) -> tuple[ERLModule, MarketDataModule]:
    _, data = market_data(_cell(task.case), task.seed, settings["small"])
    model = {"population_size": settings["agents"], **(SMALL["model"] if settings["small"] else {})}
    return ERLModule(**model), data


def mean_rank_ic(scores: Float[np.ndarray, "days columns"], data: MarketDataModule) -> float:
    """Return the mean Rank IC of scores on the holdout, by the returns of positions held as long as they may be."""
    horizon, days = data.rules.holding_days, data.panel.splits.holdout
    prices = data.panel.prices[:, data.investable_columns]
    return information(scores, prices, data.rules, days, [horizon])[horizon].mean


def _cell(case: str) -> Cell:
    coefficient, columns, days = case.split()
    return Cell(float(coefficient), int(columns), int(days))


def _key(task: Task, settings: Settings) -> object:
    """Return what the rules of a cell depend on."""
    _, data = market_data(_cell(task.case), task.seed, settings["small"])
    return [data.config(), WINDOWS, RANDOM_DRAWS]


WEAK = (Cell(0.02, 100, 3000), Cell(0.05, 100, 3000))


def measure_weak(task: Task, settings: Settings, folder: Path) -> Row:
    """Return the holdout fitness of all rules and of ERL on one market of a weak edge, and how well each ranks."""
    module, data = _make(task, settings)
    row = {"seconds": train(module, data, task.seed, settings["generations"], folder)}
    row |= measure_rules(task, settings, folder)
    row |= {who: holdout_fitness(module, data, who == "champion", WINDOWS) for who in ("champion", "agents")}
    prices, days = data.panel.prices[:, data.investable_columns], data.panel.splits.holdout
    champion = preferences(prices, data.rules, data.account, days, champion_policy(module, data))
    return {**row, "ic": {**row["ic"], "champion": mean_rank_ic(champion, data)}}


BENCHMARKS = {
    "weak": Benchmark(
        measure_weak,
        lambda settings: [Task(str(cell), seed) for seed in range(settings["seeds"]) for cell in WEAK],
        {"seeds": 8, "generations": 25, "agents": 16, "small": False},
        {"seeds": 1, "generations": 2, "small": True},
        key=lambda task, settings: [_key(task, settings), all_settings(*_make(task, settings))],
    ),
    "power-rules": Benchmark(
        measure_rules,
        lambda settings: [Task(str(cell), seed) for seed in range(settings["seeds"]) for cell in CELLS],
        {"seeds": 2, "small": False},
        {"seeds": 1, "small": True},
        key=_key,
    ),
}
