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
    """Yield a draft beside `final` that replaces it, or a link's target, at the end, and is deleted if the block fails.

    Raises OSError if it is a folder or a device, or cannot be written.
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
    """Yield a hidden folder beside `final`, empty, locked by this process until the block ends, and deleted then.

    Raises UserError if another process has locked it.
    """
    folder = final.parent / f".{final.name}.draft"
    folder.mkdir(exist_ok=True)
    if (held := lock(folder / "lock")) is None:
        raise UserError(f"another process is writing {str(final)!r}: wait for it, or name another file")
    with held:
        for left in folder.iterdir():
            if left.name != "lock":
                left.unlink()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def lock(path: Path, *, wait: bool = False) -> IO[str] | None:
    """Return an open file whose lock is held until it is closed, however this process ends; None if another has it."""
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
    return 1 + max((int(found[0]) for path in paths if (found := re.search(r"\d+$", path.name))), default=0)


def archive_other_test(summary: Path, now: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Rename a test's folder to `test-1`, `test-2` and so on, unless it is about to be repeated.

    It is another one if `now`, about to be written to `summary`, a JSON file in that folder, differs in one of `keys`
    from what is there. A missing or damaged file renames nothing. Raises OSError if the folder cannot be renamed.
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
    """Return the JSON schema of an object by the schemas of its keys; others are refused, or fit a schema as well."""
    properties = required | (optional or {})
    return {"type": "object", "required": [*required], "properties": properties, "additionalProperties": others}
