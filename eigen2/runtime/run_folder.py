"""One folder, one run: a second process is refused, an earlier run is moved aside, never overwritten."""

import csv
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback
from rich.console import Console

from eigen2.errors import UserError
from eigen2.runtime.checkpoint import newest_whole

RUN_FILES = ("checkpoints", "tensorboard", "metrics.csv", "memory.csv", "champion", "test", "failure", "config.yaml")
"""What a run writes in its folder; the panel cache beside them is shared by all runs."""


@contextmanager
def locked_folder(root: Path) -> Iterator[None]:
    """Keep the folder to this process; the lock goes with the process, however it ends.

    Raises:
        UserError: the folder cannot be written to, or another process is running in it.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = (root / ".lock").open("w")
    except OSError as error:
        raise UserError(
            f"cannot write to trainer.default_root_dir {root}: {error.strerror}; choose another folder"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another run is writing to {root}; wait for it or choose another --trainer.default_root_dir"
            ) from None
        yield


def find_checkpoint(root: Path, path: str | None, *, or_start: bool) -> str | None:
    """Turn `best` and `last` into the run's files; `last` is the newest that is not damaged.

    Args:
        root: the run's folder.
        path: `best`, `last`, a file, or None for none.
        or_start: whether `last` may find nothing, for a run that has yet to start.

    Raises:
        UserError: there is no such file, or all are damaged.
    """
    if path is None:
        return None
    folder = root / "checkpoints"
    file = folder / f"{path}.ckpt" if path in ("best", "last") else Path(path)
    if path == "last":
        newest = newest_whole(folder)
        if newest is not None or or_start:
            return None if newest is None else str(newest)
    elif file.is_file():
        return str(file)
    raise UserError(f"there is no checkpoint at {file}; give an existing file, or last to start or resume a fit")


def generations_of(checkpoint: str | None) -> int:
    """Generations that the run of a checkpoint went through, by the metrics.csv beside its folder; 0 without one."""
    metrics = Path(checkpoint or "").resolve().parent.parent / "metrics.csv"
    if not metrics.is_file():
        return 0
    with metrics.open() as file:
        return sum(1 for _ in csv.DictReader(file))


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
    """Makes room for a new run and writes its config.yaml, once everything else has been checked."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Nothing yet: the run may still be refused."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Move an earlier run aside unless this one resumes it, then write the configuration."""
        root = Path(trainer.default_root_dir)
        if trainer.ckpt_path is None and (moved := move_earlier_run(root)) is not None:
            Console(highlight=False).print(f"An earlier run in {root} was moved to {moved}.", soft_wrap=True)
        self.parser.save(self.config, str(root / "config.yaml"), overwrite=True)
