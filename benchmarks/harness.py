"""Measure tasks in processes of their own, keep a row for each, and write the rows of a benchmark as JSON figures.

`python -m benchmarks NAME ... --out docs/figures` measures what has no row yet and writes NAME.json; with `--smallest`
it tries the first task at a size of seconds. `python -m benchmarks.pages` fills the pages that quote the figures.
"""

import argparse
import csv
import hashlib
import importlib
import json
import logging
import multiprocessing
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import lightning
import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer

from eigen2.errors import UserError, require_range
from eigen2.runtime.provenance import describe_run, processor

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures"
MB = 1e6

MODULES = {  # benchmarks by the module that holds them in `BENCHMARKS`
    "speed.bench": ("bench", "limit"),
    "memory.full_run": ("full-run-1", "full-run-2", "full-live"),
    "memory.estimate": ("estimate",),
    "memory.soak": ("soak", "soak-fire"),
    "learning.planted": ("planted", "planted-long", "planted-fresh", "planted-short", "ablations"),
    "learning.oracle": ("oracle",),
    "learning.control": ("control", "swimmer", "halfcheetah"),
    "learning.fire": ("fire",),
    "learning.study": ("study",),
    "scale.scaling": ("scaling",),
    "scale.processes": ("processes",),
}
KNOWN = ", ".join(name for names in MODULES.values() for name in names)

Settings = Mapping[str, Any]
Row = dict[str, Any]
Figures = dict[str, Any]


class Task(NamedTuple):
    """What a process measures: a case, and a seed where a case is repeated."""

    case: str
    seed: int = 0


def rows_by_case(measured: Mapping[Task, Row]) -> Figures:
    """Return the rows of each case as `runs`."""
    runs: dict[str, list[Row]] = {}
    for task, row in measured.items():
        runs.setdefault(task.case, []).append({"seed": task.seed, **row})
    return {"runs": runs}


def only_row(measured: Mapping[Task, Row]) -> Figures:
    """Return the row of a benchmark with a single task."""
    return next(iter(measured.values()))


def as_json(figures: Figures) -> str:
    """Return the figures as they are written."""
    return json.dumps(figures, indent=1, allow_nan=False)


@dataclass(frozen=True)
class Benchmark:
    """A set of tasks and what becomes of their rows."""

    # measures a task in the current process; the folder is shared with the benchmark's other tasks
    measure: Callable[[Task, Settings, Path], Row]
    tasks: Callable[[Settings], Sequence[Task]]
    settings: Mapping[str, Any] = field(default_factory=dict)  # defaults of its own options beside `threads`
    smallest: Mapping[str, Any] = field(default_factory=dict)  # settings at which a task takes seconds
    # makes the JSON figures of all rows; `kept: false` in them ends the command with an error
    figures: Callable[[Mapping[Task, Row]], Figures] = rows_by_case
    key: Callable[[Task, Settings], object] = lambda task, settings: None  # what else a kept row depends on
    show: Callable[[Figures], str] = as_json  # says what was measured, for the terminal
    fresh: bool = False  # whether to repeat finished and earlier commits' rows: speed and memory change with the code


def load(name: str) -> Benchmark:
    """Return a benchmark by name, or raise UserError if there is none of it."""
    for module, names in MODULES.items():
        if name in names:
            found: Benchmark = importlib.import_module(f"benchmarks.{module}").BENCHMARKS[name]
            return found
    raise UserError(f"no benchmark is named {name!r}; choose from {KNOWN}")


def main(words: Sequence[str] | None = None) -> None:
    """Measure the benchmarks named on the command line; bad input prints one line and exits with 2."""
    given = list(sys.argv[1:] if words is None else words)
    names = list(takewhile(lambda word: not word.startswith("-"), given))
    try:
        benchmarks = {name: load(name) for name in names}
        options = _parser(benchmarks.values()).parse_args(given[len(names) :])
        if not names:
            raise UserError(f"name a benchmark: {KNOWN}")
        if options.out is not None and not options.out.is_dir():
            raise UserError(f"--out {options.out} is no folder; make it or name another")
        for name, benchmark in benchmarks.items():
            run(name, benchmark, settings_of(benchmark, options), options)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2) from error


def _parser(benchmarks: Iterable[Benchmark]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks NAME [NAME ...]", description=f"Benchmarks: {KNOWN}.")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write the figures as NAME.json into this folder")
    parser.add_argument("--rows", type=Path, default=Path("lightning_logs/benchmarks"), help="folder of the rows")
    parser.add_argument("--only", nargs="+", metavar="CASE", help="measure these cases alone")
    parser.add_argument("--processes", type=int, default=1, help="tasks measured at once (default 1)")
    parser.add_argument("--smallest", action="store_true", help="try the first task at its smallest size")
    own: dict[str, Any] = {"threads": 1}
    for benchmark in benchmarks:
        own |= benchmark.settings
    for name, default in own.items():
        kind: dict[str, Any] = {"nargs": "+"} if isinstance(default, list) else {"type": type(default)}
        if isinstance(default, bool):
            kind = {"action": argparse.BooleanOptionalAction, "default": None}
        parser.add_argument(f"--{name.replace('_', '-')}", **kind, help=f"default {default!r}")
    return parser


def settings_of(benchmark: Benchmark, options: argparse.Namespace) -> Settings:
    """Return a benchmark's settings: defaults, the smallest size's, options; UserError if a number is below 1."""
    settings = {"threads": 1, **benchmark.settings, **(benchmark.smallest if options.smallest else {})}
    settings |= {name: value for name in settings if (value := getattr(options, name, None)) is not None}
    for name, value in {**settings, "processes": options.processes}.items():
        if type(value) is int:
            require_range(f"--{name.replace('_', '-')}", value, least=1)
    return settings


