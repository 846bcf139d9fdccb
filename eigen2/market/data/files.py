"""Price files, CSV or Parquet: their header, and their columns read in batches and parsed."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from csv import Error as CsvError
from csv import reader as csv_reader
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from jaxtyping import Bool, Float64
from pyarrow import csv

from eigen2.errors import UserError

GZIP_MAGIC, PARQUET_MAGIC = b"\x1f\x8b", b"PAR1"
# a whole row must fit, so also a header of thousands of columns
CSV_BLOCK_BYTES = 4 << 20
# shared by the columns that are read at the same time
PARQUET_BUFFER_BYTES = 16 << 20
# texts that mean an empty number; in the ticker column they are names
EMPTY_NUMBERS = pa.array(
    ["", "nan", "NaN", "NAN", "na", "NA", "N/A", "n/a", "#N/A", "null", "NULL", "None", "none"], pa.string()
)
ISO_DATE = r"(\d{4})-?(\d{2})-?(\d{2})(?:\.0|[T ].*)?"
DATE_OR_NUMBER = re.compile(r"[-+]?[\d.,]+(e[-+]?\d+)?|\d{4}-?\d\d-?\d\d.*", re.IGNORECASE)
# dates outside these years come from a wrong unit of time
FIRST_DAY, END_DAY = np.datetime64("0001-01-01", "s"), np.datetime64("10000-01-01", "s")
ADJ_CLOSE = "adj close"
# first cell of the second of two header rows: empty, or pandas' name of the level
LEVEL_NAMES = ("", "ticker", "tickers", "symbol", "symbols", "price", "prices", "attributes")

Mask = Bool[np.ndarray, " rows"]


@dataclass(frozen=True)
class Header:
    """Column names of a file, which may repeat.

    Where pandas wrote a MultiIndex, `levels` has the names of both levels; `index` is the position of a former
    DataFrame index; `lines` counts the lines of a CSV file before its data, blank ones included.
    """

    names: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...] | None = None
    index: int | None = None
    lines: int = 0


class PriceFile:
    """A price file, whose header is read when it is made and columns in batches; messages name it by `where`.

    Raises:
        UserError: when the file is missing, empty, damaged or of another format.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = require_file(path)
        self.where = repr(str(self.path))
        with self.path.open("rb") as file:
            magic = file.read(4)
        name = self.path.name.lower()
        self.is_parquet = magic == PARQUET_MAGIC or name.endswith((".parquet", ".pq"))
        if not self.is_parquet and not name.endswith((".csv", ".csv.gz")):
            raise UserError(f"{self.where} is neither Parquet nor CSV: name a .parquet, .pq, .csv or .csv.gz file")
        self._compression = "gzip" if magic.startswith(GZIP_MAGIC) else None
        with self.damage_as_user_error():
            self.header = _parquet_header(pq.read_schema(self.path)) if self.is_parquet else self._csv_header()

    def batches(self, date: int, ticker: int | None, numbers: Sequence[int], batch_rows: int) -> Iterator[list[Any]]:
        """Read columns by position, at most `batch_rows` rows at a time.

        Yields:
            Days, datetime64[s] at midnight, in the time zone of the timestamps; tickers as text, unless `ticker` is
            None; then arrays of float64, NaN where a cell is empty.

        Raises:
            UserError: when a date, ticker or number cannot be read, a column of a Parquet file is nested or binary, or
                the file is damaged.
        """
        kinds = {date: DATES} if ticker is None else {date: DATES, ticker: TICKERS}
        text, wanted = list(kinds), [*kinds.items(), *((position, NUMBERS) for position in numbers)]
        read = self._parquet_batches if self.is_parquet else self._csv_batches
        rows_before = 0
        with self.damage_as_user_error():
            for columns in read(text, numbers, batch_rows):
                parsed = []
                for position, (parse, what, remedy) in wanted:
                    values, bad = parse(columns[position])
                    if bad.any():
                        row, name = int(bad.argmax()), quoted(self.header.names[position])
                        first = f"first {quoted(columns[position].to_pandas().iloc[row])} in data row"
                        what = f"has at least {bad.sum()} {what.format(name)}, {first} {rows_before + row + 1}"
                        raise UserError(f"{self.where} {what}: {remedy}")
                    parsed.append(values)
                yield parsed
                rows_before += len(columns[date])

    @contextmanager
    def damage_as_user_error(self) -> Iterator[None]:
        """Turn a reader's exception about a damaged file into a UserError of one line."""
        kind = "Parquet" if self.is_parquet else "CSV"
        try:
            yield
        except UnicodeDecodeError as error:
            raise UserError(
                f"{self.where} cannot be read as {kind}: its text is not UTF-8; save it as UTF-8"
            ) from error
        except (pa.ArrowException, OSError, CsvError, LookupError) as error:  # an unknown time zone is a LookupError
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"{self.where} cannot be read as {kind}: damaged or cut short? ({reason})") from error

    def _stream(self) -> pa.NativeFile:
        return pa.input_stream(self.path, compression=self._compression)

    def _csv_header(self) -> Header:
        with self._stream() as file:
            # columns that are not read need not be UTF-8, but some of their text is decoded here
            lines = enumerate(csv_reader(TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="")), 1)
            records = list(islice(((line, cells) for line, cells in lines if cells), 3))
        if not records:
            raise UserError(f"{self.where} has blank lines alone: write a header and the prices again")
        rows = [tuple(cell.strip() for cell in cells) for _, cells in records]
        if any("\ufffd" in cell or "\0" in cell for cell in rows[0]):
            raise UserError(f"{self.where} cannot be read as CSV: its header is not UTF-8; save it as UTF-8")
        if len(rows) == 1 or not _is_second_level(rows[0], rows[1]):
            return Header(rows[0], index=0 if fold(rows[0][0]) == "" else None, lines=records[0][0])
        # pandas writes the name of the index, if any, below the two levels
        label = len(rows) > 2 and not any(rows[2][1:]) and not DATE_OR_NUMBER.fullmatch(rows[2][0])
        names = tuple(str(pair) for pair in zip(rows[0], rows[1], strict=True))
        return Header(names, (rows[0], rows[1]), 0, records[1 + label][0])

    def _parquet_batches(
        self, text: Sequence[int], numbers: Sequence[int], batch_rows: int
    ) -> Iterator[dict[int, pa.Array]]:
        wanted = {position: self.header.names[position] for position in (*text, *numbers)}
        schema = pq.read_schema(self.path)
        for position, name in wanted.items():
            kind = schema.field(position).type
            if pa.types.is_nested(kind) or "binary" in str(kind):
                raise UserError(f"{self.where}: column {quoted(name)} holds {kind}: write text or plain numbers")
        # a row group can be the whole file, which must not be in memory at once
        buffer_bytes = max(PARQUET_BUFFER_BYTES // len(wanted), 4096)
        dictionaries = [wanted[position] for position in text]
        options = {"read_dictionary": dictionaries, "buffer_size": buffer_bytes, "pre_buffer": False}
        with pq.ParquetFile(self.path, **options) as file:
            for batch in file.iter_batches(batch_rows, columns=list(wanted.values())):
                # asked for BRK, the reader returns BRK.B as well
                yield {i: _plain(batch.column(name), is_date=i == text[0]) for i, name in wanted.items()}

    def _csv_batches(
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
        parse = csv.ParseOptions(newlines_in_values=True)
        with self._stream() as file, csv.open_csv(file, read, parse, convert) as batches:
            for batch in batches:
                for start in range(0, batch.num_rows, batch_rows):
                    part = batch.slice(start, batch_rows)
                    yield {position: part.column(str(position)) for position in (*text, *numbers)}


def _dates(column: pa.Array) -> tuple[pd.Series, Mask]:
    """Parse timestamps, or text that starts with YYYY-MM-DD or YYYYMMDD; return days and a mask of invalid cells."""
    raw = column.to_pandas()
    if pd.api.types.is_datetime64_any_dtype(raw):
        days = raw.dt.tz_localize(None).astype("datetime64[s]")
    else:
        # millions of rows hold a few thousand distinct dates
        codes, distinct = pd.factorize(raw)
        parts = pd.Series(distinct).astype(str).str.strip().str.extract(f"^{ISO_DATE}$")
        text = parts[0] + "-" + parts[1] + "-" + parts[2]
        parsed = pd.to_datetime(text, format="%Y-%m-%d", errors="coerce").to_numpy("datetime64[s]")
        days = pd.Series(np.append(parsed, np.datetime64("NaT"))[codes])
    return days.dt.normalize(), ~((days >= FIRST_DAY) & (days < END_DAY)).to_numpy()


def _tickers(column: pa.Array) -> tuple[pd.Series, Mask]:
    """Parse names as text, whatever type the file has them in; return them, and which are missing."""
    codes, distinct = pd.factorize(column.to_pandas())
    # a column of integers with a gap in it comes as floats
    whole = (int(name) if isinstance(name, float) and name.is_integer() else name for name in distinct)
    names = np.array([*(str(name).strip() for name in whole), ""], dtype=object)
    return pd.Series(pd.Series(names, dtype="str").array.take(codes)), (names == "")[codes]


def _numbers(column: pa.Array) -> tuple[Float64[np.ndarray, " rows"], Mask]:
    """Parse numbers or numbers as text; return float64, NaN where a cell is empty, and a mask of invalid cells."""
    if pa.types.is_string(column.type):
        with suppress(pa.ArrowInvalid):
            column = column.cast(pa.float64())
    if pa.types.is_string(column.type):
        column = pc.utf8_trim_whitespace(column)
        column = pc.if_else(pc.is_in(column, EMPTY_NUMBERS), None, column)
        with suppress(pa.ArrowInvalid):
            column = column.cast(pa.float64())
    if pa.types.is_floating(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False), np.float64), np.zeros(len(column), np.bool_)
    raw = column.to_pandas()
    if raw.dtype.kind in "bmM" or isinstance(raw.dtype, pd.CategoricalDtype):
        return np.full(len(raw), np.nan), raw.notna().to_numpy()
    # decimals are objects; Arrow does not parse the rest, such as +1.5
    numbers = pd.to_numeric(raw, errors="coerce")
    return np.asarray(numbers.astype(np.float64)), (numbers.isna() & raw.notna()).to_numpy()


# parser of a column, problem of a cell that it cannot parse, and remedy
Kind = tuple[Callable[[pa.Array], tuple[Any, Mask]], str, str]
DATES: Kind = (_dates, "dates that cannot be read", "write dates as 2009-01-31")
TICKERS: Kind = (_tickers, "rows without a ticker", "name it")
NUMBERS: Kind = (_numbers, "values in column {} that are no numbers", "correct them, or leave the cells empty")


def require_file(path: str | Path) -> Path:
    """Return `path` as a Path; raise a UserError when it is missing, a directory, empty or cannot be read."""
    path = Path(path)
    # os.path answers False to a name that no path can have; Path would raise
    if not os.path.isfile(path):
        what = "it is a directory" if os.path.isdir(path) else f"check the path (relative to {quoted(Path.cwd())})"
        raise UserError(f"no price file at {quoted(path)}: {what}")
    try:
        with path.open("rb") as file:
            empty = not file.read(1)
    except OSError as error:
        raise UserError(f"{quoted(path)} cannot be read ({error.strerror or error}): name a file that can") from error
    if empty:
        raise UserError(f"{quoted(path)} is empty (0 bytes): write the prices again")
    return path


def fold(name: str) -> str:
    """Return a column's name in the form that is compared: lower case, with one spelling of the adjusted close."""
    name = name.strip().lower()
    if re.sub("[ ._]", "", name) in ("adjclose", "adjustedclose"):
        return ADJ_CLOSE
    # pandas' name of a column without one
    return "" if name == "unnamed: 0" else name


def quoted(value: object) -> str:
    """Quote a value for a message: one line of at most 203 characters."""
    text = repr(str(value))
    return text if len(text) <= 200 else text[:200] + "..."


def _parquet_header(schema: pa.Schema) -> Header:
    names = tuple(schema.names)
    # a RangeIndex is neither a column nor a name
    indices = [name for name in (schema.pandas_metadata or {}).get("index_columns", []) if name in names]
    index = names.index(indices[0]) if len(indices) == 1 else None
    pairs = [(name, "") if i == index else _pair(name) for i, name in enumerate(names)]
    whole = [pair for pair in pairs if pair is not None]
    return Header(names, tuple(zip(*whole, strict=True)) if len(whole) == len(names) > 1 else None, index)


def _pair(name: str) -> tuple[str, str] | None:
    """Return the two names in "('Close', 'AAPL')", as pandas writes a MultiIndex."""
    try:
        pair = ast.literal_eval(name) if name.startswith("(") else None
    except (ValueError, SyntaxError):
        return None
    return (str(pair[0]).strip(), str(pair[1]).strip()) if isinstance(pair, tuple) and len(pair) == 2 else None


def _is_second_level(first: Sequence[str], second: Sequence[str]) -> bool:
    has_close = any(fold(name) == "close" for name in (*first, *second))
    names_only = any(second[1:]) and not any(DATE_OR_NUMBER.fullmatch(cell) for cell in second)
    return len(first) == len(second) and has_close and names_only and fold(second[0]) in LEVEL_NAMES


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
