"""Write an append-only CSV file that a resumed run continues with no row missing and none twice."""

import csv
import io
import math
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, SupportsFloat

from eigen2.errors import UserError
from eigen2.files import AppendFile, Folder

Cell = SupportsFloat | str
KEY = "generation"
# surrogateescape carries bytes that are not UTF-8 through a rewrite unchanged
AS_TEXT: Any = {"encoding": "utf-8", "errors": "surrogateescape", "newline": "\n"}
MAX_PENDING = 10_000  # rows kept while the disk refuses them; beyond it, the oldest are dropped


class ResumableCsv:
    r"""CSV file with one header, appended to row by row and cut back to a known row on resume.

    Every row carries its generation, which never decreases. Floats are written in the shortest form that reads back as
    the same number, NaN as a blank cell. Columns may appear at any time: earlier rows are blank there. The file is
    UTF-8, lines end in `\n`, and no cell contains a line break, so a line is a row. One process writes a file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._folder = Folder(self.path.parent)
        self.columns: tuple[str, ...] = ()  # in file order; empty before the first row
        self.error: OSError | None = None  # error of the last write; None if all rows are in the file
        self._file: AppendFile | None = None
        self._pending: deque[dict[str, str]] = deque(maxlen=MAX_PENDING)
        self._first = math.inf  # generations from this one on are still to be cut

    def start(self, first: int) -> None:
        """Open the file, creating its folder, and keep the complete rows of generations below `first` (0: none).

        What the disk refuses is done with the first row. Raises UserError if an existing file cannot be read or has no
        column `generation`, so eigen2 did not write it.
        """
        self.close()
        try:
            header = next(_whole_lines(self.path), [])
        except OSError as error:
            raise UserError(f"{self.path} cannot be read ({error.strerror}): move the file away") from error
        if header and KEY not in header:
            raise UserError(f"{self.path} has no column {KEY!r}: move the file away or write elsewhere")
        self.columns, self._first = tuple(header) if first > 0 else (), first
        self._pending = deque((row for row in self._pending if int(row[KEY]) < first), MAX_PENDING)
        try:
            self._replace(self.columns)
        except OSError as error:
            self.error = error

    def append(self, row: Mapping[str, Cell]) -> bool:
        """Write a row, after any pending ones, and return whether all are in the file; if not, `error` says why.

        Rows that the disk refuses are retried with the next one, `MAX_PENDING` at most. Raises ValueError if the key
        is missing or not an integer, or if a name or string contains a line break.
        """
        if not isinstance(row.get(KEY), Integral):
            raise ValueError(f"{self.path}: a row needs an integer {KEY!r}, not {row.get(KEY)!r}")
        self._pending.append({_text(name): _text(value) for name, value in row.items()})
        try:
            while self._pending:
                self._write(self._pending[0])
                self._pending.popleft()
            self.error = None
        except OSError as error:
            self.error = error
        return self.error is None

    def close(self) -> None:
        """Close the file if it is open."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, cells: Mapping[str, str]) -> None:
        """Append a row, adding its new columns to the file; raises OSError if the row is not in the file."""
        added = [name for name in cells if name not in self.columns]
        if added or self._file is None or not self.path.exists():  # a folder that was deleted is created again
            self._replace([*self.columns, *added])
        assert self._file is not None
        self._file.append(_line(cells.get(name, "") for name in self.columns).encode("utf-8", "surrogateescape"))

    def _replace(self, columns: Sequence[str]) -> None:
        """Rewrite the file with these columns and the rows of generations that are kept, and open it to append."""
        with self._folder.replacing(self.path.name) as draft, draft.open("w", **AS_TEXT) as target:
            target.write(_line(columns) if columns else "")
            kept = (row for row in _rows(self.path) if row.get(KEY, "").isdecimal() and int(row[KEY]) < self._first)
            target.writelines(_line(row.get(name, "") for name in columns) for row in kept)
        self._first = math.inf
        self.close()
        self.columns = tuple(columns)
        self._file = self._folder.append(self.path.name)


def _whole_lines(path: Path) -> Iterator[list[str]]:
    """Yield the cells of each complete line."""
    if path.exists():
        with path.open(**AS_TEXT) as source:
            yield from (_cells(line) for line in source if line.endswith("\n"))


def _cells(line: str) -> list[str]:
    """Return the cells of a line; none of a damaged one with a cell beyond the limit of `csv`."""
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


def _rows(path: Path) -> Iterator[dict[str, str]]:
    """Return the rows that have a cell for each column."""
    lines = _whole_lines(path)
    header = next(lines, [])
    return (dict(zip(header, cells, strict=True)) for cells in lines if len(cells) == len(header))


def _line(cells: Iterable[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _text(value: Any) -> str:
    if isinstance(value, str):
        if "\n" in value or "\r" in value:
            raise ValueError(f"a CSV cell holds a single line, not {value!r}")
        return value
    if isinstance(value, (int, Integral)):  # asked for int first, which is faster
        return str(int(value))
    number = float(value)  # as the repr of a NumPy scalar includes its type
    return "" if math.isnan(number) else repr(number)
