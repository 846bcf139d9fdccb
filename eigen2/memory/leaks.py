"""Watch a run for memory that keeps growing, and find the phase, start, lines and containers of a leak."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from eigen2.files import Folder
from eigen2.memory.growth import FLAT, LEAK, MIN_GENERATIONS, STEP, WARM_UP, Growth, Trend, Verdict, judge
from eigen2.memory.limits import limits
from eigen2.memory.snapshot import MemorySnapshot
from eigen2.memory.tracing import GENERATIONS, NativeTrace, PythonTrace, Trace

log = logging.getLogger(__name__)
AFTER = "callbacks after MemoryProfiler"  # the phase between its last snapshot of an epoch and the next epoch
_TRACING_BYTES = 300_000_000  # must be available to trace allocations, which takes memory itself
MOST_TRACES = 3  # of a run: tracing slows it down
_HISTORIES = (
    "keep loss.item() or loss.detach() of tensors, bound histories by collections.deque(maxlen=...), and reset in "
    "place what is built once"
)
_REMEDIES = {
    "memory": _HISTORIES,
    "GPU memory": "keep loss.item() or loss.detach(), and move to the CPU what is kept",
    "shared memory": "close and unlink shared memory, and drop tensors after share_memory_()",
    "files in /dev/shm": "unlink shared memory after close()",
    "child processes": "join or terminate child processes, and bound what workers keep",
    "anonymous memory": f"{_HISTORIES}; of buffers of C libraries and mappings, close what is opened",
}
"""What to do about each series that is judged.

