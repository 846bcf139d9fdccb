"""Measure the process's memory after every phase of every generation and say who holds it."""

import pkgutil
import re
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import psutil
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from callbacks.csvfile import ResumableCsv
from callbacks.instances import InstanceCounter

_BYTES_PER_MB = 10**6
_BYTES_PER_GB = 10**9
# Py_TPFLAGS_HAVE_GC: instances of a type without it are never listed by gc.get_objects()
_TRACKED_BY_GC = 1 << 14


@runtime_checkable
class MemoryOwner(Protocol):
    """A module, data module or callback that says how many bytes its parts hold."""

    def memory_owners(self) -> dict[str, int]:
        """Bytes held now by each part, by a name unique among all owners of the run."""


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """Memory of the process at the end of a phase."""

    generation: int
    """The Trainer's epoch."""
    phase: str
    """`baseline` (start of this process), an announced phase, `validate`, `generation` (end of the epoch)."""
    rss_bytes: int
    """Physical memory of the process."""
    vms_bytes: int
    """Address space of the process."""
    gpu_allocated_bytes: int
    """Bytes in live CUDA tensors of the process, on all its devices; 0 without CUDA."""
    gpu_reserved_bytes: int
    """Bytes held by PyTorch's CUDA allocator, on all devices; 0 without CUDA."""
    delta_bytes: int
    """Growth of `rss_bytes` since the snapshot before; 0 in the baseline."""
    counts: Mapping[str, int]
    """Live instances by class name; empty except at `baseline` and `generation`."""
    owner_bytes: Mapping[str, int]
    """Bytes by owner name."""

    def row(self) -> dict[str, int | str]:
        """Columns of memory.csv."""
        return {
            "generation": self.generation,
            "phase": self.phase,
            "rss_bytes": self.rss_bytes,
            "vms_bytes": self.vms_bytes,
            "delta_bytes": self.delta_bytes,
            "gpu_allocated_bytes": self.gpu_allocated_bytes,
            "gpu_reserved_bytes": self.gpu_reserved_bytes,
            **{f"count_{name}": count for name, count in self.counts.items()},
            **{f"owner_{name}_bytes": nbytes for name, nbytes in self.owner_bytes.items()},
        }

    def line(self) -> str:
        """The snapshot for a person, on one line."""
        parts = [
            f"memory  generation {self.generation:>3}  {self.phase:<10}",
            f"rss {self.rss_bytes / _BYTES_PER_GB:.3f} GB ({self.delta_bytes / _BYTES_PER_MB:+.1f} MB)",
        ]
        if self.gpu_reserved_bytes:
            parts.append(f"gpu {self.gpu_allocated_bytes / _BYTES_PER_GB:.3f} GB")
        parts += [f"{name} {nbytes / _BYTES_PER_MB:.1f} MB" for name, nbytes in self.owner_bytes.items()]
        parts += [f"{name} x{count}" for name, count in self.counts.items()]
        return "  ".join(parts)


