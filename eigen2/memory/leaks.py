"""Watch a run for memory that keeps growing, and find which phase leaks what since when, and where it is allocated."""

import gc
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from eigen2.memory.growth import Growth, Rising, Trend, find_growth
from eigen2.memory.limits import limits
from eigen2.memory.objects import type_counts
from eigen2.memory.snapshot import MemorySnapshot

ENVIRONMENTS = "environments not reused"
TENSORS = "tensors or graphs kept after training"
POPULATION = "old population kept after evolution"
FIGURES = "figures never closed"
OTHER = "something kept"
_KINDS = {
    ("environment", "env"): ENVIRONMENTS,
    ("matplotlib.figure.figure",): FIGURES,
    ("agent", "population", "nn.parameter.parameter"): POPULATION,
}
"""Verdict that a type stands for, by the ends of its name in lower case."""
_ROOM_TO_FOLLOW = 300_000_000  # bytes that must be left to trace allocations, which takes memory itself
_FRAMES = 12  # of a traceback, to find the line that called a library
_OWN = ("/eigen2/memory/", "/callbacks/memory.py")


@dataclass(frozen=True, slots=True)
class Leak:
    """Memory that keeps growing."""

    verdict: str  # kind of the leak
    phase: str  # the phase that keeps more each generation
    growth: Growth  # how much, and since when
    where: str  # `memory`, `GPU memory`, or the name of an owner
    types: tuple[tuple[str, int, int], ...] = ()  # with more live objects: name, how many before the leak, how many now
    sites: tuple[tuple[str, int], ...] = ()  # lines that allocated most of what one generation kept, with the bytes

    def lines(self) -> list[str]:
        """Format the leak."""
        slope = self.growth.slope
        low, rate, high = (_format_size(number) for number in (slope.low, slope.median, slope.high))
        return [
            f"leak in {self.phase}: {self.verdict}",
            f"{self.where} grows by {rate} a generation (99 %: {low} to {high}) since generation {self.growth.since}",
            *(f"{name}: {before:,} -> {now:,}" for name, before, now in self.types),
            *(f"{_format_size(nbytes)} kept of what {site} allocated" for site, nbytes in self.sites),
        ]


class _Look(NamedTuple):
    """What lives after a phase: bytes by the line that allocated them, and objects by type."""

    phase: str
    sizes: Counter[str]
    types: Counter[str]


def _look(phase: str) -> _Look:
    gc.collect()
    sizes: Counter[str] = Counter()
    for stat in tracemalloc.take_snapshot().statistics("traceback"):
        sizes[_site(stat.traceback)] += stat.size
    del sizes[""]
    return _Look(phase, sizes, type_counts())


