"""A trial: one fit in its own process and folder, so that memory does not add up over trials."""

import csv
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from eigen2.files import Folder
from eigen2.runtime.yaml_files import yaml_line

PROGRAM = (sys.executable, "-m", "eigen2.cli", "fit")  # command of a trial
ATTEMPT = "-" * 80  # line of output.txt before what an attempt prints; a trial that was stopped has several
METRIC = "champion/validation_fitness"  # column of metrics.csv that a sweep maximizes


def to_text(value: Any) -> str:
    """Return a value as text for the command line."""
    return value if isinstance(value, str) else yaml_line(value)


def start(folder: Folder, args: Sequence[str], running: IO[str]) -> subprocess.Popen[bytes]:
    """Start or resume the fit of a trial; the process inherits the lock `running` and holds it if the sweep is killed.

    It has its own process group, so that Ctrl-C reaches it only through the sweep: a second signal would stop it in the
    middle of a generation.
    """
    with suppress(OSError):  # without symbolic links every trial prepares the prices again
        folder.link_folder("cache", Path("..", "..", "cache"))
    options = [f"--trainer.default_root_dir={folder}", "--ckpt_path=last", "--report=false"]
    with folder.open_log("output.txt") as output:
        with suppress(OSError):  # a full disk; the fit goes on
            os.write(output.fileno(), f"{ATTEMPT}\n".encode())
        return subprocess.Popen(
            [*PROGRAM, *args, *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
            pass_fds=[running.fileno()],
        )


def fitness(folder: Path) -> dict[int, float]:
    """Return the champion's validation fitness by finished generation."""
    try:
        text = (folder / "metrics.csv").read_text(errors="replace")
    except FileNotFoundError:
        return {}
    complete = text.rpartition("\n")[0]  # the last line may be half written
    rows = csv.DictReader(complete.splitlines())
    return {int(row["generation"]): float(row[METRIC]) for row in rows if row.get(METRIC)}


def last_line(folder: Path) -> str:
    """Return the last error line of what a trial printed in its last attempt, else its last line."""
    text = (folder / "output.txt").read_text(errors="replace").rpartition(f"{ATTEMPT}\n")[2]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or ["it printed nothing"])[-1][:400]
