"""Take snapshots of the memory of the process, and format them as tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from eigen2.memory import process
from eigen2.memory.owners import Filling, Held, MappedFiles, account
from eigen2.memory.process import GB, MB, ProcessMemory

LARGEST = 4  # owners that the summary names
COUNTED = 2, 3  # of every 5 generations those that measure small Python objects in all phases, half of the time taken


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySnapshot(ProcessMemory):
    """Memory of the process at the end of a phase."""

    generation: int  # the Trainer's epoch
    phase: str  # `baseline` (start of training), an announced phase, `validate`, `generation` (end), or a label
    delta_bytes: int  # growth of `rss_bytes` since the snapshot before; 0 in the baseline
    held: Mapping[str, Held] = field(default_factory=dict)  # what each owner holds; empty in a phase
    filling: tuple[str, ...] = ()  # owners that grow up to a known size
    mappings: tuple[int, int] = (0, 0)  # libraries' data, and free pieces of the C heap; only where asked for

    @property
    def owner_bytes(self) -> dict[str, int]:
        """Return bytes by owner name, mapped files included."""
        return {name: held.total for name, held in self.held.items()}

    def others(self) -> dict[str, int]:
        """Return what the RSS holds besides the owners, whose arrays count as part of the C heap, and what is left."""
        libraries, free = self.mappings
        owned = sum(held.anonymous for held in self.held.values())
        parts = {
            "Python objects": self.python_bytes or 0,
            "C heap": max(0, (self.heap_bytes or 0) - owned),
            "libraries' data": libraries,
            "mapped files": self.file_bytes or 0,
            "shared memory": self.shared_bytes,
            "free": free + max(0, (self.arena_bytes or 0) - (self.python_bytes or 0)),
        }
        return {**parts, "unaccounted": self.rss_bytes - owned - sum(parts.values())}

    def row(self) -> dict[str, int | str]:
        """Return a row of memory.csv by column; a value that is None is blank."""
        columns = {
            **{"generation": self.generation, "phase": self.phase, "delta_bytes": self.delta_bytes},
            **{column.name: getattr(self, column.name) for column in fields(ProcessMemory)},
            **{f"owner_{name}_bytes": nbytes for name, nbytes in self.owner_bytes.items()},
            **{f"mapped_{name}_bytes": held.mapped for name, held in self.held.items() if held.mapped},
        }
        return {name: "" if value is None else value for name, value in columns.items()}

    def metrics(self) -> dict[str, float]:
        """Return what is worth a curve, by full name; memory.csv has the rest."""
        return {
            "memory/rss_gb": self.rss_bytes / GB,
            **({"memory/gpu_peak_gb": self.gpu_peak_bytes / GB} if process.uses_cuda() else {}),
            **{f"memory/owner/{name}_mb": nbytes / MB for name, nbytes in self.owner_bytes.items()},
        }


def take_snapshot(
    generation: int,
    phase: str,
    owners: Mapping[str, object],
    before: MemorySnapshot | None = None,
    mappings: bool = False,
    files: MappedFiles | None = None,
) -> MemorySnapshot:
    """Measure the memory of the process and of its owners after a phase, and the growth since the snapshot before.

    With `mappings`, in 20 ms, all that the RSS consists of is measured (`MemorySnapshot.others`).
    """
    counted = (generation + generation // 5) % 5 in COUNTED  # not always the same of five
    objects = mappings or phase == "generation" or counted
    memory = process.measure(objects)  # first: what follows allocates memory itself
    return MemorySnapshot(
        **{column.name: getattr(memory, column.name) for column in fields(ProcessMemory)},
        generation=generation,
        phase=phase,
        delta_bytes=0 if before is None else memory.rss_bytes - before.rss_bytes,
        held=account(owners, files) if owners else {},
        filling=tuple(name for name, owner in owners.items() if isinstance(owner, Filling) and not owner.full),
        mappings=process.measure_mappings() if mappings else (0, 0),
    )


def format_summary(now: MemorySnapshot, baseline: MemorySnapshot) -> list[str]:
    """Format in three lines of at most 80 columns how much memory there is, and who holds most of it."""
    largest = sorted(now.owner_bytes.items(), key=lambda owner: -owner[1])
    owners = {**dict(largest[:LARGEST]), "other owners": sum(nbytes for _, nbytes in largest[LARGEST:])}
    others = now.others()
    short = {"Python": "Python objects", "C heap": "C heap", "shared": "shared memory", "free": "free"}
    rest = {name: others[part] for name, part in short.items()}
    rest |= {"files": others["mapped files"] + others["libraries' data"], "other": others["unaccounted"]}
    rest["GPU at most"] = now.gpu_peak_bytes
    growth = (now.rss_bytes - baseline.rss_bytes) / MB
    return [f"RSS {now.rss_bytes / GB:.3f} GB, {growth:+.1f} MB since training started"] + [
        "MB  " + ", ".join(f"{name} {size / MB:,.1f}" for name, size in sizes.items() if abs(size) >= 0.05 * MB)
        for sizes in (owners, rest)
        if any(abs(size) >= 0.05 * MB for size in sizes.values())
    ]


def format_owners(now: MemorySnapshot, baseline: MemorySnapshot) -> list[str]:
    """Format a table of who holds the memory, and the growth since a baseline: owners, all the rest, and the RSS."""

    def row(name: str, nbytes: int, before: int) -> str:
        return f"{name:<24}{nbytes / MB:>10,.1f}{(nbytes - before) / MB:>+10.1f}"

    lines = [f"{'holder':<24}{'MB':>10}{'growth':>10}"]
    for name, held in now.held.items():
        others = {"of mapped files": held.mapped, "on the GPU": held.gpu}
        more = "".join(f"  and {nbytes / MB:,.1f} {what}" for what, nbytes in others.items() if nbytes)
        lines.append(row(name, held.anonymous, baseline.held.get(name, Held()).anonymous) + more)
    earlier = baseline.others()
    lines += [row(name, nbytes, earlier[name]) for name, nbytes in now.others().items()]
    lines.append(row("RSS", now.rss_bytes, baseline.rss_bytes))
    for name in ("vms", *(("gpu_allocated", "gpu_reserved", "gpu_peak") if now.gpu_reserved_bytes else ())):
        after, before = (getattr(snapshot, f"{name}_bytes") for snapshot in (now, baseline))
        lines += [] if after is None else [row(f"({name.replace('_', ' ')})", after, before)]
    return lines
