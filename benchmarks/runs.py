"""Runs of eigen2's command line in processes of their own, and what can be read of them."""

import gc
import json
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.harness import MB, ROOT, Row, Settings, Stopwatch, csv_rows, python
from benchmarks.memory.resident import memory_mb, resident_mb
from callbacks import GarbageCollector
from eigen2.core.replay import ReplayBuffer, sample_slots
from eigen2.erl.module import ERLModule
from eigen2.memory.process import BLOCK_BYTES
from eigen2.runtime.phases import PHASES


class Probe(Callback):
    """Writes what metrics.csv and memory.csv do not say of a run to the JSON file `path`; in process 0."""

    def __init__(self, path: str, cache: str = "/none", fill: bool = False) -> None:
        super().__init__()
        self.path, self.cache, self.fill = Path(path), cache, fill
        self.cleaning, self.seen = Stopwatch(), dict[str, Any](begun=[])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read clocks and memory when everything is allocated and nothing has run."""
        self.seen["start_s"] = time.time() - psutil.Process().create_time()
        self.seen["start_mb"] = resident_mb(self.cache)
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, GarbageCollector):
                self.cleaning.wrap(callback, "clean")
        self._collected = _collected()
        self._clocks = time.process_time(), time.perf_counter()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read the clock; fill the buffer once it holds transitions to copy."""
        self.seen["begun"].append(time.perf_counter())
        if self.fill and trainer.current_epoch == 1 and isinstance(pl_module, ERLModule):
            fill(pl_module.data.buffer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read the memory after the generation."""
        self.seen["memory_mb"] = memory_mb()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read all of it again and write the file."""
        if trainer.global_rank:
            return
        processor, passed = time.process_time() - self._clocks[0], time.perf_counter() - self._clocks[1]
        self.seen["processor_share"] = processor / passed
        self.seen["cleaning_ms"] = 1e3 * self.cleaning.seconds / trainer.current_epoch
        self.seen["garbage"] = (_collected() - self._collected) / trainer.current_epoch
        self.seen |= {"end_mb": resident_mb(self.cache), "peak_mb": memory_mb()["peak"]}
        if isinstance(pl_module, ERLModule):
            population, buffer = pl_module.population, pl_module.data.buffer
            self.seen["sizes"] = {
                "weights": population.weights_per_agent,
                "actor_weights": population.actor.shape[1],
                "transition_bytes": buffer.bytes_per_transition,
                "replay_capacity": buffer.capacity,
                "transitions": buffer.added // (trainer.current_epoch * pl_module.population_size),
            }
            self.seen |= {"estimate_mb": pl_module.memory.peak_bytes / MB, "draw_ms": draw_ms(pl_module)}
        self.path.write_text(json.dumps(self.seen))


def _collected() -> int:
    """Return how many objects collections have freed so far."""
    return sum(int(each["collected"]) for each in gc.get_stats())


def draw_ms(module: ERLModule, generations: int = 5) -> float | None:
    """Return the median milliseconds to draw a micro-batch's slots for all agents and to gather its transitions."""
    data, seconds = module.data, []
    agents, steps = range(module.population_size), module.micro_batches
    for generation in range(generations if data.ready and steps and data.transition_log is None else 0):
        begun = time.perf_counter()
        for slots in sample_slots(len(data.buffer), steps, data.batch_size, agents, module.seed, generation):
            data.buffer.gather(slots)
        seconds.append((time.perf_counter() - begun) / steps)
    return 1e3 * statistics.median(seconds) if seconds else None


def fill(buffer: ReplayBuffer) -> None:
    """Repeat what the buffer holds until it is full."""
    held = {name: buffer[name].clone() for name in buffer.fields}
    while len(buffer) < buffer.capacity:
        buffer.add(held)


@dataclass(frozen=True)
class Fit:
    """A run that has ended."""

    folder: Path
    printed: str
    seconds: float  # from the start of the process to its end
    cpu_s: float  # processor seconds of the process, which other work on the machine changes less
    stolen_share: float  # processor seconds a second that a virtual machine's host gave to others meanwhile
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


def fit(
    folder: Path,
    config: str | Path,
    settings: Settings,
    words: Sequence[str] = (),
    change: Callable[[list[Row]], list[Row]] | None = None,
    fill: bool = False,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Fit:
    """Run `fit` in a process and a folder of its own, on the CPU with one thread unless settings say otherwise.

    `change` takes the configuration's callbacks and returns those of the run; `fill` fills the replay buffer after the
    first generation; `environment` holds variables beside the present ones.
    """
    folder.mkdir(parents=True, exist_ok=True)
    own = {"num_threads": 1, "trainer.accelerator": "cpu", "trainer.default_root_dir": folder, **settings}
    own |= {"trainer.callbacks+": f"{__name__}.Probe", "trainer.callbacks.path": folder / "probe.json"}
    own |= {"trainer.callbacks.fill": str(fill).lower(), "trainer.callbacks.cache": own.get("data.cache_dir", "/none")}
    if change is not None:
        written = yaml.safe_load((ROOT / config).read_text())
        written["trainer"]["callbacks"] = change(written["trainer"]["callbacks"])
        config = folder / "settings.yaml"
        config.write_text(yaml.safe_dump(written))
    used, stolen, begun = _processor_s(), psutil.cpu_times().steal, time.perf_counter()
    printed = python(*command_line("fit", config, own, *words), **environment)
    seconds, stolen = time.perf_counter() - begun, psutil.cpu_times().steal - stolen
    return Fit(
        folder,
        printed,
        seconds,
        _processor_s() - used,
        stolen / seconds,
        csv_rows(folder / "metrics.csv"),
        csv_rows(folder / "memory.csv", "generation"),
        json.loads((folder / "probe.json").read_text()),
    )


def command_line(command: str, config: object, settings: Settings, *words: object) -> list[str]:
    """Return the words after `python` that run a command of eigen2 with settings beside a configuration."""
    options = [f"--{name}={value}" for name, value in settings.items()]
    return ["-m", "eigen2.cli", command, "--config", str(config), *options, *map(str, words)]


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
