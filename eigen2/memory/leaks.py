"""Watch a run for memory that keeps growing, and find which phase leaks what since when."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eigen2.memory.growth import Growth, Rise, Rising, Trend, find_growth
from eigen2.memory.limits import limits
from eigen2.memory.objects import LargeObject, type_counts
from eigen2.memory.snapshot import MemorySnapshot
from eigen2.memory.survivors import Kept, Survivors

HEALTHY = "healthy"
ENVIRONMENTS = "environments not reused"
TENSORS = "tensors or graphs kept after training"
POPULATION = "old population kept after evolution"
FIGURES = "figures never closed"
OTHER = "something kept"

_ARRAYS = ("torch.Tensor", "numpy.ndarray")
_ROOM_TO_FOLLOW = 300_000_000  # bytes that must be left to follow survivors, which takes memory itself


@dataclass(frozen=True, slots=True)
class Leak:
    """Memory that keeps growing."""

    verdict: str  # kind of the leak
    phase: str  # the phase that keeps more each generation
    growth: Growth  # how much, and since when
    where: str  # `memory`, `GPU memory`, or the name of an owner
    types: tuple[tuple[str, int, int], ...] = ()  # with more live objects: name, how many before the leak, how many now
    largest: tuple[LargeObject, ...] = ()  # the largest objects that one generation left behind

    def lines(self) -> list[str]:
        """Format the leak."""
        slope = self.growth.slope
        low, rate, high = (_format_size(number) for number in (slope.low, slope.median, slope.high))
        return [
            f"leak in {self.phase}: {self.verdict}",
            f"{self.where} grows by {rate} a generation (99 %: {low} to {high}) since generation {self.growth.since}",
            *(f"{name}: {before:,} -> {now:,}" for name, before, now in self.types),
            *(str(each) for each in self.largest),
        ]


class LeakWatch:
    """Finds growth of `least` bytes a generation, then follows two generations to see what stays, and whose."""

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
        """Take the snapshot at the end of a phase."""
        if self._before is None:
            self._rising.add(snapshot.generation - 1, type_counts())
        else:
            self._phases[snapshot.phase] += snapshot.live_bytes - self._before.live_bytes
        self._before = snapshot
        if self._survivors is not None:
            self._survivors.phase_end(snapshot.phase)

    def generation_end(self, snapshot: MemorySnapshot) -> Leak | None:
        """Take the snapshot at the end of a generation, and return a leak that was identified just now."""
        self.phase_end(snapshot)
        phases = {f"phase {name}": nbytes for name, nbytes in self._phases.items()}
        self._phases.clear()
        # following the survivors takes memory itself, so that these two generations are left out of the trend
        if self._survivors is not None:
            kept = self._survivors.generation_end()
            if kept is None:
                return None
            self.leak = self._identify(kept, self._survivors)
            self._stop_following()
            return self.leak
        owners = {f"owner {name}": held.total for name, held in snapshot.held.items() if name not in snapshot.filling}
        memory = {"memory": snapshot.live_bytes - snapshot.filling_bytes, "GPU memory": snapshot.gpu_allocated_bytes}
        self.trend.add(snapshot.generation, {"rss": snapshot.rss_bytes, **memory, **owners, **phases})
        self._rising.add(snapshot.generation, type_counts())
        if self.leak is None:
            self._grown = self._find_growth()
            if self._grown is not None:
                if limits()[0].left < _ROOM_TO_FOLLOW:
                    self.leak = self._identify({})
                    return self.leak
                self._survivors = Survivors()
        return None

    def close(self) -> Leak | None:
        """End the watch, and return the leak that was found or is suspected."""
        self._stop_following()
        if self.leak is None:
            self._grown = self._grown or self._find_growth()
            self.leak = self._identify({})
        return self.leak

    def _stop_following(self) -> None:
        if self._survivors is not None:
            self._survivors.stop()
            self._survivors = None

    def _find_growth(self) -> tuple[str, Growth] | None:
        """Return what grows, an owner before the whole that it is part of."""
        names = [name for name in self.trend.names if name.startswith("owner ")]
        for name in (*names, "memory", "GPU memory"):
            growth = find_growth(self.trend.generations, self.trend[name], self.least) if len(self.trend) else None
            if growth is not None:
                return name, growth
        return None

    def _identify(self, kept: Mapping[str, Kept], survivors: Survivors | None = None) -> Leak | None:
        if self._grown is None:
            return None
        where, growth = self._grown
        rising = {name: (rise.start, rise.now) for name, rise in self._rises().items()}
        if survivors is not None and survivors.arrays_now > survivors.arrays:
            rising["numpy.ndarray"] = survivors.arrays, survivors.arrays_now
        phase = self._guilty_phase(kept, growth, list(rising))
        left = kept.get(phase, Kept())
        # what gives the leak its name first, then what there is most of
        types = sorted(rising, key=lambda name: (_rank(name), -left.types[name]))
        return Leak(
            verdict=_verdict(phase, types),
            phase=phase,
            growth=growth._replace(since=self._since(phase, growth)),
            where=where,
            types=tuple((name, *rising[name]) for name in types[:4]),
            largest=left.described(),
        )

    def _rises(self) -> dict[str, Rise]:
        """Return the types that rise, without the profiler's own history, which has a bound."""
        own = "callbacks.", "eigen2.memory."
        return {name: rise for name, rise in self._rising.found().items() if not name.startswith(own)}

    def _guilty_phase(self, kept: Mapping[str, Kept], growth: Growth, rising: Sequence[str]) -> str:
        """Return the phase that left most behind: of bytes if they explain the growth, else of the types that rise.

        Without either, for what no Python object holds, it is the phase in which memory grew most.
        """
        by_bytes = {phase: left.nbytes for phase, left in kept.items()}
        if by_bytes and max(by_bytes.values()) >= growth.slope.median / 3:
            return max(by_bytes, key=lambda phase: by_bytes[phase])
        rank = min((_rank(name) for name in rising), default=0)
        names = [name for name in rising if _rank(name) == rank]
        by_types = {phase: sum(left.types[name] for name in names) for phase, left in kept.items()}
        if by_types and max(by_types.values()):
            return max(by_types, key=lambda phase: by_types[phase])
        start = 2 if len(self.trend) > 4 else 0
        phases = [name for name in self.trend.names if name.startswith("phase ")]
        return max(phases, key=lambda name: float(self.trend[name][start:].sum())).removeprefix("phase ")

    def _since(self, phase: str, growth: Growth) -> int:
        """Return the first generation that leaked: when telling types began to rise, else when the phase grew."""
        began = [(_rank(name), rise.since) for name, rise in self._rising.found().items() if _rank(name) < 2]
        if began:
            return min(began)[1]
        generations = self.trend.generations
        grown = self.trend[f"phase {phase}"]
        leaking = float(np.median(grown[generations >= growth.since]))
        since = growth.since
        for generation, delta in zip(generations[::-1].tolist(), grown[::-1].tolist(), strict=True):
            if generation < since:
                if abs(delta - leaking) > abs(delta - (leaking - growth.slope.median)):
                    break
                since = generation
        return since


def _format_size(nbytes: float) -> str:
    return f"{nbytes / 1e6:.2f} MB" if abs(nbytes) >= 1e6 else f"{nbytes / 1e3:.0f} kB"


def _rank(name: str) -> int:
    """Return how much a type says about a leak: 0 names it."""
    if _kind_of_leak(name):
        return 0
    if name in _ARRAYS:
        return 1
    return 2 if "." in name and not name.startswith(("weakref.", "itertools.", "collections.", "torch.Size")) else 3


def _kind_of_leak(name: str) -> str:
    """Return the verdict that a type stands for; empty if none."""
    short = name.rpartition(".")[2].lower()
    if short.endswith(("environment", "env")):
        return ENVIRONMENTS
    if name == "matplotlib.figure.Figure":
        return FIGURES
    return POPULATION if short.endswith(("agent", "population")) or name == "torch.nn.parameter.Parameter" else ""


def _verdict(phase: str, types: Sequence[str]) -> str:
    other = TENSORS if phase == "train" and any(name in _ARRAYS for name in types) else OTHER
    return next((kind for kind in map(_kind_of_leak, types) if kind), other)
