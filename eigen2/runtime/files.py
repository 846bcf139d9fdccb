"""Files that are whole or not there."""

import os
from pathlib import Path


def put(draft: Path, final: Path) -> None:
    """Move a finished file into place, durably: a crash at any instant leaves the old file or the new one.

    Args:
        draft: written and closed, on the filesystem of `final`.
        final: replaced if it exists.
    """
    _sync(draft)
    os.replace(draft, final)
    _sync(final.parent)


def _sync(path: Path) -> None:
    """Wait until a file's content, or a folder's names, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
