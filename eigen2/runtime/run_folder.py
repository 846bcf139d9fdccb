"""The folder of one run: a second process is refused, an earlier run is moved aside, never overwritten."""

import json
import logging
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback

from eigen2.errors import UserError
from eigen2.files import Folder, next_number, writing
from eigen2.runtime.checkpoint import newest_intact
from eigen2.runtime.logger import RunLogger
from eigen2.runtime.provenance import describe_run

log = logging.getLogger(__name__)

# what a run writes in its folder; the panel cache beside it is shared by all runs, and other files are the user's
RUN_FILE = re.compile(
    r"checkpoints|tensorboard|champion|memory|seeds|test(-\d+)?|failure"
    r"|(metrics|memory|memory-\d+)\.csv|config\.yaml|run\.json|report\.html"
)


@contextmanager
def locked_folder(root: Path, name: str = ".lock", *, wait: bool = False) -> Iterator[None]:
    """Lock the folder for this process until the block ends; `wait` for another process, or raise a UserError."""
    with writing(f"to trainer.default_root_dir {root}", "choose another folder"):
        locked = Folder(root).lock(name, wait=wait)
    if locked is None:
        raise UserError(f"another run is writing to {root}; wait for it or choose another --trainer.default_root_dir")
    with locked:
        yield


def find_checkpoint(root: Path, path: str | None, *, or_start: bool, put_aside: bool = False) -> str | None:
    """Return the path of checkpoint `best`, `last` or any other file; raises UserError if it does not exist.

    `last` is the newest intact one; with `or_start`, it is None for a run that has not started. `put_aside` renames a
    damaged one before it.
    """
    if path is None:
        return None
    folder = root.expanduser() / "checkpoints"
    file = folder / f"{path}.ckpt" if path in ("best", "last") else Path(path).expanduser()
    if path == "last":
        newest = newest_intact(folder, put_aside)
        if newest is not None or or_start:
            return None if newest is None else str(newest)
    elif file.is_file():
        return str(file)
    if (file / "checkpoints").is_dir():
        raise UserError(f"--ckpt_path {file} is a run's folder; give {file}/checkpoints/best.ckpt, or last.ckpt there")
    choices = "last to start or resume" if or_start else "best or last of the run in --trainer.default_root_dir"
    raise UserError(f"there is no checkpoint at {file}; give an existing file, or {choices}")


def generations_of(checkpoint: str | None) -> int:
    """Return the generations of a checkpoint's run, by the last row of its metrics.csv; 0 without one.

    A run that was resumed on another machine has no rows of the generations before.
    """
    metrics = Path(checkpoint or "").resolve().parent.parent / "metrics.csv"
    *rows, _ = metrics.read_bytes().split(b"\n") if metrics.is_file() else [b""]  # the last may be half written
    generation = rows[-1].partition(b",")[0] if rows else b""
    return int(generation) + 1 if generation.isdigit() else 0


def move_earlier_run(root: Path) -> Path | None:
    """Move the files of an earlier run in `root` to `root/earlier/N`; return that folder, or None if there are none.

    Raises UserError if not all can be moved; then all stay.
    """
    present = sorted(path for path in root.glob("*") if RUN_FILE.fullmatch(path.name))
    if not present:
        return None
    folder, earlier = Folder(root), f"earlier/{next_number(root.glob('earlier/*'))}"
    target = root / earlier
    try:
        (folder / earlier).make()
        for path in present:
            folder.rename(path.name, f"{earlier}/{path.name}")
    except OSError as error:
        for path in present:
            with suppress(OSError):
                folder.rename(f"{earlier}/{path.name}", path.name)
        for made in (earlier, "earlier"):
            with suppress(OSError):
                folder.delete_empty(made)
        raise UserError(
            f"the earlier run in {root} cannot be moved to {target} ({error.strerror or error}); resume it with "
            "--ckpt_path last, or choose another --trainer.default_root_dir"
        ) from error
    return target


