"""Watch a run for memory that keeps growing, and find the phase, start, types and allocation sites of a leak."""

import gc
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from eigen2.memory.growth import Growth, RisingCounts, Trend, find_growth
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
"""Verdict by the possible endings of a type's name in lower case."""
_TRACING_BYTES = 300_000_000  # must be available to trace allocations, which takes memory itself
_FRAMES = 12  # frames kept of a traceback, to find the line that called a library
_PROFILER_FILES = ("/eigen2/memory/", "/callbacks/memory.py")


@dataclass(frozen=True, slots=True)
class Leak:
    """Memory that keeps growing."""

    verdict: str  # kind of the leak
    phase: str  # the phase that keeps more each generation
    growth: Growth  # how much, and since when
    where: str  # `memory`, `GPU memory`, or the name of an owner
    types: tuple[tuple[str, int, int], ...] = ()  # with more live objects: name, count before the leak, count now
    sites: tuple[tuple[str, int], ...] = ()  # lines that allocated most of what one generation kept, and bytes

    def lines(self) -> list[str]:
        """Format the leak as lines of text."""
        slope = self.growth.slope
        low, rate, high = (_format_size(number) for number in (slope.low, slope.median, slope.high))
        return [
            f"leak in {self.phase}: {self.verdict}",
            f"{self.where} grows by {rate} a generation (99 %: {low} to {high}) since generation {self.growth.since}",
            *(f"{name}: {before:,} -> {now:,}" for name, before, now in self.types),
            *(f"{_format_size(nbytes)} allocated at {site} and kept" for site, nbytes in self.sites),
        ]


class _Census(NamedTuple):
    """Live memory after a phase: bytes by the line that allocated them, and objects by type."""

    phase: str
    sizes: Counter[str]
    types: Counter[str]


def _take_census(phase: str) -> _Census:
    gc.collect()
    sizes: Counter[str] = Counter()
    for stat in tracemalloc.take_snapshot().statistics("traceback"):
        sizes[_site(stat.traceback)] += stat.size
    del sizes[""]
    return _Census(phase, sizes, type_counts())


