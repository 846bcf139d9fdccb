"""Commands in processes of their own, forked from one that has imported torch, Lightning and eigen2 already.

A process begins in milliseconds; one that imports all that takes five seconds of a processor. Where the memory of a
process, its environment at the start or the interpreter itself is what matters, tests start a real one.
"""

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess

ROOT = Path(__file__).parent.parent
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["tests.ready"])


def eigen2(*words: object, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> CompletedProcess[str]:
    """`python -m eigen2.cli` with these words.

    Args:
        words: of the command line.
        cwd: folder it runs in.
        env: all of its environment, of which only what is read after imports counts; None is that of this process.
    """
    line = [str(word) for word in words]
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        process = _server.Process(target=_command, args=(line, str(cwd), dict(env or os.environ), str(out), str(err)))
        process.start()
        process.join()
        code = process.exitcode
        assert code is not None
        return CompletedProcess(line, code, out.read_text(), err.read_text())


def _command(line: list[str], cwd: str, env: dict[str, str], *said: str) -> None:
    for number, path in enumerate(said, 1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    # what was there before belongs to the server
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", 1, closefd=False)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None  # of the environment that was
    os.chdir(cwd)
    sys.path.insert(0, cwd)  # as python -m does
    sys.argv = ["eigen2/cli.py", *line]
    from eigen2.cli import main

    main()
