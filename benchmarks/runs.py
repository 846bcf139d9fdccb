"""Runs of eigen2's command line in processes of their own, and what can be read of them."""

import json
import re
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
from eigen2.memory.process import BLOCK_BYTES
from eigen2.runtime.phases import PHASES

STATUS = Path("/proc/self/status")


def require_linux() -> None:
    """Raise UserError on a system without /proc, before anything runs."""
    if not STATUS.exists():
        raise UserError(f"there is no {STATUS} to read memory from; measure on Linux")


def memory_mb() -> dict[str, float]:
    """Return this process's resident memory in MB: all of it, anonymous, of mapped files, and the highest so far."""
    kilobytes = dict(re.findall(r"(\w+):\s+(\d+) kB", STATUS.read_text()))
    names = {"rss": "VmRSS", "anon": "RssAnon", "file": "RssFile", "peak": "VmHWM"}
    return {name: round(int(kilobytes[key]) * 1024 / MB, 1) for name, key in names.items()}


class Probe(Callback):
    """Writes what metrics.csv and memory.csv do not say of a run to the JSON file `path`; in process 0."""

    def __init__(self, path: str, fill: bool = False) -> None:
        super().__init__()
        self.path, self.fill = Path(path), fill
        self.seen: dict[str, Any] = {}
        self.begun = array("d")  # one object, so that a run measured for flat memory keeps none per generation

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read the clock when everything is allocated and nothing has run."""
        self.seen["start_s"] = time.time() - psutil.Process().create_time()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read the clock; fill the buffer once it holds transitions to copy."""
        self.begun.append(time.perf_counter())
        if self.fill and trainer.current_epoch == 1 and isinstance(pl_module, ERLModule):
            fill(pl_module.data.buffer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read the memory after the generation."""
        self.seen["memory_mb"] = memory_mb()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read memory and sizes, and write the file."""
        if trainer.global_rank:
            return
        self.seen["peak_mb"] = memory_mb()["peak"]
        if isinstance(pl_module, ERLModule):
            population, buffer = pl_module.population, pl_module.data.buffer
            self.seen["sizes"] = {
                "weights": population.weights_per_agent,
                "actor_weights": population.actor.shape[1],
                "transition_bytes": buffer.bytes_per_transition,
                "replay_capacity": buffer.capacity,
                "transitions": buffer.added // (trainer.current_epoch * pl_module.population_size),
            }
            self.seen["estimate_mb"] = pl_module.memory.peak_bytes / MB
        self.path.write_text(json.dumps({**self.seen, "begun": self.begun.tolist()}))


def fill(buffer: ReplayBuffer) -> None:
    """Repeat what the buffer holds until it is full."""
    held = {name: buffer[name].clone() for name in buffer.fields}
    while len(buffer) < buffer.capacity:
        buffer.add(held)


@dataclass(frozen=True)
class Fit:
    """A run that has ended."""

    printed: str
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
        """Return the bytes that the C library and Python's allocator have given out, by generation."""
        return [int(row["heap_bytes"] or 0) + BLOCK_BYTES * int(row["python_blocks"]) for row in self.memory]

    @property
    def trained(self) -> list[dict[str, str]]:
        """Return the metrics of generations that trained."""
        return [row for row in self.metrics if row["train/actor_loss"] not in ("", "nan")]

    def phase_seconds(self, skip: int = 0) -> dict[str, float]:
        """Return the median seconds of each phase and of the generation, where it trained, without the first ones."""
        rows, names = self.trained[skip:], (*PHASES, "generation")
        return {name: round(statistics.median(float(row[f"time/{name}_s"]) for row in rows), 5) for name in names}

    def owners_mb(self) -> dict[str, float]:
        """Return the MB that each owner holds at the end."""
        owners = {key: int(value) / MB for key, value in self.memory[-1].items() if key.startswith("owner_")}
        return {key.removeprefix("owner_").removesuffix("_bytes"): round(value, 4) for key, value in owners.items()}


def fit(folder: Path, config: str | Path, settings: Settings, words: Sequence[str] = (), fill: bool = False) -> Fit:
    """Run `fit` in a process and a folder of its own, on the CPU with one thread unless settings say otherwise.

    `fill` fills the replay buffer after the first generation.
    """
    folder.mkdir(parents=True, exist_ok=True)
    own = {"num_threads": 1, "trainer.accelerator": "cpu", "trainer.default_root_dir": folder, **settings}
    own |= {"trainer.callbacks+": f"{__name__}.Probe", "trainer.callbacks.path": folder / "probe.json"}
    own["trainer.callbacks.fill"] = str(fill).lower()
    begun = time.perf_counter()
    printed = eigen2("fit", config, own, *words)
    return Fit(
        printed,
        time.perf_counter() - begun,
        csv_rows(folder / "metrics.csv"),
        csv_rows(folder / "memory.csv", "generation"),
        json.loads((folder / "probe.json").read_text()),
    )


def eigen2(command: str, config: str | Path, settings: Settings, *words: object) -> str:
    """Run a command of eigen2 with settings beside a configuration; return what it printed."""
    options = [f"--{name}={value}" for name, value in settings.items()]
    return python("-m", "eigen2.cli", command, "--config", ROOT / config, *options, *words)
