"""Checkpoints in a bucket on S3 or Google Cloud Storage; no credential ever appears in a message or a log.

    <bucket>/<prefix>/run-001/000012-last.ckpt         run, number, name of the local file
    <bucket>/<prefix>/run-001/000012-last.ckpt.0       its parts, where several processes wrote it
    <bucket>/<prefix>/writer                           token of the process that may write here, the last that began

An object appears once all its bytes have arrived, and the client libraries compare checksums with the store. Later
damage is found on download, as every checkpoint carries its own checksum.
"""

import importlib
import io
import logging
import math
import os
import re
import secrets
import shutil
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from eigen2.errors import UserError, install_hint
from eigen2.files import Folder
from eigen2.runtime.checkpoint import LAST, PARTS, listed_parts
from eigen2.runtime.checksums import DamagedFile, verify_checksum

PART = 8 * 2**20  # bytes of a file that are in memory at a time
REQUEST_S = 60.0  # seconds that a request of one part may take
_OBJECT = re.compile(r"run-(\d{3,9})/(\d{6,9})-(last|best)\.ckpt")
_BAD_ANSWERS = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, AssertionError, RecursionError)
"""What the libraries raise for an answer about an object that they cannot read."""
_LIBRARIES = {"s3": "s3fs", "gs": "gcsfs"}
# loggers that write addresses and request headers, which contain tokens
_LEAKY_LOGGERS = ("aiobotocore", "boto3", "botocore", "fsspec", "gcsfs", "google", "s3fs", "urllib3")
_CREDENTIALS = "GOOGLE_APPLICATION_CREDENTIALS"


class Place(NamedTuple):
    """Where a run's checkpoints lie."""

    provider: str  # `s3` or `gs`
    bucket: str  # its bare name
    prefix: str  # the folder in the bucket

    def __str__(self) -> str:
        return f"{self.provider}://{self.bucket}/{self.prefix}"


def resolve(provider: str | None, bucket: str | None, prefix: str | None, root: Path) -> Place:
    """Return where checkpoints go, after a check that the library for it is installed; the network is not used.

    None takes CLOUD_PROVIDER, CLOUD_BUCKET and the name of the run's folder `root`. Raises UserError, which does not
    repeat the value, as someone may have set the bucket to an address with a key.
    """
    place = Place(
        provider or os.environ.get("CLOUD_PROVIDER") or "",
        bucket or os.environ.get("CLOUD_BUCKET") or "",
        root.resolve().name if prefix is None else prefix.strip("/"),
    )
    if place.provider not in _LIBRARIES:
        raise UserError("CheckpointUploader needs a provider: set its key provider, or CLOUD_PROVIDER, to s3 or gs")
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]", place.bucket):
        raise UserError("CheckpointUploader needs a bucket: set its key bucket, or CLOUD_BUCKET, to a bare name")
    if not re.fullmatch(r"[\w.=-]+(/[\w.=-]+)*", place.prefix) or {".", ".."} & set(place.prefix.split("/")):
        if prefix is None:
            raise UserError(f"the name of the run's folder {root} cannot be a prefix: set CheckpointUploader.prefix")
        raise UserError("CheckpointUploader.prefix must be letters, digits, . _ = - and / between folders, or null")
    if place.provider == "gs" and (file := os.environ.get(_CREDENTIALS)) and not os.access(file, os.R_OK):
        raise UserError(f"{_CREDENTIALS} does not name a file that can be read; correct or unset it")
    _library(place.provider)
    return place


def _library(provider: str) -> Any:
    name = _LIBRARIES[provider]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"CheckpointUploader needs {name} for {provider}: {install_hint('cloud')}") from error


def connect(place: Place) -> Any:
    """Return the fsspec filesystem of a place, with the credentials that the provider's own tools would use.

    Neither keys nor addresses are settings, so no configuration file holds them. The libraries' loggers are turned off:
    at the level DEBUG they write request headers.
    """
    for name in _LEAKY_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    shared = {"skip_instance_cache": True, "use_listings_cache": False}
    if place.provider == "s3":
        # the uploader tries again itself: the library's retries would multiply its attempts
        config = {"connect_timeout": REQUEST_S, "read_timeout": REQUEST_S, "retries": {"total_max_attempts": 1}}
        filesystem = _library("s3").S3FileSystem(config_kwargs=config, **shared)
        filesystem.retries = 2
        return filesystem
    # without an explicit method, gcsfs falls back to anonymous access if the credentials are bad
    token = "google_default" if os.environ.get(_CREDENTIALS) else None
    if token is None and os.environ.get("STORAGE_EMULATOR_HOST"):
        token = "anon"
    timeout = importlib.import_module("aiohttp").ClientTimeout(total=REQUEST_S)
    # gcsfs' outer class queries the type of bucket by gRPC, which some accounts may not do and emulators do not support
    return _library("gs").core.GCSFileSystem(token=token, requests_timeout=timeout, consistency="md5", **shared)


def describe_error(error: BaseException) -> str:
    """Describe an error of a store without its text, which may contain a key: an address, a header, a token."""
    reason = f", {os.strerror(error.errno)}" if isinstance(error, OSError) and error.errno else ""
    return f"{type(error).__name__}{reason}"


class Entry(NamedTuple):
    """A checkpoint in the bucket; the newest is the largest."""

    run: int  # counts the runs of this prefix that began at generation 0
    number: int  # counts the checkpoints of the run
    name: str  # name of the local file
    path: str  # path of the object


