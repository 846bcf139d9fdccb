"""MemoryHygiene: how often it cleans, what it keeps, and what the module gives back."""

from pathlib import Path

import numpy as np
import pytest
from lightning.pytorch import LightningModule, Trainer

from eigen2.dqn.module import DQNModule
from eigen2.errors import UserError
from eigen2.fire import hygiene
from eigen2.fire.hygiene import MemoryHygiene

HISTORIES = ("losses", "rewards", "experience", "step_times", "collection_times")


class CountingTrainer(Trainer):
    """Says how many gradient steps there were, and does nothing else."""

    def __init__(self) -> None:
        self.steps = 0

    @property
    def global_step(self) -> int:
        return self.steps


class Played:
    """A callback through epochs of a run: how often it cleaned, and after what."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: int) -> None:
        self.callback = MemoryHygiene(**settings)
        self.cleaned: list[tuple[str, int]] = []
        for name, collector in (("garbage", self.callback._light), ("whole", self.callback)):
            monkeypatch.setattr(collector, "clean", lambda name=name: self.cleaned.append((name, self.count)))
        self.count = 0
        self.trainer, self.module = CountingTrainer(), DQNModule()
        self.callback.freeze = False
        self.callback.on_train_start(self.trainer, self.module)

    def epoch(self, number: int, steps: int, environments: int, gradient_steps: int) -> str:
        """Play one; what the callback says of it."""
        self.module.returns = np.full(environments, float(number))
        self.callback.on_train_epoch_start(self.trainer, self.module)
        for step in range(steps):
            self.module.earned = np.full(environments, float(step))
            self.callback.on_environment_step(self.trainer, self.module)
            self.trainer.steps += gradient_steps
            self.callback.on_train_batch_end(self.trainer, self.module, None, None, step)
        self.module.metrics = {"train/loss": float(number)}
        self.callback.on_train_epoch_end(self.trainer, self.module)
        return self.callback.status_line()


def test_the_defaults_are_those_the_old_system_was_given() -> None:
    callback = MemoryHygiene()
    assert (callback.cleanup_frequency, callback.collector_cleanup_frequency) == (100, 50)
    assert callback.memory_cleanup_frequency == 10
    lengths = [getattr(callback, name).maxlen for name in HISTORIES]
    assert lengths == [1000, 1000, 2000, 100, 20]


@pytest.mark.parametrize(
    ("settings", "kind", "expected"),
    [
        # 6 epochs of 5 steps in 4 environments, 2 gradient steps after each: 60, 120 environment steps, 24 episodes
        ({"cleanup_frequency": 7, "collector_cleanup_frequency": 10**6}, "garbage", 60 // 7),
        ({"cleanup_frequency": 10**6, "collector_cleanup_frequency": 50}, "garbage", 120 // 50),
        ({"cleanup_frequency": 10**6, "collector_cleanup_frequency": 3}, "garbage", 30),  # once a step at most
        ({"memory_cleanup_frequency": 10}, "whole", 2),
        ({"memory_cleanup_frequency": 4}, "whole", 6),
        ({"memory_cleanup_frequency": 25}, "whole", 0),
    ],
)
def test_it_cleans_as_often_as_it_was_told(
    settings: dict[str, int], kind: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(monkeypatch, **settings)
    lines = [played.epoch(number, 5, 4, 2) for number in range(6)]
    assert [name for name, _ in played.cleaned].count(kind) == expected
    if kind == "whole":
        assert sum(line.startswith("cleanup") for line in lines) == expected
        assert sum(line == "" for line in lines) == 6 - expected


def test_histories_keep_the_latest_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"max_history_size": 6, "experience_buffer_size": 7, "step_times_size": 3, "collection_times_size": 2}
    played = Played(monkeypatch, **sizes)
    for number in range(9):
        played.epoch(number, 5, 4, 1)
    callback = played.callback
    assert list(callback.losses) == [3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert list(callback.rewards) == [7.0, 7.0, 8.0, 8.0, 8.0, 8.0]
    assert list(callback.experience) == [3.0, 3.0, 3.0, 4.0, 4.0, 4.0, 4.0]
    assert (len(callback.step_times), len(callback.collection_times)) == (3, 2)
    assert all(type(each) is float for name in HISTORIES for each in getattr(callback, name))
    callback.clear()
    assert not any(getattr(callback, name) for name in HISTORIES)


def test_a_resume_keeps_the_latest_of_what_was_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    for number in range(5):
        played.epoch(number, 2, 2, 1)
    saved = played.callback.state_dict()
    assert saved.keys() == {"losses", "rewards", "experience"}
    assert all(isinstance(kept, list) for kept in saved.values())
    same, shorter = MemoryHygiene(), MemoryHygiene(max_history_size=2)
    for other in (same, shorter):
        other.losses.append(9.0)  # of before
        other.load_state_dict(saved)
    assert same.state_dict() == saved
    assert list(shorter.losses) == [3.0, 4.0]


def test_the_line_says_what_a_cleaning_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, memory_cleanup_frequency=4)
    sizes = iter([900_000_000, 888_000_000, 888_000_000])  # before, after, and for the line
    monkeypatch.setattr(hygiene, "rss_bytes", lambda: next(sizes))
    line = played.epoch(0, 2, 4, 1)
    assert line.startswith("cleanup 4 episodes: freed 12.0 MB, RSS 0.888 GB, step ")
    assert len(line) <= 80


def test_a_cleaning_collects_garbage_and_says_what_went() -> None:
    class Circle:
        pass

    import gc
    import weakref

    gc.disable()
    try:
        one = Circle()
        one.own = one  # type: ignore[attr-defined]
        seen = weakref.ref(one)
        del one
        assert seen() is not None
        assert isinstance(MemoryHygiene().cleanup_memory(), int)
        assert seen() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("value", [0, -1, 10**10])
@pytest.mark.parametrize("name", ["max_history_size", "collector_cleanup_frequency", "collection_times_size"])
def test_numbers_that_cannot_be_are_refused(name: str, value: int) -> None:
    with pytest.raises(UserError, match=f"^{name} of MemoryHygiene is {value}; it must be at least 1"):
        MemoryHygiene(**{name: value})


def test_another_module_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="MemoryHygiene needs a DQNModule; use"):
        MemoryHygiene().setup(CountingTrainer(), LightningModule(), "fit")
