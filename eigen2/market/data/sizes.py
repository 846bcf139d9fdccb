"""Bound what a price file expands to, so that a few kilobytes cannot ask for hours or for all memory."""

from collections.abc import Iterable
from gzip import GzipFile
from pathlib import Path

import pyarrow.parquet as pq

from eigen2.errors import UserError

# files of prices hold a third to a twentieth of what they expand to; below so many bytes any file may expand
MOST_EXPANSION, SMALL_BYTES = 100, 1 << 28


def require_size(path: Path, where: str, expanded: int) -> None:
    """Raise a UserError if a file expands further than one of prices does, to `expanded` bytes so far; see `where`."""
    size = path.stat().st_size
    if expanded > max(SMALL_BYTES, MOST_EXPANSION * size):
        raise UserError(
            f"{where} has {size:,} bytes, which expand to {expanded:,} or more, over {MOST_EXPANSION} times as many, "
            "as prices do not: write them again, as CSV without compression if they are right"
        )


def parquet_bytes(metadata: pq.FileMetaData, columns: Iterable[str]) -> int:
    """Return the bytes of some columns of a Parquet file: their pages without compression, and 8 for each value."""
    wanted = {*columns}
    places = [place for place in range(metadata.num_columns) if metadata.schema.column(place).path in wanted]
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    pages = sum(group.column(place).total_uncompressed_size for group in groups for place in places)
    return int(pages + 8 * metadata.num_rows * len(places))


class BoundedGzip(GzipFile):
    """A compressed file to read, which raises a UserError where `require_size` does."""

    def __init__(self, path: Path, where: str) -> None:
        super().__init__(path, "rb")
        self._path, self._where = path, where

    def read(self, size: int | None = -1) -> bytes:
        """Read up to `size` bytes."""
        content = super().read(size)
        require_size(self._path, self._where, self.tell())
        return content
