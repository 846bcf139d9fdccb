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
    """Cleans memory after a number of training steps, environment steps and episodes, and bounds histories.

    Use it in place of `GarbageCollector`, which cleans once per epoch. `histories` hold the latest `losses` of epochs,
    `rewards` of episodes, `experience` (rewards of steps), `step_times` and `collection_times` (of an epoch), in s.
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
        """Choose how often to clean, and how much to keep: 1 to a billion each, else a UserError.

        Args:
            max_history_size: Losses and returns kept. Default 1000.
            cleanup_frequency: Optimizer steps between garbage collections. Default 100.
            collector_cleanup_frequency: Environment steps, of all together, between garbage collections. Default 50.
            memory_cleanup_frequency: Episodes between full cleanings, which also return free pages to the system and
                report what was freed. Default 10.
            experience_buffer_size: Rewards of environment steps kept. Default 2000.
            step_times_size: Step times kept. Default 100.
            collection_times_size: Times of episode batches kept. Default 20.
        """
        for name, value in locals().items():
            if name not in ("self", "__class__"):
                require_range(f"{name} of MemoryHygiene", value, least=1, most=10**9, whole=True)
        super().__init__()
        sizes = {"losses": max_history_size, "rewards": max_history_size, "experience": experience_buffer_size}
        sizes |= {"step_times": step_times_size, "collection_times": collection_times_size}
        self.histories = {name: deque[float](maxlen=size) for name, size in sizes.items()}
        every = cleanup_frequency, collector_cleanup_frequency, memory_cleanup_frequency
        self._every = dict(zip(("trained", "stepped", "played"), every, strict=True))
        self._count = dict.fromkeys(self._every, 0)
        self._light = GarbageCollector(trim=False)
        self._line = ""
        self._step_began = self._epoch_began = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Freeze the objects that exist when training starts, as `GarbageCollector` does, and start counting."""
        if not isinstance(pl_module, DQNModule):
            raise UserError("MemoryHygiene needs a DQNModule; use callbacks.GarbageCollector with others")
        super().on_train_start(trainer, pl_module)
        self._count = {"trained": trainer.global_step, "stepped": 0, "played": 0}

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start timing the episodes."""
        self._step_began = self._epoch_began = time.perf_counter()

    def on_environment_step(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the rewards; clean when due."""
        assert isinstance(pl_module, DQNModule)
        self.histories["experience"].extend(pl_module.earned.tolist())
        if self._due("stepped", len(pl_module.earned)):
            self._light.clean()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Keep the step's time; clean when due."""
        began, self._step_began = self._step_began, time.perf_counter()
        self.histories["step_times"].append(self._step_began - began)
        if self._due("trained", trainer.global_step - self._count["trained"]):
            self._light.clean()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the loss, the returns and the time of the episodes; clean thoroughly when due."""
        assert isinstance(pl_module, DQNModule)
        self.histories["losses"].append(pl_module.metrics["train/loss"])
        self.histories["rewards"].extend(pl_module.returns.tolist())
        self.histories["collection_times"].append(time.perf_counter() - self._epoch_began)
        self._line = ""
        if self._due("played", len(pl_module.returns)):
            held = rss_bytes()
            self.clean()
            freed = f"freed {(held - (left := rss_bytes())) / 1e6:.1f} MB, RSS {left / 1e9:.3f} GB"
            self._line = f"cleanup {self._count['played']:,} episodes: {freed}"

    def _due(self, what: str, more: int) -> bool:
        """Advance a counter; return whether a cleaning became due."""
        before, every = self._count[what], self._every[what]
        self._count[what] += more
        return self._count[what] // every > before // every

    def status_line(self) -> str:
        """Return a line about the cleaning after this epoch; empty if there was none."""
        return self._line
