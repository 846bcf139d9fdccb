"""Measure each task in its own process, keep its result as a row, and write the rows of a benchmark as JSON figures.

`python -m benchmarks NAME ... --out docs/figures` measures the tasks without a row and writes NAME.json; `--smallest`
runs the first task at a size that takes seconds. `python -m benchmarks.pages` fills the pages that quote the figures.
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
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import lightning
import pandas as pd
import psutil
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.profilers import Profiler

from eigen2.errors import UserError, require_range
from eigen2.runtime.checkpoint import DurableCheckpointIO
from eigen2.runtime.provenance import describe_run, processor

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures"
MB = 1e6
CASES = ("arms", "tasks")  # settings that choose the cases
UNUSED = ("threads", "seeds", "few", *CASES)  # settings that choose how, which and how many rows are measured
MEASURED_ON = ("processor", "threads", "commit", "dirty")  # what a row says of where it was measured

MODULES = {  # names of benchmarks by the module that defines them in `BENCHMARKS`
    "speed.bench": ("bench", "limit"),
    "speed.gpu": ("gpu",),
    "memory.full_run": ("full-run-1", "full-run-2", "full-own", "full-256", "full-1000"),
    "memory.estimate": ("estimate",),
    "memory.cost": ("memory-cost",),
    "memory.soak": ("soak", "soak-fire"),
    "learning.planted": ("planted", "halves", "ablations", "trunks", "fresh", "trunk-variants", "heads"),
    "learning.power": ("weak", "power-rules"),
    "learning.control": ("control", "control-td3", "control-td3-medium"),
    "learning.mujoco": ("mujoco", "parity", "swimmer"),
    "fire.agents": ("fire", "fire-optimum", "fire-neighbours", "fire-place", "fire-ground"),
    "learning.study": ("study",),
    "scale.scaling": ("scaling",),
    "scale.processes": ("processes",),
    "scale.process_memory": ("process-memory",),
}
KNOWN = ", ".join(name for names in MODULES.values() for name in names)

Settings = Mapping[str, Any]
Row = dict[str, Any]
Figures = dict[str, Any]


class Task(NamedTuple):
    """One measurement: a case, and a seed if the case is repeated."""

    case: str
    seed: int = 0


def rows_by_case(measured: Mapping[Task, Row]) -> Figures:
    """Return the rows as `runs`, by case."""
    runs: dict[str, list[Row]] = {}
    for task, row in measured.items():
        runs.setdefault(task.case, []).append({"seed": task.seed, **row})
    return {"runs": runs}


def only_row(measured: Mapping[Task, Row]) -> Figures:
    """Return the row of a benchmark with a single task."""
    return next(iter(measured.values()))


def as_json(figures: Figures) -> str:
    """Return figures as JSON text."""
    return json.dumps(figures, indent=1, allow_nan=False)


@dataclass(frozen=True)
class Benchmark:
    """A set of tasks, and how figures are made of their rows."""

    # measures a task in the current process; tasks share the folder, or have one each: see `resumes`
    measure: Callable[[Task, Settings, Path], Row]
    tasks: Callable[[Settings], Sequence[Task]]
    settings: Mapping[str, Any] = field(default_factory=dict)  # options other than `threads`, with defaults
    smallest: Mapping[str, Any] = field(default_factory=dict)  # settings for a task of seconds
    # makes JSON figures of all rows; with `kept: false` the command ends with an error
    figures: Callable[[Mapping[Task, Row]], Figures] = rows_by_case
    # makes tables of all rows that are written beside the figures, as NAME-TABLE.parquet
    tables: Callable[[Mapping[Task, Row]], Mapping[str, pd.DataFrame]] = lambda measured: {}
    key: Callable[[Task, Settings], object] = lambda task, settings: None  # what rows depend on besides settings
    show: Callable[[Figures], str] = as_json  # formats the figures for the terminal
    uneven: bool = False  # whether cases may have different numbers of rows, one at least
    resumes: bool = False  # whether a task that was killed goes on from what it left in its folder
    fresh: bool = False  # whether finished rows, and rows of other commits, are measured again, as for speed


def load(name: str) -> Benchmark:
    """Return a benchmark by name; raises UserError if there is none."""
    for module, names in MODULES.items():
        if name in names:
            return importlib.import_module(f"benchmarks.{module}").BENCHMARKS[name]
    raise UserError(f"no benchmark is named {name!r}; choose from {KNOWN}")


def main(args: Sequence[str] | None = None) -> None:
    """Measure the benchmarks named on the command line; bad input prints one line and exits with code 2."""
    args = list(sys.argv[1:] if args is None else args)
    names = list(takewhile(lambda arg: not arg.startswith("-"), args))
    try:
        benchmarks = {name: load(name) for name in names}
        options = _parser(benchmarks.values()).parse_args(args[len(names) :])
        if not names:
            raise UserError(f"name a benchmark: {KNOWN}")
        if options.out is not None and not options.out.is_dir():
            raise UserError(f"--out {options.out} is not a folder; create it or name another")
        for name, benchmark in benchmarks.items():
            run(name, benchmark, settings_of(benchmark, options), options)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2) from error


def _parser(benchmarks: Iterable[Benchmark]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks NAME [NAME ...]", description=f"Benchmarks: {KNOWN}.")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="folder to write the figures to, as NAME.json")
    parser.add_argument("--rows", type=Path, default=Path("lightning_logs/benchmarks"), help="folder of the rows")
    parser.add_argument("--only", nargs="+", metavar="CASE", help="measure only these cases")
    parser.add_argument("--processes", type=int, default=1, help="tasks measured in parallel (default 1)")
    parser.add_argument("--smallest", action="store_true", help="measure the first task at its smallest size")
    settings: dict[str, Any] = {"threads": 1}
    for benchmark in benchmarks:
        settings |= benchmark.settings
    for name, default in settings.items():
        kind: dict[str, Any] = {"nargs": "+"} if isinstance(default, list) else {"type": type(default)}
        if isinstance(default, bool):
            kind = {"action": argparse.BooleanOptionalAction, "default": None}
        parser.add_argument(f"--{name.replace('_', '-')}", **kind, help=f"default {default!r}")
    return parser


def settings_of(benchmark: Benchmark, options: argparse.Namespace) -> Settings:
    """Return defaults, overridden by the smallest size and by options; raises UserError for numbers below 1."""
    settings = {"threads": 1, **benchmark.settings, **(benchmark.smallest if options.smallest else {})}
    settings |= {name: value for name in settings if (value := getattr(options, name, None)) is not None}
    for name, value in {**settings, "processes": options.processes}.items():
        if type(value) is int:
            require_range(f"--{name.replace('_', '-')}", value, least=1)
    return settings


def run(name: str, benchmark: Benchmark, settings: Settings, options: argparse.Namespace) -> None:
    """Measure the tasks that have no row, and write the figures once there are rows enough."""
    tasks = list(benchmark.tasks(settings))
    selected = _select(tasks, options)
    machine = {**describe_machine(), "threads": settings["threads"]}  # before files change the work tree
    rows = Rows(options.rows / (f"{name}-smallest" if options.smallest else name), benchmark, settings, machine)
    if benchmark.fresh and all(rows.read(task) for task in selected):
        for task in selected:
            rows.path(task).unlink()
    missing = [task for task in selected if rows.read(task) is None]
    shown = tasks
    if benchmark.uneven and options.out is not None:
        every = {option: benchmark.settings[option] for option in CASES}
        shown = list(benchmark.tasks({**settings, **every, "seeds": max(settings["seeds"], *rows.seeds())}))
        for task in shown:
            rows.read(task)  # which may have other settings
    folder = rows.folder / "unfinished" if benchmark.resumes else None
    _measure_all(missing, partial(_measure, benchmark.measure), settings, rows, options.processes, folder)
    measured = {task: row for task in shown if (row := rows.read(task)) is not None}
    cases = {task.case for task in measured} if benchmark.uneven else set()
    if absent := [task for task in shown if task not in measured and task.case not in cases]:
        print(f"{name}: no figures yet, as {absent[0].case}, seed {absent[0].seed}, is not measured", file=sys.stderr)
        return
    figures = {"machine": machine, **benchmark.figures(measured)}
    print(benchmark.show(figures))
    if options.out is not None:
        (options.out / f"{name}.json").write_text(as_json(figures) + "\n")
        for title, table in benchmark.tables(measured).items():
            table.to_parquet(options.out / f"{name}-{title}.parquet", compression="zstd", index=False)
    if figures.get("kept") is False and not options.smallest:
        raise SystemExit(f"{name}: a bound does not hold")


def _measure_all(
    tasks: Iterable[Task],
    measure: Callable[[Task, Settings, Path], Row],
    settings: Settings,
    rows: "Rows",
    processes: int,
    unfinished: Path | None,
) -> None:
    """Measure tasks and write their rows; an error of one is raised once all others are measured.

    Each task has a folder of its own in `unfinished` until it is measured; without it all share one that is deleted.
    """
    errors = []
    with tempfile.TemporaryDirectory(prefix="eigen2-benchmark-") as shared, workers(processes) as pool:
        # a run of other settings is another one
        names = {task: f"{rows.path(task).stem}-{rows.key(task)[:8]}" for task in tasks}
        folders = {task: unfinished / name if unfinished else Path(shared) for task, name in names.items()}
        futures = {pool.submit(measure, task, dict(settings), folder): task for task, folder in folders.items()}
        try:
            for future in as_completed(futures):
                task = futures[future]
                if error := future.exception():
                    errors.append(error)
                    print(f"failed {task.case}, seed {task.seed}: {error}", file=sys.stderr)
                else:
                    rows.write(task, future.result())
                    if unfinished:
                        shutil.rmtree(folders[task], ignore_errors=True)
                    print(f"measured {task.case}, seed {task.seed}", file=sys.stderr)
        finally:
            pool.shutdown(cancel_futures=True)  # after an interrupt, no further task begins
    if errors:
        raise errors[0]


def _select(tasks: Sequence[Task], options: argparse.Namespace) -> Sequence[Task]:
    cases = list(dict.fromkeys(task.case for task in tasks))
    for case in options.only or ():
        if case not in cases:
            raise UserError(f"--only {case!r}: no such case; choose from {', '.join(cases)}")
    selected = [task for task in tasks if task.case in (options.only or cases)]
    return selected[:1] if options.smallest and not options.only else selected


def workers(processes: int) -> ProcessPoolExecutor:
    """Return a pool whose processes measure one task each: none inherits memory, threads or seeds of another."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(processes, context, initializer=_end_with_parent, max_tasks_per_child=1)


