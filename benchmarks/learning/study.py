"""The champions on real prices, walking forward: `python -m benchmarks.learning.study --out FILE.json`, `make study`.

Each table of prices is cut into folds. A fold trains on the days up to some day, chooses its champion on the validation
days after them, and plays it on the test days after those, which nothing has seen before; the next fold begins with
these as known days, and so its test days follow them. On the same days, with the same money and costs, play policies
that have learned nothing. Every (table, fold, seed) is a row in a folder; rows that are there are not run again.
"""

import argparse
import hashlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.learning.silent import silence, silent_trainer
from benchmarks.learning.study_tables import summarise, verdicts
from benchmarks.machine import ROOT, describe_machine
from eigen2.erl.module import ERLModule
from eigen2.errors import UserError, require_range
from eigen2.market.data.cleaning.policy import Limits
from eigen2.market.data.cleaning.prepare import prepare
from eigen2.market.data.panel_rows import select_rows
from eigen2.market.data.source import read_prices
from eigen2.market.data.universe import Universe
from eigen2.market.datamodule import MarketDataModule
from eigen2.market.simulation.policies import buy_and_hold, momentum, random_baseline
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.simulate import Policy, Simulation, hide_window_end, simulate
from eigen2.runtime.files import move_into_place

DATA = Path("..") / "shared" / "data"
RULES = TradingRules(cost_bps=10.0, slippage_bps=0.0)
MODEL: dict[str, Any] = {}
"""Settings of the algorithm beside its defaults."""
RANDOM_ACCOUNTS = 32
"""Times that the lots of the random policy are drawn in a row, whose means count."""


@dataclass(frozen=True)
class Table:
    """Prices and how they are cut.

    Attributes:
        path: file that `data prepare` reads.
        folds: test spans, one after the other, the last of which ends with the last day.
        test_days: of each.
        data: settings of the data module beside its defaults.
        limits: from where on a price counts as false, and its row as a day without trading.
    """

    path: Path
    folds: int = 4
    test_days: int = 252
    data: dict[str, Any] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)


TABLES = {
    # 2,016 test days in few spans, so that the champions' trainings, which cost the time, are few
    "dow30": Table(Path("dow30.parquet"), folds=4, test_days=504),
    # five years hold no context of two and three folds; on 2017-09-14 MRK and others have bars of other companies
    "sp500_5yr": Table(
        Path("sp500_5yr.parquet"),
        folds=3,
        test_days=126,
        data={"context_days": 252, "investable": Universe(top=30)},
        limits=Limits(one_day_spike=1.15),
    ),
}


@dataclass(frozen=True)
class Task:
    """A row to come."""

    table: str
    fold: int
    seed: int

    def file(self, rows: Path) -> Path:
        """Where it is kept."""
        return rows / f"{self.table}-fold{self.fold}-seed{self.seed}.json"


class Tables:
    """The tables of a study, cleaned once, and cut for a fold when it is asked for.

    Args:
        tables: by name.
        folder: takes the clean tables, the cut ones and their panels.
    """

    def __init__(self, tables: dict[str, Table], folder: Path) -> None:
        self.tables, self.folder = tables, folder

    def fold(self, name: str, number: int) -> MarketDataModule:
        """The data of a fold, not loaded yet: all days up to the last test day, which are its holdout."""
        table, path = self.tables[name], self.folder / f"{name}-{number}.parquet"
        if not path.exists():
            clean = self.folder / f"{name}.parquet"
            if not clean.exists():
                prepare([table.path], clean, limits=table.limits)
            prices = read_prices(clean)
            dates = select_rows(prices, ()).dates
            stop = len(dates) - (table.folds - 1 - number) * table.test_days
            if stop < 1:
                raise UserError(
                    f"{table.path} has {len(dates)} days, too few for {table.folds} folds of {table.test_days} days"
                )
            prices[prices["date"].to_numpy() <= dates[stop - 1]].to_parquet(path, index=False)
        settings = {"rules": RULES, "holdout_days": table.test_days, **table.data}
        return MarketDataModule(path=str(path), cache_dir=str(self.folder / "cache"), **settings)


