import ctypes
import gc
import inspect
import platform
import weakref
from collections.abc import Callable, Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

import callbacks.garbage
from callbacks import GarbageCollector, trim_malloc
from eigen2.memory import process

Fit = Callable[..., Trainer]


class Node:
    def __init__(self) -> None:
        self.itself = self


class Alive(Callback):
    """How many nodes live at the end of each epoch, after the callbacks before it ran."""

    def __init__(self) -> None:
        self.nodes: list[weakref.ref[Node]] = []
        self.at_end: list[int] = []

    def litter(self, phase: str, epoch: int) -> None:
        if phase == "train":
            self.nodes.append(weakref.ref(Node()))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.at_end.append(sum(node() is not None for node in self.nodes))


@pytest.fixture
def no_automatic_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_automatic_collection")
@pytest.mark.parametrize(
    ("collector", "alive"),
    [
        (GarbageCollector(), [0, 0, 0, 0]),
        (GarbageCollector(collect=False), [1, 2, 3, 4]),
        (GarbageCollector(every_n_epochs=2), [1, 0, 1, 0]),
    ],
)
def test_circles_are_freed_when_asked(fit: Fit, collector: GarbageCollector, alive: list[int]) -> None:
    probe = Alive()
    fit(collector, probe, epochs=4, work=probe.litter)
    assert probe.at_end == alive


@pytest.mark.usefixtures("no_automatic_collection")
@pytest.mark.parametrize("freeze", [True, False])
def test_what_lives_at_the_start_is_set_aside_until_the_end(fit: Fit, freeze: bool) -> None:
    early, late = [Node()], [weakref.ref(object)]
    old = weakref.ref(early[0])
    seen: list[tuple[bool, bool, bool]] = []

    def work(phase: str, epoch: int) -> None:
        if phase == "train" and epoch == 0:
            early.clear()
            late[0] = weakref.ref(Node())
        elif phase == "train":
            seen.append((gc.get_freeze_count() > 0, old() is None, late[0]() is None))

    fit(GarbageCollector(freeze=freeze), epochs=2, work=work)
    assert seen == [(freeze, not freeze, True)]
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert old() is None


@pytest.mark.usefixtures("no_automatic_collection")
def test_an_error_ends_the_setting_aside(fit: Fit) -> None:
    def fail(phase: str, epoch: int) -> None:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fit(GarbageCollector(), work=fail)
    assert gc.get_freeze_count() == 0


def test_what_somebody_else_set_aside_stays_so(fit: Fit) -> None:
    gc.freeze()
    try:
        fit(GarbageCollector(), epochs=1)
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"phases": ["evaluate"]}, [f"{phase} {g}" for g in range(3) for phase in ("evaluate", "validate")]),
        ({"phases": ["train"], "every_n_epochs": 3}, ["train 2", "validate 2"]),
    ],
)
def test_it_cleans_after_the_named_phases_and_at_the_end_of_the_epoch(
    fit: Fit, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], expected: list[str]
) -> None:
    last, cleaned = [""], []

    def work(phase: str, epoch: int) -> None:
        last[0] = f"{phase} {epoch}"

    monkeypatch.setattr(callbacks.garbage, "trim_malloc", lambda: cleaned.append(last[0]))
    fit(GarbageCollector(collect=False, cuda_cache=False, **options), epochs=3, announce=True, work=work)
    assert cleaned == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # two batches an epoch; the end of epochs 0, 1 and 2 after them, unless it is put off
        ({"every_n_train_steps": 3}, ["epoch 0", "epoch 1", "step 3", "epoch 2", "step 6"]),
        ({"every_n_train_steps": 1, "every_n_epochs": 9}, [f"step {n}" for n in range(1, 7)]),
        ({"every_n_environment_steps": 4, "every_n_epochs": 9}, ["environment 4", "environment 8"]),
    ],
)
def test_it_cleans_every_so_many_steps_of_the_run(
    fit: Fit, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], expected: list[str]
) -> None:
    collector = GarbageCollector(collect=False, cuda_cache=False, **options)
    cleaned: list[str] = []
    steps = {"step": 0, "environment": 0}

    def environment(phase: str, epoch: int) -> None:
        if phase == "evaluate":
            for _ in range(3):
                steps["environment"] += 1
                collector.on_environment_step(trainer, LightningModule())

    class Steps(Callback):
        def on_train_batch_start(self, *arguments: Any) -> None:
            steps["step"] += 1

    def clean() -> None:
        caller = next(frame.function for frame in inspect.stack() if frame.function.startswith("on_"))
        name, count = {
            "on_train_batch_end": ("step", steps["step"]),
            "on_environment_step": ("environment", steps["environment"]),
            "on_train_epoch_end": ("epoch", steps["step"] // 2 - 1),
        }[caller]
        cleaned.append(f"{name} {count}")

    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    monkeypatch.setattr(callbacks.garbage, "trim_malloc", clean)
    fit(collector, Steps(), epochs=3, work=environment)
    assert sorted(cleaned) == sorted(expected)


@pytest.mark.usefixtures("no_automatic_collection")
def test_sanity_checking_is_ignored(fit: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned: list[int] = []
    monkeypatch.setattr(callbacks.garbage, "trim_malloc", lambda: cleaned.append(1))
    fit(GarbageCollector(phases=["validate"]), epochs=1, announce=True)
    assert len(cleaned) == 2  # after validation and at the end, not in the check before


def test_the_cuda_cache_is_emptied_only_if_cuda_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[tuple[bool, bool]] = []
    for initialized, cuda_cache in product((True, False), repeat=2):
        case = initialized, cuda_cache
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: case[0])  # noqa: B023
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(case))  # noqa: B023
        GarbageCollector(collect=False, cuda_cache=cuda_cache).clean()
    assert emptied == [(True, True)]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has malloc_trim")
def test_freed_blocks_of_the_c_heap_go_back_to_the_system() -> None:
    process = psutil.Process()
    trim_malloc()
    before = process.memory_info().rss
    # blocks too big for Python's own allocator and too small for mmap: they lie in the C heap
    blocks = [bytes(8_000) for _ in range(10_000)]
    pin = blocks.pop()
    for block in blocks:
        assert block[-1] == 0
    del block
    blocks.clear()
    freed = process.memory_info().rss
    assert freed - before > 60e6  # the pinned last block keeps the heap from shrinking by itself
    assert trim_malloc() is True
    assert freed - process.memory_info().rss > 60e6
    assert len(pin) == 8_000


@pytest.mark.parametrize("failure", [AttributeError, OSError, TypeError])
def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch, failure: type[Exception]) -> None:
    def library(name: None) -> object:
        if failure is AttributeError:
            return SimpleNamespace()
        raise failure

    monkeypatch.setattr(ctypes, "CDLL", library)
    process._libc_function.cache_clear()
    try:
        assert trim_malloc() is False
    finally:
        process._libc_function.cache_clear()


@pytest.mark.parametrize("name", ["every_n_epochs", "every_n_train_steps", "every_n_environment_steps", "phases"])
def test_wrong_arguments_are_refused(name: str) -> None:
    wrong = "train" if name == "phases" else 0
    with pytest.raises(ValueError, match=f"{name} is .*{wrong}"):
        GarbageCollector(**{name: wrong})
