"""Reading daily prices: one long table, one row a (date, ticker), from Parquet or CSV."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from csv import Error as CsvError
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Bool
from pyarrow import csv

from eigen2.errors import UserError

FileFormat = Literal["Parquet", "CSV", "gzipped CSV"]

PRICE_COLUMNS = ("open", "high", "low", "close")
TEXT = ("date", "ticker")
COLUMNS = (*TEXT, *PRICE_COLUMNS, "volume")

PARQUET_MAGIC = b"PAR1"
GZIP_MAGIC = b"\x1f\x8b"
# what an empty number may look like as text; in the ticker column the same words are names
EMPTY_NUMBERS = ("", "nan", "NaN", "NAN", "na", "NA", "N/A", "n/a", "#N/A", "null", "NULL", "None", "none")
ISO_DATE = r"(\d{4})-?(\d{2})-?(\d{2})(?:\.0|[T ].*)?"
# prices are stored as float32: beyond these bounds they would become 0 or infinite there
SMALLEST_PRICE = float(np.finfo(np.float32).tiny)
LARGEST_PRICE = float(np.finfo(np.float32).max)
# days outside the calendar's years come from a wrong unit of time
FIRST_DAY, END_DAY = np.datetime64("0001-01-01", "s"), np.datetime64("10000-01-01", "s")


def read_prices(path: str | Path) -> pd.DataFrame:
    """Read a long table of daily prices.

    The file is Parquet (`.parquet`, `.pq`) or CSV (`.csv`, `.csv.gz`) with the columns date, ticker, open,
    high, low, close and volume, upper or lower case, in any order; further columns are ignored. Dates are
    timestamps or text that starts with YYYY-MM-DD or YYYYMMDD; a time of day is dropped, a time zone's local
    date is kept.

    Args:
        path: the file.

    Returns:
        Rows sorted by (ticker, date), with exactly `COLUMNS`: date datetime64[s] at midnight, ticker text
        (NA, NAN and TRUE are names, a number becomes its digits), the others float64. Values are as the file
        has them: `unusable_rows` says which rows the panel leaves out.

    Raises:
        UserError: when the file is missing, empty, damaged or of another format, lacks a column or has no
            rows, when a date, ticker or number cannot be read, when a price or volume is infinite, or when a
            (date, ticker) appears twice.
    """
    path = require_file(path)
    where = repr(str(path))
    table = _read_table(path, where)
    if table.empty:
        raise UserError(f"{where} has a header but no rows of prices: write one row for each date and ticker")
    prices = pd.DataFrame({"date": parse_dates(table["date"], where), "ticker": parse_tickers(table["ticker"], where)})
    for column in (*PRICE_COLUMNS, "volume"):
        prices[column] = parse_numbers(table.pop(column), where)
    refuse_infinite_prices(prices, where)
    _refuse_infinite(prices, {"volume": np.isinf(prices["volume"].to_numpy())}, "volumes", where)
    return _sorted_and_unique(prices, where)


def require_file(path: str | Path) -> Path:
    """Return `path` as a Path once it names a file with content.

    Raises:
        UserError: when it is missing, a directory, empty or not to be read.
    """
    path = Path(path)
    # those of os.path answer no where a path is none at all; those of Path raise
    if os.path.isdir(path):
        raise UserError(f"{shown(path)} is a directory: name the Parquet or CSV file of prices in it")
    if not os.path.isfile(path):
        raise UserError(f"no price file at {shown(path)}: check the path (relative to {shown(Path.cwd())})")
    try:
        with path.open("rb") as file:
            empty = not file.read(1)
    except OSError as error:
        raise UserError(f"{shown(path)} cannot be read ({error.strerror or error}): name a file that can") from error
    if empty:
        raise UserError(f"{shown(path)} is empty (0 bytes): write the prices again")
    return path


def refuse_infinite_prices(prices: pd.DataFrame, where: str = "the price table") -> None:
    """Stop at prices that float32 cannot hold.

    Args:
        prices: long table with the columns of `COLUMNS`.
        where: what the message calls the table.

    Raises:
        UserError: when a price is infinite or beyond the float32 range, with their number and the first one.
    """
    infinite = {column: np.abs(prices[column].to_numpy()) > LARGEST_PRICE for column in PRICE_COLUMNS}
    _refuse_infinite(prices, infinite, "prices", where)


def _refuse_infinite(
    prices: pd.DataFrame, infinite: dict[str, Bool[np.ndarray, " rows"]], what: str, where: str
) -> None:
    """Stop at the cells marked, column by column."""
    count = sum(int(mask.sum()) for mask in infinite.values())
    if count:
        column, mask = next((column, mask) for column, mask in infinite.items() if mask.any())
        first = prices.iloc[int(mask.argmax())]
        raise UserError(
            f"{where} has {count} infinite {what}, first {column} = {first[column]} of"
            f" {shown(first['ticker'])} on {first['date']:%Y-%m-%d}: correct them, or leave the cells empty"
        )


def unusable_rows(prices: pd.DataFrame) -> dict[str, Bool[np.ndarray, " rows"]]:
    """Say which rows the panel treats as days without trading, and why.

    A close or open outside [low, high] is tolerated: common data sets adjust the close alone.

    Args:
        prices: long table with the columns of `COLUMNS`.

    Returns:
        For each reason a mask over the rows; a row is in one mask at most, the first that applies.
    """
    values = [prices[column].to_numpy() for column in PRICE_COLUMNS]
    missing = np.logical_or.reduce([np.isnan(value) for value in values])
    not_positive = np.logical_or.reduce([value < SMALLEST_PRICE for value in values]) & ~missing
    crossed = (prices["high"].to_numpy() < prices["low"].to_numpy()) & ~missing & ~not_positive
    return {"price missing": missing, "price not positive": not_positive, "high below low": crossed}


def file_format(path: Path) -> FileFormat:
    """Say what a file is: by its first bytes where they tell, else by its name.

    Raises:
        UserError: when it is none of the formats.
    """
    with path.open("rb") as file:
        magic = file.read(4)
    name = path.name.lower()
    if magic == PARQUET_MAGIC or name.endswith((".parquet", ".pq")):
        return "Parquet"
    if name.endswith((".csv", ".csv.gz")):
        return "gzipped CSV" if magic.startswith(GZIP_MAGIC) else "CSV"
    raise UserError(f"{str(path)!r} is neither Parquet nor CSV: name a .parquet, .pq, .csv or .csv.gz file")


@contextmanager
def reading(where: str, kind: FileFormat) -> Iterator[None]:
    """Turn what a reader says of a damaged file into a UserError of one line."""
    name = kind.removeprefix("gzipped ")
    try:
        yield
    except (pa.ArrowException, OSError, CsvError, LookupError) as error:  # pytz's of an unknown zone is a LookupError
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{where} cannot be read as {name}: damaged or cut short? ({reason})") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{where} cannot be read as {name}: its text is not UTF-8; save it as UTF-8") from error


def _read_table(path: Path, where: str) -> pd.DataFrame:
    """Read the wanted columns under their lower-case names, values as the file has them."""
    kind = file_format(path)
    with reading(where, kind):
        return _read_parquet(path, where) if kind == "Parquet" else _read_csv(path, where, kind)


def _read_parquet(path: Path, where: str) -> pd.DataFrame:
    with pq.ParquetFile(path) as file:
        names = file.schema_arrow.names
        wanted = _positions(names, where)
        for column, position in wanted.items():
            kind = file.schema_arrow.field(position).type
            if pa.types.is_nested(kind):
                raise UserError(f"{where}: column {column} holds {kind}: write one plain value a row")
        table = file.read(columns=[names[position] for position in wanted.values()])
    return pd.DataFrame(
        {column: plain(table[names[i]], is_date=column == "date").to_pandas() for column, i in wanted.items()}
    )


def plain(column: pa.Array | pa.ChunkedArray, *, is_date: bool) -> pa.Array | pa.ChunkedArray:
    """A column of Parquet as a type of which pandas can hold every value.

    Bytes become text, days timestamps, and in columns of anything but dates what has to do with time becomes text.

    Args:
        column: of no nested type.
        is_date: whether dates are wanted of it.

    Raises:
        pyarrow.ArrowException: text is not UTF-8.
    """
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return column.cast(kind).cast(pa.string())
    if pa.types.is_fixed_size_binary(kind):
        return column.cast(kind).cast(pa.binary()).cast(pa.string())
    if pa.types.is_temporal(kind) and not is_date:
        return column.cast(kind).cast(pa.string())
    if pa.types.is_date(kind):
        # pandas would make an object of each
        return column.cast(kind).cast(pa.timestamp("ms"))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        column.validate(full=True)
    return column


def _read_csv(path: Path, where: str, kind: FileFormat) -> pd.DataFrame:
    def read(numbers: pa.DataType) -> pa.Table:
        """The wanted columns, with the numbers as the given type."""
        types = {names[i]: numbers for i in wanted.values()} | {names[wanted[name]]: pa.string() for name in TEXT}
        convert = csv.ConvertOptions(
            column_types=types,
            include_columns=[names[i] for i in wanted.values()],
            null_values=list(EMPTY_NUMBERS),
            strings_can_be_null=False,
        )
        with pa.input_stream(path, compression=compression) as file:
            return csv.read_csv(file, parse_options=parse, convert_options=convert)

    compression = "gzip" if kind == "gzipped CSV" else None
    parse = csv.ParseOptions(newlines_in_values=True)
    with (
        pa.input_stream(path, compression=compression) as file,
        csv.open_csv(file, parse_options=parse) as head,
    ):
        names = head.schema.names
    wanted = _positions(names, where)
    try:
        table = read(pa.float64())
    except pa.ArrowInvalid:
        # some cell is no number: as text, the cell can be named
        table = read(pa.string())
    return pd.DataFrame({column: table[names[i]].to_pandas() for column, i in wanted.items()})


def _positions(names: Sequence[str], where: str) -> dict[str, int]:
    """Where each wanted column stands in the file's header."""
    folded = [name.strip().lower() for name in names]
    missing = [column for column in COLUMNS if column not in folded]
    if missing:
        found = shown(", ".join(names))
        raise UserError(f"{where} lacks the columns {', '.join(missing)}; it has {found}: rename or add them")
    double = [column for column in COLUMNS if folded.count(column) > 1]
    if double:
        raise UserError(f"{where} has more than one column {', '.join(double)}: keep one of each")
    return {column: folded.index(column) for column in COLUMNS}