def run(task: Task, tables: Tables, generations: int) -> dict[str, Any]:
    """Train on a fold, play its champion and the other policies on the test days.

    Raises:
        SystemExit: training was interrupted.
    """
    os.environ["PL_GLOBAL_SEED"] = str(task.seed)
    module, data = ERLModule(**MODEL), tables.fold(task.table, task.fold)
    with tempfile.TemporaryDirectory() as folder:
        trainer = silent_trainer(generations, folder)
        began = time.perf_counter()
        trainer.fit(module, datamodule=data)
        seconds = time.perf_counter() - began
    if trainer.current_epoch < generations:
        raise SystemExit(f"{task} stopped after {trainer.current_epoch} of {generations} generations: no row")
    splits, dates = data.panel.splits, data.panel.dates
    tracks = play_all(champion_policy(module, data), data, np.random.default_rng([task.seed, task.fold]))
    return {
        "table": task.table,
        "fold": task.fold,
        "seed": task.seed,
        "train": [str(dates[day]) for day in (splits.train[0], splits.train[-1])],
        "train_days": len(splits.train),
        "test": [str(dates[day]) for day in (splits.holdout[0], splits.holdout[-1])],
        "test_days": len(splits.holdout),
        "columns": len(data.investable_columns),
        "generations": generations,
        "champion_generation": int(module.population.champion_generation),
        "validation_fitness": float(module.population.champion_fitness),
        "seconds": seconds,
        "policies": {name: {**track.measures(), "returns": track.returns.tolist()} for name, track in tracks.items()},
    }


def champion_policy(module: ERLModule, data: MarketDataModule) -> Policy:
    """The champion on a span of any length."""
    policy = module.population.policy(module.population.champion)

    def act(seen: dict[str, Tensor]) -> Tensor:
        with torch.inference_mode():
            return data.eval_env.native_action(policy(data.network_inputs(seen)).float())

    return hide_window_end(act, data.window_days)


def play_all(champion: Policy, data: MarketDataModule, chance: np.random.Generator) -> dict[str, Simulation]:
    """Champion and baselines on the holdout, all of it one window; the first orders are of the close before it."""
    prices = np.ascontiguousarray(data.panel.prices[:, data.investable_columns])
    holdout = data.panel.splits.holdout
    days = range(holdout.start - 1, holdout.stop)
    market = prices, data.rules, data.account, days
    played = simulate(*market, champion)
    drawn = random_baseline(prices, data.rules, played.orders, days, RANDOM_ACCOUNTS, chance)
    return {
        "champion": played,
        "buy and hold": buy_and_hold(*market),
        "momentum": simulate(*market, momentum(prices, data.rules)),
        "random": simulate(*market, drawn, RANDOM_ACCOUNTS),
    }


def settings_key(table: Table, generations: int) -> str:
    """Name of all that a row depends on but for the code: prices, cuts, settings and defaults."""
    with table.path.open("rb") as file:
        content = hashlib.file_digest(file, "blake2b").hexdigest()
    defaults = [
        {name: repr(given.default) for name, given in inspect.signature(cls.__init__).parameters.items()}
        for cls in (ERLModule, MarketDataModule)
    ]
    cuts = [table.folds, table.test_days, repr(table.data), repr(table.limits)]
    chosen = [*cuts, repr(MODEL), repr(RULES), RANDOM_ACCOUNTS, generations]
    text = json.dumps([content, defaults, chosen], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def load_row(task: Task, rows: Path, key: str) -> dict[str, Any] | None:
    """The row of a task, None where it is not there yet.

    Raises:
        UserError: it is of other prices or settings.
    """
    file = task.file(rows)
    if not file.exists():
        return None
    row: dict[str, Any] = json.loads(file.read_text())
    if row["key"] != key:
        raise UserError(f"{file} is of other prices, settings or --generations: name another folder with --rows")
    return row


def keep_row(row: dict[str, Any], file: Path) -> None:
    """Write a row, whole or not at all."""
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps(row) + "\n")
    move_into_place(draft, file)


def run_all(tasks: Sequence[Task], tables: dict[str, Table], keys: dict[str, str], args: argparse.Namespace) -> None:
    """Run the tasks without a row, one after the other, and tell each in a line."""
    missing = [task for task in tasks if load_row(task, args.rows, keys[task.table]) is None]
    commit = describe_machine()["commit"]
    with tempfile.TemporaryDirectory(prefix="eigen2-study-") as folder:
        cut = Tables(tables, Path(folder))
        for task in missing:
            row = run(task, cut, args.generations)
            keep_row({"key": keys[task.table], "commit": commit, **row}, task.file(args.rows))
            told = {name: f"{100 * found['annual_return']:+.1f} %" for name, found in row["policies"].items()}
            print(
                f"{task.table} fold {task.fold} seed {task.seed}: {row['seconds']:.0f} s, a year on "
                f"{row['test'][0]} to {row['test'][1]}: {', '.join(f'{n} {r}' for n, r in told.items())}",
                flush=True,
            )


