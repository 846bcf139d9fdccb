"""One folder, one run: a second process is refused, an earlier run is moved aside, never overwritten."""

import csv
import fcntl
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback
from rich.console import Console

from eigen2.errors import UserError
from eigen2.runtime.checkpoint import newest_whole
from eigen2.runtime.files import move_into_place
from eigen2.runtime.provenance import describe_run

log = logging.getLogger(__name__)

RUN_FILES = (
    "checkpoints",
    "tensorboard",
    "metrics.csv",
    "memory.csv",
    "champion",
    "test",
    "failure",
    "config.yaml",
    "run.json",
    "report.html",
)
"""What a run writes in its folder; the panel cache beside them is shared by all runs."""


@contextmanager
def locked_folder(root: Path) -> Iterator[None]:
    """Keep the folder to this process; the lock goes with the process, however it ends.

    Raises:
        UserError: the folder cannot be written to, or another process is running in it.
    """
    with _opened(root / ".lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another run is writing to {root}; wait for it or choose another --trainer.default_root_dir"
            ) from None
        yield


def _opened(path: Path) -> IO[str]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("w")
    except OSError as error:
        raise UserError(
            f"cannot write to trainer.default_root_dir {path.parent}: {error.strerror}; choose another folder"
        ) from error


@contextmanager
def in_turn(root: Path) -> Iterator[None]:
    """Let the processes of a run look for their checkpoint one after the other: what one fetches, the next one finds.

    Raises:
        UserError: the folder cannot be written to.
    """
    with _opened(root / ".turn") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def find_checkpoint(root: Path, path: str | None, *, or_start: bool, put_aside: bool = True) -> str | None:
    """Turn `best` and `last` into the run's files; `last` is the newest that is not damaged.

    Args:
        root: the run's folder.
        path: `best`, `last`, a file, or None for none.
        or_start: whether `last` may find nothing, for a run that has yet to start.
        put_aside: whether a damaged one is given another name.

    Raises:
        UserError: there is no such file, or all are damaged.
    """
    if path is None:
        return None
    folder = root / "checkpoints"
    file = folder / f"{path}.ckpt" if path in ("best", "last") else Path(path)
    if path == "last":
        newest = newest_whole(folder, put_aside)
        if newest is not None or or_start:
            return None if newest is None else str(newest)
    elif file.is_file():
        return str(file)
    more = "last to start or resume" if or_start else "best or last of the run in --trainer.default_root_dir"
    raise UserError(f"there is no checkpoint at {file}; give an existing file, or {more}")


def generations_of(checkpoint: str | None) -> int:
    """Generations that the run of a checkpoint went through, by the metrics.csv beside its folder; 0 without one."""
    metrics = Path(checkpoint or "").resolve().parent.parent / "metrics.csv"
    if not metrics.is_file():
        return 0
    with metrics.open() as file:
        return sum(1 for _ in csv.DictReader(file))


def move_earlier_run(root: Path) -> Path | None:
    """Move what an earlier run left in `root` to `root/earlier/N`; return that folder, None if there was nothing."""
    present = [root / name for name in RUN_FILES if (root / name).exists()] + [
        path for pattern in ("memory-*.csv", "test-*") for path in sorted(root.glob(pattern))
    ]
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
        if not trainer.is_global_zero:
            return
        if trainer.ckpt_path is None and (moved := move_earlier_run(root)) is not None:
            Console(highlight=False).print(f"An earlier run in {root} was moved to {moved}.", soft_wrap=True)
        self.parser.save(self.config, str(root / "config.yaml"), overwrite=True)
        self._note(trainer, pl_module, [])

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note what the memory's profiler makes of the run, if there is one."""
        found = [
            f"verdict: {verdict}" if (leak := getattr(callback, "leak", None)) is None else "; ".join(leak.lines())
            for callback in trainer.callbacks  # type: ignore[attr-defined]
            if (verdict := getattr(callback, "verdict", None)) is not None
        ]
        self._note(trainer, pl_module, found)

    @staticmethod
    def _note(trainer: Trainer, module: LightningModule, memory: list[str]) -> None:
        """Write run.json: what the run's results depend on, and how its memory did."""
        if not trainer.is_global_zero:
            return
        told = {"seed": getattr(module, "seed", None), **describe_run(), "memory": memory}
        settings = getattr(module, "settings", None)
        told["settings"] = settings() if callable(settings) else {}
        if (words := getattr(module, "fitness_words", None)) is not None:
            told["fitness"] = words
        draft = Path(trainer.default_root_dir) / ".run.json"
        try:
            draft.write_text(json.dumps(told, indent=1, default=str) + "\n")
            move_into_place(draft, draft.with_name("run.json"))
        except OSError as error:  # the run is worth more than what is noted of it
            log.warning("cannot write %s: %s", draft.with_name("run.json"), error.strerror or error)
