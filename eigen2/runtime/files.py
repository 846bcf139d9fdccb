"""Atomic, durable file writes: after a crash a file is the old one or the new one, never half of it."""

import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from eigen2.errors import UserError

WRITE_HINT = "name a file in a folder that exists and can be written"  # for error messages


@contextmanager
def replacing(final: Path) -> Iterator[Path]:
    """Yield a draft next to `final` that replaces it, or the target of a link, and is deleted if the block fails.

    Raises OSError if `final` is a folder or a device, or cannot be written.
    """
    if final.exists() and not final.is_file():  # a rename would replace a device or a pipe by a file
        raise OSError(errno.EINVAL, "It is a folder" if final.is_dir() else "It is no regular file", str(final))
    final = final.resolve()
    draft = final.with_name(f".{final.name}.draft")
    try:
        yield draft
        move_into_place(draft, final)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def draft_folder(final: Path) -> Iterator[Path]:
    """Yield an empty hidden folder next to `final`, locked by this process and deleted when the block ends.

    Raises UserError if another process has locked it.
    """
    folder = final.parent / f".{final.name}.draft"
    folder.mkdir(exist_ok=True)
    if (locked := lock(folder / "lock")) is None:
        raise UserError(f"another process is writing {str(final)!r}: wait for it, or name another file")
    with locked:
        for file in folder.iterdir():  # left by a killed process
            if file.name != "lock":
                file.unlink()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def lock(path: Path, *, wait: bool = False) -> IO[str] | None:
    """Return a locked file, unlocked when it is closed or this process ends; None if another process has locked it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        file.close()
        return None
    return file


def move_into_place(draft: Path, final: Path) -> None:
    """Rename a closed draft to `final`, on the same filesystem, and sync file and folder to disk."""
    _sync(draft)
    os.replace(draft, final)
    _sync(final.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def next_number(paths: Iterable[Path]) -> int:
    """Return 1 more than the largest number at the end of a name; 1 if there is none."""
    return 1 + max((int(match[0]) for path in paths if (match := re.search(r"\d+$", path.name))), default=0)


def archive_other_test(summary: Path, now: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Rename the folder of a different, earlier test to `test-1`, `test-2` and so on.

    The earlier test is different if its `summary`, a JSON file in the folder, differs in one of `keys` from `now`, its
    new content. A missing or damaged file renames nothing. Raises OSError if the folder cannot be renamed.
    """
    try:
        before = json.loads(summary.read_text())
    except (OSError, ValueError):
        return
    folder = summary.parent
    if isinstance(before, dict) and any(before.get(key) != now[key] for key in keys):
        number = next_number(folder.parent.glob(f"{folder.name}-[0-9]*"))
        folder.rename(folder.with_name(f"{folder.name}-{number}"))


def object_schema(
    required: dict[str, Any], optional: dict[str, Any] | None = None, others: Any = False
) -> dict[str, Any]:
    """Return the JSON schema of an object by the schemas of its keys, and of any `others`; False refuses these."""
    properties = required | (optional or {})
    return {"type": "object", "required": [*required], "properties": properties, "additionalProperties": others}
