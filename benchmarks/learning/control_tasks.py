"""Control tasks trained to the end of their configuration by the command line, which resumes what was cut off."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, Benchmark, Figures, Row, Settings, Task, csv_rows, python
from benchmarks.runs import command_line

CURVE = {  # columns of metrics.csv that are kept, by name
    "env_steps": "replay/added",
    "fitness_max": "fitness/max",
    "fitness_mean": "fitness/mean",
    "champion": "champion/validation_fitness",
}


def tasks(settings: Settings) -> list[Task]:
    """Return a task for each seed."""
    return [Task(settings["config"], seed) for seed in range(1, settings["seeds"] + 1)]


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Train a seed, or go on with it, in lightning_logs; return its curve and when the champion reached the goal."""
    runs = folder if settings["words"] else ROOT / "lightning_logs" / f"{Path(task.case).stem}-seeds"
    run = runs / str(task.seed)
    own = {"seed_everything": task.seed, "trainer.default_root_dir": run, "ckpt_path": "last"}
    python(*command_line("fit", task.case, own, *settings["words"]))
    return curve(run / "metrics.csv", settings["goal"])


def curve(metrics: Path, goal: float) -> dict[str, Any]:
    """Return a run's columns by generation, and when its champion's validation reached the goal: None for never."""
    rows = csv_rows(metrics)
    found: dict[str, Any] = {name: [_number(row[column]) for row in rows] for name, column in CURVE.items()}
    pairs = zip(found["env_steps"], found["champion"], strict=True)
    reached = next((step for step, value in pairs if value is not None and value >= goal), None)
    return {"generation": [int(row["generation"]) for row in rows], **found, "goal": goal, "goal_at_env_steps": reached}


def _number(text: str) -> float | None:
    """Return a number rounded to a tenth; None for what JSON has no number for."""
    value = float(text or "nan")
    return round(value, 1) if math.isfinite(value) else None


def figures(measured: Mapping[Task, Row]) -> Figures:
    """Return the runs by seed with their configuration and goal."""
    task, row = next(iter(measured.items()))
    runs = {str(task.seed): row for task, row in measured.items()}
    return {"config": (ROOT / task.case).read_text(), "goal": row["goal"], "runs": runs}


def _benchmark(config: str, goal: float, seeds: int) -> Benchmark:
    settings = {"config": config, "goal": goal, "seeds": seeds, "words": []}
    return Benchmark(measure, tasks, settings, {"seeds": 1, "words": ["--trainer.max_epochs=2"]}, figures)


BENCHMARKS = {
    "swimmer": _benchmark("configs/control_swimmer.yaml", goal=300.0, seeds=3),
    "halfcheetah": _benchmark("configs/control_halfcheetah.yaml", goal=8000.0, seeds=1),
}
