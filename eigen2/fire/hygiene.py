"""Cleaning and bounded histories, at the frequencies and by the names that an older fuel-break system was given."""

import time
from collections import deque
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from callbacks.garbage import GarbageCollector
from eigen2.errors import UserError, require_range
from eigen2.memory.process import rss_bytes

MOST = 10**9
"""Of whatever is counted."""


class MemoryHygiene(Callback):
    """Cleans after so many training steps, environment steps and episodes; keeps histories that cannot grow.

    What makes memory flat here is that everything large is allocated once; what these measures are worth beside that
    is measured in docs/memory.md. In place of `GarbageCollector`, which cleans by epochs.

    Attributes:
        losses, rewards: the latest means of an epoch, and returns of an episode, `max_history_size` of each.
        experience: rewards of the latest environment steps.
        step_times: seconds of the latest steps of all environments, with the gradient steps after them.
        collection_times: seconds of the latest batches of episodes.
    """

    def __init__(
        self,
        max_history_size: int = 1000,
        cleanup_frequency: int = 100,
        collector_cleanup_frequency: int = 50,
        memory_cleanup_frequency: int = 10,
        experience_buffer_size: int = 2000,
        step_times_size: int = 100,
        collection_times_size: int = 20,
    ) -> None:
        """Choose how often, and how much is kept.

        Args:
            max_history_size: Losses and returns kept, >= 1. Default 1000.
            cleanup_frequency: Training steps (of the optimizer) from one collection of garbage to the next, >= 1; the
                CUDA cache is emptied with it. Default 100.
            collector_cleanup_frequency: The same in steps of the environments together, >= 1. Default 50.
            memory_cleanup_frequency: Episodes from one full cleaning to the next, >= 1: free pages go back to the
                system too, and a line says what that freed. Default 10.
            experience_buffer_size: Rewards of environment steps kept, >= 1; the old system kept whole transitions here
                that it never read. Default 2000.
            step_times_size: Step times kept, >= 1. Default 100.
            collection_times_size: Times of episode batches kept, >= 1. Default 20.

        Raises:
            UserError: A number is below 1 or above MOST.
        """
        super().__init__()
        for name, value in locals().items():
            if name not in ("self", "__class__"):
                require_range(f"{name} of MemoryHygiene", value, least=1, most=MOST)
        self.cleanup_frequency = cleanup_frequency
        self.collector_cleanup_frequency = collector_cleanup_frequency
        self.memory_cleanup_frequency = memory_cleanup_frequency
        self.losses: deque[float] = deque(maxlen=max_history_size)
        self.rewards: deque[float] = deque(maxlen=max_history_size)
        self.experience: deque[float] = deque(maxlen=experience_buffer_size)
        self.step_times: deque[float] = deque(maxlen=step_times_size)
        self.collection_times: deque[float] = deque(maxlen=collection_times_size)
        self._garbage = GarbageCollector(trim=False)
        self._whole = GarbageCollector()
        self._line = ""
        self._trained = self._stepped = self._played = 0
        self._began = self._epoch_began = 0.0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a module that does not say what it earned.

        Raises:
            UserError: it is none of fuel breaks.
        """
        if not hasattr(pl_module, "earned"):
            raise UserError("MemoryHygiene needs a DQNModule; use callbacks.GarbageCollector with others")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set aside what lives when training starts, as `GarbageCollector` does."""
        self._whole.on_train_start(trainer, pl_module)
        self._trained, self._stepped, self._played = trainer.global_step, 0, 0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note when the episodes begin."""
        self._began = self._epoch_began = time.perf_counter()

    def on_environment_step(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the rewards; clean if it is the turn."""
        earned = pl_module.earned.tolist()  # type: ignore[operator]
        self.experience.extend(earned)
        before, self._stepped = self._stepped, self._stepped + len(earned)
        if _passed(before, self._stepped, self.collector_cleanup_frequency):
            self._garbage.clean()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Keep the time; clean if it is the turn."""
        now = time.perf_counter()
        self.step_times.append(now - self._began)
        self._began = now
        before, self._trained = self._trained, trainer.global_step
        if _passed(before, self._trained, self.cleanup_frequency):
            self._garbage.clean()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep what came of the episodes; clean thoroughly if it is the turn."""
        metrics: dict[str, float] = pl_module.metrics  # type: ignore[assignment]
        self.losses.append(metrics["train/loss"])
        returns = pl_module.returns.tolist()  # type: ignore[operator]
        self.rewards.extend(returns)
        self.collection_times.append(time.perf_counter() - self._epoch_began)
        before, self._played = self._played, self._played + len(returns)
        self._line = ""
        if _passed(before, self._played, self.memory_cleanup_frequency):
            freed = self.cleanup_memory()
            self._line = (
                f"cleanup {self._played:,} episodes: freed {freed / 1e6:.1f} MB, RSS {rss_bytes() / 1e9:.3f} GB, "
                f"step {1e3 * sum(self.step_times) / len(self.step_times):.0f} ms"
            )

    def status_line(self) -> str:
        """Of the cleaning after this epoch; empty if there was none."""
        return self._line

    def cleanup_memory(self) -> int:
        """Collect garbage, give the CUDA cache and free pages back, and return the resident bytes that went."""
        before = rss_bytes()
        self._whole.clean()
        return before - rss_bytes()

    def clear(self) -> None:
        """Forget all histories."""
        for history in (self.losses, self.rewards, self.experience, self.step_times, self.collection_times):
            history.clear()

    def state_dict(self) -> dict[str, Any]:
        """The histories but for times."""
        return {"losses": [*self.losses], "rewards": [*self.rewards], "experience": [*self.experience]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take them back, the latest ones if fewer are kept now."""
        for name, history in (("losses", self.losses), ("rewards", self.rewards), ("experience", self.experience)):
            history.clear()
            history.extend(state_dict[name])

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Put back what was set aside."""
        self._whole.on_exception(trainer, pl_module, exception)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Put back what was set aside."""
        self._whole.teardown(trainer, pl_module, stage)


def _passed(before: int, now: int, every: int) -> bool:
    return now // every > before // every
