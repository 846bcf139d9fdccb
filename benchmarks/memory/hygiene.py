"""What each setting of `GarbageCollector` costs and saves, at full scale with 48 agents and batches of 12."""

import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import MB, Benchmark, Row, Settings, Task, cases_list
from benchmarks.memory.estimate import FULL, LARGE
from benchmarks.runs import fit

WARM_UP = 2  # generations left out of medians
CASES: dict[str, dict[str, Any] | None] = {
    "defaults": {},
    "without the callback": None,
    "collect: false": {"collect": False},
    "freeze: false": {"freeze": False},
    "trim: false": {"trim": False},
    "every_n_epochs: 5": {"every_n_epochs": 5},
    "phases: all four": {"phases": ["evaluate", "train", "evolve", "validate"]},
    "every_n_train_steps: 1": {"every_n_train_steps": 1},
    "every_n_environment_steps: 10": {"every_n_environment_steps": 10},
    "MALLOC_MMAP_THRESHOLD_=1000000": {},
}
"""Settings of `GarbageCollector` in place of the defaults; a name with = is a variable of the environment."""


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Run a case; return `peak_mb`, and a generation's seconds, MB at its end, `cleaning_ms` and `garbage` objects."""
    collector = CASES[task.case]
    environment = dict([task.case.split("=")]) if "=" in task.case else {}

    def change(callbacks: list[Row]) -> list[Row]:
        first, *others = callbacks
        assert first["class_path"] == "callbacks.GarbageCollector"
        return others if collector is None else [{**first, "init_args": collector}, *others]

    own = {"trainer.max_epochs": settings["generations"], "data.cache_dir": folder / "cache"}
    own |= {"data.replay_min_size": 1000}
    done = fit(Path(tempfile.mkdtemp(dir=folder)), FULL, own, LARGE, change, environment=environment)
    found = {name: done.probe[name] for name in ("cleaning_ms", "garbage", "peak_mb")}
    found["between_mb"] = statistics.median(done.rss[WARM_UP:]) / MB
    found["generation_s"] = statistics.median(float(row["time/generation_s"]) for row in done.metrics[WARM_UP:])
    return {name: round(value, 3) for name, value in found.items()}


BENCHMARKS = {
    "hygiene": Benchmark(
        measure,
        lambda _: [Task(case) for case in CASES],
        {"generations": 8},
        {"generations": 3},
        cases_list,
        fresh=True,
    )
}
