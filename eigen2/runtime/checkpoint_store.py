"""Checkpoints in a bucket: whole ones alone count, and no credential ever appears in what is said about it.

An object store has no rename, so a checkpoint is put under a name that nothing else ever gets, compared with the local
file, and only then vouched for by a manifest, a small object beside it. One without a manifest was never finished:

    <prefix>/run-001/000012-1f2e3d4c5b6a7988-last.ckpt         the bytes; number and start of their SHA-256 in the name
    <prefix>/run-001/000012-1f2e3d4c5b6a7988-last.ckpt.json    the manifest: name, size, SHA-256
"""

import base64
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from fsspec.callbacks import Callback as Progress

from eigen2.errors import UserError
from eigen2.runtime.files import move_into_place
from eigen2.runtime.object_store import Cancelled, Place, StoreError

BLOCK = 8 * 2**20
"""Bytes of a file that are in memory at a time."""
_PARTS = 10_000
"""S3 takes no more for one object."""
_OBJECT = re.compile(r"run-(\d{3,})/(\d{6,})-([0-9a-f]{16})-([^/.][^/]*)")


@dataclass(frozen=True, slots=True)
class Checksums:
    """What a file holds, in the terms of this module and of the stores."""

    size: int
    """Bytes."""
    sha256: str
    """In hexadecimal."""
    md5: str
    """In hexadecimal; what Google reports, and S3 of an object that was put in one request."""
    etag: str
    """What S3 reports of an object that was put in parts of `part_size`."""

    @classmethod
    def of(cls, file: BinaryIO) -> "Checksums":
        """Read a whole file once, a block at a time."""
        size = os.fstat(file.fileno()).st_size
        whole, sha, parts = hashlib.md5(usedforsecurity=False), hashlib.sha256(), []
        file.seek(0)
        while block := file.read(part_size(size)):
            whole.update(block)
            sha.update(block)
            parts.append(hashlib.md5(block, usedforsecurity=False).digest())
        combined = hashlib.md5(b"".join(parts), usedforsecurity=False).hexdigest()
        return cls(size, sha.hexdigest(), whole.hexdigest(), f"{combined}-{len(parts)}")

    def proven_by(self, info: Mapping[str, Any]) -> bool:
        """Whether what the store reports of an object can only be said of these bytes.

        S3 reports no checksum of an object that is encrypted with a key of the user's: False proves nothing.
        """
        etag = str(info.get("ETag", "")).strip('"')
        google = info.get("md5Hash")
        return etag in (self.md5, self.etag) or google == _base64(self.md5)


def _base64(digest: str) -> str:
    return base64.b64encode(bytes.fromhex(digest)).decode()


def part_size(size: int) -> int:
    """Bytes of a part of an object, so that there are not too many; a multiple of 256 KiB, as Google demands."""
    unit = 2**18
    return max(BLOCK, math.ceil(size / _PARTS / unit) * unit)


class _Cancel(Progress):  # type: ignore[misc]
    """Ends an upload between two parts; the store drops the parts it has."""

    def __init__(self, cancelled: Callable[[], bool]) -> None:
        super().__init__()
        self._cancelled = cancelled

    def call(self, hook_name: str | None = None, **kwargs: Any) -> None:
        """After each part."""
        if self._cancelled():
            raise Cancelled("the upload was cancelled")


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """A checkpoint in the bucket; the newest is the largest."""

    run: int
    """Counts the runs of this prefix that began at generation 0."""
    number: int
    """Counts the checkpoints of the run."""
    digest: str
    """The first 16 digits of its SHA-256."""
    name: str
    """Of the local file."""

    @property
    def path(self) -> str:
        """The object's path under the prefix."""
        return f"run-{self.run:03}/{self.number:06}-{self.digest}-{self.name}"


def kind_of(name: str) -> str:
    """What a later file supersedes: the name, whatever the numbers in it."""
    return re.sub(r"\d+", "#", name)


