"""Callback that makes the disk of a run fail, and work again."""

import errno
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class Faults(Callback):
    """Applies the n-th word of `plan` at the start of the n-th generation.

    `full` fills the disk, `free` empties it again; `read-only` and `writable` remount the folder of checkpoints,
    `deleted` removes it; `clock` sets the clock back by an hour; `-` does nothing.
    """

    def __init__(self, disk: str, plan: list[str]) -> None:
        self.disk, self.plan = Path(disk), plan
        self.clock = time.time

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        what = self.plan[trainer.current_epoch]
        filler, checkpoints = self.disk / "filler", Path(trainer.default_root_dir) / "checkpoints"
        if what == "full":
            with filler.open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(4096))
                except OSError:
                    pass
            assert shutil.disk_usage(self.disk).free == 0
        elif what == "free":
            filler.unlink()
        elif what == "read-only":
            subprocess.run(["mount", "--bind", str(checkpoints), str(checkpoints)], check=True)
            subprocess.run(["mount", "-o", "remount,bind,ro", str(checkpoints)], check=True)
        elif what == "writable":
            subprocess.run(["umount", str(checkpoints)], check=True)
        elif what == "deleted":
            shutil.rmtree(checkpoints)
        elif what == "clock":
            time.time = lambda: self.clock() - 3600
        os.sync()


class Refused(Callback):
    """Lets the disk refuse process 0's checkpoints in some generations."""

    def __init__(self, generations: list[int]) -> None:
        self.generations = generations

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        io: Any = trainer.strategy.checkpoint_io
        save = io.save_checkpoint

        def refuse(*args: Any, **kwargs: Any) -> None:
            if trainer.current_epoch in self.generations:
                raise OSError(errno.ENOSPC, "No space left on device")
            save(*args, **kwargs)

        io.save_checkpoint = refuse
