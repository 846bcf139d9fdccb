"""Run commands of eigen2 in processes forked from a server that has already imported torch, Lightning and eigen2.

A fork takes milliseconds, the imports five seconds. Tests of a whole run's memory, of its first environment or of the
interpreter start a real one.
"""

import multiprocessing
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

ROOT = Path(__file__).parent.parent
server = multiprocessing.get_context("forkserver")
server.set_forkserver_preload(["tests.ready"])


def in_fork(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function of a module in a fork of the server, and return its result or raise its error.

    Tests that judge the memory of their process run so: thousands of tests before them leave free pages in the C heap
    and in the pools of libraries, in which a leak hides until they are full.
    """
    with ProcessPoolExecutor(1, server) as pool:
        return pool.submit(function, *args, **kwargs).result()


def eigen2(*words: object, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> CompletedProcess[str]:
    """Run `python -m eigen2.cli` with these arguments and wait for its end.

    Args:
        words: arguments of the command line.
        cwd: working directory.
        env: whole environment, of which only what is read after imports counts; None takes that of this process.
    """
    return Started(words, cwd, env).ended()


def free_port() -> int:
    """Return a port of this machine that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def wait_until(condition: Callable[[], object], seconds: float = 120) -> None:
    """Wait for what another process or thread does."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.01)


class Started:
    """A command that runs in the background.

    Arguments are those of `eigen2`, files for its output and errors, and a function to call before it.
    """

    def __init__(
        self,
        words: Sequence[object],
        cwd: Path = ROOT,
        env: Mapping[str, str] | None = None,
        outputs: Sequence[str] = (),
        prepare: Callable[[], None] | None = None,
    ) -> None:
        self._line = [str(word) for word in words]
        self._folder = tempfile.TemporaryDirectory()
        self._outputs = [Path(self._folder.name) / name for name in ("out", "err")]
        args = (self._line, str(cwd), dict(env or os.environ), prepare, *(outputs or map(str, self._outputs)))
        self.process = server.Process(target=_command, args=args)
        self.process.start()

    def ended(self, timeout_s: float | None = None) -> CompletedProcess[str]:
        """Wait for the end, kill the process after the timeout, and return exit code and output."""
        self.process.join(timeout_s)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        code = self.process.exitcode
        assert code is not None
        out, err = (path.read_text() if path.exists() else "" for path in self._outputs)
        self._folder.cleanup()
        return CompletedProcess(self._line, code, out, err)


def together(world: int, *words: object, **variables: str) -> list[Started]:
    """Start the processes of one run as torchrun does on one machine.

    Args:
        world: number of processes.
        words: arguments of each one's command line.
        variables: environment variables besides those of this process.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    shared |= {"TORCHELASTIC_RUN_ID": "test", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", **variables}
    return [
        Started(words, env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(world)
    ]


def _command(line: list[str], cwd: str, env: dict[str, str], prepare: Callable[[], None] | None, *outputs: str) -> None:
    for number, path in enumerate(outputs, 1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    # the streams before belong to the server
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", 1, closefd=False)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None  # the server's
    os.chdir(cwd)
    sys.path.insert(0, cwd)  # as python -m does
    sys.argv = ["eigen2/cli.py", *line]
    from eigen2.cli.main import main

    if prepare is not None:
        prepare()
    main()
