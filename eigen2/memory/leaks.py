"""Watch a run for memory that keeps growing, and say which phase leaks what since when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from eigen2.memory.growth import Growth, Rising, Trend, growth
from eigen2.memory.limits import limits
from eigen2.memory.objects import LargeObject, type_counts
from eigen2.memory.process import BLOCK_BYTES
from eigen2.memory.snapshot import MemorySnapshot
from eigen2.memory.survivors import Kept, Survivors

HEALTHY = "healthy"
ENVIRONMENTS = "environments not reused"
TENSORS = "tensors or graphs kept after training"
POPULATION = "old population kept after evolution"
FIGURES = "figures never closed"
OTHER = "something kept"

_ARRAYS = ("torch.Tensor", "numpy.ndarray")
_PARAMETER = "torch.nn.parameter.Parameter"
_TYPES_TOLD = 4
_ROOM_TO_FOLLOW = 300_000_000
"""Bytes that must be left to follow survivors, which takes memory itself."""


@dataclass(frozen=True, slots=True)
class Leak:
    """Memory that keeps growing."""

    verdict: str
    """What the growth is called."""
    phase: str
    """The phase that keeps more each generation."""
    growth: Growth
    """How much, and since when."""
    where: str
    """`memory`, `GPU memory`, or the name of an owner."""
    types: tuple[tuple[str, int, int], ...] = ()
    """Types whose live objects became more: name, how many before it began, how many now."""
    largest: tuple[LargeObject, ...] = ()
    """The largest objects that one generation left behind."""

    def lines(self) -> list[str]:
        """The leak for a person."""
        slope = self.growth.slope
        low, rate, high = (_size(number) for number in (slope.low, slope.median, slope.high))
        return [
            f"leak in {self.phase}: {self.verdict}",
            f"{self.where} grows by {rate} a generation (99 %: {low} to {high}) since generation {self.growth.since}",
            *(f"{name}: {before:,} -> {now:,}" for name, before, now in self.types),
            *(str(each) for each in self.largest),
        ]


def _size(nbytes: float) -> str:
    return f"{nbytes / 1e6:.2f} MB" if abs(nbytes) >= 1e6 else f"{nbytes / 1e3:.0f} kB"


class LeakWatch:
    """Finds growth in the snapshots, then follows two generations to see what stays, and of which phase.

    Args:
        least: bytes a generation below which growth does not matter.
    """

    def __init__(self, least: float) -> None:
        self.least = least
        self.trend = Trend()
        self.leak: Leak | None = None
        self._rising = Rising()
        self._phases: defaultdict[str, float] = defaultdict(float)
        self._before: MemorySnapshot | None = None
        self._survivors: Survivors | None = None
        self._grown: tuple[str, Growth] | None = None

    def phase_end(self, snapshot: MemorySnapshot) -> None:
        """A phase ended."""
        if self._before is None:
            self._rising.add(snapshot.generation - 1, type_counts())
        else:
            self._phases[snapshot.phase] += live_bytes(snapshot) - live_bytes(self._before)
        self._before = snapshot
        if self._survivors is not None and snapshot.phase != "generation":
            self._survivors.phase_end(snapshot.phase)

    def generation_end(self, snapshot: MemorySnapshot) -> Leak | None:
        """A generation ended; the leak, if one was made out just now."""
        self.phase_end(snapshot)
        numbers = self._numbers(snapshot)
        self._phases.clear()
        if self._survivors is None:
            self.trend.add(snapshot.generation, numbers)
            self._rising.add(snapshot.generation, type_counts())
            if self.leak is None:
                self._grown = self._grows()
                if self._grown is not None:
                    if limits()[0].left < _ROOM_TO_FOLLOW:
                        self.leak = self._conclude({})
                        return self.leak
                    self._survivors = Survivors()
            return None
        # what follows the survivors takes memory itself, so that these two generations are left out of the trend
        self._survivors.phase_end("generation")
        kept = self._survivors.generation_end()
        if kept is None:
            return None
        self.leak = self._conclude(kept, self._survivors)
        del kept
        self._survivors.stop()
        self._survivors = None
        return self.leak

    def close(self) -> Leak | None:
        """The run ends; the leak that was found, or that is suspected."""
        if self._survivors is not None:
            self._survivors.stop()
            self._survivors = None
        if self.leak is None:
            self._grown = self._grown or self._grows()
            self.leak = self._conclude({})
        return self.leak

    def _numbers(self, snapshot: MemorySnapshot) -> dict[str, float]:
        return {
            "rss": snapshot.rss_bytes,
            "memory": live_bytes(snapshot) - snapshot.filling_bytes,
            "GPU memory": snapshot.gpu_allocated_bytes,
            **{f"owner {name}": held.total for name, held in snapshot.held.items() if name not in snapshot.filling},
            **{f"phase {name}": nbytes for name, nbytes in self._phases.items()},
        }

    def _grows(self) -> tuple[str, Growth] | None:
        """What grows, an owner before the whole that it is part of."""
        generations = self.trend.generations
        names = [name for name in self.trend.names if name.startswith("owner ")] + ["memory", "GPU memory"]
        for name in names:
            if name in self.trend.names:
                found = growth(generations, self.trend[name], self.least)
                if found is not None:
                    return name, found
        return None

    def _conclude(self, kept: Mapping[str, Kept], survivors: Survivors | None = None) -> Leak | None:
        if self._grown is None:
            return None
        where, found = self._grown
        rising = {name: (before, now) for name, before, now, _ in self._rising.found() if not _is_ours(name)}
        if survivors is not None and survivors.arrays_now > survivors.arrays:
            rising["numpy.ndarray"] = survivors.arrays, survivors.arrays_now
        phase = self._guilty(kept, found, rising)
        found = replace(found, since=self._since(phase, found))
        left = kept.get(phase, Kept())
        # what gives the leak its name first, then what there is most of
        types = sorted(rising, key=lambda name: (_rank(name), -left.types[name]))
        return Leak(
            verdict=_verdict(phase, types),
            phase=phase,
            growth=found,
            where=where,
            types=tuple((name, *rising[name]) for name in types[:_TYPES_TOLD]),
            largest=left.described(),
        )

    def _guilty(self, kept: Mapping[str, Kept], found: Growth, rising: Iterable[str]) -> str:
        """The phase that left most behind: of bytes if they explain the growth, else of the types that rise."""
        by_bytes = {phase: left.nbytes for phase, left in kept.items()}
        if by_bytes and max(by_bytes.values()) >= found.slope.median / 3:
            return max(by_bytes, key=lambda phase: by_bytes[phase])
        told = min((_rank(name) for name in rising), default=0)
        names = [name for name in rising if _rank(name) == told]
        by_types = {phase: sum(left.types[name] for name in names) for phase, left in kept.items()}
        if by_types and max(by_types.values()):
            return max(by_types, key=lambda phase: by_types[phase])
        return self._steepest()

    def _since(self, phase: str, found: Growth) -> int:
        """The first generation that leaked: when the telling types began to rise, else when the phase began to grow."""
        began = [(_rank(name), since) for name, _, _, since in self._rising.found() if _rank(name) < 2]
        if began:
            return min(began)[1]
        generations = self.trend.generations
        grown = self.trend[f"phase {phase}"]
        leaking = float(np.median(grown[generations >= found.since]))
        since = found.since
        for generation, delta in zip(generations[::-1].tolist(), grown[::-1].tolist(), strict=True):
            if generation < since:
                if abs(delta - leaking) > abs(delta - (leaking - found.slope.median)):
                    break
                since = generation
        return since

    def _steepest(self) -> str:
        """The phase in which memory grew most, on the whole; for what no Python object holds."""
        start = 2 if len(self.trend) > 4 else 0
        sums: defaultdict[str, float] = defaultdict(float)
        for name in self.trend.names:
            if name.startswith("phase "):
                sums[name.removeprefix("phase ")] = float(self.trend[name][start:].sum())
        return max(sums, key=lambda phase: sums[phase])


def live_bytes(snapshot: MemorySnapshot) -> float:
    """Bytes in use: of the C heap and of Python's small objects; where the system does not tell, all resident ones."""
    if snapshot.heap_bytes is None:
        return snapshot.rss_bytes
    return snapshot.heap_bytes + BLOCK_BYTES * snapshot.python_blocks


def _is_ours(name: str) -> bool:
    """The profiler's own history, which has a bound."""
    return name.startswith(("callbacks.", "eigen2.memory."))


def _rank(name: str) -> int:
    """How much a type tells of a leak: 0 gives it its name."""
    if _named(name):
        return 0
    if name in _ARRAYS:
        return 1
    return 2 if "." in name and not name.startswith(("weakref.", "itertools.", "collections.", "torch.Size")) else 3


def _named(name: str) -> str:
    short = name.rpartition(".")[2].lower()
    if short.endswith(("environment", "env")):
        return ENVIRONMENTS
    if name == "matplotlib.figure.Figure":
        return FIGURES
    return POPULATION if short.endswith(("agent", "population")) or name == _PARAMETER else ""


def _verdict(phase: str, types: Sequence[str]) -> str:
    named = [_named(name) for name in types if _named(name)]
    if named:
        return named[0]
    return TENSORS if phase == "train" and any(name in _ARRAYS for name in types) else OTHER