def parse_dates(raw: pd.Series, where: str, rows_before: int | None = None) -> pd.Series:
    """Read days from timestamps or text that starts with YYYY-MM-DD or YYYYMMDD.

    Args:
        raw: one column as the file has it.
        where: what the message calls the file.
        rows_before: data rows of the file before this part of it; None where this is all of it.

    Returns:
        datetime64[s] at midnight, local to the time zone the timestamps have.

    Raises:
        UserError: when one cannot be read or lies outside the years 1 to 9999, with the first and its row.
    """
    if pd.api.types.is_datetime64_any_dtype(raw):
        days = raw.dt.tz_localize(None).astype("datetime64[s]")
    else:
        # a few thousand distinct dates stand in millions of rows
        codes, distinct = pd.factorize(raw)
        parts = pd.Series(distinct).astype(str).str.strip().str.extract(f"^{ISO_DATE}$")
        text = parts[0] + "-" + parts[1] + "-" + parts[2]
        parsed = pd.to_datetime(text, format="%Y-%m-%d", errors="coerce").to_numpy("datetime64[s]")
        days = pd.Series(np.append(parsed, np.datetime64("NaT"))[codes])
    unread = days.isna().to_numpy()
    if unread.any():
        count, row = _count_and_row(unread, rows_before)
        value = shown(raw.iloc[int(unread.argmax())])
        raise UserError(
            f"{where} has {count} dates that cannot be read, first {value} in data row {row}: write dates as 2009-01-31"
        )
    outside = ((days < FIRST_DAY) | (days >= END_DAY)).to_numpy()
    if outside.any():
        _, row = _count_and_row(outside, rows_before)
        first = days.to_numpy()[int(outside.argmax())]
        raise UserError(
            f"{where} has dates outside the years 1 to 9999, first {first} in data row {row}: write dates as 2009-01-31"
        )
    return pd.Series(days.dt.normalize())


