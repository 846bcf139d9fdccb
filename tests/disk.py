"""Let a process's calls to its disk fail: the n-th alone, or all from the n-th on."""

import errno
import fcntl
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from tests.command import Started

CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC


class Disk:
    """Counts the calls of this process that change `folder`, and lets one or more of them fail.

    Calls are those that open a file to write, rename, remove or truncate one or make a folder, which Python announces
    to audit hooks, fsync, and the transactions of databases, which write without Python: while one is to fail, no file
    may grow. The count is in the file `counted` beside the folder.
    """

    def __init__(self, folder: Path, fails: int, lasting: bool, error: int) -> None:
        self.folder, self.fails, self.lasting, self.error = os.path.realpath(folder), fails, lasting, error
        self.counted = os.open(count_file(folder), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self.calls = 0
        self.sync = os.fsync

    def watch(self) -> None:
        """Begin; there is no end but that of the process."""
        sys.addaudithook(self._hook)
        os.fsync = self._fsync

    def watch_databases(self) -> None:
        """Count SQLAlchemy's transactions too."""
        from sqlalchemy import Engine, event  # comes with the extra `sweep`

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        event.listen(Engine, "commit", lambda connection: self._transaction())
        # SQLite commits by itself what makes a table
        event.listen(Engine, "before_cursor_execute", lambda *args: "CREATE" in args[2] and self._transaction())

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        changes = event in CHANGES or (event == "open" and bool(args[2] & WRITES))
        if changes and isinstance(args[0], str | bytes | os.PathLike):
            path = os.path.abspath(os.fsdecode(args[0]))
            if path == self.folder or path.startswith(f"{self.folder}/"):
                self._call()

    def _fsync(self, handle: int) -> None:
        self._call()
        self.sync(handle)

    def _call(self) -> None:
        if self._fails():
            raise OSError(self.error, os.strerror(self.error))

    def _transaction(self) -> None:
        if self._fails():
            _limit(0)

    def _fails(self) -> bool:
        """Count a call; return whether it is to fail."""
        _limit(resource.RLIM_INFINITY)
        self.calls += 1
        os.pwrite(self.counted, str(self.calls).encode(), 0)
        return self.calls == self.fails or (self.lasting and self.calls > self.fails)


def not_synced(handle: int) -> None:
    """Do what `os.fsync` does for tests, none of which cuts the power: nothing; it would take a third of a fit."""


def count_file(folder: Path) -> Path:
    """Return the file with the number of calls."""
    return folder.with_name(f"{folder.name}-calls")


def failing(
    folder: Path, fails: int, lasting: bool = False, error: int = errno.ENOSPC, databases: bool = False
) -> Callable[[], None]:
    """Return what makes a forked process fail so, for `Started(prepare=...)`."""
    return partial(_watch, folder, fails, lasting, error, databases)


def _watch(folder: Path, fails: int, lasting: bool, error: int, databases: bool) -> None:
    disk = Disk(folder, fails, lasting, error)
    disk.watch()
    if databases:
        disk.watch_databases()


def short_files(most: int) -> Callable[[], None]:
    """Return what lets no file of a forked process grow beyond `most` bytes: a write stops short there, then fails."""
    return partial(_shorten, most)


def _shorten(most: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _limit(most)


def _limit(most: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


def ended(words: Sequence[object], prepare: Callable[[], None]) -> CompletedProcess[str]:
    """Run a command whose output goes through pipes, which hold it whatever the disk does."""
    with tempfile.TemporaryDirectory() as folder:
        pipes = [os.path.join(folder, name) for name in ("out", "err")]
        for pipe in pipes:
            os.mkfifo(pipe)
        ends = [os.open(pipe, os.O_RDONLY | os.O_NONBLOCK) for pipe in pipes]
        try:
            for end in ends:
                fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, 2**20)
            done = Started(words, outputs=pipes, prepare=prepare).ended(300)
            out, err = (os.read(end, 2**20).decode() for end in ends)
        finally:
            for end in ends:
                os.close(end)
    return CompletedProcess(done.args, done.returncode, out, err)
