"""Walk-forward study of champions on real prices, against policies that do not learn.

A fold trains on the first days, chooses its champion on the validation days that follow, and plays it on the test days
after those; the test days of the next fold come next. Baselines play the same days at the same costs.
"""

import hashlib
import inspect
import json
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from benchmarks.harness import Benchmark, Row, Settings, Task, train
from benchmarks.learning.study_tables import DIAGNOSTICS, NAMES, as_tables, excess_table, summarise
from eigen2.core.saved_run import flatten
from eigen2.erl.module import ERLModule
from eigen2.errors import UserError
from eigen2.market.data.cleaning.policy import Limits
from eigen2.market.data.cleaning.prepare import prepare
from eigen2.market.data.panel_rows import select_rows
from eigen2.market.data.source import read_prices
from eigen2.market.data.universe import Universe
from eigen2.market.datamodule import MarketDataModule
from eigen2.market.evaluation.information import Scores, information
from eigen2.market.evaluation.rankers import fit_rankers
from eigen2.market.features.encoding import AverageEncoder
from eigen2.market.performance import daily_returns, measure_all
from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.policies import (
    best_of_rank,
    buy_and_hold,
    equal_weights,
    minimum_variance,
    momentum_pct,
    monthly,
    of_orderable,
)
from eigen2.market.simulation.random_policies import random_baseline
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.simulate import Policy, Prices, Simulation, hide_window_end, preferences, simulate

RULES = TradingRules(mode="weights", rebalance_days=20, concentration=1.0, cost_bps=10.0, slippage_bps=0.0)
"""Weights near equal ones, once a month: more concentrated, champions would turn the money over too often."""
MODEL: dict[str, Any] = {"reward_scale": 0.02, "actor_lr": 1e-3, "critic_lr": 1e-3}
"""A reward is the log return of 20 days, not of a small position."""
DATA: dict[str, Any] = {"replay_min_size": 2000}  # 20 days are one transition
RANDOM_ACCOUNTS = 32  # accounts of the random baseline, which are averaged
MEASURED = ("total return", "annual return", "Sharpe", "max drawdown", "turnover", "exposure", "trades", "alpha")
"""Of `performance.MEASURES`."""
MOMENTUM = (252, 21)  # days of the gain by which 12-1 momentum ranks, and those of them left out


@dataclass(frozen=True)
class Table:
    """A price table and its division into folds."""

    path: Path  # file that `data prepare` reads
    folds: int = 4  # number of consecutive test spans; the last one ends on the last day
    test_days: int = 252
    data: dict[str, Any] = field(default_factory=dict)  # settings of the data module, if not defaults
    limits: Limits = field(default_factory=Limits)  # beyond which a row is a defect, and its day without trading


TABLES = {
    # 2,016 test days in few spans, since every span costs a training
    "dow30": Table(Path("dow30.parquet"), folds=4, test_days=504),
    # dirty: rows with the close alone, bars that contradict themselves; half of its days are dow30's too
    "dow31": Table(Path("dow31.parquet"), folds=3, test_days=504),
    # five years are too few for a context of two years and three folds; on 2017-09-14 MRK has another company's bar
    "sp500_5yr": Table(
        Path("sp500_5yr.parquet"),
        folds=3,
        test_days=126,
        data={"context_days": 252, "investable": Universe(top=30)},
        limits=Limits(one_day_spike=1.15),
    ),
}


def selected_tables(settings: Settings) -> dict[str, Table]:
    """Return the selected tables, of `TABLES` in `data_dir` or price files; raises UserError if one is missing."""
    folder, tables = Path(settings["data_dir"]), {}
    for name in settings["tables"]:
        known = TABLES.get(name)
        table = replace(known, path=folder / known.path) if known else Table(Path(name))
        if not table.path.is_file():
            raise UserError(f"no prices of {name} at {table.path}; set --data-dir, or give a price file")
        tables[name if known else table.path.stem] = table
    return tables


