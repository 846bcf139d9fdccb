"""Runs configurations one after another in a process with a limit of memory, and says of each how it ended."""

import os
import resource
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from lightning.pytorch import LightningModule

from eigen2.cli.main import main
from eigen2.dqn.module import DQNModule
from eigen2.erl.module import ERLModule

ROOM = 6 << 30
"""Bytes of address space that a configuration may take beside what the process has."""


class Enough(Exception):
    """The run got as far as it was asked to."""


left = 0
"""Generations that may still begin."""


def limit(module: type[LightningModule]) -> None:
    """End a run before the generation after the last that was asked for."""
    start = module.on_train_epoch_start

    def begin(self: Any) -> None:
        global left
        if left == 0:
            raise Enough
        left -= 1
        start(self)

    module.on_train_epoch_start = begin


def prepare() -> None:
    """Limit the process; make it run a few generations only."""
    limit(ERLModule)
    limit(DQNModule)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + ROOM, hard))


@contextmanager
def captured() -> Iterator[list[bytes]]:
    """What is written to standard output and error, by C libraries too."""
    said: list[bytes] = []
    kept = os.dup(1), os.dup(2)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        try:
            yield said
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, file in ((1, out), (2, err)):
                os.dup2(kept[number - 1], number)
                os.close(kept[number - 1])
                file.seek(0)
                said.append(file.read())


def run(words: list[str], generations: int) -> dict[str, Any]:
    """How a command ends: its exit code, what it said on standard error, and its traceback if it had one."""
    global left
    left = generations
    result: dict[str, Any] = {"code": 0, "traceback": None}
    with captured() as said:
        try:
            main(words)
        except Enough:
            pass
        except SystemExit as left:
            result["code"] = left.code
        except BaseException:
            result |= {"code": 1, "traceback": traceback.format_exc()}
    return {**result, "error": said[1].decode(errors="replace")}


def serve(folder: Path, cases: Connection) -> None:
    """Run case after case, arguments and a number of generations, each in an empty folder `run`; send its outcome."""
    prepare()
    os.chdir(folder)
    sys.argv = ["eigen2"]
    with suppress(EOFError):
        while True:
            words, generations = cases.recv()
            before = {*folder.rglob("*")}
            result = run(words, generations)
            made = (path.relative_to(folder) for path in folder.rglob("*") if path not in before)
            result["files"] = sorted(str(path) for path in made if path.parts[0] != "cache")
            for name in ("run", "earlier"):
                shutil.rmtree(folder / name, ignore_errors=True)
            cases.send(result)
