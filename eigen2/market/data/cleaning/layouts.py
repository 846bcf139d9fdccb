"""Layouts of price files (docs/data.md), recognised from the header and read as rows of one form.

Names may be in upper or lower case and in any order, except that a wide file's date comes first. Further columns are
ignored; in a wide file every other column is a ticker. Without a column of tickers, a file that has `high`, `close`,
`volume` or an adjusted close holds one ticker; any other is wide, because LOW and OPEN are tickers too.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float64

from eigen2.errors import UserError
from eigen2.market.data.csv_format import CsvFormat
from eigen2.market.data.files import SUFFIX, PriceFile, quoted
from eigen2.market.data.headers import ADJ_CLOSE, Header, fold, fold_all, refuse_joined_names
from eigen2.market.data.source import PRICE_COLUMNS, VALUES

LONG, ONE_TICKER, WIDE, YFINANCE = "long", "one ticker a file", "wide", "yfinance"
# the first of these that a file has is used: CRSP's permno stays where tickers change hands; beside a symbol, `name` is
# the company's
DATE_NAMES = ("date", "datetime", "timestamp", "time")
TICKER_NAMES = ("permno", "ticker", "tic", "symbol", "name")
FIELDS = (*VALUES, ADJ_CLOSE)
CLOSE_ONLY = ["open", "high", "low"]
FIELDS_OF_ONE_TICKER = {"high", "close", "volume", ADJ_CLOSE}

BATCH_ROWS = 250_000
SEVERAL_TICKERS = 0.1  # share of the dates with several names from which these are tickers
# wide Parquet is read some tickers at a time: one page of every column at once may be the whole file
PARQUET_TICKERS = 64

Positions = dict[str, dict[str, int]]
"""Position of each field's column, by ticker."""


