"""Callback that sends signals to its own process at a chosen moment."""

import os
import signal
import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class SignalAt(Callback):
    """Sends `names` one after another in generation `generation`: in training, in its checkpoint, or before it all."""

    def __init__(self, names: list[str], generation: int, place: str = "training", wait_s: float = 0.0) -> None:
        self.names, self.generation, self.place, self.wait_s = names, generation, place, wait_s

    def _send(self, trainer: Trainer, place: str) -> None:
        if place == self.place and trainer.current_epoch == self.generation:
            for name in self.names:
                os.kill(os.getpid(), getattr(signal, name))
                time.sleep(0.01)  # the handler runs here
            time.sleep(self.wait_s)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._send(trainer, "setup")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, i: int
    ) -> None:
        if i == 2:
            self._send(trainer, "training")

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._send(trainer, "checkpoint")
