"""Daily prices from a DataFrame, in the forms that users of pandas have."""

import logging
import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa

from eigen2.errors import UserError
from eigen2.market.data.columns import Kind, dates, numbers, tickers
from eigen2.market.data.dates import DateFormat, guess_dates
from eigen2.market.data.files import quoted
from eigen2.market.data.headers import ADJ_CLOSE, fold, fold_all, refuse_joined_names
from eigen2.market.data.source import COLUMNS, PRICE_COLUMNS, VALUES, sorted_prices, warn_of_shift

log = logging.getLogger(__name__)

WHERE = "the DataFrame"
ZONE = re.compile(r"(?<=:\d\d)(Z|[+-]\d\d:?\d\d)$")  # at the end of a time


def frame_prices(frame: object, features: Sequence[str] = ()) -> pd.DataFrame:
    """Return the prices of a DataFrame as `read_prices` returns those of a file; the DataFrame stays as it is.

    It is long, with the columns of `read_prices`, where date and ticker may be levels of the index; or has a column for
    each price and ticker, in two levels of either order, as `yfinance.download` returns it; or is wide, with a column
    of closes for each ticker. The last two have the dates as index. Open, high and low are the close if all three are
    missing; the volume may be missing.

    Raises:
        UserError: when it has none of these forms or no rows, a date, ticker or number cannot be read, a number is
            infinite, or a (date, ticker) appears twice.
    """
    if not isinstance(frame, pd.DataFrame):
        raise UserError(f"the prices are a {type(frame).__name__}: give a DataFrame")
    long = _long(frame)
    names, own = [str(name) for name in long.columns], {name.strip().lower() for name in features}
    plain, folded = [name.strip().lower() for name in names], fold_all(names)
    wanted = {**dict.fromkeys(COLUMNS), **dict.fromkeys(features)}
    at = {name: [i for i, present in enumerate(folded) if present == name and plain[i] not in own] for name in COLUMNS}
    for name in features:
        exact = [i for i, present in enumerate(plain) if present == name.strip().lower()]
        at[name] = exact or [i for i, present in enumerate(folded) if present == fold(name)]
    filled = {"volume": np.nan} if not at["volume"] else {}
    if at["close"] and not any(at[name] for name in PRICE_COLUMNS[:3]):
        at |= dict.fromkeys(PRICE_COLUMNS[:3], at["close"])
    if missing := [name for name in wanted if not at[name] and name not in filled]:
        present = quoted(", ".join(map(str, long.columns)))
        raise UserError(f"{WHERE} lacks the columns {', '.join(missing)}; it has {present}: rename or add them")
    if double := [name for name in wanted if len(at[name]) > 1]:
        raise UserError(f"{WHERE} has more than one column {', '.join(double)}: keep one of each")
    if not len(long):
        raise UserError(f"{WHERE} has no rows of prices: give one row for each date and ticker")
    if ADJ_CLOSE in folded and ADJ_CLOSE not in map(fold, features):
        remedy = "multiply the prices by adjusted close / close"
        log.warning("%s has adjusted closes, which are ignored: %s (of yfinance: auto_adjust=True)", WHERE, remedy)
    days = long.iloc[:, at["date"][0]]
    if days.dtype == object:  # of several time zones, which Arrow would convert to the first: the day there counts
        long = long.copy(deep=False)
        long.isetitem(at["date"][0], days.map(str, na_action="ignore").array)
    kinds: dict[str, Kind] = {"date": dates(_date_format(long.iloc[:, at["date"][0]])), "ticker": tickers()}
    number = numbers(".", ",")
    columns = {
        name: filled[name] if name in filled else _parsed(long.iloc[:, at[name][0]], name, kinds.get(name, number))
        for name in wanted
    }
    return sorted_prices(pd.DataFrame(columns), (*VALUES, *features), WHERE)


def _long(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of one date and ticker each, with both as columns."""
    levels = [{fold(str(name)) for name in frame.columns.get_level_values(i)} for i in range(frame.columns.nlevels)]
    if len(levels) > 2:
        raise UserError(f"{WHERE} has columns of {len(levels)} levels: give two, prices and tickers, or one")
    if len(levels) == 2:
        return _of_two_levels(frame, levels)
    if not isinstance(frame.index, pd.MultiIndex | pd.RangeIndex) and "date" not in levels[0]:
        text = pd.api.types.infer_dtype(frame.index) in ("string", "date")
        index = frame.index
        if text:  # of a time with a zone the day there counts
            local = index.map(lambda value: ZONE.sub("", str(value)))
            index = pd.to_datetime(local, errors="coerce", format="ISO8601")
        frame = frame if index.hasnans else frame.set_axis(index)
    by_date = isinstance(frame.index, pd.DatetimeIndex) and "date" not in levels[0]
    if by_date and not levels[0] & {"ticker", "close"}:
        refuse_joined_names([*map(str, frame.columns)], WHERE)
        closes = frame.rename_axis("date").reset_index().melt("date", var_name="ticker", value_name="close")
        return closes.dropna(subset="close").reset_index(drop=True)
    if by_date:
        frame = frame.rename_axis("date")
    named = [name for name in frame.index.names if name is not None]
    if doubled := [name for name in named if fold(str(name)) in levels[0]]:  # of `set_index(..., drop=False)`
        frame, named = frame.reset_index(doubled, drop=True), [name for name in named if name not in doubled]
    return frame.reset_index(named) if named else frame


def _of_two_levels(frame: pd.DataFrame, levels: Sequence[set[str]]) -> pd.DataFrame:
    """Return the rows of a table with columns of two levels, prices and tickers, in either order."""
    if not any("close" in names for names in levels):
        raise UserError(f"{WHERE} has columns of two levels, but none has a close: name the prices as yfinance does")
    if frame.index.nlevels > 1:
        raise UserError(f"{WHERE} has rows and columns of two levels: give dates alone as index")
    reset = [name for name in frame.columns if fold(str(name[0])) in ("date", "datetime") and not str(name[1])]
    if reset and not isinstance(frame.index, pd.DatetimeIndex):
        frame = frame.set_index(reset[0])  # it was reset
    if frame.columns.has_duplicates:
        twice = " ".join(map(str, frame.columns[frame.columns.duplicated()][0]))
        raise UserError(f"{WHERE} has more than one column {quoted(twice)}: keep one of each")
    rows = frame.stack([1 if "close" in levels[0] else 0], future_stack=True)
    assert isinstance(rows, pd.DataFrame)  # a level is left
    return rows.dropna(how="all").rename_axis(["date", "ticker"]).rename_axis(columns=None).reset_index()


def _date_format(values: pd.Series) -> DateFormat:
    """Return the format of dates: ISO 8601, or timestamps, of which midnights of another zone in UTC are recognised."""
    if not pd.api.types.is_datetime64_any_dtype(values):
        return DateFormat()
    found = guess_dates(lambda: iter([pa.array(values)]), None, WHERE)
    warn_of_shift(found, WHERE)
    return found


def _parsed(values: pd.Series, name: str, kind: Kind) -> object:
    """Return the parsed values of a column."""
    parse, what, remedy = kind
    try:
        array = pa.array(values, from_pandas=True)
    except pa.ArrowException:  # values of several types, or of one that Arrow lacks
        array = pa.array(values.map(str, na_action="ignore"), pa.string(), from_pandas=True)
    parsed, bad = parse(array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array)
    if bad.any():
        row, problem = int(bad.argmax()), what.format(quoted(name))
        raise UserError(f"{WHERE} has {bad.sum()} {problem}, first {quoted(values.iloc[row])} in row {row}: {remedy}")
    return parsed
