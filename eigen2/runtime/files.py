"""Files that are whole or not there."""

import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PLACE = "name a file in a folder that exists and can be written"
"""What to do about a file that cannot be written."""


@contextmanager
def replacing(final: Path) -> Iterator[Path]:
    """A draft beside `final` to write, which takes its place once the block ends without an error, and else goes.

    Args:
        final: the file, replaced if it exists; of a link, what it names.

    Raises:
        OSError: it is a folder or a device, or cannot be written.
    """
    if final.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(final))
    if final.exists() and not final.is_file():  # a device or a pipe, in whose place a file would come
        raise OSError(errno.EINVAL, "It is no regular file", str(final))
    final = final.resolve()
    draft = final.with_name(f".{final.name}.draft")
    try:
        yield draft
        put(draft, final)
    finally:
        draft.unlink(missing_ok=True)


def put(draft: Path, final: Path) -> None:
    """Move a finished file into place, durably: a crash at any instant leaves the old file or the new one.

    Args:
        draft: written and closed, on the filesystem of `final`.
        final: replaced if it exists.
    """
    _sync(draft)
    os.replace(draft, final)
    _sync(final.parent)


def keep_another(summary: Path, now: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Move a test's folder away, to `test-1`, `test-2` and so on, unless it is the same test made again.

    Args:
        summary: JSON file that says what the test in its folder is of; one that is missing or damaged says nothing.
        now: what it is about to say.
        keys: of it, what tells one test from another.

    Raises:
        OSError: the folder cannot be moved.
    """
    try:
        before = json.loads(summary.read_text())
    except (OSError, ValueError):
        return
    folder = summary.parent
    if isinstance(before, dict) and any(before.get(key) != now[key] for key in keys):
        taken = [int(each.name.rpartition("-")[2]) for each in folder.parent.glob(f"{folder.name}-[0-9]*")]
        folder.rename(folder.with_name(f"{folder.name}-{max(taken, default=0) + 1}"))


def _sync(path: Path) -> None:
    """Wait until a file's content, or a folder's names, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
