import ctypes
import gc
import platform
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from callbacks import GarbageCollector
from eigen2.memory import process
from eigen2.memory.process import trim_malloc
from tests.command import in_fork

Fit = Callable[..., Trainer]


class Node:
    def __init__(self) -> None:
        self.itself = self


class Alive(Callback):
    """Counts the live nodes at the end of each epoch, after the callbacks listed before it."""

    def __init__(self) -> None:
        self.nodes: list[weakref.ref[Node]] = []
        self.at_end: list[int] = []

    def litter(self, phase: str, epoch: int) -> None:
        if phase == "train":
            self.nodes.append(weakref.ref(Node()))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.at_end.append(sum(node() is not None for node in self.nodes))


@pytest.fixture(autouse=True)
def _no_automatic_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_circles_are_freed_in_every_epoch(fit: Fit) -> None:
    probe = Alive()
    fit(GarbageCollector(), probe, epochs=4, work=probe.litter)
    assert probe.at_end == [0, 0, 0, 0]


@pytest.mark.usefixtures("thawed")
@pytest.mark.parametrize("freeze", [True, False])
def test_objects_alive_at_the_start_are_frozen_until_the_end(fit: Fit, freeze: bool) -> None:
    early, late = [Node()], [weakref.ref(object)]
    old = weakref.ref(early[0])
    seen: list[tuple[bool, bool, bool]] = []

    def work(phase: str, epoch: int) -> None:
        if phase == "train" and epoch == 0:
            early.clear()
            late[0] = weakref.ref(Node())
        elif phase == "train":
            seen.append((gc.get_freeze_count() > 0, old() is None, late[0]() is None))
            raise ArithmeticError

    with pytest.raises(ArithmeticError):  # an error ends the fit too
        fit(GarbageCollector(freeze=freeze), epochs=2, work=work)
    assert seen == [(freeze, not freeze, True)]
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert old() is None


@pytest.mark.usefixtures("thawed")
def test_objects_frozen_by_other_code_stay_frozen(fit: Fit) -> None:
    gc.freeze()
    try:
        fit(GarbageCollector(), epochs=1)
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
    fit(GarbageCollector(), epochs=1)
    assert gc.get_freeze_count() == 0


def test_the_cuda_cache_is_emptied_only_if_cuda_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[bool] = []
    for initialized in (True, False):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialized)  # noqa: B023
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(initialized))  # noqa: B023
        GarbageCollector().clean()
    assert emptied == [True]


def sizes_around_trim() -> tuple[int, int, int]:
    """Return RSS before blocks of the C heap, after they are freed, and after their pages are given back."""
    trim_malloc()
    before = process.rss_bytes()
    # blocks too big for Python's own allocator and too small for mmap: they lie in the C heap
    blocks = [bytes(8_000) for _ in range(10_000)]
    pin = blocks.pop()  # keeps the heap from shrinking by itself
    assert all(block[-1] == 0 for block in blocks)
    blocks.clear()
    freed = process.rss_bytes()
    assert trim_malloc() is True
    assert len(pin) == 8_000
    return before, freed, process.rss_bytes()


@pytest.mark.parametrize("trim", [True, False])
def test_the_heap_is_trimmed_if_asked(trim: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[None] = []
    monkeypatch.setattr("callbacks.garbage.trim_malloc", lambda: calls.append(None))
    GarbageCollector(trim=trim).clean()
    assert len(calls) == trim


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has malloc_trim")
def test_freed_blocks_of_the_c_heap_go_back_to_the_system() -> None:
    before, freed, after = in_fork(sizes_around_trim)
    assert freed - before > 60e6
    assert freed - after > 60e6


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    process._libc_function.cache_clear()
    try:
        assert trim_malloc() is False
    finally:
        process._libc_function.cache_clear()
