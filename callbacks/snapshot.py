"""One look at the memory of the process, and what a person is told of several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from callbacks.ledger import Filling, Held, account
from callbacks.process import ProcessMemory, measure, shares

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


def ledger_lines(now: MemorySnapshot, baseline: MemorySnapshot, least_mb: float = 0.0) -> list[str]:
    """Who holds the memory, and its growth since an earlier snapshot: owners, files, the rest, and their sum.

    Args:
        now: the later snapshot.
        baseline: the earlier one.
        least_mb: owners that hold less, mapped files included, are told together.
    """
    rows = [(name, held, baseline.held.get(name, Held())) for name, held in now.held.items()]
    small = [row for row in rows if row[1].total < least_mb * BYTES_PER_MB]
    lines = [f"{'holder':<24}{'MB':>10}{'growth':>10}"]
    lines += [
        _row(name, held.anonymous, before.anonymous) + _files(held)
        for name, held, before in rows
        if (name, held, before) not in small
    ]
    if small:
        sums = sum(held.anonymous for _, held, _ in small), sum(before.anonymous for *_, before in small)
        lines.append(_row(f"{len(small)} smaller owners", *sums))
    lines.append(_row("files and libraries", now.file_bytes or 0, baseline.file_bytes or 0))
    lines.append(_row("unaccounted", now.unaccounted_bytes, baseline.unaccounted_bytes))
    lines.append(_row("RSS", now.rss_bytes, baseline.rss_bytes))
    shared = [("heap", now.heap_bytes), ("PSS", now.pss_bytes), ("USS", now.uss_bytes), ("VMS", now.vms_bytes)]
    gpu = [("GPU allocated", now.gpu_allocated_bytes), ("GPU reserved", now.gpu_reserved_bytes)]
    gpu.append(("GPU peak", now.gpu_peak_bytes))
    others = [*shared, *(gpu if now.gpu_reserved_bytes else [])]
    told = ", ".join(f"{name} {size / BYTES_PER_MB:,.1f}" for name, size in others if size is not None)
    counts = ", ".join(f"{name} {baseline.counts.get(name, 0)} -> {count}" for name, count in now.counts.items())
    return [*lines, f"in MB: {told}", *([counts] if counts else [])]


def _row(name: str, nbytes: int, before: int) -> str:
    return f"{name:<24}{nbytes / BYTES_PER_MB:>10,.1f}{(nbytes - before) / BYTES_PER_MB:>+10.1f}"


def _files(held: Held) -> str:
    mapped = f"  and {held.mapped / BYTES_PER_MB:,.1f} of mapped files" if held.mapped else ""
    return mapped + (f"  and {held.gpu / BYTES_PER_MB:,.1f} on the GPU" if held.gpu else "")


def growth_lines(now: MemorySnapshot, baseline: MemorySnapshot) -> list[str]:
    """What grew since an earlier snapshot."""
    rows: list[tuple[str, int | None, int | None]] = [
        ("RSS", baseline.rss_bytes, now.rss_bytes),
        ("heap", baseline.heap_bytes, now.heap_bytes),
        ("GPU allocated", baseline.gpu_allocated_bytes or None, now.gpu_allocated_bytes or None),
        *((name, baseline.owner_bytes.get(name, 0), nbytes) for name, nbytes in now.owner_bytes.items()),
    ]
    lines = [
        f"{name:<24}{before / BYTES_PER_MB:>10,.1f} -> {after / BYTES_PER_MB:>9,.1f} MB"
        f"{(after - before) / BYTES_PER_MB:>+10.1f}"
        for name, before, after in rows
        if before is not None and after is not None
    ]
    both = [name for name in now.counts if name in baseline.counts]
    return lines + [f"{name:<24}{baseline.counts[name]:>10,} -> {now.counts[name]:>9,}" for name in both]