The first one that explains half of the growth is named: anonymous memory, which also rises with the holes that other
leaks leave in the C heap, comes last.
"""


_WITH_OWNERS = ("memory", "anonymous memory")
_NOISY = ("anonymous memory", "child processes")


@dataclass(frozen=True, slots=True)
class Leak:
    """Memory that keeps growing."""

    series: str  # which of the series that are judged
    where: str  # the same, or the owner that explains it
    growth: Growth
    phase: str  # the phase that keeps more each generation
    trace: Trace = Trace([], [])  # noqa: RUF009 - an immutable value

    def lines(self) -> list[str]:
        """Format the leak as lines of text."""
        slope = self.growth.slope
        low, rate, high = (_format_size(number) for number in (slope.low, slope.median, slope.high))
        graph = [f"flame graph of what is kept: {self.trace.path}"] if self.trace.path else []
        return [
            f"leak in {self.phase}: {self.where} grows since generation {self.growth.since}",
            f"{rate} a generation, which is an epoch (99 %: {low} to {high})",
            *(f"{name} grows: {before:,} -> {now:,} items" for name, before, now in self.trace.holders),
            *self._site_lines(),
            *graph,
            f"to do: {_REMEDIES[self.series]}",
        ]

    def _site_lines(self) -> list[str]:
        """Format the lines that allocate what is kept: the first one, and others that keep much."""
        large = [site for site in self.trace.sites[:3] if site.nbytes > self.growth.slope.median / 20]
        lines = [f"{_format_size(site.nbytes)} a generation kept from {site.line}" for site in large]
        unseen = "torch's and C's memory, whose size is not traced"
        return lines or [f"kept from {site.line}: {unseen}" for site in self.trace.sites[:1]]


class LeakWatch:
    """Judges memory at the end of every generation, and follows some generations after a leak is found.

    Growth must reach `least` bytes a generation, of anonymous and children's memory twice as much, which vary more.
    Traced generations are left out of the series, as a trace takes memory itself, and so is what remains of it: the
    series go on after it as they did before. `folder` is that of verdict.json and of memray's flame graph, if any.
    """

    def __init__(self, least: float, folder: Folder | None = None) -> None:
        self.trend = Trend()
        self.leak: Leak | None = None
        self.verdicts: dict[str, Verdict] = {}  # of the series that are judged
        self._least = {name: 2 * least if name in _NOISY else least for name in _REMEDIES}
        self._folder = folder
        self._deltas: dict[str, float] = {}
        self._before: dict[str, float] = {}
        self._filling: set[str] = set()
        self._traced = False  # since the last generation of the series
        self._kept_by_traces: dict[str, float] = {}
        self._trace: PythonTrace | NativeTrace | None = None
        self._python = Trace([], [])
        self._traces = 0
        self._revised = ""  # how the last leak ended

    def phase_end(self, snapshot: MemorySnapshot, phase: str = "") -> None:
        """Record the snapshot at the end of a phase."""
        self._filling.update(snapshot.filling)
        filling = sum(snapshot.held[name].anonymous for name in self._filling if name in snapshot.held)
        levels = snapshot.levels()
        levels = {name: level - filling * (name in _WITH_OWNERS) for name, level in levels.items()}
        phase = phase or snapshot.phase
        for name, level in levels.items() if self._before else ():
            key = f"{name} in {phase}"
            self._deltas[key] = self._deltas.get(key, 0) + level - self._before[name]
        self._before = levels
        if self._trace is not None:
            self._trace.phase_end(phase)

    def generation_end(self, snapshot: MemorySnapshot) -> list[str]:
        """Record the snapshot at the end of a generation, and return what is to be said about it."""
        self.phase_end(snapshot)
        deltas, self._deltas = self._deltas, {}
        if self._trace is not None:
            return self._end_trace() if self._trace.generation_end() else []
        owners = {f"owner {name}": held.total for name, held in snapshot.held.items() if name not in self._filling}
        if self._traced:
            self._kept_by_traces, self._traced = self._jumps(snapshot.generation), False
        levels = {name: level - self._kept_by_traces.get(name, 0) for name, level in self._before.items()}
        self.trend.add(snapshot.generation, {"rss": snapshot.rss_bytes, **levels, **owners, **deltas})
        earlier, self.leak = self.leak, self._find_leak()
        if self.leak is None:
            return self._revise(earlier)
        if earlier is not None and not self._is_new(earlier):
            known = self._phase_by_growth(self.leak.series, self.leak.growth)
            phase = known or earlier.trace.phase or self.leak.phase
            self.leak = replace(self.leak, trace=earlier.trace, phase=phase)
            return []
        if limits()[0].left < _TRACING_BYTES or self._traces >= MOST_TRACES:
            self._write()
            return self.leak.lines()
        self._traces += 1
        self._trace = PythonTrace()
        found = f"{self.leak.where} grows since generation {self.leak.growth.since}, it seems in {self.leak.phase}"
        return [f"{found}: tracing {GENERATIONS} generations"]

    def close(self) -> Leak | None:
        """Stop watching, and return the leak there is."""
        if self._trace is not None:
            self._end_trace(more=False)
        elif self.trend.generations.size:
            self._write()
        return self.leak

    def summary(self) -> list[str]:
        """Return the verdict in a line, or the leak in several."""
        if self.leak is not None:
            return self.leak.lines()
        return [f"verdict: healthy{self._revised}"]

    def _is_new(self, earlier: Leak) -> bool:
        assert self.leak is not None
        return self.leak.series == earlier.series and self.leak.growth.since > earlier.growth.since + 3

    def _revise(self, earlier: Leak | None) -> list[str]:
        """Take back a leak that has turned out to be none."""
        if earlier is None:
            return []
        kind = self.verdicts.get(earlier.series, Verdict(FLAT)).kind
        became = {FLAT: "it stopped", STEP: "it was a step"}.get(kind, f"its kind is {kind}")
        self._revised = f" now; {earlier.where} grew from generation {earlier.growth.since} on, but {became}"
        self._write()
        return [f"no leak in {earlier.phase} after all: {earlier.where} grew, but {became}"]

    def _end_trace(self, more: bool = True) -> list[str]:
        assert self._trace is not None
        assert self.leak is not None
        known = self._phase_by_growth(self.leak.series, self.leak.growth)
        native = isinstance(self._trace, NativeTrace)
        try:
            trace = self._trace.close(known)
            self._trace = None
            if not native and more and self._folder is not None and NativeTrace.available():
                self._trace = NativeTrace(self._folder)
        except (OSError, ImportError, RuntimeError) as error:  # a full disk, a broken memray, one that traces already
            log.warning("cannot trace with memray: %s", error)
            trace, self._trace = trace if not native else Trace([], []), None
        self._before, self._deltas, self._traced = {}, {}, True
        if self._trace is not None:
            self._python = trace
            return []
        if native:
            python, self._python = self._python, Trace([], [])
            sites = trace.sites if trace.sites and trace.sites[0].users else python.sites
            trace = Trace(sites, python.holders, python.phase, trace.path)
        self.leak = replace(self.leak, trace=trace, phase=known or trace.phase or self.leak.phase)
        self._write()
        return self.leak.lines()

    def _jumps(self, generation: int) -> dict[str, float]:
        """Return how far each judged level now lies above where its growth before the trace would have led."""
        passed, jumps = generation - int(self.trend.generations[-1]), {}
        for name, verdict in self.verdicts.items():
            levels = self.trend.series[name]
            rate = _rate(verdict) or float(np.median(np.diff(levels[-4:]) / np.diff(self.trend.generations[-4:])))
            jumps[name] = self._before[name] - levels[-1] - rate * passed
        return jumps

    def _find_leak(self) -> Leak | None:
        """Judge all series anew, and return the leak of the largest one, by the owner that explains it if there is."""
        levels, generations = self.trend.series, self.trend.generations
        self.verdicts = {name: judge(levels[name], least, generations) for name, least in self._least.items()}
        leaking = [(name, self.verdicts[name]) for name in self._least if self._is_leak(name)]
        if not leaking:
            return None
        rates = {name: _rate(verdict) for name, verdict in leaking}
        series = next(name for name in rates if rates[name] >= max(rates.values()) / 2)
        growth = self.verdicts[series].growths[-1]
        if series == "anonymous memory" and "memory" in rates:  # it lags behind what is live
            growth = replace(growth, since=self.verdicts["memory"].growths[-1].since)
        where = series
        for name in (name for name in levels if name.startswith("owner ")):
            verdict = judge(levels[name], self._least["memory"], generations)
            if verdict.kind == LEAK and verdict.growths[-1].slope.median >= growth.slope.median / 2:
                where, growth = name, verdict.growths[-1]
        phase = self._phase_by_growth(series, growth, 1) or self._phase_by_size(series, growth)
        return Leak(series, where, growth, phase)

    def _is_leak(self, series: str) -> bool:
        """Return whether a series leaks; of noisy ones after twice as long: holes in the C heap grow for a while."""
        verdict = self.verdicts[series]
        if verdict.kind != LEAK or series not in _NOISY:
            return verdict.kind == LEAK
        return int(self.trend.generations[-1]) - verdict.growths[-1].since >= 2 * MIN_GENERATIONS - 2

    def _phases(self, series: str) -> dict[str, np.ndarray]:
        prefix = f"{series} in "
        return {name.removeprefix(prefix): part for name, part in self.trend.series.items() if name.startswith(prefix)}

    def _phase_by_growth(self, series: str, growth: Growth, least: int = WARM_UP) -> str:
        """Return the phase whose growth rose most with the leak; empty if fewer than `least` are before it."""
        generations = self.trend.generations
        since, warm = generations >= growth.since, np.arange(len(generations)) >= WARM_UP
        before = warm & (generations < growth.since - 1)  # the start may be off by one
        before = before if before.any() else warm & ~since
        if before.sum() < least:
            return ""
        phases = self._phases(series)
        for average in (np.median, np.mean):  # a leak of every third generation has no median

            def typical(part: np.ndarray, average: Callable[..., Any] = average) -> float:
                return float(average(part[~np.isnan(part)])) if not np.isnan(part).all() else 0.0

            rises = {name: typical(part[since]) - typical(part[before]) for name, part in phases.items()}
            phase = max(rises, key=lambda name: rises[name])
            if rises[phase] > growth.slope.median / 3:
                break
        return phase

    def _phase_by_size(self, series: str, growth: Growth) -> str:
        """Return the phase whose mean growth is that of the leak, else the largest, for lack of anything before it.

        What one phase holds until another frees it is seldom as large as what leaks.
        """
        means = {name: float(np.nanmean(part[WARM_UP:])) for name, part in self._phases(series).items()}
        rate = growth.slope.median
        nearest = min(means, key=lambda name: abs(means[name] - rate))
        largest = max(means, key=lambda name: means[name])
        return nearest if abs(means[nearest] - rate) < rate / 3 else largest

    def _write(self) -> None:
        """Write verdict.json once there was a leak; a disk error is logged."""
        if self._folder is None or (self.leak is None and not self._revised):
            return
        record = {"leak": None if self.leak is None else _plain(self.leak), "lines": self.summary()}
        record["series"] = {name: asdict(verdict) for name, verdict in self.verdicts.items()}
        try:
            self._folder.write("verdict.json", json.dumps(record, indent=1))
        except OSError as error:
            log.warning("cannot write verdict.json to %s: %s", self._folder, error)


def _rate(verdict: Verdict) -> float:
    """Return the bytes a generation of all growth that goes on."""
    return sum(growth.slope.median for growth in verdict.growths if growth.until is None)


def _plain(leak: Leak) -> Mapping[str, Any]:
    """Return a leak as plain values."""
    trace = leak.trace
    return {
        "phase": leak.phase,
        "where": leak.where,
        "since": leak.growth.since,
        "bytes_a_generation": leak.growth.slope._asdict(),
        "sites": [site._asdict() for site in trace.sites[:5]],
        "holders": [{"name": name, "before": before, "now": now} for name, before, now in trace.holders],
        "flame_graph": None if trace.path is None else trace.path.name,
    }


def _format_size(nbytes: float) -> str:
    return f"{nbytes / 1e6:.2f} MB" if abs(nbytes) >= 1e6 else f"{nbytes / 1e3:.0f} kB"
