"""Layouts of price files, recognised from the header and read as rows of one form.

| layout | columns |
|---|---|
| long | date, ticker, open, high, low, close, volume |
| one ticker a file | the same without ticker: it is the file's name |
| wide | date, then one column a ticker with its close |
| yfinance | date, then one column for each pair of price and ticker, named in two rows |

Names may be in upper or lower case and, except that a wide file's date comes first, in any order. Further columns
are ignored; in a wide file there are none, each is a ticker. The volume may be absent. A file with neither open, high
nor low is close only: open, high and low are set to the close. Without a column of tickers, a file that has `high`,
`close`, `volume` or an adjusted close holds one ticker; any other is wide, because LOW and OPEN are tickers too.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float64

from eigen2.errors import UserError
from eigen2.market.data.files import ADJ_CLOSE, Batch, Header, PriceFile, fold, quoted, require_file
from eigen2.market.data.source import PRICE_COLUMNS, VALUES

SUFFIX = re.compile(r"(\.csv|\.csv\.gz|\.parquet|\.pq)$", re.IGNORECASE)
LONG, ONE_TICKER, WIDE, YFINANCE = "long", "one ticker a file", "wide", "yfinance"
# the first of these that a file has counts: beside a symbol, a name is a company's
DATE_NAMES = ("date", "datetime", "timestamp")
TICKER_NAMES = ("ticker", "tic", "symbol", "name")
FIELDS = (*VALUES, ADJ_CLOSE)
CLOSE_ONLY = ["open", "high", "low"]
FIELDS_OF_ONE_TICKER = {"high", "close", "volume", ADJ_CLOSE}

BATCH_ROWS = 250_000
# wide Parquet is read some tickers at a time: one page of every column at once may be the whole file
PARQUET_TICKERS = 64

Positions = dict[str, dict[str, int]]
"""Position of each field's column, by ticker."""


