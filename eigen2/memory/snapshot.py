"""One look at the memory of the process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from eigen2.memory import process
from eigen2.memory.owners import Filling, Held, account
from eigen2.memory.process import ProcessMemory, measure, shares

BYTES_PER_MB = 10**6
BYTES_PER_GB = 10**9


@dataclass(frozen=True, slots=True)
class MemorySnapshot(ProcessMemory):
    """Memory of the process at the end of a phase."""

    generation: int
    """The Trainer's epoch."""
    phase: str
    """`baseline` (start of this process), an announced phase, `validate`, `generation` (end of the epoch), or the label
    of a snapshot taken by hand."""
    delta_bytes: int
    """Growth of `rss_bytes` since the snapshot before; 0 in the baseline."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Live instances by class name; empty except at `baseline` and `generation`."""
    held: Mapping[str, Held] = field(default_factory=dict)
    """What each owner holds."""
    filling: tuple[str, ...] = ()
    """Owners that grow up to a size they said."""
    pss_bytes: int | None = None
    """RSS with pages shared by several processes divided by their number; at `baseline` and `generation`."""
    uss_bytes: int | None = None
    """RSS without shared pages; at `baseline` and `generation`."""

    @property
    def owner_bytes(self) -> dict[str, int]:
        """Bytes by owner name, mapped files included."""
        return {name: held.total for name, held in self.held.items()}

    @property
    def mapped_bytes(self) -> dict[str, int]:
        """Bytes of mapped files by owner name, of those that have any; resident or not."""
        return {name: held.mapped for name, held in self.held.items() if held.mapped}

    @property
    def filling_bytes(self) -> int:
        """Bytes of owners that fill up."""
        return sum(self.held[name].anonymous for name in self.filling)

    @property
    def unaccounted_bytes(self) -> int:
        """Resident memory that is neither an owner's nor a file's.

        Python and its libraries, the work space of torch, free pieces of the heap.
        """
        return self.rss_bytes - (self.file_bytes or 0) - sum(held.anonymous for held in self.held.values())

    def row(self) -> dict[str, int | str]:
        """Columns of memory.csv."""
        told = {
            "generation": self.generation,
            "phase": self.phase,
            "rss_bytes": self.rss_bytes,
            "vms_bytes": self.vms_bytes,
            "delta_bytes": self.delta_bytes,
            "file_bytes": self.file_bytes,
            "heap_bytes": self.heap_bytes,
            "pss_bytes": self.pss_bytes,
            "uss_bytes": self.uss_bytes,
            "unaccounted_bytes": self.unaccounted_bytes,
            "python_blocks": self.python_blocks,
            "gpu_allocated_bytes": self.gpu_allocated_bytes,
            "gpu_reserved_bytes": self.gpu_reserved_bytes,
            "gpu_peak_bytes": self.gpu_peak_bytes,
            **{f"count_{name}": count for name, count in self.counts.items()},
            **{f"owner_{name}_bytes": nbytes for name, nbytes in self.owner_bytes.items()},
            **{f"mapped_{name}_bytes": nbytes for name, nbytes in self.mapped_bytes.items()},
        }
        return {name: "" if value is None else value for name, value in told.items()}

    def metrics(self) -> dict[str, float]:
        """What loggers get of it, by full name; the growth of each phase apart."""
        metrics = {
            "memory/rss_gb": self.rss_bytes / BYTES_PER_GB,
            "memory/vms_gb": self.vms_bytes / BYTES_PER_GB,
            "memory/unaccounted_gb": self.unaccounted_bytes / BYTES_PER_GB,
        }
        if self.heap_bytes is not None:
            metrics["memory/heap_gb"] = self.heap_bytes / BYTES_PER_GB
        if process.uses_cuda():
            metrics["memory/gpu_allocated_gb"] = self.gpu_allocated_bytes / BYTES_PER_GB
            metrics["memory/gpu_reserved_gb"] = self.gpu_reserved_bytes / BYTES_PER_GB
            metrics["memory/gpu_peak_gb"] = self.gpu_peak_bytes / BYTES_PER_GB
        for name, nbytes in self.owner_bytes.items():
            metrics[f"memory/owner/{name}_mb"] = nbytes / BYTES_PER_MB
        for name, count in self.counts.items():
            metrics[f"memory/objects/{name}"] = float(count)
        return metrics

    def line(self) -> str:
        """The snapshot for a person, on one line."""
        parts = [
            f"memory  generation {self.generation:>3}  {self.phase:<10}",
            f"rss {self.rss_bytes / BYTES_PER_GB:.3f} GB ({self.delta_bytes / BYTES_PER_MB:+.1f} MB)",
        ]
        if self.gpu_reserved_bytes:
            parts.append(f"gpu {self.gpu_allocated_bytes / BYTES_PER_GB:.3f} GB")
        parts += [f"{name} {nbytes / BYTES_PER_MB:.1f} MB" for name, nbytes in self.owner_bytes.items()]
        parts += [f"{name} x{count}" for name, count in self.counts.items()]
        return "  ".join(parts)


def take_snapshot(
    generation: int,
    phase: str,
    owners: Mapping[str, object],
    counts: Mapping[str, int] | None = None,
    before: MemorySnapshot | None = None,
    full: bool = False,
) -> MemorySnapshot:
    """Look at the memory of the process.

    Args:
        generation: the epoch.
        phase: what just ended, or a label.
        owners: for `account`.
        counts: live instances by class name.
        before: the snapshot to take the growth from.
        full: ask for PSS and USS too, which takes milliseconds.
    """
    memory = measure()  # before anything that takes memory itself
    pss, uss = shares() if full else (None, None)
    return MemorySnapshot(
        **{each.name: getattr(memory, each.name) for each in fields(memory)},
        generation=generation,
        phase=phase,
        delta_bytes=0 if before is None else memory.rss_bytes - before.rss_bytes,
        counts=counts or {},
        held=account(owners),
        filling=tuple(name for name, owner in owners.items() if isinstance(owner, Filling) and not owner.full),
        pss_bytes=pss,
        uss_bytes=uss,
    )
