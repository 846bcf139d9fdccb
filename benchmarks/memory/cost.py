"""What MemoryProfiler costs: its share of the CPU time of generations, and what part of RSS it cannot account for."""

import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.harness import MB, Benchmark, Figures, Row, Settings, Task
from benchmarks.runs import eigen2
from callbacks import MemoryProfiler

WARM_UP = 3  # generations at the start that are not counted
CALLBACKS = [
    {"class_path": name}
    for name in (
        "callbacks.GarbageCollector",
        "callbacks.MemoryProfiler",
        "eigen2.runtime.checkpoint.ChampionCheckpoint",
        "eigen2.runtime.checkpoint.GenerationCheckpoint",
    )
]
SHORT, TINY, FULL = "a small run", "the same with 3 gradient steps and no plots", "full scale"
CASES: Mapping[str, tuple[str, dict[str, Any]]] = {  # configuration, and settings that override it
    SHORT: ("tests/small.yaml", {"model.gradient_steps": 40, "data.windows_per_generation": 8}),
    TINY: ("tests/small.yaml", {"trainer.callbacks": json.dumps(CALLBACKS)}),
    FULL: ("configs/full_scale.yaml", {"data.replay_min_size": 1000}),
}
HOOKS = (
    *("on_phase_end", "on_validation_start", "on_validation_end"),
    *("on_train_epoch_start", "on_train_epoch_end"),
)


class Cost(Callback):
    """Writes CPU seconds of each generation, and of the profiler in it, to the JSON file `path`."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path, self.profiler_s, self.seconds = Path(path), 0.0, [(0.0, 0.0)]

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Time every hook of the profiler."""
        callbacks: list[Callback] = trainer.callbacks
        (self.profiler,) = (callback for callback in callbacks if isinstance(callback, MemoryProfiler))
        for name in HOOKS:
            setattr(self.profiler, name, self._timed(getattr(self.profiler, name)))

    def _timed(self, hook: Callable[..., None]) -> Callable[..., None]:
        def timed(*args: Any, **kwargs: Any) -> None:
            start = time.process_time()
            hook(*args, **kwargs)
            self.profiler_s += time.process_time() - start

        return timed

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read the clock after the generation."""
        self.seconds.append((time.process_time(), self.profiler_s))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the file."""
        now = self.profiler.log_memory("end")
        others = {name: nbytes / MB for name, nbytes in now.others().items()}
        self.path.write_text(json.dumps({"seconds": self.seconds, "rss_mb": now.rss_bytes / MB, "others_mb": others}))


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Return the CPU time of a generation on average, and the parts of RSS at the end."""
    run, (config, overrides) = Path(tempfile.mkdtemp(dir=folder)), CASES[task.case]
    options = {
        **{"num_threads": 1, "trainer.accelerator": "cpu", "trainer.default_root_dir": run, **overrides},
        **{"trainer.max_epochs": settings["generations"], "data.cache_dir": folder / "cache"},
        **{"trainer.callbacks+": f"{__name__}.Cost", "trainer.callbacks.path": run / "cost.json"},
    }
    eigen2("fit", config, options)
    measured = json.loads((run / "cost.json").read_text())
    seconds = measured["seconds"][WARM_UP:]
    spent = [(end - start, after - before) for (start, before), (end, after) in itertools.pairwise(seconds)]
    whole, profiler = (statistics.mean(part) for part in zip(*spent, strict=True))
    return {
        "generation_s": round(whole, 3),
        "profiler_ms": round(1e3 * profiler, 2),
        "share": round(profiler / whole, 5),
        "rss_mb": round(measured["rss_mb"], 1),
        "others_mb": {name: round(size, 1) for name, size in measured["others_mb"].items()},
        "unaccounted": round(measured["others_mb"]["unaccounted"] / measured["rss_mb"], 4),
    }


def figures(measured: Mapping[Task, Row]) -> Figures:
    """Return the rows as `cases`, and whether cost and what is unaccounted for are as small as promised."""
    rows = [{"case": task.case, **row} for task, row in measured.items()]
    most = {SHORT: 0.05, TINY: 0.05, FULL: 0.01}
    kept = all(row["share"] < most[row["case"]] and abs(row["unaccounted"]) < 0.02 for row in rows)
    return {"cases": rows, "kept": kept}


TASKS = [Task(case) for case in CASES]
BENCHMARKS = {
    "memory-cost": Benchmark(measure, lambda _: TASKS, {"generations": 23}, {"generations": 6}, figures, fresh=True)
}