class MemoryProfiler(Callback):
    """Takes a snapshot of the process's memory after every phase and says what grew, and in which phase.

    Snapshots are taken when training starts (`baseline`), after each phase that the module announces by
    calling `on_phase_end(trainer, module, phase)` on the Trainer's callbacks, and at the end of the epoch
    (`generation`). If the module announces nothing, a snapshot follows every validation (`validate`).

    Each snapshot is a row of memory.csv, which a resumed run continues: rows of the epoch it starts with and
    of later ones are dropped. At the end of an epoch every logger gets, at the epoch as step, in MB (10^6
    bytes) and GB (10^9 bytes): `memory/rss_gb`, `memory/vms_gb`, with CUDA `memory/gpu_allocated_gb` and
    `memory/gpu_reserved_gb`; `memory/<phase>_delta_mb`, the growth of RSS since the snapshot before, where
    `generation` is what the epoch added after its last phase, so that together they are the growth of the
    epoch; `memory/owner/<name>_mb` and `memory/objects/<ClassName>`.

    Owners are the module, the data module and the callbacks that have a method `memory_owners() -> dict[str,
    int]`.
    """

    def __init__(
        self,
        watch: Sequence[str] = (),
        directory: str | Path | None = None,
        verbose: bool = False,
        max_history: int = 1000,
    ) -> None:
        """Choose what is watched and where the file goes.

        Args:
            watch: Dotted names of classes whose live instances (subclasses not included) are counted when
                training starts and at the end of every epoch, such as `torch.nn.parameter.Parameter`. A count
                walks all objects of the process that are not set aside (`GarbageCollector.freeze`), about 0.15 s per
                million. Default none.
            directory: Folder of memory.csv. Default none: the Trainer's `default_root_dir`.
            verbose: Print a line for every snapshot too. Default false.
            max_history: Snapshots kept in `snapshots`, >= 1; the file keeps all. Default 1000.

        Raises:
            ValueError: `max_history` is below 1, or `watch` is a single text.
        """
        super().__init__()
        if max_history < 1:
            raise ValueError(f"max_history is {max_history}: give 1 or more")
        if isinstance(watch, str):
            raise ValueError(f"watch is the text {watch!r}: give a list of class names")
        self.watch = tuple(watch)
        self.directory = directory
        self.verbose = verbose
        self._history: deque[MemorySnapshot] = deque(maxlen=max_history)
        self._delta_bytes: Counter[str] = Counter()
        self._classes: dict[str, type] = {}
        self._count_instances: InstanceCounter | None = None
        self._csv: ResumableCsv | None = None
        self._running = False
        self._announced = False

    @property
    def snapshots(self) -> tuple[MemorySnapshot, ...]:
        """Snapshots of the running or last fit, oldest first, at most `max_history`."""
        return tuple(self._history)

    @property
    def latest(self) -> MemorySnapshot | None:
        """The last snapshot; None before the first."""
        return self._history[-1] if self._history else None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the classes to watch.

        Args:
            trainer: The Trainer.
            pl_module: The module about to run.
            stage: `fit`, `validate`, `test` or `predict`; nothing is measured but in `fit`.

        Raises:
            ValueError: A name in `watch` is no class, or one whose instances cannot be counted.
        """
        if stage == "fit":
            self._classes = _resolve(self.watch)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the file at the current epoch and take the baseline.

        Args:
            trainer: The Trainer.
            pl_module: The module in training.

        Raises:
            ValueError: `directory` is not local, or two owners use one name.
        """
        self._stop()
        self._history.clear()
        self._delta_bytes.clear()
        self._announced = False
        # a trial run of one batch leaves the files of real runs alone, as Lightning's own loggers do
        if trainer.is_global_zero and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            self._csv = ResumableCsv(_local(self.directory or trainer.default_root_dir) / "memory.csv")
            self._csv.start(trainer.current_epoch)
        self._running = True
        self._count_instances = InstanceCounter(self._classes)
        self._take(trainer, pl_module, "baseline", count=True)

    def on_phase_end(self, trainer: Trainer, pl_module: LightningModule, phase: str) -> None:
        """Take a snapshot after a phase the module announces.

        Args:
            trainer: The Trainer.
            pl_module: The module that announces the phase.
            phase: Name of the phase that ended.
        """
        if self._running and not trainer.sanity_checking:
            self._announced = True
            self._take(trainer, pl_module, phase)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take a snapshot if the module does not announce its phases.

        Args:
            trainer: The Trainer.
            pl_module: The module in training.
        """
        if self._running and not trainer.sanity_checking and not self._announced:
            self._take(trainer, pl_module, "validate")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the epoch's last snapshot and log the epoch.

        Args:
            trainer: The Trainer.
            pl_module: The module in training.
        """
        snapshot = self._take(trainer, pl_module, "generation", count=True)
        metrics = self._metrics(snapshot)
        self._delta_bytes.clear()
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=trainer.current_epoch)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Close the file.

        Args:
            trainer: The Trainer.
            pl_module: The module that ran.
            exception: What ended the run.
        """
        self._stop()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Close the file.

        Args:
            trainer: The Trainer.
            pl_module: The module that ran.
            stage: `fit`, `validate`, `test` or `predict`.
        """
        self._stop()

    def _stop(self) -> None:
        self._running = False
        self._count_instances = None
        if self._csv is not None:
            self._csv.close()
            self._csv = None

    def _take(self, trainer: Trainer, pl_module: LightningModule, phase: str, count: bool = False) -> MemorySnapshot:
        memory = psutil.Process().memory_info()  # before the count, which lists all objects for a moment
        gpu_allocated_bytes, gpu_reserved_bytes = _gpu_bytes()
        before = self.latest
        snapshot = MemorySnapshot(
            generation=trainer.current_epoch,
            phase=phase,
            rss_bytes=memory.rss,
            vms_bytes=memory.vms,
            gpu_allocated_bytes=gpu_allocated_bytes,
            gpu_reserved_bytes=gpu_reserved_bytes,
            delta_bytes=0 if before is None else memory.rss - before.rss_bytes,
            counts=self._count_instances() if count and self._count_instances else {},
            owner_bytes=_ask_owners(trainer, pl_module),
        )
        self._history.append(snapshot)
        if phase != "baseline":
            self._delta_bytes[phase] += snapshot.delta_bytes
        if self._csv is not None:
            self._csv.append(snapshot.row())
        if self.verbose and trainer.is_global_zero:
            print(snapshot.line(), flush=True)
        return snapshot

    def _metrics(self, snapshot: MemorySnapshot) -> dict[str, float]:
        metrics = {
            "memory/rss_gb": snapshot.rss_bytes / _BYTES_PER_GB,
            "memory/vms_gb": snapshot.vms_bytes / _BYTES_PER_GB,
        }
        if _uses_cuda():
            metrics["memory/gpu_allocated_gb"] = snapshot.gpu_allocated_bytes / _BYTES_PER_GB
            metrics["memory/gpu_reserved_gb"] = snapshot.gpu_reserved_bytes / _BYTES_PER_GB
        for phase, delta_bytes in self._delta_bytes.items():
            metrics[f"memory/{phase}_delta_mb"] = delta_bytes / _BYTES_PER_MB
        for name, nbytes in snapshot.owner_bytes.items():
            metrics[f"memory/owner/{name}_mb"] = nbytes / _BYTES_PER_MB
        for name, count in snapshot.counts.items():
            metrics[f"memory/objects/{name}"] = float(count)
        return metrics


