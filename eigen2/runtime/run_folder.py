"""One folder, one run: a second process is refused, an earlier run is moved aside, never overwritten."""

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.utilities import rank_zero_info

from eigen2.errors import UserError

RUN_FILES = ("checkpoints", "tensorboard", "metrics.csv", "memory.csv", "config.yaml")
"""What a run writes in its folder; the panel cache beside them is shared by all runs."""


def move_earlier_run(root: Path) -> Path | None:
    """Move what an earlier run left in `root` to `root/earlier/N`; return that folder, None if there was nothing."""
    present = [root / name for name in RUN_FILES if (root / name).exists()]
    if not present:
        return None
    earlier = root / "earlier"
    earlier.mkdir(exist_ok=True)
    taken = [int(folder.name) for folder in earlier.iterdir() if folder.name.isdecimal()]
    target = earlier / str(max(taken, default=0) + 1)
    target.mkdir()
    for path in present:
        path.rename(target / path.name)
    return target


class RunFolder(SaveConfigCallback):
    """Takes the run's folder for this process and writes config.yaml there, when everything else has been checked."""

    _lock: int | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a folder in which another process is running."""
        if stage != "fit" or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        root = Path(trainer.default_root_dir)
        try:
            root.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(root / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise UserError(
                f"cannot write to trainer.default_root_dir {root}: {error.strerror}; choose another folder"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another run is writing to {root}; wait for it or choose another --trainer.default_root_dir"
            ) from None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Move an earlier run aside unless this one resumes it, then write the configuration."""
        if self._lock is None:
            return
        root = Path(trainer.default_root_dir)
        if trainer.ckpt_path is None:
            moved = move_earlier_run(root)
            if moved is not None:
                rank_zero_info(f"an earlier run in {root} was moved to {moved}; to resume it use --ckpt_path last")
        self.parser.save(self.config, str(root / "config.yaml"), skip_none=False, overwrite=True)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Give the folder back."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                os.close(self._lock)
            self._lock = None

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> Any:
        """Nothing more: `on_fit_start` writes it."""
