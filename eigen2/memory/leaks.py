"""Watch a run for memory that keeps growing, and find the phase, start and lines of a leak."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from eigen2.files import Folder
from eigen2.memory.growth import (
    ENDED,
    FILLING,
    FLAT,
    LEAK,
    MIN_GENERATIONS,
    SAW_TOOTH,
    STEP,
    WARM_UP,
    Growth,
    Trend,
    Verdict,
    judge,
)
from eigen2.memory.limits import available_bytes
from eigen2.memory.snapshot import MemorySnapshot
from eigen2.memory.tracing import GENERATIONS, Trace, Tracer, format_size

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
_BECAME = {
    FLAT: "it stopped",
    STEP: "it was a step",
    ENDED: "it ended, and the memory stays",
    FILLING: "ever more slowly, as a cache that fills",
    SAW_TOOTH: "the memory returns (saw-tooth)",
    LEAK: "what grows now is too new to judge",  # of a noisy series, see `_is_leak`
}
"""What growth that was reported as a leak has become, by the kind of its series."""


@dataclass(frozen=True, slots=True)
class Leak:
    """Memory that keeps growing."""

    series: str  # which of the series that are judged
    where: str  # the same, or the owner that explains it
    growth: Growth
    phase: str  # the phase that keeps more each generation
    trace: Trace = Trace()  # noqa: RUF009 - an immutable value

    def lines(self) -> list[str]:
        """Format the leak as lines of text."""
        slope = self.growth.slope
        low, rate, high = (format_size(number) for number in (slope.low, slope.median, slope.high))
        return [
            f"leak in {self.phase}: {self.where} grows since generation {self.growth.since}",
            f"{rate} a generation, which is an epoch (99 %: {low} to {high})",
            *self.trace.lines(least=slope.median / 20),
            f"to do: {_REMEDIES[self.series]}",
        ]

    def record(self) -> dict[str, Any]:
        """Return the leak as plain values."""
        growth = {"since": self.growth.since, "bytes_a_generation": self.growth.slope._asdict()}
        return {"phase": self.phase, "where": self.where, **growth, **self.trace.record()}


class LeakWatch:
    """Judges memory at the end of every generation, and traces some generations after a leak is found, or on demand.

    Growth must reach `least` bytes a generation, of anonymous and children's memory twice as much, which vary more.
    Traced generations are left out of the series, as a trace takes memory itself, and so is what remains of it: the
    series go on after it as they did before. `folder` is that of verdict.json and of a trace's pages, if any.
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
        self._tracer: Tracer | None = None
        self._asked: Trace | None = None  # made on demand while nothing leaked
        self._traces = 0
        self._revised = ""  # how the last leak ended

    def phase_end(self, snapshot: MemorySnapshot) -> None:
        """Record the snapshot at the end of a phase."""
        levels = snapshot.levels()
        for name, level in levels.items() if self._before else ():
            key = f"{name} in {snapshot.phase}"
            self._deltas[key] = self._deltas.get(key, 0) + level - self._before[name]
        self._before = levels

    def generation_end(self, snapshot: MemorySnapshot) -> list[str]:
        """Record the snapshot at the end of a generation, and return the lines to print about it."""
        self.phase_end(snapshot)
        deltas, self._deltas = self._deltas, {}
        if self._tracer is not None:
            return self._end_trace() if self._tracer.generation_end() else []
        self._filling.update(snapshot.filling)
        filling = [snapshot.held[name] for name in self._filling if name in snapshot.held]
        expected = dict.fromkeys(_WITH_OWNERS, sum(held.anonymous for held in filling))
        expected["GPU memory"] = sum(held.gpu for held in filling)
        owners = {f"owner {name}": held.total for name, held in snapshot.held.items() if name not in self._filling}
        levels = {name: level - expected.get(name, 0) for name, level in snapshot.levels().items()}
        if self._traced:
            self._kept_by_traces, self._traced = self._jumps(snapshot.generation, levels), False
        levels = {name: level - self._kept_by_traces.get(name, 0) for name, level in levels.items()}
        self.trend.add(snapshot.generation, {**levels, **owners, **deltas})
        earlier, self.leak = self.leak, self._find_leak()
        if self.leak is None:
            return [] if earlier is None else self._take_back(earlier)
        if earlier is not None and (
            self.leak.series != earlier.series or self.leak.growth.since <= earlier.growth.since + 3
        ):
            self.leak = replace(self.leak, trace=earlier.trace)
            return []
        if self._traces < MOST_TRACES and self._start_trace(gpu=self.leak.series == "GPU memory"):
            self._traces += 1
            found = f"{self.leak.where} grows since generation {self.leak.growth.since}, it seems in {self.leak.phase}"
            return [f"{found}: tracing {GENERATIONS} generations"]
        self._write()
        return self.leak.lines()

    def trace(self) -> list[str]:
        """Trace the next generations whether or not anything grows, and return the lines to print about it."""
        if self._tracer is not None:
            return []
        started = self._start_trace(gpu=True)
        return [f"tracing {GENERATIONS} generations" if started else "too little memory is left to trace allocations"]

    def close(self) -> Leak | None:
        """Stop watching, and return the leak there is."""
        if self._tracer is not None:
            self._end_trace()
        else:
            self._write()
        return self.leak

    def summary(self) -> list[str]:
        """Return the verdict in a line, and what a trace on demand found; or the leak in several lines."""
        if self.leak is not None:
            return self.leak.lines()
        count, least = len(self.trend.generations), WARM_UP + MIN_GENERATIONS
        too_few = f"none, with {count} of the {least} generations that it needs"
        verdict = f"healthy{self._revised}" if count >= least else too_few
        for name, judged in self.verdicts.items():
            if judged.kind == LEAK:  # of a noisy series, see `_is_leak`
                rate, since = format_size(_rate(judged)), judged.growths[-1].since
                verdict = f"not settled: {name} grows by {rate} a generation since generation {since}, too new to judge"
        asked = [] if self._asked is None else ["kept from the generations that were traced:", *self._asked.lines()]
        return [f"verdict: {verdict}", *asked]

    def _take_back(self, leak: Leak) -> list[str]:
        """Return the lines to print about a leak that has turned out to be none."""
        kind = self.verdicts[leak.series].kind
        became = _BECAME[kind]
        self._revised = f" now; {leak.where} grew from generation {leak.growth.since} on, but {became}"
        self._write()
        return [f"no leak in {leak.phase} after all: {leak.where} grew, but {became}"]

    def _start_trace(self, gpu: bool) -> bool:
        """Start to trace allocations, and return whether there is the memory for it."""
        if available_bytes() < _TRACING_BYTES:
            return False
        self._tracer = Tracer(self._folder, gpu)
        return True

    def _end_trace(self) -> list[str]:
        """End a trace and return what it found."""
        assert self._tracer is not None
        trace, self._tracer = self._tracer.close(), None
        self._before, self._deltas, self._traced = {}, {}, True
        if self.leak is None:
            self._asked = trace
        else:
            self.leak = replace(self.leak, trace=trace)
        self._write()
        return self.summary()

    def _jumps(self, generation: int, now: Mapping[str, float]) -> dict[str, float]:
        """Return how far each judged level now lies above where its growth before the trace would have led."""
        generations, jumps = self.trend.generations, {}
        for name, verdict in self.verdicts.items():
            levels = self.trend.series[name]
            rates = (np.diff(levels) / np.diff(generations))[WARM_UP:][-3:]
            rate = _rate(verdict) or (float(np.median(rates)) if rates.size else 0.0)
            jumps[name] = now[name] - levels[-1] - rate * (generation - int(generations[-1]))
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
        return Leak(series, where, growth, self._phase(series, growth))

    def _is_leak(self, series: str) -> bool:
        """Return whether a series leaks; of noisy ones after twice as long: holes in the C heap grow for a while.

        It takes twice as long again where most generations add nothing, as holes grow in steps.
        """
        verdict = self.verdicts[series]
        if verdict.kind != LEAK or series not in _NOISY:
            return verdict.kind == LEAK
        growth, generations = next(each for each in verdict.growths if each.until is None), self.trend.generations
        levels = self.trend.series[series][generations >= growth.since - 1]
        in_steps = np.nanmedian(np.diff(levels)) < growth.slope.median / 2
        return int(generations[-1]) - growth.since >= (4 if in_steps else 2) * MIN_GENERATIONS - 2

    def _phase(self, series: str, growth: Growth) -> str:
        """Return the phase whose growth rose by about as much as leaks, else the one whose growth rose most.

        What one phase holds until another frees it is seldom as large as what leaks.
        """
        generations, rate = self.trend.generations, growth.slope.median
        warm, since = np.arange(len(generations)) >= WARM_UP, generations >= growth.since
        before = warm & (generations < growth.since - 1)  # the start may be off by one
        before = before if before.any() else warm & ~since
        parts, prefix = self.trend.series.items(), f"{series} in "
        phases = {name.removeprefix(prefix): part for name, part in parts if name.startswith(prefix)}
        for average in (np.median, np.mean):  # a leak of every third generation has no median
            rises = {
                name: _typical(part[warm & since], average) - _typical(part[before], average)
                for name, part in phases.items()
            }
            nearest = min(rises, key=lambda phase: abs(rises[phase] - rate))
            if abs(rises[nearest] - rate) < rate / 3:
                return nearest
        return max(rises, key=lambda phase: rises[phase])

    def _write(self) -> None:
        """Write verdict.json; a disk error is logged."""
        if self._folder is None:
            return
        record = {
            "leak": self.leak and self.leak.record(),
            "trace": self._asked and self._asked.record(),
            "lines": self.summary(),
            "series": {name: asdict(verdict) for name, verdict in self.verdicts.items()},
        }
        try:
            self._folder.write("verdict.json", json.dumps(record, indent=1))
        except OSError as error:
            log.warning("cannot write verdict.json to %s: %s", self._folder, error)


def _rate(verdict: Verdict) -> float:
    """Return the bytes a generation of all growth that goes on."""
    return sum(growth.slope.median for growth in verdict.growths if growth.until is None)


def _typical(part: np.ndarray, average: Callable[..., Any]) -> float:
    """Return the average of what is known; 0 if nothing is."""
    known = part[~np.isnan(part)]
    return float(average(known)) if known.size else 0.0
