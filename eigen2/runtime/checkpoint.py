"""Checkpoints after every generation that survive kills, full disks and rot."""

import contextlib
import logging
import os
import shutil
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

from eigen2.errors import UserError, require_range
from eigen2.runtime.checksums import DamagedFile, generation_of, verify_checksum, write_checksum
from eigen2.runtime.files import move_into_place

log = logging.getLogger(__name__)

LAST, BEST, DAMAGED = "last.ckpt", "best.ckpt", "damaged.ckpt"
EARLIER = "generation-*.ckpt"
"""Earlier checkpoints, second names of what was the last; the star is the generation."""


class DurableCheckpointIO(TorchCheckpointIO):
    """Writes to a temporary file beside the target, seals it, syncs it to disk and renames it into place.

    Lightning's own writer uses the system's temporary folder; on another filesystem its last step is a copy over the
    old checkpoint, and a kill during it destroys both.
    """

    _in_flight: Mapping[str, Any] | None = None

    def save_checkpoint(self, checkpoint: dict[str, Any], path: _PATH, storage_options: Any | None = None) -> None:
        """Save atomically and durably; remote paths go through Lightning's writer."""
        if not _is_local_file_protocol(str(path)):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        target = _local(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
        self._in_flight = checkpoint
        try:
            with os.fdopen(handle, "wb") as file:
                torch.save(checkpoint, file)
            write_checksum(Path(temporary), int(checkpoint.get("epoch", -1)))
            os.chmod(temporary, 0o666 & ~_umask())
            move_into_place(Path(temporary), target)
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
        """Load tensors and plain values only, of a file whose write_checksum is whole.

        Raises:
            UserError: the file is not what was written, or cannot be read.
        """
        try:
            if _is_local_file_protocol(str(path)):
                verify_checksum(_local(path))
            checkpoint: dict[str, Any] = super().load_checkpoint(path, map_location, weights_only=True)
        except Exception as error:  # whatever a decoder makes of damaged bytes
            reason = " ".join(str(error).split())[:120]
            raise UserError(f"checkpoint {path} cannot be read ({reason}); is it damaged? give another one") from error
        return checkpoint


def _local(path: _PATH) -> Path:
    return Path(str(path).removeprefix("file://"))


def _umask() -> int:
    """The process's umask, which mkstemp ignores; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


class _Checkpoint(ModelCheckpoint):
    """One file in the run's folder; what the disk refuses is owed, and written as soon as the disk allows."""

    def __init__(self, dirpath: str | None, filename: str, **options: Any) -> None:
        super().__init__(
            dirpath=dirpath,
            filename=filename,
            save_top_k=1,
            enable_version_counter=False,
            save_on_train_epoch_end=True,
            **options,
        )
        self._owed: str | None = None
        self._tried = False

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save, whether or not an optimizer stepped: ModelCheckpoint alone skips generations that did not train."""
        self._last_global_step_saved, self._tried = -1, False
        super().on_train_epoch_end(trainer, pl_module)
        if self._owed is not None and not self._tried:
            self._save_checkpoint(trainer, self._owed)

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        before, self._owed, self._tried = self._owed, None, True
        try:
            self._write(trainer, filepath)
        except OSError as error:
            self._owed = filepath
            log.warning("generation %d: cannot write %s: %s", trainer.current_epoch, filepath, error)
        else:
            if before is not None:
                log.warning("generation %d: %s is written again", trainer.current_epoch, filepath)

    def _write(self, trainer: Trainer, filepath: str) -> None:
        super()._save_checkpoint(trainer, filepath)

    def state_dict(self) -> dict[str, Any]:
        """What ModelCheckpoint keeps, and the file that is owed."""
        return {**super().state_dict(), "owed": self._owed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take both back."""
        super().load_state_dict(state_dict)
        self._owed = state_dict.get("owed")


class GenerationCheckpoint(_Checkpoint):
    """`last.ckpt` after every generation, and the files of generations before it as `generation-N.ckpt`.

    `Trainer.fit(ckpt_path="last")` and `--ckpt_path last` find it and continue bit for bit; if it is damaged, the
    command line takes the newest whole one before it, see `newest_whole`.
    """

    def __init__(self, dirpath: str | None = None, keep: int = 2) -> None:
        """Choose where and how many.

        Args:
            dirpath: Folder. Default none: `checkpoints` in the run's folder.
            keep: Generations whose files are kept, the last one included, >= 1. Each file holds the whole replay
                buffer. Default 2.

        Raises:
            UserError: `keep` is below 1.
        """
        require_range("keep of GenerationCheckpoint", keep, least=1)
        super().__init__(dirpath, Path(LAST).stem)
        self.keep = keep

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the folder; remove what a killed process left half written."""
        super().setup(trainer, pl_module, stage)
        if stage == "fit" and trainer.is_global_zero and self.dirpath:
            for torn in Path(self.dirpath).glob(".*.ckpt.*.tmp"):
                torn.unlink()

    def _write(self, trainer: Trainer, filepath: str) -> None:
        keeps = trainer.is_global_zero and _is_local_file_protocol(filepath)
        if keeps and self.keep > 1:
            with contextlib.suppress(FileNotFoundError, DamagedFile):
                keep_earlier(_local(filepath))
        super()._write(trainer, filepath)
        if keeps:
            for old in earlier(_local(filepath).parent)[self.keep - 1 :]:
                old.unlink(missing_ok=True)


class ChampionCheckpoint(_Checkpoint):
    """`best.ckpt`: the whole state of the generation whose champion validated best.

    List it before `GenerationCheckpoint`, whose file then knows of it.

    Args:
        dirpath: folder; null takes `checkpoints` in the run's folder.
    """

    def __init__(self, dirpath: str | None = None) -> None:
        super().__init__(dirpath, Path(BEST).stem, monitor="champion/validation_fitness", mode="max")


def keep_earlier(last: Path) -> None:
    """Give `last.ckpt` a second name by its generation, so that the next one does not replace it.

    Raises:
        FileNotFoundError: there is none.
        DamagedFile: it has no write_checksum.
    """
    name = last.with_name(EARLIER.replace("*", f"{generation_of(last):05}"))
    name.unlink(missing_ok=True)
    try:
        os.link(last, name)
    except OSError:  # a filesystem without links
        shutil.copyfile(last, name.with_name(f".{name.name}.tmp"))
        move_into_place(name.with_name(f".{name.name}.tmp"), name)


def earlier(folder: Path) -> list[Path]:
    """Earlier checkpoints in a folder, newest first."""
    return sorted(folder.glob(EARLIER), key=lambda path: int(path.stem.rpartition("-")[2]), reverse=True)


def newest_whole(folder: Path, put_aside: bool = True) -> Path | None:
    """The newest checkpoint whose write_checksum is whole; None if there are no checkpoints at all.

    Args:
        folder: of checkpoints.
        put_aside: whether a damaged `last.ckpt` becomes `damaged.ckpt`, so that it replaces no good one.

    Raises:
        UserError: there are checkpoints, but all are damaged.
    """
    found = [path for path in (folder / LAST, *earlier(folder)) if path.exists()]
    for path in found:
        try:
            verify_checksum(path)
        except (DamagedFile, OSError) as error:
            log.warning("checkpoint %s is damaged (%s); the one before is used", path, error)
            if path.name == LAST and put_aside:
                os.replace(path, path.with_name(DAMAGED))
            continue
        return path
    if found:
        raise UserError(
            f"all {len(found)} checkpoints in {folder} are damaged; resume from best.ckpt with --ckpt_path best, or "
            "start again with --ckpt_path null"
        )
    return None
