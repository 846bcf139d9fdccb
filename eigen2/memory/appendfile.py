"""A file that only grows, by whole pieces: what a full disk cuts off is taken back."""

import contextlib
import os
from pathlib import Path


class AppendFile:
    """Appends each piece whole or not at all, without a buffer; after an error the next piece may be tried again.

    Attributes:
        path: The file.
        size: Bytes of the pieces that are in it.
    """

    def __init__(self, path: Path) -> None:
        """Open it, to append to what it holds.

        Args:
            path: The file; it is made if it does not exist.

        Raises:
            OSError: It cannot be opened.
        """
        self.path = path
        self._handle: int | None = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
        self.size = os.fstat(self._handle).st_size
        self._torn = False

    def append(self, piece: bytes) -> None:
        """Write a piece and hand it to the operating system.

        Raises:
            OSError: It could not be written, and is not in the file.
        """
        if self._handle is None:
            raise OSError(f"{self.path} is closed")
        if self._torn:
            self._take_back(self._handle)
        done = 0
        try:
            while done < len(piece):
                done += os.pwrite(self._handle, piece[done:], self.size + done)
        except OSError:
            self._torn = True
            with contextlib.suppress(OSError):  # then before the next piece
                self._take_back(self._handle)
            raise
        self.size += len(piece)

    def close(self) -> None:
        """Close it; harmless when it is closed already."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _take_back(self, handle: int) -> None:
        os.ftruncate(handle, self.size)
        self._torn = False