def parse_tickers(raw: pd.Series, where: str, rows_before: int | None = None) -> pd.Series:
    """Read names as text, whatever type the file has them in.

    Args:
        raw: one column as the file has it.
        where: what the message calls the file.
        rows_before: data rows of the file before this part of it; None where this is all of it.

    Raises:
        UserError: when one is missing, with the first row.
    """
    codes, distinct = pd.factorize(raw)
    names = np.array([*(_ticker(value) for value in distinct), ""], dtype=object)
    empty = (names == "")[codes]
    if empty.any():
        count, row = _count_and_row(empty, rows_before)
        raise UserError(f"{where} has {count} rows without a ticker, first data row {row}: name it")
    return pd.Series(pd.Series(names, dtype="str").array.take(codes))


def _ticker(value: object) -> str:
    # a column of numbers with a gap in it comes as floats
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def parse_numbers(raw: pd.Series, where: str, rows_before: int | None = None) -> pd.Series:
    """Read float64, NaN where the cell is empty.

    Args:
        raw: one column as the file has it; the message calls it by its name.
        where: what the message calls the file.
        rows_before: data rows of the file before this part of it; None where this is all of it.

    Raises:
        UserError: when one is no number, with the first and its row.
    """
    if pd.api.types.is_object_dtype(raw) or pd.api.types.is_string_dtype(raw):
        numbers = pd.to_numeric(raw, errors="coerce")
        unread = (numbers.isna() & raw.notna() & ~raw.isin(EMPTY_NUMBERS)).to_numpy()
    else:
        numbers = raw
        is_number = pd.api.types.is_numeric_dtype(raw) and not pd.api.types.is_bool_dtype(raw)
        unread = np.full(len(raw), not is_number)
    if unread.any():
        count, row = _count_and_row(unread, rows_before)
        value = shown(raw.iloc[int(unread.argmax())])
        raise UserError(
            f"{where}: column {raw.name} has {count} values that are no numbers, first {value}"
            f" in data row {row}: correct them, or leave the cells empty"
        )
    return numbers.astype(np.float64)


