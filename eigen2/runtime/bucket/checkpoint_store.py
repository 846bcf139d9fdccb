"""Checkpoints in a bucket: each object's name holds the checksum of its bytes, so that only whole ones count.

    <prefix>/run-001/000012-1f2e3d4c5b6a7988-last.ckpt         run, number, start of the SHA-256, name of the local file

An object store shows an object once all its bytes have arrived, and the client libraries send checksums along that the
store compares. Whatever happens to the bytes later is found when they are fetched.
"""

import hashlib
import math
import os
import re
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from eigen2.errors import UserError
from eigen2.runtime.bucket.object_store import Place, StoreError
from eigen2.runtime.files import move_into_place

PART = 8 * 2**20  # bytes of a file that are in memory at a time
_OBJECT = re.compile(r"run-(\d{3,})/(\d{6,})-([0-9a-f]{16})-([^/.][^/]*)(?<!\.json)")


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """A checkpoint in the bucket; the newest is the largest."""

    run: int  # counts the runs of this prefix that began at generation 0
    number: int  # counts the checkpoints of the run
    digest: str  # first 16 hexadecimal digits of the SHA-256 of its bytes
    name: str  # name of the local file

    @property
    def path(self) -> str:
        """Return the object's path under the prefix."""
        return f"run-{self.run:03}/{self.number:06}-{self.digest}-{self.name}"


def kind_of(name: str) -> str:
    """Return what a later file supersedes: the name, whatever the numbers in it."""
    return re.sub(r"\d+", "#", name)


def part_size(size: int) -> int:
    """Return bytes of a part of an object of `size` bytes; a multiple of 256 KiB, as Google demands."""
    most, unit = 10_000, 2**18  # S3 takes no more parts for one object
    return max(PART, math.ceil(size / most / unit) * unit)


class CheckpointStore:
    """Uploads and fetches checkpoints. Every method may raise what the filesystem raises.

    Args:
        connect: returns the fsspec filesystem; called at the first use, as it may need a network.
        place: where in it.
        keep: newest checkpoints of each kind (last, best) that stay in the bucket; None keeps all.
    """

    def __init__(self, connect: Callable[[], Any], place: Place, *, keep: int | None = None) -> None:
        self.place = place
        self.resumed = False  # whether this run goes on with the newest in the bucket, rather than begin the next
        self._connect = connect
        self._keep = keep
        self._run: int | None = None
        self._before = 0

    @cached_property
    def _fs(self) -> Any:
        return self._connect()

    def _full(self, path: str) -> str:
        return f"{self.place.bucket}/{self.place.prefix}/{path}"

    def entries(self) -> list[Entry]:
        """Return the checkpoints in the bucket, oldest first."""
        self._fs.invalidate_cache()
        root = self._full("")
        found = [_OBJECT.fullmatch(path.lstrip("/").removeprefix(root)) for path in self._fs.find(root.rstrip("/"))]
        return sorted(Entry(int(each[1]), int(each[2]), each[3], each[4]) for each in found if each)

    def upload(self, file: BinaryIO, name: str, order: int) -> None:
        """Copy an open file that nobody writes to; do nothing if the bucket has it already.

        It is fetched under `name`; `order` is 1 for the first checkpoint of this process, whenever it is uploaded.

        Raises:
            StoreError: the store holds fewer bytes.
        """
        file.seek(0)
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]  # type: ignore[arg-type]
        entries = self.entries()
        if self._run is None:
            newest = max((entry.run for entry in entries), default=0)
            self._run = newest if self.resumed and newest else newest + 1
            self._before = max((entry.number for entry in entries if entry.run == self._run), default=0)
        if any((each.run, each.digest, each.name) == (self._run, digest, name) for each in entries):
            return
        path = self._full(Entry(self._run, self._before + order, digest, name).path)
        options: dict[str, Any] = {"chunksize": part_size(size)} if self.place.provider in ("s3", "gs") else {}
        if self.place.provider == "s3":
            options["max_concurrency"] = 1  # parts that are in memory together
        # the open file, whatever its name leads to by now
        self._fs.put_file(f"/dev/fd/{file.fileno()}", path, **options)
        self._fs.invalidate_cache()
        if (there := self._fs.info(path)["size"]) != size:
            raise StoreError(f"the bucket has {there:,} of {size:,} bytes")

    def delete_old(self) -> None:
        """Delete this run's checkpoints beyond the newest few of each kind."""
        if self._keep is None:
            return
        seen: Counter[str] = Counter()
        for entry in reversed([entry for entry in self.entries() if entry.run == self._run]):
            kind = kind_of(entry.name)
            seen[kind] += 1
            if seen[kind] > self._keep:
                self._fs.rm_file(self._full(entry.path))

    def fetch_newest(self, folder: Path, warn: Callable[[str], object]) -> Path | None:
        """Download the newest whole checkpoint into `folder`, under the name it had; return None if there is none.

        `warn` gets a line for every newer checkpoint that is not whole.

        Raises:
            UserError: there are checkpoints, but none is whole.
        """
        entries = self.entries()
        for entry in reversed(entries):
            folder.mkdir(parents=True, exist_ok=True)
            for _ in range(2):  # bytes may also be lost on the way here
                try:
                    return self._fetch(entry, folder)
                except (StoreError, FileNotFoundError) as error:
                    reason = "it is gone" if isinstance(error, FileNotFoundError) else str(error)
            warn(f"cloud: {entry.path} is not whole ({reason}); taking the one before")
        if entries:
            raise UserError(
                f"none of {len(entries)} checkpoints in {self.place} is whole; leave out --ckpt_path to begin"
            )
        return None

    def _fetch(self, entry: Entry, folder: Path) -> Path:
        draft, digest = folder / f".{entry.name}.fetched.tmp", hashlib.sha256()
        remote = self._fs.open(self._full(entry.path), "rb", block_size=PART, cache_type="none")
        try:
            with closing(remote), draft.open("wb") as file:
                while block := remote.read(PART):
                    digest.update(block)
                    file.write(block)
            if digest.hexdigest()[:16] != entry.digest:
                raise StoreError("its bytes have another checksum than its name")
            move_into_place(draft, folder / entry.name)
        finally:
            draft.unlink(missing_ok=True)
        return folder / entry.name