def tasks(settings: Settings) -> list[Task]:
    """Return every fold of every table with every seed, by seed."""
    tables = selected_tables(settings).items()
    folds = [f"{name} fold {fold}" for name, table in tables for fold in range(table.folds)]
    return [Task(fold, seed) for seed in range(settings["seeds"]) for fold in folds]


def key(task: Task, settings: Settings) -> list[object]:
    """Return what a row depends on besides the code: prices, folds, settings and defaults."""
    table = selected_tables(settings)[_fold(task)[0]]
    defaults = [
        {name: repr(parameter.default) for name, parameter in inspect.signature(cls.__init__).parameters.items()}
        for cls in (ERLModule, MarketDataModule)
    ]
    folds = [table.folds, table.test_days, repr(table.data), repr(table.limits)]
    length = {"generations": settings["generations"]}
    prices = hashlib.blake2b(table.path.read_bytes()).hexdigest()
    return [prices, defaults, folds, length, MODEL, DATA, RULES, RANDOM_ACCOUNTS, MOMENTUM, list(NAMES)]


def _fold(task: Task) -> tuple[str, int]:
    name, fold = task.case.rsplit(" fold ", 1)
    return name, int(fold)


def fold_data(table: Table, fold: int, folder: Path, cache: Path, **changes: Any) -> MarketDataModule:
    """Return the data of a fold, counted from 0: all days up to its last test day, with the test days as holdout.

    Clean prices are written to `folder`, panels to `cache`; `changes` are settings of the data module. Raises UserError
    if the table has too few days.
    """
    clean, path = folder / "clean.parquet", folder / f"fold-{fold}.parquet"
    if not clean.exists():
        prepare([table.path], clean, limits=table.limits)
    prices = read_prices(clean)
    dates = select_rows(prices, ()).dates
    stop = len(dates) - (table.folds - 1 - fold) * table.test_days
    if stop < 1:
        raise UserError(f"{table.path} has only {len(dates)} days for {table.folds} folds of {table.test_days} days")
    prices[prices["date"].to_numpy() <= dates[stop - 1]].to_parquet(path, index=False)
    settings = {"rules": RULES, "holdout_days": table.test_days, **DATA, **table.data, **changes}
    return MarketDataModule(path=str(path), cache_dir=str(cache), **settings)


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Train on a fold; simulate its champion and the other policies on the test days."""
    name, fold = _fold(task)
    table, run_folder = selected_tables(settings)[name], Path(tempfile.mkdtemp(dir=folder))
    module, data = ERLModule(**MODEL), fold_data(table, fold, run_folder, folder / "cache")
    seconds = train(module, data, task.seed, settings["generations"], run_folder)
    splits, dates = data.panel.splits, data.panel.dates
    champion, scores = champion_policy(module, data), scores_of(data)
    simulations = simulate_all(champion, data, scores, np.random.default_rng([task.seed, fold]))

    def span(first: range, last: range) -> dict[str, str]:
        return {"first": str(dates[first[0]]), "last": str(dates[last[-1]])}

    return {
        "table": name,
        "fold": fold,
        "seed": task.seed,
        "train": span(splits.train[0], splits.train[-1]),
        "test": span(splits.holdout, splits.holdout),
        "test_days": len(splits.holdout),
        "columns": len(data.investable_columns),
        "generations": settings["generations"],
        "champion_generation": int(module.population.champion_generation),
        "validation_fitness": float(module.population.champion_fitness),
        "seconds": seconds,
        "settings": json.dumps(flatten({"model": module.model_settings(), "data": data.settings()}), default=repr),
        "diagnostics": {name: module.metrics.get(name) for name in DIAGNOSTICS},
        "policies": {
            name: mean_measures(run, simulations["buy and hold"].returns) for name, run in simulations.items()
        },
        "rank_ic": rank_ics(champion, data, scores),
        "dates": [str(dates[day]) for day in splits.holdout],
        "returns": {name: run.returns.tolist() for name, run in simulations.items()},
    }


def mean_measures(run: Simulation, market: Float[np.ndarray, " returns"]) -> dict[str, float]:
    """Return the means over the accounts of `MEASURED`, alpha against a market's daily returns."""
    measured = [
        measure_all(
            daily_returns(equity), market, equity=equity, exposure=exposure, traded=traded, gains=np.zeros(trades)
        )
        for equity, exposure, traded, trades in zip(run.equity, run.exposure, run.traded, run.trades, strict=True)
    ]
    return {name.lower().replace(" ", "_"): float(np.mean([each[name] for each in measured])) for name in MEASURED}


