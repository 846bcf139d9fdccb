"""Full-scale runs in one and several processes.

Rounds of all runs alternate; figures are medians over the generations of all rounds.
"""

import statistics
import tempfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import MEASURED_ON, Benchmark, Figures, Row, Settings, Task
from benchmarks.runs import fit, require_linux
from benchmarks.speed.full_scale import CONFIG, OWN

GENERATIONS = 5  # generations of a run; the first, in which training starts, is left out
COLUMNS = {
    **{"generation": "time/generation_s", "train": "time/train_s"},
    **{"exchange": "time/exchange_s", "received_mb": "exchange/received_mb"},
}


class Run(NamedTuple):
    """A run to measure."""

    agents: int
    processes: int


RUNS = {f"{agents} agents, {n} processes": Run(agents, n) for agents in (16, 32) for n in (1, 2, 4)}


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Return lists of seconds and megabytes of a run, by generation without the first."""
    run = RUNS[task.case]
    options = {
        "trainer.accelerator": settings["accelerator"],
        "trainer.devices": run.processes,
        "trainer.max_epochs": GENERATIONS,
        "model.population_size": run.agents,
        "model.gradient_steps": 32,
        "data.replay_min_size": 4,  # a micro-batch: the first generation trains
        "data.cache_dir": folder / "cache",
        **OWN,
    }
    built = folder / "built"
    if not built.exists():
        fit(built, CONFIG, {**options, "trainer.devices": 1, "model.population_size": 2}, settings["words"])
    result = fit(Path(tempfile.mkdtemp(dir=folder)), CONFIG, options, settings["words"])
    measured = {name: [float(row.get(column) or 0) for row in result.metrics[1:]] for name, column in COLUMNS.items()}
    walls = [later - earlier for earlier, later in pairwise(result.probe["generation_starts"])][1:]
    measured["rest"] = [wall - inside for wall, inside in zip(walls, measured["generation"], strict=False)]
    return measured


def tasks(settings: Settings) -> list[Task]:
    """Return all runs in several rounds."""
    require_linux()
    return [Task(case, number) for number in range(settings["rounds"]) for case in RUNS]


def figures(measured: Mapping[Task, Row]) -> Figures:
    """Return the settings and medians of each run."""
    return {
        "fits": [
            {**run._asdict(), **medians([row for task, row in measured.items() if task.case == case])}
            for case, run in RUNS.items()
        ]
    }


def medians(rows: list[Row]) -> dict[str, float]:
    """Return medians over the generations of all rounds."""
    names = [name for name in rows[0] if name not in MEASURED_ON]
    return {name: round(statistics.median([value for row in rows for value in row[name]]), 5) for name in names}


SETTINGS = {"rounds": 2, "accelerator": "cpu", "words": []}
BENCHMARKS = {"processes": Benchmark(measure, tasks, SETTINGS, {"rounds": 1}, figures, fresh=True)}
