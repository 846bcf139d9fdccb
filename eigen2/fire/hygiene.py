"""Memory cleaning and bounded histories, with the frequencies and names of an older fuel-break system."""

import time
from collections import deque
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from callbacks.garbage import GarbageCollector
from eigen2.dqn.module import DQNModule
from eigen2.errors import UserError, require_range
from eigen2.memory.process import rss_bytes


class MemoryHygiene(GarbageCollector):
    """Cleans after so many training steps, environment steps and episodes; keeps histories of bounded length.

    Memory is flat because everything large is allocated once, see docs/memory.md. Use this callback in place of
    `GarbageCollector`, which cleans by epochs.

    Attributes:
        losses, rewards: latest mean losses of an epoch, and returns of an episode, `max_history_size` of each.
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
        """Choose how often to clean, and how much to keep.

        Args:
            max_history_size: Losses and returns kept, >= 1. Default 1000.
            cleanup_frequency: Training steps (of the optimizer) from one collection of garbage to the next, >= 1; the
                CUDA cache is emptied with it. Default 100.
            collector_cleanup_frequency: The same in steps of the environments together, >= 1. Default 50.
            memory_cleanup_frequency: Episodes from one full cleaning to the next, >= 1: free pages go back to the
                system too, and a line reports what that freed. Default 10.
            experience_buffer_size: Rewards of environment steps kept, >= 1; the old system kept whole transitions here
                that it never read. Default 2000.
            step_times_size: Step times kept, >= 1. Default 100.
            collection_times_size: Times of episode batches kept, >= 1. Default 20.

        Raises:
            UserError: A number is below 1 or above a billion.
        """
        given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        for name, value in given.items():
            require_range(f"{name} of MemoryHygiene", value, least=1, most=10**9)
        super().__init__()
        self.cleanup_frequency = cleanup_frequency
        self.collector_cleanup_frequency = collector_cleanup_frequency
        self.memory_cleanup_frequency = memory_cleanup_frequency
        sizes = max_history_size, max_history_size, experience_buffer_size, step_times_size, collection_times_size
        self._histories = [deque[float](maxlen=size) for size in sizes]
        self.losses, self.rewards, self.experience, self.step_times, self.collection_times = self._histories
        self._light = GarbageCollector(trim=False)
        self._line = ""
        self._trained = self._stepped = self._played = 0
        self._step_began = self._epoch_began = 0.0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a module without the rewards of deep Q-learning."""
        if not isinstance(pl_module, DQNModule):
            raise UserError("MemoryHygiene needs a DQNModule; use callbacks.GarbageCollector with others")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set aside what lives when training starts, as `GarbageCollector` does, and start counting."""
        super().on_train_start(trainer, pl_module)
        self._trained, self._stepped, self._played = trainer.global_step, 0, 0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start timing the episodes."""
        self._step_began = self._epoch_began = time.perf_counter()

    def on_environment_step(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the rewards; clean when due."""
        assert isinstance(pl_module, DQNModule)
        self.experience.extend(pl_module.earned.tolist())
        before, self._stepped = self._stepped, self._stepped + len(pl_module.earned)
        if _passed(before, self._stepped, self.collector_cleanup_frequency):
            self._light.clean()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Keep the step's time; clean when due."""
        began, self._step_began = self._step_began, time.perf_counter()
        self.step_times.append(self._step_began - began)
        before, self._trained = self._trained, trainer.global_step
        if _passed(before, self._trained, self.cleanup_frequency):
            self._light.clean()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the loss, the returns and the time of the episodes; clean thoroughly when due."""
        assert isinstance(pl_module, DQNModule)
        self.losses.append(pl_module.metrics["train/loss"])
        self.rewards.extend(pl_module.returns.tolist())
        self.collection_times.append(time.perf_counter() - self._epoch_began)
        before, self._played = self._played, self._played + len(pl_module.returns)
        self._line = ""
        if _passed(before, self._played, self.memory_cleanup_frequency):
            freed, step = self.cleanup_memory() / 1e6, 1e3 * sum(self.step_times) / len(self.step_times)
            memory = f"freed {freed:.1f} MB, RSS {rss_bytes() / 1e9:.3f} GB"
            self._line = f"cleanup {self._played:,} episodes: {memory}, step {step:.0f} ms"

    def status_line(self) -> str:
        """Return a line about the cleaning after this epoch; empty if there was none."""
        return self._line

    def cleanup_memory(self) -> int:
        """Collect garbage, give the CUDA cache and free pages back, and return the resident bytes that this freed."""
        before = rss_bytes()
        self.clean()
        return before - rss_bytes()

    def clear(self) -> None:
        """Clear all histories."""
        for history in self._histories:
            history.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the histories, except of times."""
        return {"losses": [*self.losses], "rewards": [*self.rewards], "experience": [*self.experience]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the histories, as far as they fit."""
        for name, history in (("losses", self.losses), ("rewards", self.rewards), ("experience", self.experience)):
            history.clear()
            history.extend(state_dict[name])


def _passed(before: int, now: int, every: int) -> bool:
    return now // every > before // every