class CheckpointFile(io.FileIO):
    """A checkpoint file opened to be read, with its parts; it stays whole if its names are replaced or deleted."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.parts: list[BinaryIO] = []
        try:
            for part in listed_parts(path):
                self.parts.append(part.open("rb"))
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file and its parts."""
        for part in self.parts:
            part.close()
        super().close()


class CheckpointStore:
    """Uploads and downloads checkpoints. Every method may raise what the filesystem raises.

    `connect`, called on first use, returns the fsspec filesystem. A run keeps the `keep` newest `last.ckpt` and as many
    `best.ckpt` in the bucket; None keeps all. A `resumed` run continues the newest run there. The store that uploads
    first takes the place over from all others, which upload and delete nothing more.
    """

    def __init__(
        self, connect: Callable[[], Any], place: Place, *, keep: int | None = None, resumed: bool = False
    ) -> None:
        self.place, self._connect, self._keep, self._resumed = place, connect, keep, resumed
        self._run = 0  # 0 before the first upload
        self._token = secrets.token_hex(16).encode()

    @cached_property
    def _fs(self) -> Any:
        return self._connect()

    def entries(self) -> list[Entry]:
        """Return the checkpoints in the bucket, oldest first."""
        root = f"{self.place.bucket}/{self.place.prefix}"
        paths = [path.lstrip("/") for path in self._fs.find(root)]
        matches = [(path, _OBJECT.fullmatch(path.removeprefix(f"{root}/"))) for path in paths]
        return sorted(Entry(int(match[1]), int(match[2]), f"{match[3]}.ckpt", path) for path, match in matches if match)

    def upload(self, file: BinaryIO, name: str) -> str | None:
        """Upload an open file that nobody writes to as the run's next checkpoint, and delete those beyond `keep`.

        Returns a warning if only the deletion failed. Raises UserError once another store has taken the place over.
        """
        writer = f"{self.place.bucket}/{self.place.prefix}/writer"
        if self._run and self._fs.cat_file(writer) != self._token:
            raise UserError(f"another run has begun to write to {self.place}; give each a prefix of its own")
        entries = self.entries()
        if not self._run:
            self._fs.pipe_file(writer, self._token)
            newest = max((entry.run for entry in entries), default=0)
            self._run = newest if self._resumed and newest else newest + 1
        number = 1 + max((entry.number for entry in entries if entry.run == self._run), default=0)
        path = f"{self.place.bucket}/{self.place.prefix}/run-{self._run:03}/{number:06}-{name}"
        # open files, as their names may refer to newer ones by now; the one that lists the parts comes last
        for part_number, part in enumerate(file.parts if isinstance(file, CheckpointFile) else ()):
            self._put(part, f"{path}.{part_number}")
        self._put(file, path)
        try:
            if self._keep:
                found = [entry for entry in self.entries() if (entry.run, entry.name) == (self._run, name)]
                for old in found[: -self._keep]:
                    for part_path in self._fs.glob(f"{old.path}.*"):  # first: if one stays, the next upload tries again
                        self._fs.rm_file(part_path)
                    self._fs.rm_file(old.path)
        except Exception as error:  # of any of the libraries; the checkpoint itself is uploaded
            return f"older checkpoints cannot be deleted ({describe_error(error)})"
        return None

    def _put(self, file: BinaryIO, path: str) -> None:
        options = {}
        file.seek(0)  # /dev/fd of macOS has the offset of the file, which a failed attempt has moved
        if self.place.provider in _LIBRARIES:
            # S3 accepts 10,000 parts per object, Google only parts of a multiple of 256 KiB
            size = os.fstat(file.fileno()).st_size
            options["chunksize"] = max(PART, math.ceil(size / 10_000 / 2**18) * 2**18)
        if self.place.provider == "s3":
            options["max_concurrency"] = 1  # parts in memory at a time
        self._fs.put_file(f"/dev/fd/{file.fileno()}", path, **options)

    def _get(self, path: str, draft: Path) -> None:
        remote = self._fs.open(path, "rb", block_size=PART, cache_type="none")
        with remote, draft.open("wb") as file:
            shutil.copyfileobj(remote, file, PART)

    def fetch_newest(self, folder: Path, warn: Callable[[str], object]) -> Path | None:
        """Download the newest intact `last.ckpt` into `folder`; return None if the bucket has no `last.ckpt`.

        `warn` gets a line for every newer one that is damaged; raises UserError if all are.
        """
        own = Folder(folder.parent) / folder.name  # a linked folder is refused
        entries = [entry for entry in self.entries() if entry.name == LAST]
        for entry in reversed(entries):
            try:
                with own.replacing(LAST) as draft:
                    self._get(entry.path, draft)
                    verify_checksum(draft)
                    for number, part in enumerate(listed_parts(draft)):
                        with (own / PARTS).replacing(part.name) as part_draft:
                            self._get(f"{entry.path}.{number}", part_draft)
                            verify_checksum(part_draft, part.stem)
                return folder / LAST
            except UserError:
                raise
            except (DamagedFile, FileNotFoundError, *_BAD_ANSWERS) as error:
                reason = str(error) if isinstance(error, DamagedFile) else describe_error(error)
                if isinstance(error, FileNotFoundError):
                    reason = "it was deleted"
                warn(f"cloud: {entry.path} is damaged ({reason}); trying the one before")
        if entries:
            raise UserError(f"all {len(entries)} checkpoints in {self.place} are damaged; leave out --ckpt_path")
        return None
