"""Peak anonymous memory of each process of one run with many agents, in a generation and while it writes a checkpoint.

`kept` is false if process 0 holds more than MOST_RATIO times what the largest other process does.
"""

import json
import tempfile
import threading
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.harness import Benchmark, Row, Settings, Task, only_row
from benchmarks.runs import fit, memory_mb, require_linux
from eigen2.errors import require_range

GENERATIONS = 3
MOST_RATIO = 1.5
INTERVAL_S = 0.005  # between two readings; a peak that is shorter is missed
WINDOWS = ("generation", "checkpoint")


class AnonymousPeaks(Callback):
    """Reads the anonymous memory of every process in the background; each writes its peaks to a file in `folder`."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder, self.window = Path(folder), "start"
        self.before, self.peaks = 0.0, dict.fromkeys(("start", *WINDOWS), 0.0)
        self._ended = threading.Event()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Read what the process holds before it builds population and replay buffer."""
        self.before = memory_mb()["anon"]
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            window = self.window
            self.peaks[window] = max(self.peaks[window], memory_mb()["anon"])

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a generation; the first, which builds caches, counts as the start."""
        self.window = "generation" if trainer.current_epoch else "start"

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the checkpoint, which Lightning writes after all other callbacks."""
        self.window = "checkpoint" if trainer.current_epoch else "start"

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the peaks."""
        self._ended.set()
        record = {"rank": trainer.global_rank, "before": self.before, **self.peaks}
        (self.folder / f"rank-{trainer.global_rank}.json").write_text(json.dumps(record))


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Run `agents` in `processes` of this machine, and compare what the processes hold."""
    require_linux()
    run = Path(tempfile.mkdtemp(dir=folder))
    options = {
        "trainer.devices": settings["devices"],
        "trainer.max_epochs": GENERATIONS,
        "model.population_size": settings["agents"],
        "model.gradient_steps": 1,
        "model.accumulate": 1,
        "data.replay_min_size": 4,
        "data.batch_size": 4,
        "data.replay_capacity": settings["capacity"],
    }
    args = [f"--trainer.callbacks+={__name__}.{AnonymousPeaks.__name__}", f"--trainer.callbacks.folder={run}"]
    result = fit(run, "tests/small.yaml", options, args)
    ranks = [json.loads(path.read_text()) for path in sorted(run.glob("rank-*.json"))]
    weights, transition = (result.probe["sizes"][name] for name in ("weights", "transition_bytes"))
    row: Row = {"agents": settings["agents"], "processes": len(ranks), "ranks": ranks}
    row |= {"rows_mb": 16e-6 * weights * settings["agents"], "replay_mb": 1e-6 * transition * settings["capacity"]}
    row["ratios"] = {window: ratio([rank[window] for rank in ranks]) for window in WINDOWS}
    return row | {"kept": max(row["ratios"].values()) <= MOST_RATIO}


def ratio(peaks: list[float]) -> float:
    """Return the peak of process 0 relative to the largest of the others."""
    return round(peaks[0] / max(peaks[1:]), 3)


def tasks(settings: Settings) -> list[Task]:
    """Return the only task; raises UserError unless there are processes to compare."""
    require_range("--devices", settings["devices"], least=2)
    return [Task("processes")]


SETTINGS = {"agents": 1000, "devices": 4, "capacity": 100_000}
SMALLEST = {"agents": 16, "devices": 2, "capacity": 500}
BENCHMARKS = {
    "process-memory": Benchmark(measure, tasks, SETTINGS, SMALLEST, figures=only_row, fresh=True),
}