class Input:
    """One price file of a known layout; its header is read when it is made, its rows by `batches`.

    Prices are multiplied by adjusted close / close where the file has both. Where one of the two is empty, zero or
    infinite, the four prices become NaN: unadjusted they would be on another scale than the rows around them. The
    volume is divided by the same. `layout` is the layout recognised, such as "wide (close only)", and the file's format
    where that is unusual: "long, sep ';', decimal ',', dates %d.%m.%Y"; `left_out` are the names of columns not read.

    Raises:
        UserError: when the file is missing, empty, damaged or of another format, or of no known layout.
    """

    def __init__(self, path: str | Path, form: CsvFormat = CsvFormat()) -> None:
        self._file = PriceFile(path, form)
        self.path = self._file.path
        stem = SUFFIX.sub("", self.path.name).strip() or self.path.name
        self._kind, date, self._ticker, self._series = _recognise(self._file.header, stem, self._file.where)
        present = {field for positions in self._series.values() for field in positions}
        self._fields = [field for field in FIELDS if field in present]
        notes = ["close only"] * ("open" not in present) + ["prices times adj close / close"] * (ADJ_CLOSE in present)
        layout = f"{self._kind} ({', '.join(notes)})" if notes else self._kind
        if self._kind != LONG:
            # without a column of tickers, the cause of an error may be what the file was taken for
            self._file.where += f" (read as {layout})"
        self.where = self._file.where
        folded = [fold(name) for name in self._file.header.names]
        in_rows = self._kind in (LONG, ONE_TICKER) and "time" in folded
        time = folded.index("time") if in_rows else date
        self._date = self._file.date_column(date, None if time == date else time)
        read = {date, time, self._ticker, self._file.header.index}
        read |= {position for positions in self._series.values() for position in positions.values()}
        self._others = [i for i in range(len(self._file.header.names)) if i not in read]
        self.left_out = [self._file.header.names[i] for i in self._others]
        # CRSP's prices are negative where they are means of bid and ask
        self.has_quotes = any(name.strip().lower() == "prc" for name in self._file.header.names)
        self.layout = ", ".join(filter(None, (layout, self._file.format_notes(self._date))))

    def batches(self) -> Iterator[pd.DataFrame]:
        """Yield 1 to 250,000 rows at a time with `source.COLUMNS`, dates with times of day, infinite numbers included.

        Rows come in the order of the file; wide and yfinance files skip rows without any value and, in Parquet, come
        some tickers at a time.

        Raises:
            UserError: when a date, ticker or number cannot be read, or the file turns out to be damaged, to have no
                rows, or to hold many rows a day though it has no column of tickers.
        """
        empty = True
        tickers = list(self._series)
        at_once = PARQUET_TICKERS if self._file.is_parquet else len(tickers)
        for start in range(0, len(tickers), at_once):
            some = tickers[start : start + at_once]
            numbers = [self._series[ticker][field] for field in self._fields for ticker in some]
            for batch in self._file.batches(self._date, self._ticker, numbers, max(BATCH_ROWS // len(some), 1)):
                rows = self._rows(some, *batch)
                if self._kind == ONE_TICKER and empty and rows["date"].duplicated().any():
                    self._refuse_several_tickers()
                if len(rows):
                    empty = False
                    yield rows
        if empty:
            raise UserError(f"{self._file.where} has a header but no rows of prices: write one row for each date")

    def _refuse_several_tickers(self) -> None:
        """Raise a UserError if a column that is not read has several names on many dates, which recur: tickers."""
        if self._date.time is not None:
            return
        index = self._file.header.index
        others = [*self._others, *([] if index in (None, self._date.position) else [index])]
        for batch in self._file.raw_batches([self._date.position, *others], [], BATCH_ROWS):
            date, *columns = (batch[position].to_pandas() for position in (self._date.position, *others))
            for position, values in zip(others, columns, strict=True):
                texts = values.astype(object).fillna("").astype(str).str.strip()
                names = texts[(texts != "") & pd.to_numeric(texts, errors="coerce").isna()]
                several = names.groupby(date.astype(object)).nunique() > 1
                if several.sum() > SEVERAL_TICKERS * len(several) and 2 * names.nunique() <= len(names):
                    name = quoted(self._file.header.names[position])
                    raise UserError(
                        f"{self._file.where} has several rows a day, which differ in column {name}: name it ticker, or "
                        "write one row a day"
                    )

    def _rows(self, tickers: list[str], days: pd.Series, *columns: Any) -> pd.DataFrame:
        """Return parsed columns as rows with `source.COLUMNS`, all tickers of a day one after the other."""
        if self._ticker is not None:
            names, columns = columns[0], columns[1:]
        else:
            if self._kind == ONE_TICKER and len(days) > 2 * days.nunique():
                raise UserError(
                    f"{self._file.where} has {len(days)} rows on {days.nunique()} days but no column of tickers: name "
                    "that column ticker, or write one row a day"
                )
            names = pd.Series(pd.Series(tickers, dtype="str").array.take(np.tile(np.arange(len(tickers)), len(days))))
            days = days.repeat(len(tickers)).reset_index(drop=True)
        # columns come field by field, each with all tickers
        by_ticker = np.stack(columns, axis=1).reshape(-1, len(self._fields), len(tickers)).swapaxes(1, 2)
        numbers = by_ticker.reshape(-1, len(self._fields))
        values = dict(zip(self._fields, numbers.T, strict=True))
        frame = pd.DataFrame({"date": days, "ticker": names, **_bars(values)})
        if self._kind in (WIDE, YFINANCE):
            frame = frame[~np.isnan(numbers).all(axis=1)].reset_index(drop=True)
        return frame


def _bars(values: dict[str, Float64[np.ndarray, " rows"]]) -> dict[str, Float64[np.ndarray, " rows"]]:
    """Return open, high, low, close and volume, adjusted if there is an adjusted close; a missing price is the close.

    The volume is divided by what prices are multiplied by: their product, the money traded, is that of the day.
    """
    prices = {column: values.get(column, values["close"]) for column in PRICE_COLUMNS}
    volume = values.get("volume", np.full(len(values["close"]), np.nan))
    if ADJ_CLOSE not in values:
        return {**prices, "volume": volume}
    with np.errstate(all="ignore"):
        factor = values[ADJ_CLOSE] / values["close"]
        factor[(factor == 0) | np.isinf(factor)] = np.nan
        # the close is multiplied too, not replaced: rounded alike, it stays inside [low, high]
        return {**{column: value * factor for column, value in prices.items()}, "volume": volume / factor}


def _recognise(header: Header, stem: str, where: str) -> tuple[str, int, int | None, Positions]:
    """Return a file's layout, the positions of its dates and tickers, and of each field by ticker ("" if long)."""
    if header.levels is not None:
        return _recognise_yfinance(header, header.levels, where)
    folded = fold_all(header.names)
    date = _first(DATE_NAMES, folded, header.index)
    ticker = _first(TICKER_NAMES, folded, None)
    if date is None:
        raise _missing(["date"], header, where)
    _check_unique(folded, [date] if ticker is None else [date, ticker], where)
    others = [position for position in range(len(folded)) if position not in (date, ticker, header.index)]
    fields = {field: folded.index(field) for field in FIELDS if field in folded}
    if ticker is None and not FIELDS_OF_ONE_TICKER & fields.keys():
        if not others or (date != header.index and date > min(others)):
            raise _missing(["ticker", *PRICE_COLUMNS], header, where)
        names = [header.names[position].strip() for position in others]
        if "" in names:
            column = others[names.index("")] + 1
            raise UserError(f"{where}: column {column} has no name: give it the name of its ticker, or remove it")
        _check_unique(names, range(len(names)), where)
        refuse_joined_names(names, where)
        return WIDE, date, None, {name: {"close": position} for name, position in zip(names, others, strict=True)}
    missing = [column for column in PRICE_COLUMNS if column not in fields]
    if missing == CLOSE_ONLY:
        # a further column may hold the tickers under a name of its own
        further = [position for position in others if folded[position] != "time"]
        missing = ["ticker", *missing] if ticker is None and len(further) > len(fields) else []
    if missing:
        raise _missing(missing, header, where)
    _check_unique(folded, fields.values(), where)
    return (ONE_TICKER, date, None, {stem: fields}) if ticker is None else (LONG, date, ticker, {"": fields})


def _recognise_yfinance(
    header: Header, levels: tuple[tuple[str, ...], ...], where: str
) -> tuple[str, int, int | None, Positions]:
    first, second = map(fold_all, levels)
    # either level may come first
    names, tickers = (first, levels[1]) if "close" in first else (second, levels[0])
    # a date among the columns has a name on one level alone
    date = _first(DATE_NAMES, ["" if a and b else a + b for a, b in zip(first, second, strict=True)], header.index)
    if date is None:
        raise _missing(["date"], header, where)
    series: Positions = {}
    for position, (name, ticker) in enumerate(zip(names, tickers, strict=True)):
        if name in FIELDS and ticker:
            if name in series.setdefault(ticker, {}):
                raise _double(f"{name} of {ticker}", where)
            series[ticker][name] = position
    present = {name for positions in series.values() for name in positions}
    wanted = {*present, *(PRICE_COLUMNS if present & {*CLOSE_ONLY} else ("close",))}
    missing = [f"{name} of {ticker}" for ticker in series for name in FIELDS if name in wanted - series[ticker].keys()]
    if missing or not series:
        raise _missing(missing or ["close"], header, where)
    return YFINANCE, date, None, series


def _first(wanted: Sequence[str], names: Sequence[str], default: int | None) -> int | None:
    """Return the position of the first of the wanted names that is present."""
    return next((names.index(name) for name in wanted if name in names), default)


def _missing(columns: Sequence[str], header: Header, where: str) -> UserError:
    missing, present = quoted(", ".join(columns)), quoted(", ".join(header.names))
    return UserError(f"{where} lacks the columns {missing}; it has {present}: rename or add them")


def _check_unique(names: Sequence[str], positions: Iterable[int], where: str) -> None:
    times = Counter(names)
    for position in positions:
        if times[names[position]] > 1:
            raise _double(names[position], where)


def _double(column: str, where: str) -> UserError:
    return UserError(f"{where} has more than one column {quoted(column)}: keep one of each")
