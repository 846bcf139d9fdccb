"""Checkpoints after every generation that survive kills, full disks and bit rot.

    checkpoints/last.ckpt                 of one process: all; of several: all but what each holds alone
    checkpoints/parts/CHECKSUM.part       what one of several processes holds alone, its agents and replay slots

A part is named by its checksum, so it never changes, and several checkpoints may list it. All parts are on the disk
before a checkpoint that lists them is; those that no checkpoint in the folder lists are deleted after the next one.
"""

import logging
import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities.migration.utils import migrate_checkpoint
from torch import Tensor

from eigen2 import compat
from eigen2.errors import UserError, causes, damage_as_user_error, is_shortage, one_line, require_range
from eigen2.files import Folder, move_into_place
from eigen2.runtime.checksums import DamagedFile, generation_of, verify_checksum, write_checksum

log = logging.getLogger(__name__)

PARTS = "parts"  # folder beside checkpoints
CHECKSUM = re.compile(r"[0-9a-f]{64}")
PART_FILE = re.compile(rf"({CHECKSUM.pattern})\.part|\.\d+\.draft")
LAST, BEST, DAMAGED = "last.ckpt", "best.ckpt", "damaged.ckpt"
EARLIER = re.compile(r"generation-(\d+)\.ckpt")
DRAFT = re.compile(rf"\.({re.escape(LAST)}|{re.escape(BEST)}|{EARLIER.pattern})\.draft")


