"""Price files, text, Excel or Parquet: their header, and their columns read in batches and parsed."""

import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from csv import Error as CsvError
from csv import reader as csv_reader
from csv import writer as csv_writer
from dataclasses import dataclass
from io import BufferedIOBase, BytesIO, StringIO, TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal
from zipfile import ZipFile

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from eigen2.errors import UserError, damage_as_user_error, install_hint, is_shortage, one_line
from eigen2.market.data import columns
from eigen2.market.data.csv_format import CsvFormat, guess_decimal, guess_sep, guess_thousands
from eigen2.market.data.dates import ISO, DateFormat, guess_dates, times_of_day
from eigen2.market.data.headers import Header, parquet_header, text_header
from eigen2.market.data.sizes import BoundedGzip, parquet_bytes, require_size
from eigen2.memory.limits import require_room

GZIP_MAGIC, PARQUET_MAGIC = b"\x1f\x8b", b"PAR1"
# Kaggle names its daily US shares aapl.us.txt, Investing.com AAPL Historical Data.csv
SUFFIX = re.compile(r"( historical data)?(\.us\.txt|\.(csv|txt|tsv)(\.gz)?|\.parquet|\.pq|\.xlsx)$", re.IGNORECASE)
SUFFIXES = ".csv, .txt, .tsv (also with .gz), .parquet, .pq or .xlsx"
# a whole row must fit, so also a header of thousands of columns
CSV_BLOCK_BYTES = 4 << 20
# rows from which a text file's format is guessed
GUESS_ROWS = 50
# Arrow's, with a stack and blocks each: with too little address space for them it waits for ever
THREADS, THREAD_BYTES = 8, 16_000_000
# shared by the columns that are read at the same time
PARQUET_BUFFER_BYTES = 16 << 20
DATE_BATCH_ROWS = 250_000
EXCEL_ROWS = 1 << 20
# a number whose comma may be the decimal mark, or stand between thousands
COMMA_OF_THREE = re.compile(r"'[-+]?\d{1,3},\d{3}'")
# of memory for a byte of a spreadsheet's XML: the sheet is read row by row, other parts become trees of objects
SHEET_BYTES, TREE_BYTES = 10, 200


@dataclass(frozen=True)
class DateColumn:
    """Position and format of the dates, and the position of the times of day if these are a column of their own."""

    position: int
    format: DateFormat
    time: int | None = None