class RunFolder(SaveConfigCallback):
    """Moves an earlier run aside and writes config.yaml and run.json, once everything else has been checked."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Do nothing yet: the run may still be refused."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Move an earlier run aside unless this one resumes it; write configuration and provenance."""
        if not trainer.is_global_zero:
            return
        root = Path(trainer.default_root_dir)
        if not _goes_on(root, trainer, pl_module):
            _move_aside(root)
        _write(root / "config.yaml", self.parser.dump(self.config, skip_none=False))
        _write_provenance(root, pl_module)


def make_room_for_script(trainer: Trainer, module: LightningModule) -> None:
    """Move an earlier run aside for a new fit by a script with a `RunLogger`; the command line has `RunFolder`."""
    folder, fits_on = _folder_of_script(trainer), trainer.ckpt_path is None and trainer.current_epoch > 0
    if folder is not None and not fits_on and not _goes_on(folder, trainer, module):
        _move_aside(folder)
        if (root := Path(trainer.default_root_dir)).resolve() != folder.resolve():  # of checkpoints and memory.csv
            _move_aside(root)


def _goes_on(root: Path, trainer: Trainer, module: Any) -> bool:
    """Return whether the fit resumes the run in `root`: from a checkpoint there, or from one of its seed and settings.

    An earlier run, which lies deeper in the folder, may be resumed in place of a later one.
    """
    if trainer.ckpt_path is None:
        return False
    if Path(trainer.ckpt_path).resolve().parent == (Path(trainer.default_root_dir) / "checkpoints").resolve():
        return True
    try:
        there = json.loads((root / "run.json").read_text())
        return all(there[name] == own for name, own in json.loads(_as_json(_identity(module))).items())
    except (OSError, ValueError, LookupError, TypeError):  # no run that can be told apart
        return True


def describe_script(trainer: Trainer, module: LightningModule, config: Mapping[str, Any]) -> None:
    """Write config.yaml and run.json as `RunFolder` does, for a fit by a script; the command line reads them.

    A disk error is logged.
    """
    if (folder := _folder_of_script(trainer)) is not None:
        settings = {**config, "trainer": {**config["trainer"], "default_root_dir": str(folder)}}
        _write(folder / "config.yaml", yaml.safe_dump(settings, sort_keys=False))
        _write_provenance(folder, module)


def _folder_of_script(trainer: Trainer) -> Path | None:
    """Return the folder of the `RunLogger` of a fit without `RunFolder`, in the process that writes there."""
    if not trainer.is_global_zero or any(isinstance(callback, RunFolder) for callback in trainer.callbacks):  # type: ignore[attr-defined]
        return None
    return next((Path(logger.save_dir) for logger in trainer.loggers if isinstance(logger, RunLogger)), None)


def _move_aside(root: Path) -> None:
    if (moved := move_earlier_run(root)) is not None:
        print(f"An earlier run in {root} was moved to {moved}.")


def _write(target: Path, text: str) -> None:
    """Write a file of the run's folder; log a disk error, which is no reason to stop the run."""
    try:
        Folder(target.parent).write(target.name, text)
    except OSError as error:
        log.warning("cannot write %s: %s", target, error.strerror or error)


def _finite(value: Any) -> Any:
    """Return settings with text in place of infinity and NaN, which JSON has no numbers for."""
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _write_provenance(root: Path, module: Any) -> None:
    """Write run.json: what the results of a `GenerationModule` depend on."""
    record = {
        **describe_run(),
        "data": module.data.describe(),
        "fitness": dict(module.data.fitness_labels),
        **_identity(module),
    }
    _write(root / "run.json", _as_json(record) + "\n")


def _identity(module: Any) -> dict[str, Any]:
    """Return what tells the runs of a folder apart."""
    return {"seed": module.seed, "settings": module.settings()}


def _as_json(record: Mapping[str, Any]) -> str:
    return json.dumps(_finite(record), indent=1, default=str, allow_nan=False)
