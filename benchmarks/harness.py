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
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import lightning
import torch
from lightning.pytorch import Trainer

from eigen2.errors import UserError, require_range
from eigen2.runtime.provenance import describe_run, processor

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures"
MB = 1e6

MODULES = {  # benchmarks by the module that holds them in `BENCHMARKS`
    "speed.bench": ("bench", "bench-1", "bench-2", "profiler"),
    "speed.limit": ("limit-1", "limit-2"),
    "speed.families": ("families-2",),
    "speed.pendulum": ("control",),
    "memory.full_run": ("full-run-1", "full-run-2", "full-live"),
    "memory.estimate": ("estimate",),
    "memory.hygiene": ("hygiene",),
    "memory.soak": ("soak", "soak-fire"),
    "memory.fire_memory": ("fire-memory",),
    "learning.planted": ("planted", "planted-long", "planted-fresh", "planted-short", "ablations"),
    "learning.oracle": ("oracle",),
    "learning.control_tasks": ("swimmer", "halfcheetah"),
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


def cases_list(measured: Mapping[Task, Row]) -> Figures:
    """Return the rows of cases without seeds as the list `cases`."""
    return {"cases": [{"case": task.case, **row} for task, row in measured.items()]}


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
    # defaults of the benchmark's own options; `threads` is always one, 1 by default
    settings: Mapping[str, Any] = field(default_factory=dict)
    smallest: Mapping[str, Any] = field(default_factory=dict)  # settings at which a task takes seconds
    # makes the JSON figures of all rows; `kept: false` in them ends the command with an error
    figures: Callable[[Mapping[Task, Row]], Figures] = rows_by_case
    # what a row depends on beside its settings; a kept row with another key is refused
    key: Callable[[Task, Settings], object] = lambda task, settings: None
    show: Callable[[Figures], str] = as_json  # says what was measured, for the terminal
    # whether finished rows, and those of another commit, are measured anew: speed and memory change with the code
    fresh: bool = False


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
            if options.task:
                _measure_here(benchmark, *options.task)
            else:
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
    parser.add_argument("--task", nargs=5, help=argparse.SUPPRESS)  # case, seed, settings, folder and row of a child
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
    with tempfile.TemporaryDirectory(prefix="eigen2-benchmark-") as folder:

        def measure(task: Task) -> None:
            begun, row = time.perf_counter(), Path(folder) / f"row-{rows.path(task).name}"
            child = ["-m", "benchmarks", name, "--task", task.case, str(task.seed), json.dumps(dict(settings))]
            path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
            environment = {**os.environ, "PYTHONPATH": path}
            done = subprocess.run([sys.executable, *child, folder, row], env=environment, check=False)
            if done.returncode or not row.exists():  # Lightning exits with 0 when it is terminated
                raise SystemExit(done.returncode or f"{name}: {task} was stopped and left no row")
            rows.write(task, json.loads(row.read_text()))
            print(f"{name}: {task.case}, seed {task.seed}, {time.perf_counter() - begun:.0f} s", file=sys.stderr)

        with ThreadPoolExecutor(options.processes) as pool:
            list(pool.map(measure, missing))
    measured = {task: row for task in tasks if (row := rows.read(task)) is not None}
    if len(measured) < len(tasks):
        print(f"{name}: {len(measured)} of {len(tasks)} rows measured; figures need all", file=sys.stderr)
        return
    figures = {"machine": machine, **benchmark.figures(measured)}
    print(benchmark.show(figures))
    if options.out is not None:
        (options.out / f"{name}.json").write_text(as_json(figures) + "\n")
    if figures.get("kept") is False:
        raise SystemExit(f"{name}: a bound is not kept")


def _chosen(tasks: Sequence[Task], options: argparse.Namespace) -> Sequence[Task]:
    cases = list(dict.fromkeys(task.case for task in tasks))
    for case in options.only or ():
        if case not in cases:
            raise UserError(f"--only {case!r}: no such case; choose from {', '.join(cases)}")
    chosen = [task for task in tasks if task.case in (options.only or cases)]
    return chosen[:1] if options.smallest and not options.only else chosen


def _measure_here(benchmark: Benchmark, case: str, seed: str, settings: str, folder: str, row: str) -> None:
    """Measure one task in this process and write its row."""
    del sys.argv[1:]  # Lightning warns of arguments that are not its own
    asked = json.loads(settings)
    torch.set_num_threads(asked["threads"])
    silence()
    found = benchmark.measure(Task(case, int(seed)), asked, Path(folder))
    Path(row).write_text(json.dumps(found))


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
        kept = json.loads(path.read_text()) if path.exists() else None
        if kept is None or kept["key"] == self.key(task):
            return None if kept is None else {name: value for name, value in kept.items() if name != "key"}
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


def python(*words: object, **environment: str) -> str:
    """Run Python in the repository; return what it printed, or raise SystemExit with the end of its stderr."""
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def csv_rows(path: Path, phase: str | None = None) -> list[dict[str, str]]:
    """Return the rows of a CSV file, those of one phase if it is named."""
    with path.open() as file:
        return [row for row in csv.DictReader(file) if phase in (None, row.get("phase"))]


def silence() -> None:
    """Turn off Lightning's messages and warnings."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")


def quiet_trainer(generations: int, folder: str | Path) -> Trainer:
    """Return a Trainer on the CPU that prints, logs and saves nothing; panels go to `folder`."""
    return Trainer(
        max_epochs=generations,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=folder,
    )


class Stopwatch:
    """Adds up the seconds spent in the methods it wraps, which must not call each other."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def wrap(self, owner: object, name: str) -> None:
        """Replace a method of `owner` by a timed one."""
        method: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - begun

        setattr(owner, name, timed)


def seconds_of(run: Callable[[], object]) -> float:
    """Return the seconds that `run` takes, work queued on a GPU included."""
    _finish_queued()
    begun = time.perf_counter()
    run()
    _finish_queued()
    return time.perf_counter() - begun


def _finish_queued() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # asking a GPU that nothing has used would claim some of its memory
        torch.cuda.synchronize()


def median_seconds(run: Callable[[], object], runs: int) -> float:
    """Return the median seconds of `run` after a warm-up."""
    run()
    return statistics.median(seconds_of(run) for _ in range(runs))


def median_ratio(ours: Callable[[], object], reference: Callable[[], object], runs: int) -> tuple[float, float, float]:
    """Return both median seconds and the median of reference over ours; runs alternate: a busy machine slows both."""
    for run in (ours, reference):
        run()
    pairs = [(seconds_of(ours), seconds_of(reference)) for _ in range(runs)]
    ours_s, reference_s = (statistics.median(column) for column in zip(*pairs, strict=True))
    return ours_s, reference_s, statistics.median(b / a for a, b in pairs)