class Input:
    """One price file of a known layout; its header is read when it is made, its rows by `batches`.

    Args:
        path: the file.
        adjust: whether prices are multiplied by adjusted close / close where the file has both. Where one of the
            two is empty, zero or infinite there is no such factor, and the four prices become NaN: unadjusted
            they would stand on another scale than the rows around them. The volume stays as it is.

    Attributes:
        path: the file.
        layout: what it was recognised as, such as "long" or "wide (close only)".

    Raises:
        UserError: when the file is missing, empty, damaged or of another format, or of no known layout.
    """

    def __init__(self, path: str | Path, *, adjust: bool = True) -> None:
        self._file = PriceFile(path)
        self.path = self._file.path
        stem = SUFFIX.sub("", self.path.name).strip() or self.path.name
        self._layout = _recognise(self._file.header, stem, self._file.where, adjust=adjust)
        self.layout = str(self._layout)
        if self._layout.kind != LONG:
            # without a column of tickers, the cause of an error may be what the file was taken for
            self._file.where += f" (read as {self.layout})"

    def batches(self) -> Iterator[pd.DataFrame]:
        """Read the rows in the order of the file, some at a time.

        A day on which a ticker of a wide or yfinance file has no value at all is no row. Such a file in Parquet
        is read some tickers at a time, each ticker's rows in the order of the file.

        Yields:
            1 to 250,000 rows with exactly `source.COLUMNS` as `read_prices` returns them: date datetime64[s] at
            midnight, ticker text, the others float64, NaN where empty. Infinite ones are kept.

        Raises:
            UserError: when a date, ticker or number cannot be read, with the first and its data row, counted
                from 1; when the file turns out to be damaged, to have no rows, or to hold many rows a day though
                it has no column of tickers.
        """
        empty = True
        for layout in self._layout.parts() if self._file.is_parquet else [self._layout]:
            batch_rows = max(BATCH_ROWS // max(len(layout.tickers), 1), 1)
            text = [layout.date] if layout.ticker is None else [layout.date, layout.ticker]
            numbers = [position for positions in layout.fields.values() for position in positions]
            for batch in self._file.batches(text, numbers, batch_rows):
                rows = layout.rows(batch)
                if len(rows):
                    empty = False
                    yield rows
        if empty:
            raise UserError(f"{self._file.where} has a header but no rows of prices: write one row for each date")


def open_inputs(paths: Sequence[str | Path], *, adjust: bool = True) -> list[Input]:
    """Open price files, and folders of price files, each file with its own layout.

    Args:
        paths: files, and folders that stand for every .csv, .csv.gz, .parquet and .pq file directly in them, hidden
            ones aside, in the order of their names.
        adjust: as for `Input`.

    Raises:
        UserError: as for `Input`; and when nothing is named, a folder has no price file, or a file is named twice.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        files.extend(_files_in(path) if os.path.isdir(path) else [require_file(path)])
    if not files:
        raise UserError("no price files are named: name at least one file or folder")
    seen: set[Path] = set()
    for file in files:
        if file.resolve() in seen:
            raise UserError(f"{str(file)!r} is named twice, and every row of it would be a duplicate: name it once")
        seen.add(file.resolve())
    return [Input(file, adjust=adjust) for file in files]


def _files_in(folder: Path) -> list[Path]:
    found = (path for path in folder.iterdir() if SUFFIX.search(path.name) and not path.name.startswith("."))
    files = sorted((path for path in found if path.is_file()), key=lambda path: path.name)
    if not files:
        raise UserError(f"{str(folder)!r} has no .csv, .csv.gz, .parquet or .pq file: name another folder")
    return files


@dataclass(frozen=True)
class _Layout:
    """Positions of a file's columns: `fields` has one for each field that is read, or one for each of `tickers`."""

    kind: str
    date: int
    ticker: int | None
    tickers: tuple[str, ...]
    fields: dict[str, tuple[int, ...]]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind} ({', '.join(self.notes)})" if self.notes else self.kind

    def parts(self) -> Iterator[_Layout]:
        """Split into layouts of `PARQUET_TICKERS` tickers each."""
        for start in range(0, max(len(self.tickers), 1), PARQUET_TICKERS):
            some = slice(start, start + PARQUET_TICKERS)
            fields = {field: positions[some] for field, positions in self.fields.items()}
            yield replace(self, tickers=self.tickers[some], fields=fields)

    def rows(self, batch: Batch) -> pd.DataFrame:
        """Return a batch's rows in the canonical form, a day's tickers side by side."""
        days = batch.dates(self.date)
        values = {
            field: np.column_stack([batch.numbers(position) for position in positions]).ravel()
            for field, positions in self.fields.items()
        }
        if self.ticker is not None:
            tickers = batch.tickers(self.ticker)
        else:
            distinct = days.nunique()
            if self.kind == ONE_TICKER and len(days) > 2 * distinct:
                raise UserError(
                    f"{batch.file.where} has {len(days)} rows on {distinct} days but no column of tickers: name that"
                    " column ticker, or write one row a day"
                )
            each = np.tile(np.arange(len(self.tickers)), len(days))
            tickers = pd.Series(pd.Series(self.tickers, dtype="str").array.take(each))
            days = days.repeat(len(self.tickers)).reset_index(drop=True)
        volume = values.get("volume", np.full(len(days), np.nan))
        frame = pd.DataFrame({"date": days, "ticker": tickers, **_prices(values), "volume": volume})
        if self.kind in (WIDE, YFINANCE):
            given = np.logical_or.reduce([~np.isnan(value) for value in values.values()])
            frame = frame[given].reset_index(drop=True)
        return frame


def _prices(values: dict[str, Float64[np.ndarray, " rows"]]) -> dict[str, Float64[np.ndarray, " rows"]]:
    """Return open, high, low and close, adjusted if there is an adjusted close; a missing column is the close."""
    prices = {column: values.get(column, values["close"]) for column in PRICE_COLUMNS}
    if ADJ_CLOSE not in values:
        return prices
    with np.errstate(all="ignore"):
        factor = values[ADJ_CLOSE] / values["close"]
        factor[(factor == 0) | np.isinf(factor)] = np.nan
        # the close is multiplied too, not replaced: rounded alike, it stays inside [low, high]
        return {column: value * factor for column, value in prices.items()}