class LeakWatch:
    """Detects growth of `min_slope` bytes a generation, then traces two generations to find what is kept, and by whom.

    The first one fills the trace of allocations, or an object that replaces an older one would look like growth; in the
    second, a census of live memory is taken after each phase. tracemalloc sees the memory of Python and NumPy but not
    of torch, whose tensors are counted only as objects.
    """

    def __init__(self, min_slope: float) -> None:
        self.min_slope = min_slope
        self.trend = Trend()
        self.leak: Leak | None = None
        self._rising = RisingCounts()
        self._phases: defaultdict[str, float] = defaultdict(float)
        self._before: MemorySnapshot | None = None
        self._growth: tuple[str, Growth] | None = None
        self._censuses: list[_Census] | None = None  # None unless generations are being traced
        self._started_tracemalloc = False

    def phase_end(self, snapshot: MemorySnapshot) -> None:
        """Record the snapshot at the end of a phase."""
        if self._before is None:
            self._rising.add(snapshot.generation - 1, type_counts())
        else:
            self._phases[snapshot.phase] += snapshot.live_bytes - self._before.live_bytes
        self._before = snapshot
        if self._censuses:
            self._censuses.append(_take_census(snapshot.phase))

    def generation_end(self, snapshot: MemorySnapshot) -> Leak | None:
        """Record the snapshot at the end of a generation, and return a leak if it has just been identified."""
        self.phase_end(snapshot)
        phases = {f"phase {name}": nbytes for name, nbytes in self._phases.items()}
        self._phases.clear()
        if self._censuses is not None:  # a trace takes memory itself, so these generations are left out of the trend
            if not self._censuses:
                self._censuses.append(_take_census(""))
                return None
            self.leak = self._identify(self._censuses)
            self._stop_tracing()
            return self.leak
        owners = {f"owner {name}": held.total for name, held in snapshot.held.items() if name not in snapshot.filling}
        filling = sum(snapshot.held[name].anonymous for name in snapshot.filling)
        memory = {"memory": snapshot.live_bytes - filling, "GPU memory": snapshot.gpu_allocated_bytes}
        self.trend.add(snapshot.generation, {"rss": snapshot.rss_bytes, **memory, **owners, **phases})
        self._rising.add(snapshot.generation, type_counts())
        if self.leak is None and (growth := self._find_growth()) is not None:
            self._growth = growth
            if limits()[0].left < _TRACING_BYTES:
                self.leak = self._identify([])
                return self.leak
            self._censuses, self._started_tracemalloc = [], not tracemalloc.is_tracing()
            if self._started_tracemalloc:
                tracemalloc.start(_FRAMES)
        return None

    def close(self) -> Leak | None:
        """Stop watching, and return the leak that was identified or is suspected."""
        self._stop_tracing()
        if self.leak is None:
            self._growth = self._growth or self._find_growth()
            self.leak = self._identify([])
        return self.leak

    def _stop_tracing(self) -> None:
        if self._started_tracemalloc:
            tracemalloc.stop()
        self._censuses, self._started_tracemalloc = None, False

    def _find_growth(self) -> tuple[str, Growth] | None:
        """Return the name and growth of the series that grows; owners go before the totals that include them."""
        names = [name for name in self.trend.series if name.startswith("owner ")]
        for name in (*names, "memory", "GPU memory"):
            levels = self.trend.series.get(name, np.zeros(0))
            if (growth := find_growth(self.trend.generations, levels, self.min_slope)) is not None:
                return name, growth
        return None

    def _identify(self, censuses: list[_Census]) -> Leak | None:
        if self._growth is None:
            return None
        where, growth = self._growth
        rises = {name: rise for name, rise in self._rising.rises().items() if not name.startswith("eigen2.memory.")}
        names = sorted(rises, key=_rank)
        suspects = [name for name in names if _rank(name) == _rank(names[0]) < 2]
        sites = (censuses[-1].sizes - censuses[0].sizes).most_common() if censuses else []
        phase = self._leaking_phase(censuses, growth, [site for site, _ in sites], suspects)
        since = min((rises[name].since for name in suspects), default=growth.since)
        unspecific = TENSORS if phase == "train" and "torch.Tensor" in names else OTHER
        return Leak(
            verdict=next(filter(None, map(_kind_of_leak, names)), unspecific),
            phase=phase,
            growth=growth._replace(since=since),
            where=where,
            types=tuple((name, rises[name].start, rises[name].now) for name in names[:4]),
            sites=tuple(sites[:5]),
        )

    def _leaking_phase(self, censuses: list[_Census], growth: Growth, sites: list[str], types: list[str]) -> str:
        """Return the phase that kept most: bytes if they explain the growth, else objects of the suspected types.

        If neither shows it, as for memory that no Python object holds, return the phase in which memory grew most.
        """
        nbytes: Counter[str] = Counter()
        objects: Counter[str] = Counter()
        for before, now in pairwise(censuses):
            nbytes[now.phase] += sum(now.sizes[site] - before.sizes[site] for site in sites)
            objects[now.phase] += sum(now.types[name] - before.types[name] for name in types)
        for kept, least in ((nbytes, growth.slope.median / 3), (objects, 1)):
            if kept and max(kept.values()) >= least:
                return max(kept, key=lambda phase: kept[phase])
        start = 2 if len(self.trend.generations) > 4 else 0
        phases = {name: values for name, values in self.trend.series.items() if name.startswith("phase ")}
        return max(phases, key=lambda name: float(phases[name][start:].sum())).removeprefix("phase ")


def _site(traceback: Iterable[tracemalloc.Frame]) -> str:
    """Return the innermost line outside libraries, else the innermost of all; empty for a line of the profiler."""
    frames = [*traceback][::-1]
    # an installed eigen2 lies in the folder of the libraries
    ours = (frame for frame in frames if "/lib/python" not in frame.filename or "/eigen2/" in frame.filename)
    frame = next(ours, frames[0])
    return "" if any(part in frame.filename for part in _PROFILER_FILES) else f"{frame.filename}:{frame.lineno}"


def _format_size(nbytes: float) -> str:
    return f"{nbytes / 1e6:.2f} MB" if abs(nbytes) >= 1e6 else f"{nbytes / 1e3:.0f} kB"


def _rank(name: str) -> int:
    """Return how informative a type is, best first: 0 implies a verdict, 1 is a tensor, 2 a class, 3 anything else."""
    if _kind_of_leak(name) or name == "torch.Tensor":
        return int(name == "torch.Tensor")
    return 2 if "." in name and not name.startswith(("weakref.", "itertools.", "collections.", "torch.Size")) else 3


def _kind_of_leak(name: str) -> str:
    """Return the verdict that a type implies; empty if none."""
    return next((kind for ends, kind in _KINDS.items() if name.lower().endswith(ends)), "")