class PriceFile:
    """A price file, whose header is read when it is made and columns in batches; messages name it by `where`.

    An Excel file is its first sheet, which is read whole, as text. `rows` are counted in Parquet, and estimated from
    the size of a text file, whose content may be many times as long if it is compressed.

    Raises:
        UserError: when the file is missing, empty, damaged or of another format, or expands further than prices do.
    """

    def __init__(self, path: str | Path, form: CsvFormat = CsvFormat()) -> None:
        self.path = require_file(path)
        self.where = repr(str(self.path))
        require_room(f"reading {self.where} takes {THREADS} threads", THREADS, THREAD_BYTES, "free memory")
        with self.path.open("rb") as file:
            magic = file.read(4)
        name = self.path.name.lower()
        self.is_parquet = magic == PARQUET_MAGIC or name.endswith((".parquet", ".pq"))
        if not self.is_parquet and not SUFFIX.search(name):
            raise UserError(f"{self.where} is neither Parquet, CSV nor Excel: name a file that ends in {SUFFIXES}")
        self._is_gzip = magic.startswith(GZIP_MAGIC)
        is_excel = name.endswith(".xlsx") and not self.is_parquet
        self._sheet = _read_sheet(self.path, self.where) if is_excel else None
        self._date_format = form.date_format
        self.sep, self.decimal = (",", ".") if is_excel else (form.sep or "", form.decimal or "")
        self._thousands: Literal[".", ",", ""] = "," if self.is_parquet else ""
        with self.damage_as_user_error():
            if self.is_parquet:
                self.rows = int(pq.read_metadata(self.path).num_rows)
                self.header = parquet_header(pq.read_schema(self.path))
            else:
                self.header, self.rows = self._text_header()

    def date_column(self, position: int, time: int | None = None) -> DateColumn:
        """Return the column of dates with its format, as given or guessed from as much of the file as that takes.

        Raises:
            UserError: day and month cannot be told apart, or the file is damaged.
        """
        with self.damage_as_user_error():
            form = guess_dates(
                lambda: (batch[position] for batch in self.raw_batches([position], [], DATE_BATCH_ROWS)),
                self._date_format,
                self.where,
            )
        return DateColumn(position, form, time)

    def format_notes(self, dates: DateColumn) -> str:
        """Return how the file writes columns, numbers and dates, in a few words; none if as in most files."""
        marks = (self.sep or ",", self.decimal or ".")
        if marks == (",", ".") and dates.format == DateFormat(ISO):
            return ""
        sep, decimal = ("tab" if marks[0] == "\t" else repr(marks[0])), repr(marks[1])
        return str(dates.format) if self.is_parquet else f"sep {sep}, decimal {decimal}, {dates.format}"

    def batches(
        self, date: DateColumn, ticker: int | None, numbers: Sequence[int], batch_rows: int
    ) -> Iterator[list[Any]]:
        """Read columns by position, at most `batch_rows` rows at a time.

        Yields:
            Times, datetime64[s], in the time zone of the timestamps; tickers as text, unless `ticker` is None; then
            arrays of float64, NaN where a cell is empty.

        Raises:
            UserError: when a date, ticker or number cannot be read, a column of a Parquet file is nested or binary, or
                the file is damaged.
        """
        wanted = [(date.position, columns.dates(date.format))]
        wanted += [] if ticker is None else [(ticker, columns.tickers())]
        text = [*(position for position, _ in wanted), *([] if date.time is None else [date.time])]
        wanted += [(position, columns.numbers(self.decimal or ".", self._thousands)) for position in numbers]
        rows_before = 0
        with self.damage_as_user_error():
            for batch in self.raw_batches(text, numbers, batch_rows):
                parsed = []
                for position, (parse, what, remedy) in wanted:
                    values, bad = parse(batch[position])
                    if bad.any():
                        row, name = int(bad.argmax()), quoted(self.header.names[position])
                        cell = quoted(batch[position].to_pandas().iloc[row])
                        first = f"first {cell} in data row"
                        if COMMA_OF_THREE.fullmatch(cell) and not self._thousands:
                            remedy += ", or give the decimal mark by --csv.decimal of data prepare"
                        what = f"has at least {bad.sum()} {what.format(name)}, {first} {rows_before + row + 1}"
                        raise UserError(f"{self.where} {what}: {remedy}")
                    parsed.append(values)
                if date.time is not None:
                    parsed[0] = parsed[0].dt.normalize() + times_of_day(batch[date.time])
                yield parsed
                rows_before += len(batch[date.position])

    @contextmanager
    def damage_as_user_error(self) -> Iterator[None]:
        """Turn a reader's exception about a damaged file into a UserError of one line."""
        kind = "Parquet" if self.is_parquet else "CSV"
        try:
            yield
        except (pa.ArrowException, OSError, EOFError, zlib.error, CsvError, LookupError, UnicodeDecodeError) as error:
            if is_shortage(error):
                raise
            # an unknown time zone is a LookupError; Arrow has no exception of its own for other encodings
            if isinstance(error, UnicodeDecodeError) or "invalid UTF8" in str(error):
                raise UserError(
                    f"{self.where} cannot be read as {kind}: its text is not UTF-8; save it as UTF-8"
                ) from error
            reason = one_line(error)
            raise UserError(f"{self.where} cannot be read as {kind}: damaged or cut short? ({reason})") from error

    def _stream(self) -> BufferedIOBase:
        if self._sheet is not None:
            return BytesIO(self._sheet)
        return BoundedGzip(self.path, self.where) if self._is_gzip else self.path.open("rb")

    def _text_header(self) -> tuple[Header, int]:
        """Return the header, and about how many rows there are."""
        with self._stream() as file:
            start = file.read(CSV_BLOCK_BYTES)
        # columns that are not read need not be UTF-8, but some of their text is decoded here
        text = StringIO(start.decode("utf-8-sig", errors="replace"), newline="")
        self.sep = self.sep or guess_sep(next(filter(str.strip, text), ""))
        text.seek(0)
        lines = enumerate(csv_reader(text, delimiter=self.sep), 1)
        records = list(islice(((line, cells) for line, cells in lines if cells), GUESS_ROWS))
        if not records:
            raise UserError(f"{self.where} has blank lines alone: write a header and the prices again")
        header = text_header(records)
        if any("\ufffd" in name or "\0" in name for name in records[0][1]):
            raise UserError(f"{self.where} cannot be read as CSV: its header is not UTF-8; save it as UTF-8")
        rows = [cells for line, cells in records if line > header.lines]
        given, self.decimal = self.decimal, self.decimal or guess_decimal(self.sep, rows)
        self._thousands = guess_thousands(self.sep, self.decimal, bool(given), rows)
        size = self.path.stat().st_size if self._sheet is None else len(self._sheet)
        return header, max(0, size * start.count(b"\n") // len(start) - header.lines)

    def raw_batches(
        self, text: Sequence[int], numbers: Sequence[int], batch_rows: int
    ) -> Iterator[dict[int, pa.Array]]:
        """Read columns by position as they are, at most `batch_rows` rows at a time; the first of `text` has dates."""
        read = self._parquet_batches if self.is_parquet else self._text_batches
        yield from read(text, numbers, batch_rows)

    def _parquet_batches(
        self, text: Sequence[int], numbers: Sequence[int], batch_rows: int
    ) -> Iterator[dict[int, pa.Array]]:
        wanted = {position: self.header.names[position] for position in (*text, *numbers)}
        schema, metadata = pq.read_schema(self.path), pq.read_metadata(self.path)
        require_size(self.path, self.where, parquet_bytes(metadata, wanted.values()))
        for position, name in wanted.items():
            kind = schema.field(position).type
            if pa.types.is_nested(kind) or "binary" in str(kind):
                raise UserError(f"{self.where}: column {quoted(name)} holds {kind}: write text or plain numbers")
        # a row group can be the whole file, which must not be in memory at once
        buffer_bytes = max(PARQUET_BUFFER_BYTES // len(wanted), 4096)
        texts = [position for position in numbers if pa.types.is_string(schema.field(position).type)]
        dictionaries = [wanted[position] for position in (*text, *texts)]
        options = {"read_dictionary": dictionaries, "buffer_size": buffer_bytes, "pre_buffer": False}
        with pq.ParquetFile(self.path, **options) as file:
            for batch in file.iter_batches(batch_rows, columns=list(wanted.values())):
                # asked for BRK, the reader returns BRK.B as well
                yield {i: _plain(batch.column(name), is_date=i == text[0]) for i, name in wanted.items()}

    def _text_batches(
        self, text: Sequence[int], numbers: Sequence[int], batch_rows: int
    ) -> Iterator[dict[int, pa.Array]]:
        # positions take the place of names, which may repeat; numbers come as text, because Arrow would give up the
        # file at the first cell that it cannot read as one
        types = dict.fromkeys(map(str, text), pa.dictionary(pa.int32(), pa.string()))
        types |= dict.fromkeys(map(str, numbers), pa.string())
        read = csv.ReadOptions(
            column_names=[str(position) for position in range(len(self.header.names))],
            skip_rows_after_names=self.header.lines,
            block_size=CSV_BLOCK_BYTES,
        )
        convert = csv.ConvertOptions(column_types=types, include_columns=list(types), strings_can_be_null=False)
        parse = csv.ParseOptions(delimiter=self.sep, newlines_in_values=True)
        with self._stream() as file, csv.open_csv(file, read, parse, convert) as batches:
            for batch in batches:
                for start in range(0, batch.num_rows, batch_rows):
                    part = batch.slice(start, batch_rows)
                    yield {position: part.column(str(position)) for position in (*text, *numbers)}


def require_file(path: str | Path) -> Path:
    """Return `path` as a Path; raise a UserError when it is missing, a directory, empty or cannot be read."""
    path = Path(path)
    # os.path answers False to a name that no path can have; Path would raise
    if not os.path.isfile(path):
        what = (
            "it is a directory; data prepare merges its files into one"
            if os.path.isdir(path)
            else f"check the path (relative to {quoted(Path.cwd())})"
        )
        raise UserError(f"no price file at {quoted(path)}: {what}")
    try:
        with path.open("rb") as file:
            empty = not file.read(1)
    except OSError as error:
        raise UserError(f"{quoted(path)} cannot be read ({error.strerror or error}): name a file that can") from error
    if empty:
        raise UserError(f"{quoted(path)} is empty (0 bytes): write the prices again")
    return path


def quoted(value: object) -> str:
    """Quote a value for a message: one line of at most 203 characters."""
    text = repr(str(value))
    return text if len(text) <= 200 else text[:200] + "..."


def _plain(column: pa.Array, *, is_date: bool) -> pa.Array:
    """Cast a column of Parquet to a type that pandas holds without loss; raise an error if text is not UTF-8."""
    types = pa.types
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_temporal(kind) and not is_date:
        return column.cast(kind).cast(pa.string())
    if types.is_date(kind):
        # pandas would turn each into an object
        return column.cast(kind).cast(pa.timestamp("ms"))
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        column.validate(full=True)
        return column if types.is_dictionary(column.type) else column.cast(pa.string())
    return column


def _read_sheet(path: Path, where: str) -> bytes:
    """Return the first sheet of an Excel file as CSV, without blank rows."""
    try:
        # an extra, which takes half a second to import
        from openpyxl import load_workbook
    except ImportError as error:
        raise UserError(f"{where} is an Excel file: {install_hint('xlsx')}, or save it as CSV") from error
    content = BytesIO()
    with damage_as_user_error(f"{where} cannot be read as Excel", "is it damaged or cut short? save it again"):
        _require_small_parts(path, where)
        with closing(load_workbook(path, read_only=True, data_only=True)) as book:
            sheet = book.worksheets[0]
            # what the file says of them may be wrong
            sheet.reset_dimensions()
            texts = ([_cell_text(cell) for cell in row] for row in sheet.iter_rows(max_row=EXCEL_ROWS))
            rows = filter(any, texts)
            first = list(islice(rows, GUESS_ROWS))
            width = max((place + 1 for row in first for place, text in enumerate(row) if text), default=0)
            file = TextIOWrapper(content, encoding="utf-8", newline="", write_through=True)
            writer = csv_writer(file, lineterminator="\n")
            for row in chain(first, rows):
                writer.writerow([*row[:width], *[""] * (width - len(row))])
                require_size(path, where, content.tell())
    return content.getvalue()


def _require_small_parts(path: Path, where: str) -> None:
    """Raise a UserError if the parts of an Excel file, a zip archive, do not fit into memory."""
    with ZipFile(path) as archive:
        parts = {part.filename: part.file_size for part in archive.infolist()}
    require_size(path, where, sum(parts.values()))
    for name, size in parts.items():
        is_sheet = name.startswith("xl/worksheets/") or name == "xl/sharedStrings.xml"
        if name.endswith(".xml"):
            part_bytes = SHEET_BYTES if is_sheet else TREE_BYTES
            require_room(f"{where}: {quoted(name)} has {size:,} bytes", size, part_bytes, "save the prices as CSV")


def _cell_text(cell: Any) -> str:
    """Return the text of a cell of an Excel file; errors such as #DIV/0! count as empty."""
    value = None if cell.data_type == "e" else cell.value
    if isinstance(value, bool):  # the ticker TRUE
        return str(value).upper()
    whole = isinstance(value, float) and value.is_integer()
    return "" if value is None else str(int(value) if whole else value)
