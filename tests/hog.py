"""Callbacks that take ever more memory, and that switch the budget off."""

import resource

import numpy as np
import psutil
from lightning.pytorch import Callback, LightningModule, Trainer

from callbacks import MemoryBudget


class Hog(Callback):
    """Allocates `megabytes` more after each training phase; `room` limits the growth of the address space, in MB."""

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
    """Switches off every `MemoryBudget` of the run."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for callback in trainer.callbacks:
            if isinstance(callback, MemoryBudget):
                callback.stop_at = callback.warn_at = float("inf")