def _end_with_parent() -> None:
    """Kill this process and those that it has started as soon as its parent has ended, for whatever reason."""
    parent, own = multiprocessing.parent_process(), psutil.Process()

    def wait() -> None:
        assert parent is not None
        parent.join()
        for process in (*own.children(recursive=True), own):
            process.kill()

    threading.Thread(target=wait, daemon=True).start()


def _measure(measure: Callable[[Task, Settings, Path], Row], task: Task, settings: Settings, folder: Path) -> Row:
    print(f"measuring {task.case}, seed {task.seed}", file=sys.stderr)
    del sys.argv[1:]  # Lightning warns about arguments that it does not know
    torch.set_num_threads(settings["threads"])
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    return measure(task, settings, folder)


class Rows:
    """Rows of a benchmark, one JSON file each; unless `fresh`, they stay valid for another number of threads."""

    def __init__(self, folder: Path, benchmark: Benchmark, settings: Settings, machine: Mapping[str, Any]) -> None:
        self.folder, self._benchmark, self._settings = folder, benchmark, settings
        described = {"processor": machine.get("machine"), **machine}
        self._measured_on = {name: described.get(name) for name in MEASURED_ON}

    def path(self, task: Task) -> Path:
        """Return the file of a task's row."""
        digest = hashlib.blake2b(task.case.encode(), digest_size=3).hexdigest()  # cases may differ in punctuation only
        return self.folder / f"{re.sub(r'[^a-z0-9]+', '-', task.case.lower())}-{digest}-{task.seed}.json"

    def seeds(self) -> list[int]:
        """Return 1 and the seed of every row."""
        return [1, *(int(path.stem.rpartition("-")[2]) for path in self.folder.glob("*-*.json"))]

    def key(self, task: Task) -> str:
        """Return a digest of everything that a row depends on."""
        unused = () if self._benchmark.fresh else UNUSED
        settings = {name: value for name, value in self._settings.items() if name not in unused}
        settings |= {"commit": self._measured_on["commit"]} if self._benchmark.fresh else {}
        text = json.dumps([settings, self._benchmark.key(task, self._settings)], sort_keys=True, default=repr)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def read(self, task: Task) -> Row | None:
        """Return the row of a task, None if it has to be measured; raises UserError if its settings differ."""
        path = self.path(task)
        row: Row | None = json.loads(path.read_text()) if path.exists() else None
        if row is None or row.pop("key") == self.key(task):
            return row
        if self._benchmark.fresh:
            return None
        raise UserError(f"{path} has other settings or data: choose another folder with --rows, or remove it")

    def write(self, task: Task, row: Row) -> None:
        """Write a row atomically."""
        path = self.path(task)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps({"key": self.key(task), **self._measured_on, **row}) + "\n")
        draft.replace(path)


