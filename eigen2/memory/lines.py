"""What a person is told of memory: generations, holders, growth."""

from __future__ import annotations

from eigen2.memory.growth import Trend
from eigen2.memory.owners import Held
from eigen2.memory.snapshot import BYTES_PER_GB, BYTES_PER_MB, MemorySnapshot

_ROWS = 8
"""Generations told of a long run."""


def generation_lines(trend: Trend, every: bool = False) -> list[str]:
    """A table of generations: RSS, live memory, and the growth of live memory by phase in MB.

    Args:
        trend: what `LeakWatch` keeps.
        every: tell all generations, not just the first, the last and some between.
    """
    phases = [name for name in trend.names if name.startswith("phase ")]
    names = [name.removeprefix("phase ") for name in phases]
    head = f"generation  RSS GB live MB{''.join(f'{_column(name):>9}' for name in names)}"
    rows = len(trend)
    step = 1 if every else max(1, -(-rows // _ROWS))
    chosen = [row for row in range(rows) if row % step == 0 or row == rows - 1]
    return [head] + [
        f"{trend.generations[row]:>10}{trend['rss'][row] / BYTES_PER_GB:>8.3f}"
        f"{trend['memory'][row] / BYTES_PER_MB:>8.1f}"
        + "".join(f"{trend[phase][row] / BYTES_PER_MB:>+9.2f}" for phase in phases)
        for row in chosen
    ]


def _column(phase: str) -> str:
    """Of what an epoch adds after its last phase: the rest."""
    return "rest" if phase == "generation" else phase[:8]


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
