"""A trial: one fit in a process and a folder of its own, so that no trial's memory adds to another's."""

import csv
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

PROGRAM = (sys.executable, "-m", "eigen2.cli", "fit")
"""What runs a trial."""
METRIC = "champion/validation_fitness"
"""Column of metrics.csv that a sweep makes as large as it can."""


def locked(path: Path, *, wait: bool = False) -> IO[str] | None:
    """An open file whose lock is ours until it is closed, however this process ends.

    Args:
        path: the file, made if need be.
        wait: whether to wait for another process that has it; otherwise None is returned.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        file.close()
        return None
    return file


def start(folder: Path, words: Sequence[str], running: IO[str]) -> subprocess.Popen[bytes]:
    """Start or resume the fit of a trial.

    It is no member of this process's group, so that Ctrl-C reaches it through the sweep alone: a second signal would
    end it within a generation.

    Args:
        folder: of the trial.
        words: settings, as options of fit.
        running: a lock that the fit holds until it ends, even if the sweep is killed before.
    """
    cache = folder / "cache"
    if not cache.exists():
        with suppress(OSError):  # without links each trial prepares the prices for itself
            (folder.parent.parent / "cache").mkdir(exist_ok=True)
            cache.symlink_to(Path("..", "..", "cache"))
    own = [f"--trainer.default_root_dir={folder}", "--ckpt_path=last", "--report=false"]
    with (folder / "output.txt").open("ab") as output:
        return subprocess.Popen(
            [*PROGRAM, *words, *own],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
            pass_fds=[running.fileno()],
        )


def follow(process: subprocess.Popen[bytes], seen: Callable[[], bool], stops: Callable[[], int], poll_s: float) -> int:
    """Wait for the end of a trial; return its exit code.

    Args:
        process: of the trial.
        seen: looks at what it has written, and says whether to end it.
        stops: how often the sweep was asked to stop so far; each is passed on.
        poll_s: seconds between two looks.
    """
    sent = 0
    try:
        while True:
            ended = process.poll() is not None  # before the look, so that the last row is seen
            ends = seen()
            if ended:
                return process.returncode
            for _ in range(sent, max(stops(), int(ends))):
                process.terminate()
                sent += 1
            with suppress(subprocess.TimeoutExpired):
                process.wait(poll_s)
    except BaseException:  # nobody would follow it any more
        process.terminate()
        raise


def fitness(folder: Path) -> dict[int, float]:
    """Validation fitness of the champion by generation, of those that a trial has finished.

    Args:
        folder: of the trial.
    """
    try:
        text = (folder / "metrics.csv").read_text(errors="replace")
    except FileNotFoundError:
        return {}
    whole = text.rpartition("\n")[0]  # the last line may not be there to its end
    rows = csv.DictReader(whole.splitlines())
    return {int(row["generation"]): float(row[METRIC]) for row in rows if row.get(METRIC)}


def last_words(folder: Path) -> str:
    """The error that a trial ended with, or the last line that it said.

    Args:
        folder: of the trial.
    """
    with (folder / "output.txt").open("rb") as file:
        file.seek(-min(file.seek(0, os.SEEK_END), 20_000), os.SEEK_END)
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or ["it said nothing"])[-1][:400]
