"""Where checkpoints go outside the machine; no credential ever appears in what is said about it."""

import importlib
import logging
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from eigen2.errors import UserError

_PROVIDERS = {"s3": "s3", "aws": "s3", "gs": "gs", "gcs": "gs", "gcp": "gs"}
_LIBRARIES = {"s3": "s3fs", "gs": "gcsfs"}
_TALKATIVE = ("aiobotocore", "boto3", "botocore", "fsspec", "gcsfs", "google", "s3fs", "urllib3")
"""Loggers that write addresses, request headers and with them tokens."""
_CREDENTIALS = "GOOGLE_APPLICATION_CREDENTIALS"
_Result = TypeVar("_Result")


class StoreError(Exception):
    """The bucket holds other bytes than it was given, or could not be reached; the text is safe to print."""


class Cancelled(StoreError):
    """An upload was told to stop."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run's checkpoints lie."""

    provider: str
    """`s3` or `gs`."""
    bucket: str
    """Its bare name."""
    prefix: str
    """The folder in the bucket."""

    def __str__(self) -> str:
        return f"{self.provider}://{self.bucket}/{self.prefix}"


def resolve(provider: str | None, bucket: str | None, prefix: str | None, root: Path) -> Place:
    """Find out where checkpoints go, and that the library for it is there; nothing is asked of the network.

    Args:
        provider: `s3` or `gs`; None takes CLOUD_PROVIDER.
        bucket: its name; None takes CLOUD_BUCKET.
        prefix: folder in the bucket; None takes the name of the run's folder.
        root: the run's folder.

    Raises:
        UserError: something is missing or malformed. Values are not repeated: a bucket may be an address with a key.
    """
    given = provider or os.environ.get("CLOUD_PROVIDER") or ""
    kind = _PROVIDERS.get(given.lower())
    if kind is None:
        raise UserError("CheckpointUploader needs a provider: set its key provider, or CLOUD_PROVIDER, to s3 or gs")
    name = bucket or os.environ.get("CLOUD_BUCKET") or ""
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]", name):
        raise UserError(
            "CheckpointUploader needs a bucket: set its key bucket, or CLOUD_BUCKET, to a bare name such as my-runs"
        )
    folder = root.resolve().name if prefix is None else prefix.strip("/")
    if not re.fullmatch(r"[\w.=-]+(/[\w.=-]+)*", folder) or {".", ".."} & set(folder.split("/")):
        raise UserError(
            "CheckpointUploader.prefix must be letters, digits, . _ = - and / between folders; null takes the name of "
            "the run's folder"
        )
    if kind == "gs" and (file := os.environ.get(_CREDENTIALS)) and not os.access(file, os.R_OK):
        raise UserError(f"{_CREDENTIALS} does not name a file that can be read; correct or unset it")
    _library(kind)
    return Place(kind, name, folder)


def _library(provider: str) -> Any:
    name = _LIBRARIES[provider]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"CheckpointUploader needs {name} for provider {provider}: pip install 'eigen2[cloud]'"
        ) from error


def connect(place: Place, timeout_s: float) -> Any:
    """Make the fsspec filesystem of a place, with the credentials that the provider's own tools would use.

    Neither keys nor addresses are settings, so no configuration file holds them. The libraries' loggers are turned off:
    at the level DEBUG they write request headers.

    Args:
        place: provider and bucket.
        timeout_s: seconds that a request of one block may take.
    """
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    if place.provider == "s3":
        # retries are the uploader's: the libraries' own would multiply them
        config = {"connect_timeout": timeout_s, "read_timeout": timeout_s, "retries": {"total_max_attempts": 1}}
        filesystem = _library("s3").S3FileSystem(
            skip_instance_cache=True, use_listings_cache=False, config_kwargs=config
        )
        filesystem.retries = 2
        return filesystem
    # without a method named, gcsfs turns to anonymous access where the credentials are bad
    token = "google_default" if os.environ.get(_CREDENTIALS) else None
    if token is None and os.environ.get("STORAGE_EMULATOR_HOST"):
        token = "anon"
    timeout = importlib.import_module("aiohttp").ClientTimeout(total=timeout_s)
    # gcsfs' outer class asks for the kind of bucket by gRPC, which not every account may and no emulator answers
    return _library("gs").core.GCSFileSystem(
        token=token, requests_timeout=timeout, skip_instance_cache=True, use_listings_cache=False
    )


def describe(error: BaseException) -> str:
    """Name an error of a store without its text, which may hold a key: an address, a header, a token.

    Args:
        error: whatever a library raised.
    """
    if isinstance(error, StoreError):
        return str(error)
    each: BaseException | None = error
    while each is not None:
        if code := _code(each):
            return f"{type(error).__name__}, {code}"
        each = each.__cause__ or each.__context__
    return type(error).__name__


def _code(error: BaseException) -> str | None:
    """What a service or the system calls an error, if it is a word or a number."""
    response = getattr(error, "response", None)
    named = response.get("Error", {}).get("Code") if isinstance(response, dict) else None
    for code in (named, getattr(error, "code", None), getattr(error, "status", None)):
        if isinstance(code, int | str) and re.fullmatch(r"\d{3}|[A-Z][A-Za-z]{2,39}", str(code)):
            return str(code)
    number = getattr(error, "errno", None)
    return os.strerror(number) if isinstance(number, int) else None


def persist(
    action: Callable[[], _Result], *, attempts: int, backoff_s: float, sleep: Callable[[float], object] = time.sleep
) -> _Result:
    """Try again after an error, waiting twice as long each time; what the user must put right is not tried again.

    Args:
        action: what to try.
        attempts: how often at most.
        backoff_s: seconds before the second attempt; at most a minute passes between two.
        sleep: waits.
    """
    for attempt in range(attempts - 1):
        try:
            return action()
        except (UserError, Cancelled):
            raise
        except Exception:  # of any of the libraries; the last one is raised
            sleep(min(backoff_s * 2**attempt, 60.0))
    return action()
