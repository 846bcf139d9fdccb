"""Connection to a bucket on S3 or Google Cloud Storage; no credential ever appears in a message or a log."""

import importlib
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eigen2.errors import UserError

_PROVIDERS = {"s3": "s3", "aws": "s3", "gs": "gs", "gcs": "gs", "gcp": "gs"}
_LIBRARIES = {"s3": "s3fs", "gs": "gcsfs"}
# loggers that write addresses and request headers, which hold tokens
_TALKATIVE = ("aiobotocore", "boto3", "botocore", "fsspec", "gcsfs", "google", "s3fs", "urllib3")
_CREDENTIALS = "GOOGLE_APPLICATION_CREDENTIALS"


class StoreError(Exception):
    """The bucket holds other bytes than it was given; the text is safe to print."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run's checkpoints lie."""

    provider: str  # `s3` or `gs`
    bucket: str  # its bare name
    prefix: str  # the folder in the bucket

    def __str__(self) -> str:
        return f"{self.provider}://{self.bucket}/{self.prefix}"


def resolve(provider: str | None, bucket: str | None, prefix: str | None, root: Path) -> Place:
    """Find out where checkpoints go, and that the library for it is installed; the network is not used.

    None takes CLOUD_PROVIDER, CLOUD_BUCKET and the name of the run's folder, which is `root`.

    Raises:
        UserError: something is missing or malformed. Values are not repeated: a bucket may be an address with a key.
    """
    kind = _PROVIDERS.get((provider or os.environ.get("CLOUD_PROVIDER") or "").lower())
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
    """Return the fsspec filesystem of a place, with the credentials that the provider's own tools would use.

    Neither keys nor addresses are settings, so no configuration file holds them. The libraries' loggers are turned off:
    at the level DEBUG they write request headers. A request of one part may take `timeout_s`.
    """
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    if place.provider == "s3":
        # the uploader tries again itself: the library's retries would multiply its attempts
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
        token=token, requests_timeout=timeout, consistency="md5", skip_instance_cache=True, use_listings_cache=False
    )


def describe_error(error: BaseException) -> str:
    """Name an error of a store without its text, which may hold a key: an address, a header, a token."""
    if isinstance(error, StoreError):
        return str(error)
    each: BaseException | None = error
    while each is not None:
        if code := _code(each):
            return f"{type(error).__name__}, {code}"
        each = each.__cause__ or each.__context__
    return type(error).__name__


def _code(error: BaseException) -> str | None:
    """Return what a service or the system calls an error, if it is a word or a number."""
    response = getattr(error, "response", None)
    named = response.get("Error", {}).get("Code") if isinstance(response, dict) else None
    for code in (named, getattr(error, "code", None), getattr(error, "status", None)):
        if isinstance(code, int | str) and re.fullmatch(r"\d{3}|[A-Z][A-Za-z]{2,39}", str(code)):
            return str(code)
    number = getattr(error, "errno", None)
    return os.strerror(number) if isinstance(number, int) else None
