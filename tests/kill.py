"""Callbacks that kill their own process at a chosen moment, as a power cut would."""

import io
import json
import os
import signal
import time
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class KillAt(Callback):
    """Sends SIGKILL in a generation: in `rollouts`, in `training`, after a phase, or while the checkpoint is written.

    `write` is in the middle of the file, after `share` of its bytes; `checkpoint` is before the file is renamed.
    """

    def __init__(self, place: str, generation: int, share: float = 0.5) -> None:
        self.place, self.generation, self.share = place, generation, share

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
        if self.place == "training" and self._now(trainer) and i == 1:
            kill()

    def on_phase_end(self, trainer: Trainer, pl_module: LightningModule, phase: str) -> None:
        if self.place == phase and self._now(trainer):
            kill()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.place == "checkpoint" and self._now(trainer):
            # the temporary file is written and synced, not yet renamed
            os.replace = lambda *paths: kill()
        if self.place == "write" and self._now(trainer):
            save = torch.save

            def cut(checkpoint: Any, file: Any) -> None:
                content = io.BytesIO()
                save(checkpoint, content)
                file.write(content.getvalue()[: int(self.share * len(content.getvalue()))])
                file.flush()
                kill()

            torch.save = cut


class FaultOf(KillAt):
    """Sends SIGKILL, or SIGSTOP if the place begins with `stop `, to the process that EIGEN2_FAULT names."""

    def __init__(self) -> None:
        plan = json.loads(os.environ["EIGEN2_FAULT"])
        super().__init__(plan["place"].removeprefix("stop "), plan["generation"])
        self.rank, self.stops = plan["rank"], plan["place"].startswith("stop ")

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        if trainer.global_rank != self.rank or again:
            self.generation = -1
        elif self.stops:
            global kill
            kill = stop


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


class KillAnywhere(KillAt):
    """Sends SIGKILL at a place and in one of the next two generations, both drawn by a seed."""

    def __init__(self, seed: int) -> None:
        chance = np.random.default_rng(seed)
        places = ["rollouts", "training", "evaluate", "train", "evolve", "validate", "write", "checkpoint"]
        super().__init__(str(chance.choice(places)), 0, chance.random())
        self.delay = int(chance.integers(2))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.generation = trainer.current_epoch + self.delay


class Slowed(Callback):
    """Takes half a second more for each generation, so that few pass while others start."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        time.sleep(0.5)