def spread(processes: int, words: Sequence[str]) -> None:
    """Run the same command in so many processes, a share of the rows each.

    Raises:
        SystemExit: one of them failed.
    """
    command = [sys.executable, "-m", "benchmarks.learning.study", *words]
    children = [
        subprocess.Popen([*command, "--part", str(part), str(processes)], cwd=Path.cwd(), env=_with_root())
        for part in range(processes)
    ]
    codes = [child.wait() for child in children]
    if any(codes):
        raise SystemExit(max(codes, key=abs))


def _with_root() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def chosen_tables(names: Sequence[str], folder: Path) -> dict[str, Table]:
    """The tables asked for: those of `TABLES` in a folder, or files of prices.

    Raises:
        UserError: one is not there.
    """
    chosen = {}
    for name in names:
        known = TABLES.get(name)
        table = replace(known, path=folder / known.path) if known else Table(Path(name))
        if not table.path.is_file():
            where = f"{folder} (--data-dir)" if known else "that path"
            raise UserError(
                f"no prices for --tables {name} in {where}: name the folder of {', '.join(TABLES)} with --data-dir, or "
                "a price file of your own with --tables"
            )
        chosen[name if known else table.path.stem] = table
    return chosen


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.study", description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file for the summary, once all rows are there")
    parser.add_argument("--rows", type=Path, default=Path("lightning_logs/study"), help="folder of the rows")
    parser.add_argument("--data-dir", type=Path, default=DATA, help=f"folder of the tables (default {DATA})")
    parser.add_argument("--tables", nargs="+", default=list(TABLES), help=f"{', '.join(TABLES)}, or price files")
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each fold (default 5)")
    parser.add_argument("--generations", type=int, default=25, help="of each training (default 25)")
    parser.add_argument("--processes", type=int, default=1, help="that share the rows (default 1)")
    parser.add_argument("--threads", type=int, default=1, help="of torch, in each process (default 1)")
    parser.add_argument("--part", nargs=2, type=int, metavar=("I", "N"), help="every N-th row from I on, no summary")
    return parser


def study(args: argparse.Namespace, words: Sequence[str]) -> None:
    """Run what is missing, and sum all of it up.

    Raises:
        UserError: an option's value is not possible, or the rows are of other settings.
    """
    for name in ("seeds", "generations", "processes", "threads"):
        require_range(f"--{name}", getattr(args, name), least=1)
    tables = chosen_tables(args.tables, args.data_dir)
    if args.out is not None and not args.out.absolute().parent.is_dir():
        raise UserError(f"--out {args.out} lies in no folder that exists; make the folder or choose another file")
    args.rows.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    silence()
    keys = {name: settings_key(table, args.generations) for name, table in tables.items()}
    tasks = list(all_tasks(tables, args.seeds))
    if args.part is not None:
        require_range("--part N", args.part[1], least=1)
        require_range("--part I", args.part[0], least=0, most=args.part[1] - 1)
        run_all(tasks[args.part[0] :: args.part[1]], tables, keys, args)
        return
    if args.processes > 1:
        spread(args.processes, words)
    else:
        run_all(tasks, tables, keys, args)
    rows = [row for task in tasks if (row := load_row(task, args.rows, keys[task.table])) is not None]
    summary = {"machine": {**describe_machine(), "threads": args.threads}, **summarise(rows)}
    for line in verdicts(summary):
        print(line)
    if args.out is not None:
        args.out.write_text(json.dumps(summary, indent=1) + "\n")


def all_tasks(tables: dict[str, Table], seeds: int) -> Iterator[Task]:
    """Every row, the first seed of all folds first."""
    for seed in range(seeds):
        for name, table in tables.items():
            yield from (Task(name, fold, seed) for fold in range(table.folds))


def main(words: Sequence[str] | None = None) -> None:
    """Run the study; exit with 2 where an option is not possible.

    Args:
        words: of the command line; None takes the process's.
    """
    given = sys.argv[1:] if words is None else list(words)
    try:
        study(arguments().parse_args(given), given)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
