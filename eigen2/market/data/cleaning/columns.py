"""The columns of a price file, CSV or Parquet: their names, and some rows of some of them at a time."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from csv import reader as csv_reader
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from eigen2.errors import UserError
from eigen2.market.data.source import EMPTY_NUMBERS, FileFormat, plain, shown

ADJ_CLOSE = "adj close"
# a row, and so a header of thousands of columns, must fit
CSV_BLOCK_BYTES = 4 << 20
# shared by the columns that are read at once
PARQUET_BUFFER_BYTES = 16 << 20
# what the second of two rows of names may begin with: nothing, or what the level is called
LEVEL_WORDS = ("", "ticker", "tickers", "symbol", "symbols", "price", "prices", "attributes")
DATE_OR_NUMBER = re.compile(r"[-+]?[\d.,]+(e[-+]?\d+)?|\d{4}-?\d\d-?\d\d.*", re.IGNORECASE)

Columns = dict[int, pa.Array]
"""Some rows of some columns, by the position of the column in the file."""


@dataclass(frozen=True)
class Header:
    """What a file calls its columns."""

    names: tuple[str, ...]
    """One a column; in Parquet they need not differ, nor in CSV."""
    levels: tuple[tuple[str, ...], tuple[str, ...]] | None
    """The same where pandas wrote a MultiIndex: the names of either level, one a column."""
    index: int | None
    """Position of what was a DataFrame's index, if there is one."""
    lines: int
    """Lines of a CSV file before its data, blank ones included."""


def fold(name: str) -> str:
    """A column's name as it is compared: lower case, one spelling of the adjusted close."""
    name = name.strip().lower()
    if re.sub("[ ._]", "", name) in ("adjclose", "adjustedclose"):
        return ADJ_CLOSE
    # pandas calls a column without a name so
    return "" if name == "unnamed: 0" else name


def read_header(path: Path, kind: FileFormat) -> Header:
    """Read the names of a file's columns.

    Raises:
        UserError: when a CSV file has blank lines alone, or its header is not UTF-8.
        OSError, pyarrow.ArrowException, csv.Error: when the file is damaged.
    """
    return _parquet_header(path) if kind == "Parquet" else _csv_header(path, kind)


def read_columns(
    path: Path, kind: FileFormat, header: Header, text: Sequence[int], numbers: Sequence[int], batch_rows: int
) -> Iterator[tuple[int, Columns]]:
    """Read columns, some rows at a time, in bounded memory.

    Args:
        path: the file.
        kind: its format.
        header: its header.
        text: positions of columns of dates or names. In CSV they come as text, empty cells as empty text.
        numbers: positions of columns of numbers. In CSV they come as float64, or as text from the first batch on in
            which a cell is no number, so that the reader can name it.
        batch_rows: the most rows at a time.

    Yields:
        The number of data rows before these; the columns.

    Raises:
        UserError: when a column of Parquet is nested.
        OSError, pyarrow.ArrowException: when the file is damaged.
    """
    if kind == "Parquet":
        yield from _parquet_columns(path, header, text, numbers, batch_rows)
        return
    for before, batch in _csv_batches(path, kind, header, text, numbers):
        for start in range(0, batch.num_rows, batch_rows):
            part = batch.slice(start, batch_rows)
            yield before + start, {position: part.column(str(position)) for position in (*text, *numbers)}


def _parquet_header(path: Path) -> Header:
    schema = pq.read_schema(path)
    names = tuple(schema.names)
    # a RangeIndex is no column, and no name either
    indices = [name for name in (schema.pandas_metadata or {}).get("index_columns", []) if name in names]
    index = names.index(indices[0]) if len(indices) == 1 else None
    pairs = [(name, "") if i == index else _pair(name) for i, name in enumerate(names)]
    whole = [pair for pair in pairs if pair is not None]
    if len(whole) < max(len(pairs), 2):
        return Header(names, None, index, 0)
    return Header(names, (tuple(pair[0] for pair in whole), tuple(pair[1] for pair in whole)), index, 0)


def _pair(name: str) -> tuple[str, str] | None:
    """The two names in "('Close', 'AAPL')", as pandas writes a MultiIndex."""
    if not name.startswith("("):
        return None
    try:
        pair = ast.literal_eval(name)
    except (ValueError, SyntaxError):
        return None
    return (str(pair[0]).strip(), str(pair[1]).strip()) if isinstance(pair, tuple) and len(pair) == 2 else None


