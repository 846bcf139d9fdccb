"""Checkpoint files that carry their own checksum.

A checkpoint is a zip archive. The archive's comment holds the generation and the BLAKE2b-256 checksum (RFC 7693) of all
bytes before it. Zip programs and `torch.load` ignore the comment, so they read the file as before.
"""

import hashlib
import re
import struct
from pathlib import Path
from typing import BinaryIO

_COMMENT = "eigen2 generation {generation:+010d} blake2b "
_DIGITS = 64
_LENGTH = len(_COMMENT.format(generation=0)) + _DIGITS
_PATTERN = re.compile(rb"eigen2 generation ([+-]\d{9}) blake2b ([0-9a-f]{64})")


class DamagedFile(Exception):
    """A file whose content is not what was written; the message says what is wrong with it."""


def write_checksum(draft: Path, generation: int) -> str:
    """Write generation and checksum into the empty comment of a zip archive, and return the checksum.

    Raises ValueError for any other file.
    """
    with draft.open("r+b") as file:
        # a zip archive ends with the two bytes of its comment's length
        end = max(0, file.seek(0, 2) - 2)
        file.seek(end)
        if file.read() != b"\0\0":
            raise ValueError(f"{draft} is not a zip archive with an empty comment")
        file.seek(end)
        file.write(struct.pack("<H", _LENGTH) + _COMMENT.format(generation=generation).encode())
        digest = _digest(file, file.tell())
        file.write(digest)
    return digest.decode()


def verify_checksum(path: Path, expected: str | None = None) -> int:
    """Compare a file with its checksum, and that with the `expected` one; return the generation in its comment.

    Raises DamagedFile if they differ.
    """
    with path.open("rb") as file:
        generation, digest, size = _read_comment(file)
        if _digest(file, size - _DIGITS) != digest or expected not in (None, digest.decode()):
            raise DamagedFile("its checksum does not match")
    return generation


def generation_of(path: Path) -> int:
    """Return the generation in a file's comment, without verifying the file; raises DamagedFile if it has none."""
    with path.open("rb") as file:
        return _read_comment(file)[0]


def _read_comment(file: BinaryIO) -> tuple[int, bytes, int]:
    """Return generation, checksum and the file's size in bytes."""
    size = file.seek(0, 2)
    file.seek(max(0, size - _LENGTH))
    match = _PATTERN.fullmatch(file.read())
    if match is None:
        raise DamagedFile("its end is missing, or eigen2 did not write it" if size else "it is empty")
    return int(match[1]), match[2], size


def _digest(file: BinaryIO, size: int) -> bytes:
    """Return the checksum of the first `size` bytes in hexadecimal; leave the file positioned after them."""
    file.seek(0)
    digest = hashlib.blake2b(digest_size=32)
    while size > 0 and (block := file.read(min(1 << 20, size))):
        digest.update(block)
        size -= len(block)
    return digest.hexdigest().encode()
