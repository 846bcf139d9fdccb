"""MemoryHygiene: how often it cleans, and what it keeps."""

import numpy as np
import pytest
from lightning.pytorch import LightningModule, Trainer

from eigen2.dqn.module import DQNModule
from eigen2.errors import UserError
from eigen2.fire import hygiene
from eigen2.fire.hygiene import MemoryHygiene


class CountingTrainer(Trainer):
    """Says how many gradient steps there were, and does nothing else."""

    def __init__(self) -> None:
        self.steps = 0

    @property
    def global_step(self) -> int:
        return self.steps


class Played:
    """A callback through epochs of a run: how often it cleaned lightly (0) and thoroughly (1)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: int) -> None:
        self.callback, self.cleaned = MemoryHygiene(**settings), [0, 0]
        for number, collector in enumerate((self.callback._light, self.callback)):
            monkeypatch.setattr(collector, "clean", lambda number=number: self._count(number))
        self.trainer, self.module = CountingTrainer(), DQNModule()
        self.callback.freeze = False
        self.callback.on_train_start(self.trainer, self.module)

    def _count(self, number: int) -> None:
        self.cleaned[number] += 1

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


@pytest.mark.parametrize(
    ("settings", "light", "thorough"),
    [
        # 6 epochs of 5 steps in 4 environments, 2 gradient steps after each: 60, 120 environment steps, 24 episodes
        ({}, 120 // 50, 24 // 10),
        ({"cleanup_frequency": 7, "collector_cleanup_frequency": 10**6}, 60 // 7, 2),
        ({"cleanup_frequency": 10**6, "collector_cleanup_frequency": 3}, 30, 2),  # once a step at most
        ({"memory_cleanup_frequency": 4}, 2, 6),
        ({"memory_cleanup_frequency": 25}, 2, 0),
    ],
)
def test_it_cleans_as_often_as_it_was_told(
    settings: dict[str, int], light: int, thorough: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(monkeypatch, **settings)
    lines = [played.epoch(number, 5, 4, 2) for number in range(6)]
    assert played.cleaned == [light, thorough]
    assert [line.startswith("cleanup") for line in lines].count(True) == thorough
    assert lines.count("") == 6 - thorough


def test_histories_keep_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = {name: kept.maxlen for name, kept in MemoryHygiene().histories.items()}
    assert lengths == {
        **{"losses": 1000, "rewards": 1000, "experience": 2000, "step_times": 100, "collection_times": 20}
    }
    sizes = {"max_history_size": 6, "experience_buffer_size": 7, "step_times_size": 3, "collection_times_size": 2}
    played = Played(monkeypatch, **sizes)
    for number in range(9):
        played.epoch(number, 5, 4, 1)
    histories = {name: list(kept) for name, kept in played.callback.histories.items()}
    assert [len(histories.pop(name)) for name in ("step_times", "collection_times")] == [3, 2]
    assert histories == {
        "losses": [3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
        "rewards": [7.0, 7.0, 8.0, 8.0, 8.0, 8.0],
        "experience": [3.0, 3.0, 3.0, 4.0, 4.0, 4.0, 4.0],
    }
    assert all(type(each) is float for kept in histories.values() for each in kept)


def test_the_line_says_what_a_cleaning_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, memory_cleanup_frequency=4)
    sizes = iter([900_000_000, 888_000_000])  # before and after
    monkeypatch.setattr(hygiene, "rss_bytes", lambda: next(sizes))
    assert played.epoch(0, 2, 4, 1) == "cleanup 4 episodes: freed 12.0 MB, RSS 0.888 GB"


def test_wrong_numbers_and_modules_are_refused() -> None:
    for name, value in (("max_history_size", 0), ("collector_cleanup_frequency", -1), ("step_times_size", 10**10)):
        with pytest.raises(UserError, match=f"^{name} of MemoryHygiene is {value}; it must be at least 1"):
            MemoryHygiene(**{name: value})
    with pytest.raises(UserError, match="MemoryHygiene needs a DQNModule; use"):
        MemoryHygiene().on_train_start(CountingTrainer(), LightningModule())
