"""Leaks of every kind are found with their phase and start, and healthy runs raise no alarm."""

import gc
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from eigen2.memory import leaks, process
from eigen2.memory.leaks import Leak, LeakWatch
from eigen2.memory.snapshot import take_snapshot
from eigen2.memory.tracing import Trace
from tests.leaks.kinds import IN_STEPS, KINDS, SLOW, clean

PHASES = ("evaluate", "train", "evolve", "validate", "generation")


@pytest.fixture(autouse=True)
def frozen() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def without_files_of_other_tests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out /dev/shm, where tests in other processes write at the same time, but for the kind that leaks there."""
    if "shared memory that is closed" not in request.node.name:
        monkeypatch.setattr(process, "_shm_files_bytes", lambda: 0)


@pytest.fixture
def kept() -> Iterator[list[Any]]:
    kept: list[Any] = []
    yield kept
    clean(kept)


def follow(work: Callable[[int, str], object], generations: int, watch: LeakWatch | None = None) -> Leak | None:
    """Return the leak in a loop of phases, of which training holds and frees more than a leak keeps."""
    watch = watch or LeakWatch(50e3)
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
    return watch.close()


@pytest.fixture
def untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "MOST_TRACES", 0)


def cases() -> Iterator[Any]:
    for number, name in enumerate(KINDS):
        marks = [pytest.mark.slow] if name in SLOW else []
        start, phase = (3, 8, 20)[number % 3], PHASES[number % 5]
        yield pytest.param(name, start, phase, marks=marks, id=f"{name} in {phase} from {start}")


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize(("name", "start", "phase"), cases())
def test_a_leak_of_every_kind_is_found_with_its_phase_and_start(
    name: str, start: int, phase: str, kept: list[Any]
) -> None:
    kind = KINDS[name]
    kind(kept)  # imports and first uses
    clean(kept)
    end = start + (40 if name in IN_STEPS else 12)
    leak = follow(lambda generation, now: now == phase and generation >= start and kind(kept), end)
    assert leak is not None
    assert leak.phase == phase
    assert abs(leak.growth.since - start) <= 2 or name in IN_STEPS
    assert 0.5 * 400_000 < leak.growth.slope.median < 2.5 * 400_000 or name == "child processes"


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("start", [3, 8, 20])
def test_a_leak_in_every_third_generation_is_found(start: int, kept: list[Any]) -> None:
    def work(generation: int, phase: str) -> None:
        if phase == "evolve" and generation >= start and (generation - start) % 3 == 0:
            kept.append(np.ones(150_000))

    leak = follow(work, start + 18)
    assert leak is not None
    assert leak.phase == "evolve"
    assert abs(leak.growth.since - start) <= 2


@pytest.mark.usefixtures("untraced")
def test_of_two_leaks_each_is_found(kept: list[Any]) -> None:
    def work(generation: int, phase: str) -> None:
        if (phase, generation >= 8) == ("evaluate", True) or (phase, generation >= 20) == ("validate", True):
            kept.append(np.ones(50_000 if phase == "evaluate" else 100_000))

    watch = LeakWatch(50e3)
    leak = follow(work, 32, watch)
    assert leak is not None
    assert [growth.since for growth in watch.verdicts["memory"].growths] == [8, 20]
    assert (leak.phase, leak.growth.since) == ("validate", 20)


class Keeping:
    """A trace that keeps memory afterwards."""

    kept: ClassVar[list[np.ndarray]] = []

    def __init__(self) -> None:
        self.generations = 0

    def phase_end(self, phase: str) -> None:
        self.kept.append(np.ones(200_000))

    def generation_end(self) -> bool:
        self.generations += 1
        return self.generations == 4

    def close(self, phase: str) -> Trace:
        return Trace([], [])


def test_a_leak_goes_on_after_a_trace_that_keeps_memory(kept: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "PythonTrace", Keeping)
    watch = LeakWatch(50e3)
    leak = follow(
        lambda generation, phase: phase == "train" and generation >= 4 and kept.append(np.ones(50_000)), 32, watch
    )
    Keeping.kept.clear()
    assert leak is not None
    assert (leak.phase, leak.growth.since) == ("train", 4)
    assert leak.growth.slope.median == pytest.approx(400_000, rel=0.1)
    assert watch.summary() == leak.lines()


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("seed", range(20))
def test_a_healthy_run_raises_no_alarm(seed: int) -> None:
    rng = np.random.default_rng(seed)
    history: deque[np.ndarray] = deque(maxlen=int(rng.integers(1, 6)))
    told: list[str] = []

    def work(generation: int, phase: str) -> None:
        if phase in ("evaluate", "validate"):
            history.append(np.ones(int(rng.integers(10_000, 60_000))))
            texts = [f"{number}" * 50 for number in range(int(rng.integers(10, 2000)))]
            del texts

    watch = LeakWatch(50e3)
    watch._revise = lambda earlier: told.append("revised") or [] if earlier else []  # type: ignore[method-assign]
    assert follow(work, 40, watch) is None
    assert told == []


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KINDS.keys() - {"child processes"}))
def test_the_line_or_the_container_of_a_leak_is_named(name: str, kept: list[Any]) -> None:
    kind = KINDS[name]
    kind(kept)
    clean(kept)
    leak = follow(
        lambda generation, phase: phase == "train" and generation >= 8 and kind(kept), 48 if name in IN_STEPS else 20
    )
    assert leak is not None
    holders = " ".join(name for name, _, _ in leak.trace.holders)
    assert "kinds.py" in leak.trace.sites[0].line or "test_leaks.py" in leak.trace.sites[0].line or "kept" in holders