def run(name: str, benchmark: Benchmark, settings: Settings, options: argparse.Namespace) -> None:
    """Measure the tasks without a row, and write the figures once every task has one."""
    tasks = list(benchmark.tasks(settings))
    asked = _chosen(tasks, options)
    machine = {**describe_machine(), "threads": settings["threads"]}  # asked before files change the work tree
    rows = Rows(options.rows / (f"{name}-smallest" if options.smallest else name), benchmark, settings, machine)
    if benchmark.fresh and all(rows.read(task) for task in asked):
        for task in asked:
            rows.path(task).unlink()
    missing = [task for task in asked if rows.read(task) is None]
    with tempfile.TemporaryDirectory(prefix="eigen2-benchmark-") as folder, workers(options.processes) as pool:
        started: dict[Future[Row], Task] = {
            pool.submit(_measure, benchmark.measure, task, dict(settings), Path(folder)): task for task in missing
        }
        for done in as_completed(started):
            rows.write(started[done], done.result())
            print(f"{name}: {started[done].case}, seed {started[done].seed}, measured", file=sys.stderr)
    measured = {task: row for task in tasks if (row := rows.read(task)) is not None}
    if len(measured) < len(tasks):
        print(f"{name}: {len(measured)} of {len(tasks)} rows measured; figures need all", file=sys.stderr)
        return
    figures = {"machine": machine, **benchmark.figures(measured)}
    print(benchmark.show(figures))
    if options.out is not None:
        (options.out / f"{name}.json").write_text(as_json(figures) + "\n")
    if figures.get("kept") is False and not options.smallest:
        raise SystemExit(f"{name}: a bound is not kept")


def _chosen(tasks: Sequence[Task], options: argparse.Namespace) -> Sequence[Task]:
    cases = list(dict.fromkeys(task.case for task in tasks))
    for case in options.only or ():
        if case not in cases:
            raise UserError(f"--only {case!r}: no such case; choose from {', '.join(cases)}")
    chosen = [task for task in tasks if task.case in (options.only or cases)]
    return chosen[:1] if options.smallest and not options.only else chosen


def workers(processes: int) -> ProcessPoolExecutor:
    """Return processes of which each measures one task: none inherits memory, threads or seeds of another."""
    return ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), max_tasks_per_child=1)


def _measure(measure: Callable[[Task, Settings, Path], Row], task: Task, settings: Settings, folder: Path) -> Row:
    del sys.argv[1:]  # Lightning warns of arguments that are not its own
    torch.set_num_threads(settings["threads"])
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    return measure(task, settings, folder)


class Rows:
    """Rows of a benchmark, a JSON file each; a change of `threads` alone keeps rows that need not be fresh."""

    def __init__(self, folder: Path, benchmark: Benchmark, settings: Settings, machine: Mapping[str, Any]) -> None:
        self.folder, self._benchmark, self._settings, self._machine = folder, benchmark, settings, machine

    def path(self, task: Task) -> Path:
        """Return the file of a task's row."""
        digest = hashlib.blake2b(task.case.encode(), digest_size=3).hexdigest()  # of cases that differ in signs alone
        return self.folder / f"{re.sub(r'[^a-z0-9]+', '-', task.case.lower())}-{digest}-{task.seed}.json"

    def key(self, task: Task) -> str:
        """Return a digest of everything that a row depends on."""
        settings = {name: value for name, value in self._settings.items() if name != "threads" or self._benchmark.fresh}
        settings |= {"commit": self._machine["commit"]} if self._benchmark.fresh else {}
        text = json.dumps([settings, self._benchmark.key(task, self._settings)], sort_keys=True, default=repr)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def read(self, task: Task) -> Row | None:
        """Return the row of a task, None if it has to be measured; UserError if it is of other settings."""
        path = self.path(task)
        row: Row | None = json.loads(path.read_text()) if path.exists() else None
        if row is None or row.pop("key") == self.key(task):
            return row
        if self._benchmark.fresh:
            return None
        raise UserError(f"{path} is of other settings or data: name another folder with --rows, or remove it")

    def write(self, task: Task, row: Row) -> None:
        """Write a row, whole or not at all."""
        path = self.path(task)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps({"key": self.key(task), "commit": self._machine["commit"], **row}) + "\n")
        draft.replace(path)


def describe_machine() -> dict[str, Any]:
    """Return what figures depend on beside settings; None for what cannot be known, or without an accelerator."""
    run = describe_run()
    return {
        "machine": processor(),
        "cores": os.cpu_count(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning": lightning.__version__,
        "commit": run["commit"],
        "dirty": run["dirty"],
    }


def python(*words: object) -> str:
    """Run Python in the repository; return what it printed, or raise SystemExit with the end of its stderr."""
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def csv_rows(path: Path, phase: str | None = None) -> list[dict[str, str]]:
    """Return the rows of a CSV file, those of one phase if it is named."""
    with path.open() as file:
        return [row for row in csv.DictReader(file) if phase in (None, row.get("phase"))]


def train(module: LightningModule, data: LightningDataModule, seed: int, generations: int, folder: Path) -> float:
    """Train with a seed on the CPU, printing, logging and saving nothing; return the seconds.

    Panels go to a new folder in `folder`. Raises SystemExit if training ends early, as when it is interrupted.
    """
    os.environ["PL_GLOBAL_SEED"] = str(seed)
    trainer = Trainer(
        max_epochs=generations,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=tempfile.mkdtemp(dir=folder),
    )
    begun = time.perf_counter()
    trainer.fit(module, datamodule=data)
    if trainer.current_epoch < generations:
        raise SystemExit(f"training stopped after {trainer.current_epoch} of {generations} generations: no row")
    return time.perf_counter() - begun
