"""An append-only CSV file that a resumed run continues with no row missing and none twice."""

import contextlib
import csv
import io
import math
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, SupportsFloat, TextIO

Cell = SupportsFloat | str
WAITING = 10_000
"""Rows that wait for a disk at most; the oldest are dropped."""


class ResumableCsv:
    r"""CSV file with one header, appended to row by row and cut back to a known row on resume.

    Every row carries an integer key that never decreases, such as the generation it belongs to. A process
    that resumes at key `first` calls `start(first)`: rows of `first` and later, which it is about to write
    again, and a line torn by a kill are dropped; all other rows stay as they are.

    Floats are written in the shortest form that reads back as the same number, NaN as a blank cell. Columns
    may appear at any time: earlier rows are blank there. The file is UTF-8, lines end in `\n`, and no cell
    contains a line break, so a line is a row. One process writes a file.

    Attributes:
        path: The file.
        key: Name of the column with the key.
        error: Why rows wait; None if none does.
    """

    def __init__(self, path: str | os.PathLike[str], key: str = "generation") -> None:
        """Remember where to write; nothing is opened before `start`.

        Args:
            path: The file to write. Missing folders are made.
            key: Name of the integer column that orders the rows, default `generation`.
        """
        self.path = Path(path)
        self.key = key
        self._columns: tuple[str, ...] = ()
        self._file: AppendFile | None = None
        self._open = False
        self._waiting: deque[dict[str, str]] = deque(maxlen=WAITING)
        self.error: OSError | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Names in the header, in file order; empty before the first row."""
        return self._columns

    def start(self, first: int) -> None:
        """Open the file and keep only whole rows with a key below `first`.

        Args:
            first: Key of the first row about to be appended, >= 0. At 0 the file starts empty.

        Raises:
            ValueError: `first` is negative, or an existing file has a header without the key, so is not ours.
        """
        if first < 0:
            raise ValueError(f"{self.path}: cannot start at {self.key} {first}: give 0 or more")
        self.close()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        header = next(_whole_lines(self.path), []) if first > 0 else []
        if header and self.key not in header:
            raise ValueError(f"{self.path} has no column {self.key!r}: move the file away or write elsewhere")
        self._replace(tuple(header), self._rows_below(header, first))
        self._open = True

    def append(self, row: Mapping[str, Cell]) -> bool:
        """Write one row, after those that wait, and hand it to the operating system.

        A row that the disk refuses waits for the next one, `WAITING` rows at most.

        Args:
            row: Column name to value; must hold the key as an integer. Columns left out are blank.

        Returns:
            Whether all rows are in the file; if not, `error` says why.

        Raises:
            ValueError: The key is missing or not an integer, or a name or text contains a line break.
            RuntimeError: `start` was not called, or the file was closed since.
        """
        if not self._open:
            raise RuntimeError(f"{self.path} is not open: call start() before append()")
        if not isinstance(row.get(self.key), Integral):
            raise ValueError(f"{self.path}: a row needs an integer {self.key!r}, not {row.get(self.key)!r}")
        self._waiting.append({_text(name): _text(value) for name, value in row.items()})
        try:
            while self._waiting:
                self._write(self._waiting[0])
                self._waiting.popleft()
        except OSError as error:
            self.error = error
            return False
        self.error = None
        return True

    def close(self) -> None:
        """Close the file; harmless when it is closed already."""
        self._open = False
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, cells: Mapping[str, str]) -> None:
        """Append a row, with new columns if it has any; raises OSError if it is not in the file."""
        added = [name for name in cells if name not in self._columns]
        if added or self._file is None or not self.path.exists():  # a folder that was deleted is made again
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._replace((*self._columns, *added), self._rows_below(self._columns, None))
        assert self._file is not None
        self._file.append(_line(cells.get(name, "") for name in self._columns).encode("utf-8", "surrogateescape"))

    def _rows_below(self, header: Iterable[str], first: int | None) -> Iterator[dict[str, str]]:
        """Whole rows of the file under `header`, those with a key below `first` if it is given."""
        names = list(header)
        for cells in _whole_lines(self.path) if names else ():
            row = dict(zip(names, cells, strict=False))
            key = _integer(row.get(self.key, ""))
            if len(cells) == len(names) and key is not None and (first is None or key < first):
                yield row

    def _replace(self, columns: tuple[str, ...], rows: Iterable[Mapping[str, str]]) -> None:
        """Write header and rows to a temporary file, put it in place of the old one and open it to append."""
        # same folder, hence same filesystem: os.replace is atomic, a kill leaves the old file or the new one
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        try:
            with _open(temporary, "w") as target:
                if columns:
                    target.write(_line(columns))
                target.writelines(_line(row.get(name, "") for name in columns) for row in rows)
                target.flush()
                os.fsync(target.fileno())
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        os.replace(temporary, self.path)
        if self._file is not None:
            self._file.close()
            self._file = None
        self._columns = columns
        self._file = AppendFile(self.path)


def _open(path: Path, mode: Literal["r", "w"]) -> TextIO:
    # surrogateescape carries bytes that are not UTF-8 through a rewrite unchanged
    return open(path, mode, encoding="utf-8", errors="surrogateescape", newline="\n")


def _whole_lines(path: Path) -> Iterator[list[str]]:
    """Cells of each line that was written to its end."""
    if path.exists():
        with _open(path, "r") as source:
            for line in source:
                if line.endswith("\n"):
                    yield next(csv.reader([line]), [])


def _line(cells: Iterable[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _text(value: Any) -> str:
    """Cell text of a value; raises ValueError for text with a line break."""
    if isinstance(value, str):
        if "\n" in value or "\r" in value:
            raise ValueError(f"a CSV cell holds a single line, not {value!r}")
        return value
    if isinstance(value, Integral):
        return str(int(value))
    number = float(value)  # a NumPy scalar's own repr names its type
    return "" if math.isnan(number) else repr(number)


def _integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


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
