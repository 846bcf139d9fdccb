"""A trial: one fit in a process and a folder of its own, so that no trial's memory adds to another's."""

import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

PROGRAM = (sys.executable, "-m", "eigen2.cli", "fit")  # command that runs a trial
METRIC = "champion/validation_fitness"  # column of metrics.csv that a sweep maximizes


def to_text(value: Any) -> str:
    """Return a value as it is written on the command line."""
    return value if isinstance(value, str) else json.dumps(value)


def start(folder: Path, words: Sequence[str], running: IO[str]) -> subprocess.Popen[bytes]:
    """Start or resume a trial's fit with these options; it holds the lock `running` even if the sweep is killed.

    The process is in a group of its own, so that Ctrl-C reaches it only through the sweep: a second signal would end it
    within a generation.
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


def fitness(folder: Path) -> dict[int, float]:
    """Return the champion's validation fitness in each generation that a trial has finished."""
    try:
        text = (folder / "metrics.csv").read_text(errors="replace")
    except FileNotFoundError:
        return {}
    whole = text.rpartition("\n")[0]  # the last line may be incomplete
    rows = csv.DictReader(whole.splitlines())
    return {int(row["generation"]): float(row[METRIC]) for row in rows if row.get(METRIC)}


def last_line(folder: Path) -> str:
    """Return the error that a trial ended with, or else the last line of its output."""
    text = (folder / "output.txt").read_text(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or ["it printed nothing"])[-1][:400]
