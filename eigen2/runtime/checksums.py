"""Checkpoint files that say themselves whether they are whole.

A checkpoint is a zip archive. Its seal is the archive's comment, the one place where zip has room for a note behind
everything else: the generation, and BLAKE2b-256 (RFC 7693) of all bytes before it. Every zip program, and `torch.load`,
reads a sealed file as before.
"""

import hashlib
import re
import struct
from pathlib import Path
from typing import BinaryIO

_FORM = "eigen2 generation {generation:+010d} blake2b "
_DIGITS = 64
_LENGTH = len(_FORM.format(generation=0)) + _DIGITS
_SEAL = re.compile(rb"eigen2 generation ([+-]\d{9}) blake2b ([0-9a-f]{64})")
_NO_COMMENT = b"\0\0"
_BLOCK = 1 << 20


class Damaged(Exception):
    """A file is not what was written; the message says in what way."""


def seal(path: Path, generation: int) -> None:
    """Write the seal into a finished archive.

    Args:
        path: a zip archive without a comment.
        generation: told by `generation_of`; -1 if there is none.

    Raises:
        ValueError: the file is no archive, or has a comment.
    """
    with path.open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - len(_NO_COMMENT)))
        if file.read() != _NO_COMMENT:
            raise ValueError(f"{path} is no zip archive without a comment")
        # the archive's last two bytes are the length of its comment
        file.seek(size - len(_NO_COMMENT))
        file.write(struct.pack("<H", _LENGTH) + _FORM.format(generation=generation).encode())
        file.write(_digest(file, file.tell()).encode())


def check(path: Path) -> int:
    """Read a file from its beginning to its end; return the generation in its seal.

    Raises:
        Damaged: it is not what was written.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        size, found = _seal_of(file)
        if _digest(file, size - _DIGITS) != found[2].decode():
            raise Damaged("its checksum is another")
    return int(found[1])


def generation_of(path: Path) -> int:
    """The generation in a file's seal; of its content nothing is read.

    Raises:
        Damaged: there is no seal.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return int(_seal_of(file)[1][1])


def _seal_of(file: BinaryIO) -> tuple[int, re.Match[bytes]]:
    """Size of the file and its seal."""
    size = file.seek(0, 2)
    if size == 0:
        raise Damaged("it is empty")
    file.seek(max(0, size - _LENGTH))
    found = _SEAL.fullmatch(file.read())
    if found is None:
        raise Damaged("its end is missing, or eigen2 did not write it")
    return size, found


def _digest(file: BinaryIO, size: int) -> str:
    """Of the first `size` bytes; the file is left behind them."""
    file.seek(0)
    digest = hashlib.blake2b(digest_size=32)
    while size > 0:
        block = file.read(min(_BLOCK, size))
        if not block:
            raise Damaged("it became shorter while it was read")
        digest.update(block)
        size -= len(block)
    return digest.hexdigest()
