"""Headers of price files: the names of columns, in one row or two, and the spellings that mean the same."""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from eigen2.errors import UserError

ADJ_CLOSE = "adj close"
JOINED = re.compile(r"(?:^|[ _.:-])(open|high|low|close|volume)(?:[ _.:-]|$)", re.IGNORECASE)
SPELLINGS = {
    "adjclose": ADJ_CLOSE,
    "adjustedclose": ADJ_CLOSE,
    "price": "close",
    "close/last": "close",  # Nasdaq
    "vol": "volume",  # Stooq, CRSP
    "prc": "close",  # CRSP, as the next three
    "openprc": "open",
    "askhi": "high",
    "bidlo": "low",
    "unnamed:0": "",  # pandas' name of a column without one
}
"""Names in common exports, lower case and without blanks, dots and underscores, and the names that they stand for."""
DATE_OR_NUMBER = re.compile(r"[-+]?[\d.,]+(e[-+]?\d+)?|\d{4}-?\d\d-?\d\d.*", re.IGNORECASE)
# first cell of the second of two header rows: empty, or pandas' name of the level
LEVEL_NAMES = ("", "ticker", "tickers", "symbol", "symbols", "price", "prices", "attributes")


@dataclass(frozen=True)
class Header:
    """Column names of a file, which may repeat.

    Where pandas wrote a MultiIndex, `levels` has the names of both levels; `index` is the position of a former
    DataFrame index; `lines` counts the lines of a text file before its data, blank ones included.
    """

    names: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...] | None = None
    index: int | None = None
    lines: int = 0


def fold(name: str) -> str:
    """Return a column's name in the form that is compared: lower case, in one spelling, Stooq's <> left out."""
    name = name.strip().lower()
    name = name[1:-1] if name.startswith("<") and name.endswith(">") else name
    return SPELLINGS.get(re.sub("[ ._]", "", name), name)


def fold_all(names: Sequence[str]) -> list[str]:
    """Return the names as `fold` does, but beside a column named close, one named price is a further column."""
    plain, folded = [name.strip().lower() for name in names], [fold(name) for name in names]
    further = {*plain} - {ADJ_CLOSE}
    return [name if new in further and name != new else new for name, new in zip(plain, folded, strict=True)]


def refuse_joined_names(names: Sequence[str], where: str) -> None:
    """Refuse, as tickers, names such as Close_AAPL beside Volume_AAPL, or PX_OPEN, PX_HIGH and PX_LOW, by a UserError.

    They are prices of one ticker. LOW and OPEN are tickers, too.
    """
    fields = {found[1].lower(): name for name in names if (found := JOINED.search(name))}
    if len(fields) > 2 or (len(fields) > 1 and fields.keys() & {"close", "volume"}):
        first, second, *_ = map(repr, fields.values())
        raise UserError(
            f"{where} has the columns {first} and {second}, which look like prices of one ticker: name its columns "
            "open, high, low, close and volume; of several tickers give two levels, as yfinance does, or one row for "
            "each date and ticker"
        )


def text_header(records: Sequence[tuple[int, Sequence[str]]]) -> Header:
    """Return the header of a text file from its first records, at least one, each with the number of its last line."""
    rows = [tuple(cell.strip() for cell in cells) for _, cells in records[:3]]
    if len(rows) == 1 or not _is_second_level(rows[0], rows[1]):
        return Header(rows[0], index=0 if fold(rows[0][0]) == "" else None, lines=records[0][0])
    # pandas writes the name of the index, if any, below the two levels
    first = list(rows[0])
    for place in range(2, len(first)):
        first[place] = first[place] or first[place - 1]  # Excel's merged cells
    label = len(rows) > 2 and not any(rows[2][1:]) and not DATE_OR_NUMBER.fullmatch(rows[2][0])
    names = tuple(str(pair) for pair in zip(first, rows[1], strict=True))
    return Header(names, (tuple(first), rows[1]), 0, records[1 + label][0])


def parquet_header(schema: pa.Schema) -> Header:
    """Return the header of a Parquet file."""
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
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):  # all that literal_eval raises
        return None
    return (str(pair[0]).strip(), str(pair[1]).strip()) if isinstance(pair, tuple) and len(pair) == 2 else None


def _is_second_level(first: Sequence[str], second: Sequence[str]) -> bool:
    has_close = any("close" in fold_all(level) for level in (first, second))
    level = fold_all(second)[0]
    # tickers may be numbers below the name of their level
    names_only = any(second[1:]) and not any(
        DATE_OR_NUMBER.fullmatch(cell) and not (level and cell.isdecimal()) for cell in second
    )
    return len(first) == len(second) and has_close and names_only and level in LEVEL_NAMES