class DurableCheckpointIO(TorchCheckpointIO):
    """Writes to a temporary file beside the target, adds a checksum, syncs to disk and renames.

    Lightning's own writer uses the system's temporary folder; on another filesystem its last step is a copy over the
    old checkpoint, and a kill during it destroys both.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Save atomically and durably to a local file; raises UserError for a URL."""
        if "://" in str(path):
            raise UserError(f"checkpoint {path} is not a local file; CheckpointUploader copies checkpoints to a bucket")
        target = Path(path)
        try:
            with Folder(target.parent).replacing(target.name) as draft:
                save_archive(checkpoint, draft, int(checkpoint.get("epoch", -1)))
        finally:  # a refused checkpoint leaves no parts on a full disk
            delete_unused_parts(target.parent)

    def remove_checkpoint(self, path: str | Path) -> None:
        """Delete a checkpoint file."""
        Folder(Path(path).parent).delete(Path(path).name)

    def load_checkpoint(
        self, path: str | Path, map_location: Any = "cpu", weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load tensors and plain values, never code; raises UserError if the checksum of the file does not match."""
        with damage_as_user_error(f"checkpoint {path} cannot be read", "is it damaged? give another one"):
            verify_checksum(Path(path))
            checkpoint: dict[str, Any] = super().load_checkpoint(path, map_location, weights_only=True)
            migrate_checkpoint(checkpoint)  # Lightning would itself, and raise anything for a version that is none
        return checkpoint


class _Checkpoint(ModelCheckpoint):
    """One file in the run's folder; a write that the disk refuses is retried after the next generation."""

    def __init__(self, name: str, **options: Any) -> None:
        options |= {"save_top_k": 1, "enable_version_counter": False, "save_on_train_epoch_end": True}
        super().__init__(filename=Path(name).stem, **options)
        self._name = name
        self._overdue = False

    def _find_last_checkpoints(self, trainer: Trainer) -> set[str]:
        """Look for `ckpt_path="last"` in the run's folder, before setup."""
        self.dirpath = str(Folder(trainer.default_root_dir) / "checkpoints")
        return compat.last_checkpoints(self, trainer)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find `checkpoints` in the run's folder; raises UserError if a link leads out of that.

        Checkpoints without checksums, which other plugins write, would be taken for damaged ones.
        """
        durable = isinstance(trainer.strategy.checkpoint_io, DurableCheckpointIO)
        if stage == "fit" and not (durable or trainer.fast_dev_run):  # type: ignore[attr-defined]
            raise UserError(
                f"{type(self).__name__} needs eigen2.DurableCheckpointIO() among the Trainer's plugins, not wrapped"
            )
        folder = Folder(trainer.default_root_dir) / "checkpoints"
        folder.file(self._name)
        self.dirpath = str(folder)  # Lightning would take that of the first logger
        super().setup(trainer, pl_module, stage)

    @property
    def path(self) -> str:
        """Return the file, in this run's folder."""
        return os.path.join(self.dirpath or "", self._name)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget the score of a file that is not here, so that the next generation writes it.

        One of this or a later generation is of a run that did not go on here: it was resumed from before them. That of
        an earlier fit of this Trainer may be on other data.
        """
        super().on_train_start(trainer, pl_module)
        goes_on = trainer.ckpt_path is not None and self._is_before(trainer.current_epoch)
        if not trainer.strategy.broadcast(goes_on):
            self._restore(None)

    def _is_before(self, generation: int) -> bool:
        try:
            return generation_of(Path(self.path)) < generation
        except (OSError, DamagedFile):
            return False

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save as ModelCheckpoint does, and after a failed write; log an error of the disk."""
        compat.forget_last_save(self)  # ModelCheckpoint skips generations in which no optimizer stepped
        path = self.path
        overdue, self._overdue = trainer.strategy.broadcast(self._overdue), False
        try:
            super().on_train_epoch_end(trainer, pl_module)
            if overdue and not compat.has_saved(self):
                trainer.save_checkpoint(path)
        except OSError as error:
            if compat.has_saved(self):
                raise  # a logger's, which is told of the file once that is written
            self._overdue = True
            log.warning("generation %d: cannot write %s: %s", trainer.current_epoch, path, error)
            trainer.strategy.barrier()  # the other processes wait here for the one that writes
        else:
            if overdue and trainer.is_global_zero:
                log.warning("generation %d: %s was written on retry", trainer.current_epoch, path)

    def state_dict(self) -> dict[str, Any]:
        """Return the score of the file, and whether a write is still to be retried; no path, see `load_state_dict`."""
        return {"best_model_score": self.best_model_score, "overdue": self._overdue}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned.

        ModelCheckpoint would restore paths, and write to and delete what a checkpoint of another's names.
        """
        score = state_dict.get("best_model_score")
        self._restore(score if isinstance(score, Tensor) and score.numel() == 1 else None)
        self._overdue = bool(state_dict.get("overdue"))

    def _restore(self, score: Tensor | None) -> None:
        """Set what ModelCheckpoint knows of the file: its path, and its score if it has one."""
        self.best_model_score = self.current_score = score
        self.best_model_path = self.kth_best_model_path = self.path if score is not None else ""
        self.best_k_models = {} if score is None else {self.path: score}
        if score is not None:
            self.kth_value = score


class GenerationCheckpoint(_Checkpoint):
    """Saves `last.ckpt` after every generation, and keeps earlier ones as `generation-N.ckpt`.

    `Trainer.fit(ckpt_path="last")` and `--ckpt_path last` resume from it bit for bit; if it is damaged, the command
    line takes the newest intact one before it, see `newest_intact`.

    Args:
        keep: number of checkpoints to keep, the last one included (1 or more). Each contains the whole replay buffer.
    """

    def __init__(self, keep: int = 2) -> None:
        require_range("keep of GenerationCheckpoint", keep, least=1, whole=True)
        super().__init__(LAST)
        self.keep = keep

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the folder, and delete files that a killed process left incomplete."""
        super().setup(trainer, pl_module, stage)
        if stage == "fit" and trainer.is_global_zero and self.dirpath and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            folder = Folder(self.dirpath)
            for torn in folder.path.glob(".*.draft"):
                if DRAFT.fullmatch(torn.name):
                    _delete(torn)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the previous checkpoint as an earlier one, save the new one, and delete those beyond `keep`.

        Those of this or a later generation are of a run that did not go on here: it was resumed from before them.
        """
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return  # it saves nothing, so it must not delete those of a real run either
        last = Path(f"{self.dirpath}/{self._name}")
        if trainer.is_global_zero and self.keep > 1 and last.exists():
            try:
                keep_earlier(last)
            except (OSError, DamagedFile) as error:
                log.warning("generation %d: cannot write a copy of %s: %s", trainer.current_epoch, last, error)
        super().on_train_epoch_end(trainer, pl_module)
        if trainer.is_global_zero and not self._overdue:
            kept = earlier_checkpoints(last.parent, trainer.current_epoch)[: self.keep - 1]
            for old in earlier_checkpoints(last.parent):
                if old not in kept:
                    _delete(old)


class ChampionCheckpoint(_Checkpoint):
    """Saves `best.ckpt`: the whole state of the generation whose champion had the best validation fitness.

    List it before `GenerationCheckpoint`, so that `last.ckpt` contains its state.
    """

    def __init__(self) -> None:
        super().__init__(BEST, monitor="champion/validation_fitness", mode="max")


def _delete(path: Path) -> None:
    """Delete a file of the folder of checkpoints; log a disk error, which is no reason to stop the run."""
    try:
        Folder(path.parent).delete(path.name)
    except OSError as error:
        log.warning("cannot delete %s: %s", path, error.strerror or error)


def keep_earlier(last: Path) -> None:
    """Link `last.ckpt` under the name of its generation; raises OSError, or DamagedFile if it has no checksum."""
    Folder(last.parent).copy(last.name, f"generation-{generation_of(last):05}.ckpt")


def earlier_checkpoints(folder: Path, before: float = math.inf) -> list[Path]:
    """Return a folder's earlier checkpoints of generations `before` this one, newest first; others are the user's."""
    named = [(int(match[1]), path) for path in folder.glob("*") if (match := EARLIER.fullmatch(path.name))]
    return [path for generation, path in sorted(named, reverse=True) if generation < before]


def newest_intact(folder: Path, put_aside: bool = False) -> Path | None:
    """Return the newest checkpoint whose checksums match; None if there are none.

    Raises UserError if all are damaged, or one cannot be read for another reason. With `put_aside`, a damaged
    `last.ckpt` is renamed `damaged.ckpt` where an earlier one is found, so that it is not kept as an earlier one.
    """
    paths = [path for path in (folder / LAST, *earlier_checkpoints(folder)) if path.exists()]
    for path in paths:
        try:
            verify_checkpoint(path)
            if put_aside and path.name != LAST and paths[0].name == LAST:
                with suppress(OSError):  # a folder that cannot be written has no later checkpoints either
                    (Folder(folder.parent) / folder.name).rename(LAST, DAMAGED)  # a linked folder is refused
            return path
        except (DamagedFile, OSError) as error:
            if is_shortage(error):
                raise
            if not isinstance(error, (DamagedFile, FileNotFoundError)):
                why = error.strerror or error
                raise UserError(f"{path} cannot be read ({why}): try again, or give an earlier file there") from error
            log.warning("checkpoint %s is damaged (%s); using the one before", path, error)
    if paths:
        raise UserError(
            f"all {len(paths)} checkpoints in {folder} are damaged; --ckpt_path best may be intact; once they are "
            "moved away, the run starts anew, or goes on from its bucket"
        )
    return None


def save_archive(content: Mapping[str, Any], draft: Path, generation: int) -> str:
    """Save tensors and plain values to a file with a checksum, and return that; raises OSError if the disk refuses."""
    with draft.open("wb") as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:  # torch's, of a write that the disk refused
            below = next((each for each in causes(error) if isinstance(each, OSError)), error)  # of the system
            raise OSError(one_line(below)) from error
    return write_checksum(draft, generation)


def write_part(checkpoint: Path, part: Mapping[str, Any], rank: int, generation: int) -> str:
    """Write a process's part of a checkpoint, durably, and return its checksum; raises OSError if the disk refuses."""
    folder, name = Folder(checkpoint.parent) / PARTS, f".{rank}.draft"
    folder.make()
    folder.delete(name)
    try:
        checksum = save_archive(part, draft := folder.file(name), generation)
        move_into_place(draft, folder.file(f"{checksum}.part"))
    finally:
        folder.delete(name)
    return checksum


def part_files(path: Path, checkpoint: Mapping[str, Any]) -> list[Path]:
    """Return the files of a checkpoint's parts, by rank of the processes that wrote them; none if it is one file."""
    checksums = [str(checksum) for checksum in checkpoint.get("parts", ())]
    if not all(CHECKSUM.fullmatch(checksum) for checksum in checksums):
        raise UserError(f"checkpoint {path} lists parts that eigen2 did not write; give another one")
    return [path.parent / PARTS / f"{checksum}.part" for checksum in checksums]


def listed_parts(path: Path) -> list[Path]:
    """Return the files of the parts that a checkpoint file lists; none if it cannot be decoded."""
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)  # maps tensors, reads none
        return part_files(path, checkpoint)
    except Exception as error:  # a decoder may raise anything on damaged bytes
        if isinstance(error, OSError) or is_shortage(error):
            raise
        return []


def verify_checkpoint(path: Path) -> None:
    """Compare a checkpoint and its parts with their checksums; raises DamagedFile, or OSError for a missing part."""
    verify_checksum(path)
    for part in listed_parts(path):
        verify_checksum(part, part.stem)


def read_part(path: Path) -> dict[str, Any]:
    """Return a part's tensors, mapped from its file; raises UserError if it is damaged or missing."""
    remedy = f"a checkpoint by several processes needs the folder {PARTS} beside it: give one that has it"
    with damage_as_user_error(f"part {path} of the checkpoint cannot be read", remedy):
        verify_checksum(path, path.stem)
        part: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return part


def delete_unused_parts(folder: Path) -> None:
    """Delete parts, and drafts of parts, that no checkpoint in `folder` lists, whatever its name."""
    parts = Folder(folder) / PARTS
    written = [path for path in parts.path.glob("*") if PART_FILE.fullmatch(path.name)]
    try:
        files = [path for path in folder.iterdir() if path.is_file()] if written else []
        used = {part for path in files for part in listed_parts(path)}
        for path in written:
            if path not in used:
                parts.delete(path.name)
    except OSError as error:
        log.warning("cannot delete parts of earlier checkpoints in %s: %s", parts, error)
