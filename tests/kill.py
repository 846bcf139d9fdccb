"""A callback that kills its own process, as a power cut would, at a chosen moment."""

import os
import signal
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class KillAt(Callback):
    """SIGKILL in generation `generation`: in the rollouts, in training, after a phase, or in the checkpoint's write."""

    def __init__(self, place: str, generation: int) -> None:
        self.place, self.generation = place, generation

    def _now(self, trainer: Trainer) -> bool:
        return trainer.current_epoch == self.generation

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.place == "rollouts" and self._now(trainer):
            env = trainer.datamodule.eval_env
            step, calls = env.step, []

            def counted(action: Any) -> Any:
                calls.append(None)
                if len(calls) == 7:
                    kill()
                return step(action)

            env.step = counted

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, i: int
    ) -> None:
        if self.place == "training" and self._now(trainer) and i == 3:
            kill()

    def on_phase_end(self, trainer: Trainer, pl_module: LightningModule, phase: str) -> None:
        if self.place == phase and self._now(trainer):
            kill()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.place == "checkpoint" and self._now(trainer):
            # the temporary file is written and synced, not yet renamed
            os.replace = lambda *paths: kill()
