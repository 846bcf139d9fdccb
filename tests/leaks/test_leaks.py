"""Leaks of every kind are found with their phase and start, and healthy runs raise no alarm.

Every run has a process of its own, with nothing free in it that earlier tests left behind.
"""

import gc
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest

from eigen2.memory import leaks
from eigen2.memory.growth import Verdict
from eigen2.memory.leaks import Leak, LeakWatch
from eigen2.memory.snapshot import take_snapshot
from eigen2.memory.tracing import Trace
from tests.command import in_fork
from tests.leaks.kinds import KINDS, SLOW, clean

PHASES = ("evaluate", "train", "evolve", "validate", "generation")
Work = Callable[[int, str], object]


def follow(work: Work, generations: int, traces: int = 0) -> LeakWatch:
    """Return the verdict on a loop of phases, of which training holds and frees more than a leak keeps."""
    leaks.MOST_TRACES = traces
    gc.freeze()
    watch = LeakWatch(50e3)
    before = take_snapshot(0, "baseline", {})
    watch.phase_end(before)
    gradients = np.zeros(0)
    for generation in range(generations):
        for phase in PHASES:
            gradients = np.ones(100_000 + 100 * (generation % 3)) if phase == "train" else gradients
            work(generation, phase)
            if phase == "generation":
                gradients = np.zeros(0)
                gc.collect()
            before = take_snapshot(generation, phase, {}, before)
            if phase != "generation":
                watch.phase_end(before)
        watch.generation_end(before)
    watch.close()
    return watch


def leak_of(name: str, start: int, phase: str, generations: int, traces: int = 0) -> Leak | None:
    """Return the leak found in a run that leaks in one phase from a generation on."""
    kind, kept = KINDS[name], list[Any]()
    kind(kept)  # imports and first uses
    clean(kept)
    try:
        work = lambda generation, now: now == phase and generation >= start and kind(kept)  # noqa: E731
        return follow(work, generations, traces).leak
    finally:
        clean(kept)


def cases() -> Iterator[Any]:
    for number, name in enumerate(KINDS):
        marks = [pytest.mark.slow] if name in SLOW else []
        start, phase = {5: 8, 10: 20}.get(number, 3), PHASES[number % 5]  # tests/memory/test_growth.py has all starts
        yield pytest.param(name, start, phase, marks=marks, id=f"{name} in {phase} from {start}")


@pytest.mark.parametrize(("name", "start", "phase"), [*cases()])
def test_a_leak_of_every_kind_is_found_with_its_phase_and_start(name: str, start: int, phase: str) -> None:
    leak = in_fork(leak_of, name, start, phase, start + 15)
    assert leak is not None
    assert leak.phase == phase
    assert abs(leak.growth.since - start) <= 2
    assert 0.5 * 400_000 < leak.growth.slope.median < 2.5 * 400_000 or name == "child processes"


def leak_in_every_third_generation(start: int) -> Leak | None:
    kept: list[Any] = []

    def work(generation: int, phase: str) -> None:
        if phase == "evolve" and generation >= start and (generation - start) % 3 == 0:
            kept.append(np.ones(150_000))

    return follow(work, start + 18).leak


@pytest.mark.parametrize("start", [8, *(pytest.param(start, marks=pytest.mark.slow) for start in (3, 20))])
def test_a_leak_in_every_third_generation_is_found(start: int) -> None:
    leak = in_fork(leak_in_every_third_generation, start)
    assert leak is not None
    assert leak.phase == "evolve"
    assert abs(leak.growth.since - start) <= 2


def two_leaks() -> tuple[Leak | None, Mapping[str, Verdict]]:
    kept: list[Any] = []

    def work(generation: int, phase: str) -> None:
        if (phase, generation >= 8) == ("evaluate", True) or (phase, generation >= 20) == ("validate", True):
            kept.append(np.ones(50_000 if phase == "evaluate" else 100_000))

    watch = follow(work, 32)
    return watch.leak, watch.verdicts


def a_few_steps() -> list[str]:
    kept: list[Any] = []

    def work(generation: int, phase: str) -> None:
        if phase == "evaluate" and generation in (5, 8, 10, 13):
            for _ in range(5):
                KINDS["private mapping"](kept)

    return follow(work, 30).summary()


def test_a_few_steps_of_anonymous_memory_are_no_leak_even_for_a_while() -> None:
    assert in_fork(a_few_steps) == ["verdict: healthy"]


def a_young_leak() -> tuple[list[str], list[str]]:
    kept: list[Any] = []

    def work(generation: int, phase: str) -> None:
        if phase == "evaluate":
            for _ in range(25):
                KINDS["private mapping"](kept)

    young = follow(work, 10).summary()
    return young, follow(work, 16).summary()


def test_growth_that_is_too_new_to_judge_is_not_called_healthy() -> None:
    (young,), old = in_fork(a_young_leak)
    assert re.fullmatch(
        r"verdict: not settled: anonymous memory grows by .* a generation since generation \d, too new to judge", young
    )
    assert old[0].startswith("leak in evaluate: anonymous memory grows since generation ")


def test_of_two_leaks_each_is_found() -> None:
    leak, verdicts = in_fork(two_leaks)
    assert leak is not None
    assert [growth.since for growth in verdicts["memory"].growths] == pytest.approx([8, 20], abs=2)
    assert (leak.phase, leak.growth.since) == ("validate", pytest.approx(20, abs=2))


class Keeping:
    """A trace that keeps memory afterwards."""

    kept: ClassVar[list[np.ndarray]] = []

    def __init__(self, *arguments: object) -> None:
        self.generations = 0

    def generation_end(self) -> bool:
        self.kept.append(np.ones(1_000_000))
        self.generations += 1
        return self.generations == 4

    def close(self) -> Trace:
        return Trace()


def leak_with_a_trace_that_keeps() -> tuple[Leak | None, list[str]]:
    kept: list[np.ndarray] = []
    leaks.Tracer = Keeping
    watch = follow(
        lambda generation, phase: phase == "train" and generation >= 4 and kept.append(np.ones(50_000)), 32, traces=3
    )
    return watch.leak, watch.summary()


def test_a_leak_goes_on_after_a_trace_that_keeps_memory() -> None:
    leak, summary = in_fork(leak_with_a_trace_that_keeps)
    assert leak is not None
    assert (leak.phase, leak.growth.since) == ("train", pytest.approx(4, abs=2))
    assert leak.growth.slope.median == pytest.approx(400_000, rel=0.1)
    assert summary == leak.lines()


def healthy_run(seed: int) -> tuple[Leak | None, list[str]]:
    rng = np.random.default_rng(seed)
    history: deque[np.ndarray] = deque(maxlen=int(rng.integers(1, 6)))

    def work(generation: int, phase: str) -> None:
        if phase in ("evaluate", "validate"):
            history.append(np.ones(int(rng.integers(10_000, 60_000))))
            texts = [f"{number}" * 50 for number in range(int(rng.integers(10, 2000)))]
            del texts

    watch = follow(work, 40)
    return watch.leak, watch.summary()


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 20))])
def test_a_healthy_run_raises_no_alarm(seed: int) -> None:
    leak, summary = in_fork(healthy_run, seed)
    assert leak is None
    assert summary == ["verdict: healthy"]  # it would name a leak that was taken back


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KINDS.keys() - {"child processes"}))
def test_the_line_of_a_leak_is_named(name: str) -> None:
    leak = in_fork(leak_of, name, 8, "train", 24, traces=1)
    assert leak is not None
    assert any(file in leak.trace.sites[0].line for file in ("kinds.py", "test_leaks.py"))