class CheckpointStore:
    """Uploads and fetches whole checkpoints. Every method may raise what the filesystem raises.

    Args:
        connect: makes the fsspec filesystem, at the first use: that may take a network.
        place: where in it.
        keep: newest checkpoints of each kind (last, best) that stay in the bucket; None keeps all.
    """

    def __init__(self, connect: Callable[[], Any], place: Place, *, keep: int | None = None) -> None:
        self.place = place
        self._connect = connect
        self._keep = keep
        self._filesystem: Any = None
        self._run: int | None = None
        self._before = 0
        self.resumed = False
        """Whether this run goes on with the newest in the bucket, rather than begin the next."""

    @property
    def _fs(self) -> Any:
        if self._filesystem is None:
            self._filesystem = self._connect()
        return self._filesystem

    def _full(self, path: str) -> str:
        return f"{self.place.bucket}/{self.place.prefix}/{path}"

    def _list(self) -> tuple[list[Entry], list[Entry]]:
        """What has a manifest, and what has none; ascending."""
        self._fs.invalidate_cache()
        root = self._full("")
        paths = {path.lstrip("/").removeprefix(root) for path in self._fs.find(root.rstrip("/"))}
        entries = [_entry(path) for path in paths if not path.endswith(".json")]
        objects = sorted(entry for entry in entries if entry is not None)
        whole = [entry for entry in objects if f"{entry.path}.json" in paths]
        return whole, [entry for entry in objects if f"{entry.path}.json" not in paths]

    def upload(self, file: BinaryIO, name: str, order: int, cancelled: Callable[[], bool] = lambda: False) -> None:
        """Copy a file that nobody writes to, compare, and vouch for it; nothing if the bucket has it already.

        Args:
            file: open for reading; its name may be gone or another file's by now.
            name: under which it is fetched.
            order: 1 for the first checkpoint of this process, and so on; uploads may come in another order.
            cancelled: asked after each part; whether to give up.

        Raises:
            StoreError: the store holds other bytes.
        """
        sums = Checksums.of(file)
        whole, torn = self._list()
        if self._run is None:
            newest = max((entry.run for entry in whole), default=0)
            self._run = newest if self.resumed and newest else newest + 1
            self._before = max((one.number for one in whole + torn if one.run == self._run), default=0)
        entry = Entry(self._run, self._before + order, sums.sha256[:16], name)
        if any((one.run, one.name, one.digest) == (entry.run, entry.name, entry.digest) for one in whole):
            return
        path = self._full(entry.path)
        options: dict[str, Any] = {"callback": _Cancel(cancelled)}
        if self.place.provider in ("s3", "gs"):
            options["chunksize"] = part_size(sums.size)
        if self.place.provider == "s3":
            options["max_concurrency"] = 1  # parts that are in memory together
        # the open file, whatever its name leads to by now
        self._fs.put_file(f"/dev/fd/{file.fileno()}", path, **options)
        self._compare(path, sums)
        manifest = {"name": name, "size": sums.size, "sha256": sums.sha256}
        self._fs.pipe_file(f"{path}.json", json.dumps(manifest).encode())

    def _compare(self, path: str, sums: Checksums) -> None:
        """See that the store has these bytes: by its own checksum, where that says nothing by reading them back."""
        self._fs.invalidate_cache()
        info = self._fs.info(path)
        if info["size"] != sums.size:
            raise StoreError(f"the bucket has {info['size']:,} of {sums.size:,} bytes")
        if not sums.proven_by(info) and _digest(self._blocks(path)) != sums.sha256:
            raise StoreError("the bucket has other bytes than the file")

    def _blocks(self, path: str) -> Iterator[bytes]:
        with closing(self._fs.open(path, "rb", block_size=BLOCK, cache_type="none")) as remote:
            while block := remote.read(BLOCK):
                yield block

    def tidy(self) -> None:
        """Delete this run's checkpoints beyond the newest few of each kind, and what was never finished."""
        if self._keep is None or self._run is None:
            return
        whole, torn = self._list()
        seen: dict[str, int] = {}
        for entry in reversed([entry for entry in whole if entry.run == self._run]):
            kind = kind_of(entry.name)
            seen[kind] = seen.get(kind, 0) + 1
            if seen[kind] > self._keep:
                # the manifest first: at no moment does it vouch for what is gone
                self._fs.rm_file(self._full(f"{entry.path}.json"))
                self._fs.rm_file(self._full(entry.path))
        for entry in torn:
            if entry.run == self._run:
                self._fs.rm_file(self._full(entry.path))

    def fetch_newest(self, folder: Path, say: Callable[[str], None]) -> Path | None:
        """Download the newest whole checkpoint; of one that is not, say so and take the one before.

        Args:
            folder: gets the file under the name it had.
            say: told of every checkpoint that is not whole.

        Returns:
            The file; None if there is no checkpoint at all.

        Raises:
            UserError: there are checkpoints, but none is whole.
        """
        whole, _ = self._list()
        for entry in reversed(whole):
            folder.mkdir(parents=True, exist_ok=True)
            for _ in range(2):  # bytes may also be lost on the way here
                try:
                    return self._fetch(entry, folder)
                except (StoreError, FileNotFoundError) as error:
                    reason = "it is gone" if isinstance(error, FileNotFoundError) else str(error)
            say(f"cloud: {entry.path} is not whole ({reason}); taking the one before")
        if whole:
            raise UserError(
                f"none of {len(whole)} checkpoints in {self.place} is whole; leave out --ckpt_path to begin"
            )
        return None

    def _fetch(self, entry: Entry, folder: Path) -> Path:
        path = self._full(entry.path)
        manifest = _manifest(self._fs.cat_file(f"{path}.json"))
        draft = folder / f".{entry.name}.fetched.tmp"
        try:
            with draft.open("wb") as file:
                digest = _digest(_written(self._blocks(path), file))
            if (draft.stat().st_size, digest) != (manifest["size"], manifest["sha256"]):
                raise StoreError("its bytes are not those its manifest tells of")
            move_into_place(draft, folder / entry.name)
        finally:
            draft.unlink(missing_ok=True)
        return folder / entry.name


def _entry(path: str) -> Entry | None:
    """Read an object's path under the prefix; None for one that is not a checkpoint's."""
    found = _OBJECT.fullmatch(path)
    return Entry(int(found[1]), int(found[2]), found[3], found[4]) if found else None


def _manifest(text: bytes) -> dict[str, Any]:
    try:
        manifest = json.loads(text)
        return {"size": int(manifest["size"]), "sha256": str(manifest["sha256"])}
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError("its manifest cannot be read") from error


def _digest(blocks: Iterable[bytes]) -> str:
    sha = hashlib.sha256()
    for block in blocks:
        sha.update(block)
    return sha.hexdigest()


def _written(blocks: Iterable[bytes], file: BinaryIO) -> Iterator[bytes]:
    for block in blocks:
        file.write(block)
        yield block