def champion_policy(module: ERLModule, data: MarketDataModule) -> Policy:
    """Return the champion as a policy for a span of any length."""
    policy = module.population.policy("champion")

    def act(observation: dict[str, Tensor]) -> Tensor:
        with torch.inference_mode():
            return data.eval_env.native_action(policy(data.network_inputs(observation)).float())

    return hide_window_end(act, data.window_days)


def _market(data: MarketDataModule) -> tuple[Prices, TradingRules, AccountRules, range]:
    """Return what policies are simulated on: the holdout as one window, after the close at which it is first traded."""
    holdout = data.panel.splits.holdout
    days = range(holdout.start - 1, holdout.stop)
    return data.panel.prices[:, data.investable_columns], data.rules, data.account, days


def scores_of(data: MarketDataModule) -> dict[str, Scores]:
    """Return the scores by which momentum and rankers rank the columns of the holdout."""
    assert isinstance(data.encoder, AverageEncoder)
    (prices, rules, _, days), splits = _market(data), data.panel.splits
    scores = {"12-1 momentum": momentum_pct(prices, *MOMENTUM)}
    for name, spans in (("ridge", splits.train), ("ridge refitted", (range(splits.holdout.start),))):
        scores[name] = data.encoder.ridge_scores(data.panel, spans)
    scores["LightGBM"] = fit_rankers(data.encoder, data.panel, rules.holding_days, days)["LightGBM"]
    return {name: of_orderable(each, prices) for name, each in scores.items()}


def rank_ics(champion: Policy, data: MarketDataModule, scores: dict[str, Scores]) -> dict[str, float]:
    """Return the mean Rank IC of champion, momentum and rankers on the holdout, over the days of a decision.

    It is 0 for one that ranks all columns alike.
    """
    prices, rules, account, days = _market(data)
    all_scores = {"champion": preferences(prices, rules, account, days, champion), **scores}
    horizon = rules.holding_days
    found = {name: information(each, prices, rules, days, [horizon])[horizon] for name, each in all_scores.items()}
    return {name: float(np.nan_to_num(each.mean)) for name, each in found.items()}


def simulate_all(
    champion: Policy, data: MarketDataModule, scores: dict[str, Scores], generator: np.random.Generator
) -> dict[str, Simulation]:
    """Simulate all policies on the holdout as one window; the first orders are placed at the close before.

    Momentum and rankers weigh the columns by the ranks of their scores.
    """
    market = prices, rules, account, days = _market(data)
    result = simulate(*market, champion)
    random = random_baseline(prices, rules, account, result, days, RANDOM_ACCOUNTS, generator)
    restored = {"1/N": equal_weights(prices), "minimum variance": minimum_variance(prices)}
    return {
        "champion": result,
        "buy and hold": buy_and_hold(*market),
        **{name: simulate(prices, monthly(rules), account, days, policy) for name, policy in restored.items()},
        **{name: simulate(*market, best_of_rank(score, rules)) for name, score in scores.items()},
        "random": simulate(*market, random, RANDOM_ACCOUNTS),
    }


SAMPLE = "eigen2/market/data/sample/stocks.csv.gz"
SETTINGS = {"data_dir": "../shared/data", "tables": list(TABLES), "seeds": 5, "generations": 25}
SMALLEST = {"tables": [SAMPLE], "seeds": 1, "generations": 1}
BENCHMARKS = {
    "study": Benchmark(
        *(measure, tasks, SETTINGS, SMALLEST),
        figures=lambda measured: summarise(**as_tables(list(measured.values()))),
        tables=lambda measured: as_tables(list(measured.values())),
        key=key,
        show=excess_table,
    )
}