def _recognise(header: Header, stem: str, where: str, *, adjust: bool) -> _Layout:
    """Find out the layout of a file, or raise that its names fit none or that two columns claim to be the same."""
    if header.levels is None:
        kind, date, ticker, series = _one_level(header, stem, where)
    else:
        kind, ticker = YFINANCE, None
        date, series = _two_levels(header, header.levels, where)
    wanted = [field for field in FIELDS if any(field in positions for positions in series.values())]
    notes = []
    if "open" not in wanted:
        notes.append("close only")
    if ADJ_CLOSE in wanted and adjust:
        notes.append("prices times adj close / close")
    elif ADJ_CLOSE in wanted:
        wanted.remove(ADJ_CLOSE)
        notes.append("adj close ignored")
    fields = {field: tuple(positions[field] for positions in series.values()) for field in wanted}
    return _Layout(kind, date, ticker, tuple(series) if ticker is None else (), fields, tuple(notes))


def _one_level(header: Header, stem: str, where: str) -> tuple[str, int, int | None, Positions]:
    folded = [fold(name) for name in header.names]
    date = _first(DATE_NAMES, folded, header.index)
    ticker = _first(TICKER_NAMES, folded, None)
    if date is None:
        raise _missing_error(["date"], header, where)
    _check_unique(folded, [date] if ticker is None else [date, ticker], where)
    others = [position for position in range(len(folded)) if position not in (date, ticker, header.index)]
    fields = {field: folded.index(field) for field in FIELDS if field in folded}
    if "value" in folded and "close" not in fields and (ticker is not None or len(others) == 1 + len(fields)):
        fields["close"] = folded.index("value")
    if ticker is None and not FIELDS_OF_ONE_TICKER & fields.keys():
        return WIDE, date, None, _wide(header, date, others, where)
    missing = [column for column in PRICE_COLUMNS if column not in fields]
    if missing == CLOSE_ONLY:
        # a further column may hold the tickers under a name of its own
        missing = ["ticker", *missing] if ticker is None and len(others) > len(fields) else []
    if missing:
        raise _missing_error(missing, header, where)
    _check_unique(folded, fields.values(), where)
    return (ONE_TICKER, date, None, {stem: fields}) if ticker is None else (LONG, date, ticker, {"": fields})


def _wide(header: Header, date: int, others: list[int], where: str) -> Positions:
    if not others or (date != header.index and date > min(others)):
        raise _missing_error(["ticker", *PRICE_COLUMNS], header, where)
    names = [header.names[position].strip() for position in others]
    if "" in names:
        column = others[names.index("")] + 1
        raise UserError(f"{where}: column {column} has no name: give it the name of its ticker, or remove it")
    _check_unique(names, range(len(names)), where)
    return {name: {"close": position} for name, position in zip(names, others, strict=True)}


def _two_levels(header: Header, levels: tuple[Sequence[str], Sequence[str]], where: str) -> tuple[int, Positions]:
    first, second = ([fold(name) for name in level] for level in levels)
    # either may be the upper
    names, tickers = (first, levels[1]) if "close" in first else (second, levels[0])
    # a date among the columns has a name on one level alone
    date = _first(DATE_NAMES, ["" if a and b else a + b for a, b in zip(first, second, strict=True)], header.index)
    if date is None:
        raise _missing_error(["date"], header, where)
    series: Positions = {}
    for position, (name, ticker) in enumerate(zip(names, tickers, strict=True)):
        if name in FIELDS and ticker:
            if name in series.setdefault(ticker, {}):
                raise _double_error(f"{name} of {ticker}", where)
            series[ticker][name] = position
    given = {name for positions in series.values() for name in positions}
    wanted = {*given, *(PRICE_COLUMNS if given & {*CLOSE_ONLY} else ("close",))}
    missing = [f"{name} of {ticker}" for ticker in series for name in FIELDS if name in wanted - series[ticker].keys()]
    if missing or not series:
        raise _missing_error(missing or ["close"], header, where)
    return date, series


def _first(wanted: Sequence[str], names: Sequence[str], default: int | None) -> int | None:
    """Return the position of the first of the wanted names that is there."""
    return next((names.index(name) for name in wanted if name in names), default)


def _missing_error(columns: Sequence[str], header: Header, where: str) -> UserError:
    missing, found = quoted(", ".join(columns)), quoted(", ".join(header.names))
    return UserError(f"{where} lacks the columns {missing}; it has {found}: rename or add them")


def _check_unique(names: Sequence[str], positions: Iterable[int], where: str) -> None:
    counts = Counter(names)
    for position in positions:
        if counts[names[position]] > 1:
            raise _double_error(names[position], where)


def _double_error(column: str, where: str) -> UserError:
    return UserError(f"{where} has more than one column {quoted(column)}: keep one of each")
