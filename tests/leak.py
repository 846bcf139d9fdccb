"""Callback that leaks memory."""

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer


class Leak(Callback):
    """Allocates `bytes_per_generation` more bytes after each generation."""

    def __init__(self, bytes_per_generation: int) -> None:
        self.bytes_per_generation = bytes_per_generation
        self.kept: list[np.ndarray] = []

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.kept.append(np.ones(self.bytes_per_generation, np.uint8))
