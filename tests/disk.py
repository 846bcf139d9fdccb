"""Let a process's calls to its disk fail: the n-th alone, or all from the n-th on."""

import errno
import os
import resource
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC


class Disk:
    """Counts the calls of this process that change `folder`, and lets one or more of them fail.

    Calls are those that open a file to write, rename, remove or truncate one or make a folder, which Python announces
    to audit hooks, and fsync. The count is in the file `counted` beside the folder.
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
        self.calls += 1
        os.pwrite(self.counted, str(self.calls).encode(), 0)
        if self.calls == self.fails or (self.lasting and self.calls > self.fails):
            raise OSError(self.error, os.strerror(self.error))


def count_file(folder: Path) -> Path:
    """Return the file with the number of calls."""
    return folder.with_name(f"{folder.name}-calls")


def failing(folder: Path, fails: int, lasting: bool = False, error: int = errno.ENOSPC) -> Callable[[], None]:
    """Return what makes a forked process fail so, for `Started(prepare=...)`."""
    return partial(_watch, folder, fails, lasting, error)


def _watch(folder: Path, fails: int, lasting: bool, error: int) -> None:
    Disk(folder, fails, lasting, error).watch()


def short_files(most: int) -> Callable[[], None]:
    """Return what lets no file of a forked process grow beyond `most` bytes: a write stops short there, then fails."""
    return partial(_limit, most)


def _limit(most: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
