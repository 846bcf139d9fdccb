"""Checkpoints after every generation, written so that a kill leaves the previous or the new file whole."""

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.cloud_io import _is_local_file_protocol
from lightning.fabric.utilities.types import _PATH
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from eigen2.errors import UserError
from eigen2.runtime.files import put


class DurableCheckpointIO(TorchCheckpointIO):
    """Writes to a temporary file beside the target, syncs it to disk and renames it into place.

    Lightning's own writer uses the system's temporary folder; on another filesystem its last step is a copy over the
    old checkpoint, and a kill during it destroys both.
    """

    _in_flight: Mapping[str, Any] | None = None

    def save_checkpoint(self, checkpoint: dict[str, Any], path: _PATH, storage_options: Any | None = None) -> None:
        """Save atomically and durably; remote paths go through Lightning's writer."""
        if not _is_local_file_protocol(str(path)):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        target = Path(str(path).removeprefix("file://"))
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
        self._in_flight = checkpoint
        try:
            with os.fdopen(handle, "wb") as file:
                torch.save(checkpoint, file)
            os.chmod(temporary, 0o666 & ~_umask())
            put(Path(temporary), target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        finally:
            self._in_flight = None

    def memory_owners(self) -> dict[str, object]:
        """What a checkpoint that is being written holds, beside what others hold: nothing, as it is not copied."""
        return {"checkpoint": self._in_flight}

    def load_checkpoint(
        self, path: _PATH, map_location: Any = "cpu", weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load tensors and plain values only.

        Raises:
            UserError: the file is not a whole checkpoint.
        """
        try:
            checkpoint: dict[str, Any] = super().load_checkpoint(path, map_location, weights_only=True)
        except Exception as error:  # whatever a decoder makes of damaged bytes
            reason = " ".join(str(error).split())[:120]
            raise UserError(f"checkpoint {path} cannot be read ({reason}); is it damaged? give another one") from error
        return checkpoint


def _umask() -> int:
    """The process's umask, which mkstemp ignores; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


class GenerationCheckpoint(ModelCheckpoint):
    """`last.ckpt` after every generation, also of those that did not train.

    `Trainer.fit(ckpt_path="last")` and `--ckpt_path last` find it and continue bit for bit.

    Args:
        dirpath: folder; null takes `checkpoints` in the run's folder.
    """

    def __init__(self, dirpath: str | None = None) -> None:
        super().__init__(
            dirpath=dirpath,
            filename="last",
            save_top_k=1,
            enable_version_counter=False,
            save_on_train_epoch_end=True,
        )

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the folder; remove what a killed process left half written."""
        super().setup(trainer, pl_module, stage)
        if stage == "fit" and trainer.is_global_zero and self.dirpath:
            for torn in Path(self.dirpath).glob(".*.ckpt.*.tmp"):
                torn.unlink()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save, whether or not an optimizer stepped: ModelCheckpoint alone skips generations that did not train."""
        self._last_global_step_saved = -1
        super().on_train_epoch_end(trainer, pl_module)


class ChampionCheckpoint(ModelCheckpoint):
    """`best.ckpt`: the whole state of the generation whose champion validated best.

    Args:
        dirpath: folder; null takes `checkpoints` in the run's folder.
    """

    def __init__(self, dirpath: str | None = None) -> None:
        super().__init__(
            dirpath=dirpath,
            filename="best",
            monitor="champion/validation_fitness",
            mode="max",
            save_top_k=1,
            enable_version_counter=False,
            save_on_train_epoch_end=True,
        )

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save if the champion is new."""
        self._last_global_step_saved = -1
        super().on_train_epoch_end(trainer, pl_module)