def _resolve(names: Sequence[str]) -> dict[str, type]:
    """Classes by their plain name; raises ValueError for a name that cannot be watched."""
    classes: dict[str, type] = {}
    for name in names:
        try:
            found = pkgutil.resolve_name(name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"watch: {name!r} is not found ({error}): give package.module.Class") from error
        if not isinstance(found, type):
            raise ValueError(f"watch: {name!r} is no class: give package.module.Class")
        # the collector stops tracking plain dicts and tuples of plain values, so it lists only some of them
        if not found.__flags__ & _TRACKED_BY_GC or found in (dict, tuple):
            raise ValueError(f"watch: Python keeps no list of {name!r}: watch a class that holds them")
        if classes.setdefault(found.__name__, found) is not found:
            raise ValueError(f"watch: {name!r} has the same class name as another one: watch one of them")
    return classes


def _ask_owners(trainer: Trainer, pl_module: LightningModule) -> dict[str, int]:
    """Bytes by owner name; raises ValueError if two owners use one name."""
    owner_bytes: dict[str, int] = {}
    for owner in (pl_module, getattr(trainer, "datamodule", None), *trainer.callbacks):  # type: ignore[attr-defined]
        if not isinstance(owner, MemoryOwner):
            continue
        for name, nbytes in owner.memory_owners().items():
            if name in owner_bytes:
                raise ValueError(f"{type(owner).__name__}.memory_owners(): another owner is named {name!r} too")
            owner_bytes[name] = int(nbytes)
    return owner_bytes


def _uses_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _gpu_bytes() -> tuple[int, int]:
    """Bytes allocated and reserved on all devices; zeros if this process does not use CUDA."""
    if not _uses_cuda():
        return 0, 0
    devices = range(torch.cuda.device_count())
    allocated = sum(torch.cuda.memory_allocated(device) for device in devices)
    return allocated, sum(torch.cuda.memory_reserved(device) for device in devices)


def _local(directory: str | Path) -> Path:
    """The folder as a path; raises ValueError for an address such as s3://bucket."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(directory)):
        raise ValueError(f"memory.csv cannot be written to {directory}: give directory a local folder")
    return Path(directory)