def describe_machine() -> dict[str, Any]:
    """Return hardware, versions and commit; unknown values are None, as is a missing accelerator."""
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


def python(*args: object) -> str:
    """Run Python in the repository and return its stdout; raises SystemExit with the end of stderr if it fails."""
    command = [sys.executable, *map(str, args)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{result.stderr[-2000:]}")
    return result.stdout


def csv_rows(path: Path, phase: str | None = None) -> list[dict[str, str]]:
    """Return the rows of a CSV file, only those of `phase` if given."""
    with path.open() as file:
        return [row for row in csv.DictReader(file) if phase in (None, row.get("phase"))]


def train(
    module: LightningModule,
    data: LightningDataModule,
    seed: int,
    generations: int,
    folder: Path,
    callbacks: Sequence[Callback] = (),
    profiler: Profiler | None = None,
    accelerator: str = "cpu",
    precision: Any = "32-true",
) -> float:
    """Train with a seed, without printing or logging; return the seconds.

    With -1 generations it trains until the module stops. Panels are cached in a new folder in `folder`; with a callback
    that saves checkpoints the run is in `folder` itself, and goes on from the last one there. Raises SystemExit if
    training ends early, as by an interrupt.
    """
    os.environ["PL_GLOBAL_SEED"] = str(seed)
    saves = any(isinstance(callback, Checkpoint) for callback in callbacks)
    trainer = Trainer(
        max_epochs=generations,
        accelerator=accelerator,
        precision=precision,
        devices=1,
        logger=False,
        enable_checkpointing=saves,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[*callbacks],
        profiler=profiler,
        default_root_dir=folder if saves else tempfile.mkdtemp(dir=folder),
        plugins=[DurableCheckpointIO()] if saves else None,
    )
    start = time.perf_counter()
    trainer.fit(module, datamodule=data, ckpt_path="last" if saves else None)
    if trainer.current_epoch < generations:
        raise SystemExit(f"training stopped after {trainer.current_epoch} of {generations} generations: no row")
    return time.perf_counter() - start
