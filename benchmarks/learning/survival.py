"""How often elites stay elites on real prices, and what was tried so that they do more often than chance.

Elites are the fitter half, so of agents that fitness does not tell apart half stay elites.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.harness import Benchmark, Row, Settings, Task, train
from benchmarks.learning import study
from eigen2.core.module import GenerationModule
from eigen2.erl.learners import DDPG
from eigen2.erl.module import ERLModule
from eigen2.market.simulation.rules import TradingRules

FIRST = 3  # generation from which elites are counted; before, agents are hardly trained
METRICS = ("operators/elite_survival", "fitness/reliability")
SLOW = {"actor_lr": 7.5e-5, "critic_lr": 7.5e-5}
VARIANTS: dict[str, dict[str, Any]] = {
    "the defaults: 8 windows, 96 gradient steps": {},
    "24 windows": {"data": {"windows_per_generation": 24}},
    "a quarter of the learning rates": {"model": SLOW},
    "24 gradient steps": {"model": {"gradient_steps": 24}},
    "24 windows, 24 gradient steps, a quarter of the learning rates": {
        "model": {"gradient_steps": 24, **SLOW},
        "data": {"windows_per_generation": 24},
    },
    "without forecasts": {"model": {"learner": DDPG(forecast_weight=0.0)}},
    "no gradient steps": {"model": {"gradient_steps": 0}},
    "no gradient steps, 24 windows": {"model": {"gradient_steps": 0}, "data": {"windows_per_generation": 24}},
}
"""Settings of each variant that differ from the defaults."""


class _Record(Callback):
    """Keeps the metrics of every generation."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, GenerationModule)
        self.rows.append({name: pl_module.metrics[name] for name in METRICS})


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Train on the last fold of the table; return the means of the metrics over the generations."""
    variant, record = VARIANTS[task.case], _Record()
    (prices,) = study.selected_tables(of_study(settings)).values()
    data = study.fold_data(
        *(prices, prices.folds - 1, Path(tempfile.mkdtemp(dir=folder)), folder / "cache"),
        **{"rules": TradingRules(), "replay_min_size": 10_000, **variant.get("data", {})},
    )
    seconds = train(ERLModule(**variant.get("model", {})), data, task.seed, settings["generations"], folder, [record])
    rows = record.rows[min(FIRST, len(record.rows) - 1) :]
    return {**{name: float(np.nanmean([row[name] for row in rows])) for name in METRICS}, "seconds": seconds}


def of_study(settings: Settings) -> Settings:
    """Return the settings as those of the study, which takes several tables."""
    return {**settings, "tables": [settings["table"]]}


def key(task: Task, settings: Settings) -> object:
    """Return what a row depends on besides the code: prices, defaults, and what the variant changes."""
    prices, defaults, *_ = study.key(Task(f"{Path(settings['table']).stem} fold 0"), of_study(settings))
    return [prices, defaults, repr(VARIANTS[task.case])]


def tasks(settings: Settings) -> list[Task]:
    """Return every variant with every seed, by seed; raises UserError if there are no prices."""
    study.selected_tables(of_study(settings))
    return [Task(name, seed) for seed in range(settings["seeds"]) for name in VARIANTS]


BENCHMARKS = {
    "survival": Benchmark(
        measure,
        tasks,
        {"data_dir": "../shared/data", "table": "dow30", "seeds": 3, "generations": 25},
        {"table": study.SAMPLE, "seeds": 1, "generations": 1},
        key=key,
    )
}
