"""Reading daily prices: one long table, one row a (date, ticker), from Parquet or CSV."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Bool
from pyarrow import csv

from eigen2.errors import UserError

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
            rows, when a date, ticker or number cannot be read, when a price is infinite, or when a (date,
            ticker) appears twice.
    """
    path = require_file(path)
    where = repr(str(path))
    table = _read_table(path, where)
    if table.empty:
        raise UserError(f"{where} has a header but no rows of prices: write one row for each date and ticker")
    prices = pd.DataFrame({"date": _dates(table["date"], where), "ticker": _tickers(table["ticker"], where)})
    for column in (*PRICE_COLUMNS, "volume"):
        prices[column] = _numbers(table.pop(column), where)
    refuse_infinite_prices(prices, where)
    return _sorted_and_unique(prices, where)


def require_file(path: str | Path) -> Path:
    """Return `path` as a Path once it names a file with content.

    Raises:
        UserError: when it is missing, a directory or empty.
    """
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{str(path)!r} is a directory: name the Parquet or CSV file of prices in it")
    if not path.is_file():
        raise UserError(f"no price file at {str(path)!r}: check the path (relative to {str(Path.cwd())!r})")
    if path.stat().st_size == 0:
        raise UserError(f"{str(path)!r} is empty (0 bytes): write the prices again")
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
    count = sum(int(mask.sum()) for mask in infinite.values())
    if count:
        column, mask = next((column, mask) for column, mask in infinite.items() if mask.any())
        first = prices.iloc[int(mask.argmax())]
        raise UserError(
            f"{where} has {count} infinite prices, first {column} = {first[column]} of"
            f" {_shown(first['ticker'])} on {first['date']:%Y-%m-%d}: correct them, or leave the cells empty"
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


def _read_table(path: Path, where: str) -> pd.DataFrame:
    """Read the wanted columns under their lower-case names, values as the file has them."""
    with path.open("rb") as file:
        magic = file.read(4)
    name = path.name.lower()
    try:
        if magic == PARQUET_MAGIC or name.endswith((".parquet", ".pq")):
            return _read_parquet(path, where)
        if name.endswith((".csv", ".csv.gz")):
            return _read_csv(path, where, gzipped=magic.startswith(GZIP_MAGIC))
    except UserError:
        raise
    except (pa.ArrowException, OSError) as error:
        kind = "Parquet" if name.endswith((".parquet", ".pq")) or magic == PARQUET_MAGIC else "CSV"
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{where} cannot be read as {kind}: damaged or cut short? ({reason})") from error
    raise UserError(f"{where} is neither Parquet nor CSV: name a .parquet, .pq, .csv or .csv.gz file")


def _read_parquet(path: Path, where: str) -> pd.DataFrame:
    with pq.ParquetFile(path) as file:
        names = file.schema_arrow.names
        wanted = _positions(names, where)
        for column, position in wanted.items():
            kind = file.schema_arrow.field(position).type
            if pa.types.is_nested(kind):
                raise UserError(f"{where}: column {column} holds {kind}: write one plain value a row")
        table = file.read(columns=[names[position] for position in wanted.values()])
    return pd.DataFrame({column: table[names[i]].to_pandas() for column, i in wanted.items()})


def _read_csv(path: Path, where: str, *, gzipped: bool) -> pd.DataFrame:
    def read(numbers: pa.DataType) -> pa.Table:
        types = {names[i]: numbers for i in wanted.values()} | {names[wanted[name]]: pa.string() for name in TEXT}
        convert = csv.ConvertOptions(
            column_types=types,
            include_columns=[names[i] for i in wanted.values()],
            null_values=list(EMPTY_NUMBERS),
            strings_can_be_null=False,
        )
        with pa.input_stream(path, compression=compression) as file:
            return csv.read_csv(file, parse_options=parse, convert_options=convert)

    compression = "gzip" if gzipped else None
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
        found = _shown(", ".join(names))
        raise UserError(f"{where} lacks the columns {', '.join(missing)}; it has {found}: rename or add them")
    double = [column for column in COLUMNS if folded.count(column) > 1]
    if double:
        raise UserError(f"{where} has more than one column {', '.join(double)}: keep one of each")
    return {column: folded.index(column) for column in COLUMNS}


def _dates(raw: pd.Series, where: str) -> pd.Series:
    """Days, from timestamps or ISO text."""
    if pd.api.types.is_datetime64_any_dtype(raw):
        days = raw.dt.tz_localize(None)
    else:
        # a few thousand distinct dates stand in millions of rows
        codes, distinct = pd.factorize(raw)
        parts = pd.Series(distinct).astype(str).str.strip().str.extract(f"^{ISO_DATE}$")
        text = parts[0] + "-" + parts[1] + "-" + parts[2]
        parsed = pd.to_datetime(text, format="%Y-%m-%d", errors="coerce").to_numpy("datetime64[s]")
        days = pd.Series(np.append(parsed, np.datetime64("NaT"))[codes])
    unread = days.isna().to_numpy()
    if unread.any():
        row = int(unread.argmax())
        raise UserError(
            f"{where} has {int(unread.sum())} dates that cannot be read, first {_shown(raw.iloc[row])}"
            f" in data row {row + 1}: write dates as 2009-01-31"
        )
    return pd.Series(days.dt.normalize().astype("datetime64[s]"))


def _tickers(raw: pd.Series, where: str) -> pd.Series:
    """Names as text, whatever type the file has them in."""
    codes, distinct = pd.factorize(raw)
    text = np.array([*(_ticker(value) for value in distinct), ""], dtype=object)[codes]
    empty = text == ""
    if empty.any():
        row = int(empty.argmax())
        raise UserError(f"{where} has {int(empty.sum())} rows without a ticker, first data row {row + 1}: name it")
    return pd.Series(text, dtype="str")


def _ticker(value: object) -> str:
    # a column of numbers with a gap in it comes as floats
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def _numbers(raw: pd.Series, where: str) -> pd.Series:
    """Float64, NaN where the cell is empty."""
    if pd.api.types.is_object_dtype(raw) or pd.api.types.is_string_dtype(raw):
        numbers = pd.to_numeric(raw, errors="coerce")
        unread = (numbers.isna() & raw.notna() & ~raw.isin(EMPTY_NUMBERS)).to_numpy()
    else:
        numbers = raw
        is_number = pd.api.types.is_numeric_dtype(raw) and not pd.api.types.is_bool_dtype(raw)
        unread = np.full(len(raw), not is_number)
    if unread.any():
        row = int(unread.argmax())
        raise UserError(
            f"{where}: column {raw.name} has {int(unread.sum())} values that are no numbers, first"
            f" {_shown(raw.iloc[row])} in data row {row + 1}: correct them, or leave the cells empty"
        )
    return numbers.astype(np.float64)


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
            f" {first['date']:%Y-%m-%d} {_shown(first['ticker'])}: keep one row of each"
        )
    return prices


def _shown(value: object) -> str:
    """A value as a message quotes it: one line, not long."""
    text = repr(str(value))
    return text if len(text) <= 200 else text[:200] + "..."
