"""A callback that takes memory in training until a number of generations is reached, to see what stops it."""

import resource

import numpy as np
import psutil
from lightning.pytorch import Callback, LightningModule, Trainer

from callbacks import MemoryBudget


class Hog(Callback):
    """Keeps `megabytes` more after the training of each generation; the address space may grow by `room` of them."""

    def __init__(self, megabytes: int, room: int = 0) -> None:
        self.megabytes = megabytes
        self.room = room
        self.kept: list[np.ndarray] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.room:
            most = psutil.Process().memory_info().vms + self.room * 10**6
            resource.setrlimit(resource.RLIMIT_AS, (most, most))

    def on_phase_end(self, trainer: Trainer, pl_module: LightningModule, phase: str) -> None:
        if phase == "train":
            self.kept.append(np.ones(self.megabytes * 125_000))


class NoBudget(Callback):
    """Switches every `MemoryBudget` of the run off, to see what happens without."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, MemoryBudget):
                callback.stop_at = callback.warn_at = float("inf")