class LeakWatch:
    """Finds growth of `least` bytes a generation, then follows two generations to see what stays, and whose.

    The first of them fills the trace of allocations, or an object that replaces one from before would look like growth;
    in the second, what lives is looked at after each phase. tracemalloc knows of Python's memory and NumPy's, not of
    torch's: its tensors show as objects.
    """

    def __init__(self, least: float) -> None:
        self.least = least
        self.trend = Trend()
        self.leak: Leak | None = None
        self._rising = Rising()
        self._phases: defaultdict[str, float] = defaultdict(float)
        self._before: MemorySnapshot | None = None
        self._grown: tuple[str, Growth] | None = None
        self._looks: list[_Look] | None = None  # None while no generation is followed
        self._tracing = False

    def phase_end(self, snapshot: MemorySnapshot) -> None:
        """Take the snapshot at the end of a phase."""
        if self._before is None:
            self._rising.add(snapshot.generation - 1, type_counts())
        else:
            self._phases[snapshot.phase] += snapshot.live_bytes - self._before.live_bytes
        self._before = snapshot
        if self._looks:
            self._looks.append(_look(snapshot.phase))

    def generation_end(self, snapshot: MemorySnapshot) -> Leak | None:
        """Take the snapshot at the end of a generation, and return a leak that was identified just now."""
        self.phase_end(snapshot)
        phases = {f"phase {name}": nbytes for name, nbytes in self._phases.items()}
        self._phases.clear()
        if self._looks is not None:  # a trace takes memory itself, so these generations are left out of the trend
            if not self._looks:
                self._looks.append(_look(""))
                return None
            self.leak = self._identify(self._looks)
            self._stop_following()
            return self.leak
        owners = {f"owner {name}": held.total for name, held in snapshot.held.items() if name not in snapshot.filling}
        filling = sum(snapshot.held[name].anonymous for name in snapshot.filling)
        memory = {"memory": snapshot.live_bytes - filling, "GPU memory": snapshot.gpu_allocated_bytes}
        self.trend.add(snapshot.generation, {"rss": snapshot.rss_bytes, **memory, **owners, **phases})
        self._rising.add(snapshot.generation, type_counts())
        if self.leak is None and (grown := self._find_growth()) is not None:
            self._grown = grown
            if limits()[0].left < _ROOM_TO_FOLLOW:
                self.leak = self._identify([])
                return self.leak
            self._looks, self._tracing = [], not tracemalloc.is_tracing()
            if self._tracing:
                tracemalloc.start(_FRAMES)
        return None

    def close(self) -> Leak | None:
        """End the watch, and return the leak that was found or is suspected."""
        self._stop_following()
        if self.leak is None:
            self._grown = self._grown or self._find_growth()
            self.leak = self._identify([])
        return self.leak

    def _stop_following(self) -> None:
        if self._tracing:
            tracemalloc.stop()
        self._looks, self._tracing = None, False

    def _find_growth(self) -> tuple[str, Growth] | None:
        """Return what grows, an owner before the whole that it is part of."""
        names = [name for name in self.trend.series if name.startswith("owner ")]
        for name in (*names, "memory", "GPU memory"):
            levels = self.trend.series.get(name, np.zeros(0))
            if (growth := find_growth(self.trend.generations, levels, self.least)) is not None:
                return name, growth
        return None

    def _identify(self, looks: list[_Look]) -> Leak | None:
        if self._grown is None:
            return None
        where, growth = self._grown
        rises = {name: rise for name, rise in self._rising.found().items() if not name.startswith("eigen2.memory.")}
        names = sorted(rises, key=_rank)
        telling = [name for name in names if _rank(name) == _rank(names[0]) < 2]
        sites = (looks[-1].sizes - looks[0].sizes).most_common() if looks else []
        phase = self._guilty_phase(looks, growth, [site for site, _ in sites], telling)
        since = min((rises[name].since for name in telling), default=growth.since)
        other = TENSORS if phase == "train" and "torch.Tensor" in names else OTHER
        return Leak(
            verdict=next(filter(None, map(_kind_of_leak, names)), other),
            phase=phase,
            growth=growth._replace(since=since),
            where=where,
            types=tuple((name, rises[name].start, rises[name].now) for name in names[:4]),
            sites=tuple(sites[:5]),
        )

    def _guilty_phase(self, looks: list[_Look], growth: Growth, sites: list[str], types: list[str]) -> str:
        """Return the phase that kept most: bytes if they explain the growth, else objects of the telling types.

        Without either, for what no Python object holds, it is the phase in which memory grew most.
        """
        nbytes: Counter[str] = Counter()
        objects: Counter[str] = Counter()
        for before, now in pairwise(looks):
            nbytes[now.phase] += sum(now.sizes[site] - before.sizes[site] for site in sites)
            objects[now.phase] += sum(now.types[name] - before.types[name] for name in types)
        for kept, least in ((nbytes, growth.slope.median / 3), (objects, 1)):
            if kept and max(kept.values()) >= least:
                return max(kept, key=lambda phase: kept[phase])
        start = 2 if len(self.trend.generations) > 4 else 0
        phases = {name: values for name, values in self.trend.series.items() if name.startswith("phase ")}
        return max(phases, key=lambda name: float(phases[name][start:].sum())).removeprefix("phase ")


def _site(traceback: Iterable[tracemalloc.Frame]) -> str:
    """Return the latest line outside of libraries, else the very latest; empty for the watch itself."""
    frames = [*traceback][::-1]
    # an installed eigen2 lies among the libraries
    own = (each for each in frames if "/lib/python" not in each.filename or "/eigen2/" in each.filename)
    frame = next(own, frames[0])
    return "" if any(part in frame.filename for part in _OWN) else f"{frame.filename}:{frame.lineno}"


def _format_size(nbytes: float) -> str:
    return f"{nbytes / 1e6:.2f} MB" if abs(nbytes) >= 1e6 else f"{nbytes / 1e3:.0f} kB"


def _rank(name: str) -> int:
    """Return how much a type says about a leak: 0 names it, 1 may hold much."""
    if _kind_of_leak(name) or name == "torch.Tensor":
        return int(name == "torch.Tensor")
    return 2 if "." in name and not name.startswith(("weakref.", "itertools.", "collections.", "torch.Size")) else 3


def _kind_of_leak(name: str) -> str:
    """Return the verdict that a type stands for; empty if none."""
    return next((kind for ends, kind in _KINDS.items() if name.lower().endswith(ends)), "")