def _count_and_row(mask: Bool[np.ndarray, " rows"], rows_before: int | None) -> tuple[str, int]:
    """How many rows the mask holds, as a message says it, and the number of the first, from 1."""
    count = int(mask.sum())
    row = int(mask.argmax()) + 1
    return (str(count), row) if rows_before is None else (f"at least {count}", rows_before + row)


def _sorted_and_unique(prices: pd.DataFrame, where: str) -> pd.DataFrame:
    codes, _ = pd.factorize(prices["ticker"], sort=True)
    order = np.lexsort((prices["date"].to_numpy(), codes))
    if np.any(np.diff(order) != 1):
        prices = prices.take(order).reset_index(drop=True)
        codes = codes[order]
    days = prices["date"].to_numpy()
    repeated = np.append(False, (codes[1:] == codes[:-1]) & (days[1:] == days[:-1]))
    if repeated.any():
        first = prices.iloc[int(repeated.argmax())]
        raise UserError(
            f"{where} has {int(repeated.sum())} duplicate rows of one date and ticker, first"
            f" {first['date']:%Y-%m-%d} {shown(first['ticker'])}: keep one row of each"
        )
    return prices


def shown(value: object) -> str:
    """Quote a value for a message: one line, not long."""
    text = repr(str(value))
    return text if len(text) <= 200 else text[:200] + "..."
