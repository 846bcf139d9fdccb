"""Every file that eigen2 writes, renames or deletes: atomic, and never outside the folder it belongs to.

After a crash a file is the old one or the new one, never half of it. Appended rows survive a crash of the process, but
perhaps not of the machine: the system decides when they reach the disk.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, BinaryIO

from eigen2.errors import UserError

WRITE_HINT = "name a file in a folder that exists and can be written"  # for error messages


@contextmanager
def writing(what: str, remedy: str = WRITE_HINT) -> Iterator[None]:
    """Turn an error of the disk into a UserError that says what cannot be written, why, and the remedy."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {what}: {error.strerror or error}; {remedy}") from error


class Folder:
    """A folder to write to. Nothing outside it is written, renamed or deleted, whatever names and links in it say.

    A link to a file is replaced or deleted itself, never followed. A folder in this one, `folder / name`, may be a link
    to another in this one. Methods that write raise OSError where the disk refuses, and UserError for a name that leads
    out of the folder.
    """

    def __init__(self, path: str | Path, root: Path | None = None) -> None:
        self.path = Path(path)
        self._root = self.path if root is None else root

    def __truediv__(self, name: str) -> "Folder":
        return Folder(self.path / name, self._root)

    def __str__(self) -> str:
        return str(self.path)

    def file(self, name: str) -> Path:
        """Return the path of a file in the folder, which need not exist."""
        path = self.path / name
        target = (path if path.name == ".." else path.parent).resolve()
        if not target.is_relative_to(self._root.resolve()):
            raise UserError(f"{path} would be written outside {self._root}, in {target}; remove the link")
        return path

    def unlinked(self, name: str) -> Path:
        """Return the path of a file that a library writes to, which would follow a link: raises UserError for one."""
        if (path := self.file(name)).is_symlink():
            raise UserError(f"{path} is a link to {path.readlink()}, which would be written to; remove the link")
        return path

    def make(self) -> Path:
        """Make the folder if it is missing, and return its path."""
        folder = self.file("any").parent
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @contextmanager
    def replacing(self, name: str) -> Iterator[Path]:
        """Yield a draft that replaces a file once it is complete and on the disk, and is deleted if the block fails."""
        self.make()
        with _draft(self.file(name)) as draft:
            yield draft

    def write(self, name: str, content: str | bytes) -> None:
        """Write a file, text as UTF-8."""
        with self.replacing(name) as draft:
            _fill(draft, content)

    def append(self, name: str) -> "AppendFile":
        """Open a file to append to it, made if it is missing."""
        self.make()
        return AppendFile(self.file(name))

    def open_log(self, name: str) -> BinaryIO:
        """Open a file for the output of another process, which is appended to what there is."""
        self.make()
        return os.fdopen(_open(self.file(name), os.O_APPEND), "ab")

    def delete(self, name: str) -> None:
        """Delete a file if it exists."""
        self.file(name).unlink(missing_ok=True)

    def delete_empty(self, name: str) -> None:
        """Delete a folder; raises OSError if it holds anything."""
        self.file(name).rmdir()

    def rename(self, name: str, new: str) -> None:
        """Rename a file or a folder; a file in its place is replaced."""
        os.replace(self.file(name), self.file(new))

    def copy(self, name: str, new: str) -> None:
        """Give a file another name too, by a hard link, or by a copy on filesystems without."""
        self.delete(new)
        try:
            os.link(self.file(name), self.file(new), follow_symlinks=False)
        except OSError:
            with self.replacing(new) as draft:
                shutil.copyfile(self.file(name), draft)

    def link_folder(self, name: str, target: Path) -> None:
        """Link a folder, relative to this one and made if it is missing, under a name that is not in use."""
        if not (link := self.file(name)).exists():
            self.make()
            (self.path / target).mkdir(exist_ok=True)
            link.symlink_to(target)

    @contextmanager
    def scratch(self) -> Iterator["Folder"]:
        """Yield an empty hidden folder in this one, deleted when the block ends."""
        with TemporaryDirectory(dir=self.make(), prefix=".draft-") as path:
            yield Folder(path)

    def lock(self, name: str, *, wait: bool = False) -> IO[str] | None:
        """Return a locked file, unlocked when it is closed or this process ends; None if another has locked it."""
        self.make()
        file = os.fdopen(_open(self.file(name), 0), "w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            file.close()
            return None
        return file


@contextmanager
def replacing(final: Path) -> Iterator[Path]:
    """Yield a draft of a file that a user has named; it replaces the file, or the target of a link.

    The draft is deleted if the block fails; of two processes that write one file, the last one's stays. Raises OSError
    if `final` is a folder or a device, or cannot be written.
    """
    with _draft(final.resolve(), f".{os.getpid()}") as draft:
        yield draft


def write(final: Path, content: str | bytes) -> None:
    """Write a file that a user has named, text as UTF-8, see `replacing`."""
    with replacing(final) as draft:
        _fill(draft, content)


def _fill(draft: Path, content: str | bytes) -> None:
    # surrogateescape carries bytes that are not UTF-8 through a rewrite unchanged
    draft.write_bytes(content if isinstance(content, bytes) else content.encode(errors="surrogateescape"))


@contextmanager
def _draft(final: Path, mark: str = "") -> Iterator[Path]:
    if final.exists() and not final.is_file():  # a rename would replace a device or a pipe by a file
        raise OSError(errno.EINVAL, "It is a folder" if final.is_dir() else "It is no regular file", str(final))
    draft = final.with_name(f".{final.name}{mark}.draft")
    draft.unlink(missing_ok=True)  # of a killed process, or a link
    try:
        yield draft
        move_into_place(draft, final)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def draft_folder(final: Path) -> Iterator[Folder]:
    """Yield an empty hidden folder next to `final`, locked by this process and deleted when the block ends.

    Raises UserError if another process has locked it.
    """
    folder = Folder(final.parent) / f".{final.name}.draft"
    if (locked := folder.lock("lock")) is None:
        raise UserError(f"another process is writing {str(final)!r}: wait for it, or name another file")
    with locked:
        for file in folder.path.iterdir():  # left by a killed process
            if file.is_dir() and not file.is_symlink():
                shutil.rmtree(file)
            elif file.name != "lock":
                file.unlink()
        try:
            yield folder
        finally:
            shutil.rmtree(folder.path, ignore_errors=True)


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


def _open(path: Path, flags: int) -> int:
    """Open a file to write to it, made if it is missing; raises OSError for a link, which could lead anywhere."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | flags, 0o666)


class AppendFile:
    """File to which data are appended completely or not at all; a failed append can be retried."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = _open(path, 0)
        self.size = os.fstat(self._handle).st_size  # bytes appended completely

    def append(self, data: bytes) -> None:
        """Write data through to the operating system; raises OSError if they are not in the file."""
        if self._handle is None:
            raise OSError(f"{self.path} is closed")
        os.ftruncate(self._handle, self.size)  # a failed append may have left a part that could not be removed
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(self._handle, data[written:], self.size + written)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._handle, self.size)
            raise
        self.size += len(data)

    def close(self) -> None:
        """Close the file if it is open."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def next_number(paths: Iterable[Path]) -> int:
    """Return 1 more than the largest number at the end of a name; 1 if there is none."""
    return 1 + max((int(match[0]) for path in paths if (match := re.search(r"\d+$", path.name))), default=0)


def archive_other_test(root: Folder, folder: str, summary: str, now: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Rename the folder of a different, earlier test in `root` to `test-1`, `test-2` and so on.

    The earlier test is different if its `summary`, a JSON file in the folder, differs in one of `keys` from `now`, its
    new content. A missing or damaged file renames nothing. Raises OSError if the folder cannot be renamed.
    """
    try:
        before = json.loads((root.path / folder / summary).read_text())
    except (OSError, ValueError):
        return
    if isinstance(before, dict) and any(before.get(key) != now[key] for key in keys):
        root.rename(folder, f"{folder}-{next_number(root.path.glob(f'{folder}-[0-9]*'))}")


def object_schema(
    required: dict[str, Any], optional: dict[str, Any] | None = None, others: Any = False
) -> dict[str, Any]:
    """Return the JSON schema of an object by the schemas of its keys, and of any `others`; False refuses these."""
    properties = required | (optional or {})
    return {"type": "object", "required": [*required], "properties": properties, "additionalProperties": others}
