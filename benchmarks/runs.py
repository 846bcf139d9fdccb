"""Runs of eigen2's command line in their own processes, and what they measured."""

import json
import os
import re
import signal
import statistics
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.harness import MB, ROOT, Settings, csv_rows, python
from eigen2.core.replay import ReplayBuffer
from eigen2.erl.module import ERLModule
from eigen2.errors import UserError
from eigen2.runtime.phases import PHASES

STATUS = Path("/proc/self/status")


def require_linux() -> None:
    """Raise UserError on a system without /proc."""
    if not STATUS.exists():
        raise UserError(f"memory is read from {STATUS}, which does not exist; measure on Linux")


def memory_mb() -> dict[str, float]:
    """Return resident memory of this process in MB: `rss`, its parts `anon` and `file` (mapped), and the `peak`."""
    kilobytes = dict(re.findall(r"(\w+):\s+(\d+) kB", STATUS.read_text()))
    names = {"rss": "VmRSS", "anon": "RssAnon", "file": "RssFile", "peak": "VmHWM"}
    return {name: round(int(kilobytes[key]) * 1024 / MB, 1) for name, key in names.items()}


class Probe(Callback):
    """Writes what metrics.csv and memory.csv lack to the JSON file `path`, in process 0."""

    def __init__(self, path: str, fill: bool = False) -> None:
        super().__init__()
        self.path, self.fill = Path(path), fill
        self.measured: dict[str, Any] = {}
        self.starts = array("d")  # one object, as runs are measured for objects that grow with generations

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read the clock once everything is allocated, before the first generation."""
        self.measured["start_s"] = time.time() - psutil.Process().create_time()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read the clock; fill the buffer if wanted, once it holds transitions to copy."""
        self.starts.append(time.perf_counter())
        if self.fill and trainer.current_epoch == 1 and isinstance(pl_module, ERLModule):
            fill(pl_module.data.buffer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read the memory after the generation."""
        self.measured["memory_mb"] = memory_mb()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read peak memory and sizes, and write the file."""
        if trainer.global_rank:
            return
        self.measured["peak_mb"] = memory_mb()["peak"]
        if isinstance(pl_module, ERLModule):
            population, buffer = pl_module.population, pl_module.data.buffer
            self.measured["sizes"] = {
                "weights": population.weights_per_agent,
                "transition_bytes": buffer.bytes_per_transition,
            }
            self.measured["estimate_mb"] = pl_module.memory.peak_bytes / MB
        self.path.write_text(json.dumps({**self.measured, "generation_starts": self.starts.tolist()}))


class Kill(Callback):
    """Kills the process after the training of a generation, as a power cut would."""

    def __init__(self, generation: int) -> None:
        self.generation = generation

    def on_phase_end(self, trainer: Trainer, pl_module: LightningModule, phase: str) -> None:
        """Send SIGKILL."""
        if (trainer.current_epoch, phase) == (self.generation, "train"):
            os.kill(os.getpid(), signal.SIGKILL)


def fill(buffer: ReplayBuffer) -> None:
    """Add copies of the buffer's transitions until it is full."""
    transitions = {name: buffer[name].clone() for name in buffer.fields}
    while len(buffer) < buffer.capacity:
        buffer.add(transitions)


@dataclass(frozen=True)
class Fit:
    """A finished run."""

    stdout: str
    seconds: float  # from the start of the process to its end
    metrics: list[dict[str, str]]
    memory: list[dict[str, str]]  # rows of memory.csv at the ends of generations
    probe: dict[str, Any]

    @property
    def rss(self) -> list[int]:
        """Return resident bytes by generation."""
        return [int(row["rss_bytes"]) for row in self.memory]

    @property
    def live(self) -> list[int]:
        """Return the bytes allocated by the C library and by Python's allocator, by generation."""
        return [int(row["heap_bytes"] or 0) + int(row["python_bytes"]) for row in self.memory]

    @property
    def trained(self) -> list[dict[str, str]]:
        """Return the metrics of the generations that trained."""
        return [row for row in self.metrics if row["train/actor_loss"] not in ("", "nan")]

    def phase_seconds(self, skip: int = 0) -> dict[str, float]:
        """Return median seconds by phase, and of the generation, over all that trained but the first `skip`."""
        rows, names = self.trained[skip:], (*PHASES, "generation")
        return {name: round(statistics.median(float(row[f"time/{name}_s"]) for row in rows), 5) for name in names}

    def owners_mb(self) -> dict[str, float]:
        """Return the memory of each owner at the end, in MB."""
        owners = {key: int(value) / MB for key, value in self.memory[-1].items() if key.startswith("owner_")}
        return {key.removeprefix("owner_").removesuffix("_bytes"): round(value, 4) for key, value in owners.items()}


def fit(folder: Path, config: str | Path, settings: Settings, args: Sequence[str] = (), fill: bool = False) -> Fit:
    """Run `fit` in its own process and folder, on the CPU with one thread unless settings differ.

    `fill` fills the replay buffer after the first generation.
    """
    folder.mkdir(parents=True, exist_ok=True)
    options = {"num_threads": 1, "trainer.accelerator": "cpu", "trainer.default_root_dir": folder, **settings}
    options |= {"trainer.callbacks+": f"{__name__}.Probe", "trainer.callbacks.path": folder / "probe.json"}
    options["trainer.callbacks.fill"] = str(fill).lower()
    start = time.perf_counter()
    stdout = eigen2("fit", config, options, *args)
    seconds = time.perf_counter() - start
    metrics, memory = csv_rows(folder / "metrics.csv"), csv_rows(folder / "memory.csv", "generation")
    return Fit(stdout, seconds, metrics, memory, json.loads((folder / "probe.json").read_text()))


def eigen2(command: str, config: str | Path, settings: Settings, *args: object) -> str:
    """Run a command of eigen2 with a configuration and further settings; return its stdout."""
    options = [f"--{name}={value}" for name, value in settings.items()]
    return python("-m", "eigen2.cli", command, "--config", ROOT / config, *options, *args)