def _csv_header(path: Path, kind: FileFormat) -> Header:
    with _stream(path, kind) as file:
        # only what is read must be UTF-8, and more than the header is decoded here
        lines = enumerate(csv_reader(TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="")), 1)
        records = list(islice(((line, cells) for line, cells in lines if cells), 3))
    if not records:
        raise UserError(f"{str(path)!r} has blank lines alone: write a header and the prices again")
    if any("\ufffd" in cell or "\0" in cell for cell in records[0][1]):
        raise UserError(f"{str(path)!r} cannot be read as CSV: its header is not UTF-8; save it as UTF-8")
    rows = [tuple(cell.strip() for cell in cells) for _, cells in records]
    if len(rows) == 1 or not _is_second_level(rows[0], rows[1]):
        return Header(rows[0], None, 0 if fold(rows[0][0]) == "" else None, records[0][0])
    # below them pandas writes the name of the index, if it has one
    label = len(rows) > 2 and not any(rows[2][1:]) and not DATE_OR_NUMBER.fullmatch(rows[2][0])
    names = tuple(str(pair) for pair in zip(rows[0], rows[1], strict=True))
    return Header(names, (rows[0], rows[1]), 0, records[1 + label][0])


def _is_second_level(first: Sequence[str], second: Sequence[str]) -> bool:
    a_close = any(fold(name) == "close" for name in (*first, *second))
    words = any(second[1:]) and not any(DATE_OR_NUMBER.fullmatch(cell) for cell in second)
    return len(first) == len(second) and a_close and words and fold(second[0]) in LEVEL_WORDS


def _parquet_columns(
    path: Path, header: Header, text: Sequence[int], numbers: Sequence[int], batch_rows: int
) -> Iterator[tuple[int, Columns]]:
    wanted = {position: header.names[position] for position in (*text, *numbers)}
    buffer_bytes = max(PARQUET_BUFFER_BYTES // len(wanted), 4096)
    dictionaries = [header.names[position] for position in text]
    schema = pq.read_schema(path)
    for position, name in wanted.items():
        kind = schema.field(position).type
        if pa.types.is_nested(kind):
            raise UserError(f"{str(path)!r}: column {shown(name)} holds {kind}: write one plain value a row")
    # a row group can be the whole file: it is not to be in memory at once
    with pq.ParquetFile(path, read_dictionary=dictionaries, buffer_size=buffer_bytes, pre_buffer=False) as file:
        before = 0
        for batch in file.iter_batches(batch_rows, columns=list(wanted.values())):
            # asked for BRK, the reader brings BRK.B as well
            yield before, {i: plain(batch.column(name), is_date=i == text[0]) for i, name in wanted.items()}
            before += batch.num_rows


def _csv_batches(
    path: Path, kind: FileFormat, header: Header, text: Sequence[int], numbers: Sequence[int]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches with their columns' positions for names; with the number of rows before."""
    done = 0
    try:
        for batch in _typed_csv_batches(path, kind, header, text, numbers, pa.float64()):
            yield done, batch
            done += batch.num_rows
        return
    except pa.ArrowInvalid:
        # a cell that is no number, or damage, which will be found again
        pass
    before = 0
    for batch in _typed_csv_batches(path, kind, header, text, numbers, pa.string()):
        # the same bytes make a batch, whatever their type
        if before >= done:
            yield before, batch
        before += batch.num_rows


def _typed_csv_batches(
    path: Path, kind: FileFormat, header: Header, text: Sequence[int], numbers: Sequence[int], number: pa.DataType
) -> Iterator[pa.RecordBatch]:
    word = pa.dictionary(pa.int32(), pa.string())
    # positions, because names may repeat
    read = csv.ReadOptions(
        column_names=[str(position) for position in range(len(header.names))],
        skip_rows_after_names=header.lines,
        block_size=CSV_BLOCK_BYTES,
    )
    types = {str(position): word for position in text} | {str(position): number for position in numbers}
    convert = csv.ConvertOptions(
        column_types=types,
        include_columns=list(types),
        null_values=list(EMPTY_NUMBERS),
        strings_can_be_null=False,
    )
    parse = csv.ParseOptions(newlines_in_values=True)
    with (
        _stream(path, kind) as file,
        csv.open_csv(file, read_options=read, parse_options=parse, convert_options=convert) as batches,
    ):
        yield from batches


def _stream(path: Path, kind: FileFormat) -> pa.NativeFile:
    return pa.input_stream(path, compression="gzip" if kind == "gzipped CSV" else None)
