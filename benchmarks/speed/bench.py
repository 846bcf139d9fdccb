"""Speed and size of parts of eigen2 against reference implementations, timed alternately, or against bounds."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Benchmark, Figures, Row, Settings, Task, as_json, only_row
from benchmarks.speed.evaluation import environment, evaluation
from benchmarks.speed.full_scale import CONFIG, FullScale
from benchmarks.speed.storage import checkpoints, replay_bytes
from benchmarks.speed.tables import bench_table
from benchmarks.speed.training import limit, training_step
from eigen2.errors import UserError

PARTS = {
    "evaluation": evaluation,
    "environment": environment,
    "training": training_step,
    "replay": replay_bytes,
    "checkpoints": checkpoints,
}
ON_GPU = ("evaluation", "training")  # parts that use a GPU; they take about a second per run, others less


def tasks(settings: Settings) -> list[Task]:
    """Return the parts to measure on the device; raises UserError without such a device or configuration."""
    if settings["device"] not in ("cpu", "cuda"):
        raise UserError(f"--device is {settings['device']!r}; it must be cpu or cuda")
    if settings["device"] == "cuda" and not torch.cuda.is_available():
        raise UserError("--device is cuda, but torch finds no GPU here; omit it to measure on the CPU")
    if not Path(settings["config"]).is_file():
        raise UserError(f"--config {settings['config']} does not exist; give a configuration of eigen2's fit")
    return [Task(part) for part in PARTS if settings["device"] == "cpu" or part in ON_GPU]


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Compare one part, or measure an optimizer step against the machine's matrix rate."""
    runs = -(-settings["runs"] // 3) if task.case in ON_GPU else settings["runs"]
    with FullScale(Path(settings["config"]), settings["device"], folder / "cache") as full:
        return limit(full, runs) if task == LIMIT else {"rows": PARTS[task.case](full, runs)}


def figures(measured: Mapping[Task, Row]) -> Figures:
    """Return the rows of all parts."""
    return {"rows": [row for part in measured.values() for row in part["rows"]]}


LIMIT = Task("limit")
SETTINGS: Mapping[str, Any] = {"config": str(CONFIG), "device": "cpu", "runs": 30}
SMALLEST = {"config": "tests/small.yaml", "runs": 1}
BENCH = Benchmark(measure, tasks, SETTINGS, SMALLEST, figures, show=bench_table, fresh=True)
BENCHMARKS = {"bench": BENCH, "limit": replace(BENCH, tasks=lambda _: [LIMIT], figures=only_row, show=as_json)}
