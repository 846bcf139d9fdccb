"""The long table of daily prices: one row per (date, ticker), read from Parquet, CSV or Excel."""

import datetime
import logging
import shlex
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from eigen2.errors import UserError
from eigen2.market.data.dates import DateFormat
from eigen2.market.data.files import PriceFile, quoted
from eigen2.market.data.headers import ADJ_CLOSE, fold
from eigen2.memory.limits import available_bytes, require_room

log = logging.getLogger(__name__)

PRICE_COLUMNS = ("open", "high", "low", "close")
VALUES = (*PRICE_COLUMNS, "volume")
OPEN, HIGH, LOW, CLOSE, VOLUME = range(5)  # places of `VALUES`; of the first four in prices and bars, too
COLUMNS = ("date", "ticker", *VALUES)
# prices are stored as float32: beyond these bounds they would become 0 or infinite
SMALLEST_PRICE = float(np.finfo(np.float32).tiny)
LARGEST_PRICE = float(np.finfo(np.float32).max)
BATCH_ROWS = 1_000_000
# upper bounds: the table, its copy while it is sorted, and the panel built from it; 163 to 190 bytes measured
BYTES_PER_ROW, BYTES_PER_FEATURE = 200, 32
LISTED_DAYS = 20  # for which a ticker counts as listed after each of its rows, as it may only be late or halted
# a table is one of returns if more of its closes than this share are below 0, at least so many
RETURNS_SHARE, RETURNS_ROWS = 0.35, 10
# two bars of a day differ if a price does by more than this fraction; a ticker is intraday from so many such days on
SAME_PRICE, TORN_DAYS = 1e-3, 5
FEWER_ROWS = "free memory, or keep fewer tickers or days"
EASTERNMOST = datetime.timezone(datetime.timedelta(hours=14))  # where a day begins first
STRAY_TICKERS = 10
STRAY_PERCENT = 10


def read_prices(path: str | Path, features: Sequence[str] = ()) -> pd.DataFrame:
    """Read a long table of daily prices.

    The file is Parquet, Excel or text (`.csv`, `.txt`, `.tsv`) with the columns date, ticker, open, high, low, close
    and volume, upper or lower case, in any order. Of further columns it reads only `features`, which are numbers.
    Separator, decimal mark and format of dates are guessed (`CsvFormat`). A time of day is dropped, a time zone's local
    date is kept.

    Returns:
        Rows sorted by (ticker, date), with exactly `COLUMNS` and `features`: date datetime64[s] at midnight, ticker
        text (NA, NAN and TRUE are names, a number becomes its digits), the others float64, unchanged.

    Raises:
        UserError: when the file is missing, empty, damaged or of another format, lacks a column or has no rows, a date,
            ticker or number cannot be read, a number is infinite, bars are intraday, a (date, ticker) appears twice, or
            the table does not fit into memory.
    """
    check_features(features)
    prepare = f"python -m eigen2.cli data prepare {shlex.quote(str(path))} OUT.parquet"
    file = PriceFile(path)
    folded = [name.strip().lower() for name in file.header.names]
    columns, wanted = (*COLUMNS, *features), [*COLUMNS, *(name.strip().lower() for name in features)]
    if missing := [column for column in wanted if column not in folded]:
        found = quoted(", ".join(file.header.names))
        remedy = f"run {prepare}, or rename or add them" if {*missing} & {*COLUMNS} else "rename or add them"
        raise UserError(f"{file.where} lacks the columns {', '.join(missing)}; it has {found}: {remedy}")
    if double := [column for column in wanted if folded.count(column) > 1]:
        raise UserError(f"{file.where} has more than one column {', '.join(double)}: keep one of each")
    date, ticker, *values = map(folded.index, wanted)
    time = folded.index("time") if "time" in folded else None
    dates = file.date_column(date, time)
    warn_of_shift(dates.format, file.where)
    rows, row_bytes, available = 0, BYTES_PER_ROW + BYTES_PER_FEATURE * len(features), available_bytes()
    require_room(f"{file.where} has about {file.rows:,} rows", file.rows, row_bytes, FEWER_ROWS, available)
    parts = []
    for batch in file.batches(dates, ticker, values, BATCH_ROWS):
        parts.append(pd.DataFrame(dict(zip(columns, batch, strict=True))))
        rows += len(parts[-1])
        require_room(f"{file.where} has at least {rows:,} rows", rows, row_bytes, FEWER_ROWS, available)
    if not rows:
        raise UserError(f"{file.where} has a header but no rows of prices: write one row for each date and ticker")
    prices = pd.concat(parts, ignore_index=True)
    del parts
    if ADJ_CLOSE in map(fold, file.header.names) and ADJ_CLOSE not in map(fold, features):
        log.warning("%s has adjusted closes, which are ignored; %s adjusts all prices by them", file.where, prepare)
    return sorted_prices(prices, (*VALUES, *features), file.where, prepare)


def sorted_prices(prices: pd.DataFrame, numbers: Sequence[str], where: str, prepare: str | None = None) -> pd.DataFrame:
    """Sort rows by (ticker, date), without times of day.

    `where` names the table, `prepare` is the command that prepares it, if it is a file. Raises UserError for infinite
    numbers, dates after today, intraday bars, or two rows of one date and ticker.
    """
    check_not_future(prices["date"].max(), where, prepare is not None)
    check_finite(prices, numbers, where)
    codes, _ = pd.factorize(prices["ticker"], sort=True)
    order = np.lexsort((prices["date"].to_numpy(), codes))
    if np.any(np.diff(order) != 1):
        prices = prices.take(order).reset_index(drop=True)
    check_daily(prices, f"make daily ones with {f'{prepare} --resample day' if prepare else 'the resample of pandas'}")
    prices["date"] = prices["date"].dt.normalize()
    repeated = prices.duplicated(["date", "ticker"]).to_numpy()
    if repeated.any():
        first = prices.iloc[int(repeated.argmax())]
        raise UserError(
            f"{where} has {repeated.sum()} duplicate rows of one date and ticker, first"
            f" {first['date']:%Y-%m-%d} {quoted(first['ticker'])}: keep one row of each, as data prepare does"
        )
    return prices


def warn_of_shift(dates: DateFormat, where: str) -> None:
    """Warn that times of day were taken for midnights of another time zone."""
    if dates.shift_hours:
        log.warning("%s has midnights of UTC+%g written in UTC: they count as days there", where, dates.shift_hours)


def name_list(key: str, names: Sequence[str]) -> list[str]:
    """Return names as a list; raise a UserError for a text, which would be a list of its characters."""
    if isinstance(names, str):
        raise UserError(f"{key} is {names!r}; give a list of names")
    return list(names)


def check_features(features: Sequence[str], present: Collection[str] | None = None) -> None:
    """Raise a UserError when a feature is named twice, is one of `COLUMNS`, or is not `present`."""
    for name, times in Counter(features).items():
        if times > 1:
            raise UserError(f"data.features has {name!r} {times} times: name it once")
        if name.strip().lower() in COLUMNS:
            raise UserError(f"data.features has {name!r}, which every table of prices has: leave it out")
        if present is not None and name not in present:
            raise UserError(f"the prices lack the feature {name!r}: add that column, or leave it out of data.features")


def check_finite(prices: pd.DataFrame, columns: Sequence[str] = PRICE_COLUMNS, where: str = "the price table") -> None:
    """Raise a UserError when a price is infinite or beyond float32, or a volume infinite; `where` names the table."""
    for name in columns:
        infinite = np.abs(prices[name].to_numpy()) > (LARGEST_PRICE if name in PRICE_COLUMNS else np.finfo(float).max)
        if infinite.any():
            first = prices.iloc[int(infinite.argmax())]
            raise UserError(
                f"{where} has {infinite.sum()} infinite values in column {name}, first {first[name]} of"
                f" {quoted(first['ticker'])} on {first['date']:%Y-%m-%d}: correct them, or leave the cells empty"
            )


def latest_today() -> datetime.date:
    """Return today's date where the day begins first, so that no bar of today is after it."""
    return datetime.datetime.now(EASTERNMOST).date()


def check_not_future(last: pd.Timestamp, where: str, is_file: bool = True) -> None:
    """Raise a UserError when the last date is after today."""
    if last.date() > (today := latest_today()):
        other = ", or give the format of dates with --csv.date_format of data prepare" if is_file else ""
        raise UserError(f"{where} has the date {last:%Y-%m-%d}, after today ({today}): correct it{other}")


def check_not_returns(negative: int, nonzero: int, where: str, remedy: str) -> None:
    """Raise a UserError when so many of the closes that are not 0 are negative that they must be returns."""
    if negative > RETURNS_SHARE * nonzero and negative >= RETURNS_ROWS:
        raise UserError(
            f"{where} has negative closes in {negative:,} of {nonzero:,} rows, like a table of returns: {remedy}"
        )


def check_daily(prices: pd.DataFrame, remedy: str) -> None:
    """Raise a UserError when a ticker has bars of other times and prices on most days, or over two times on average.

    Args:
        prices: rows with times of day, and tickers, sorted by (ticker, date).
        remedy: what to do, the end of the message.
    """
    stamps, (codes, tickers) = prices["date"].to_numpy("datetime64[s]"), pd.factorize(prices["ticker"])
    new_day = np.append(True, (codes[1:] != codes[:-1]) | (np.diff(stamps.astype("datetime64[D]")).astype(int) != 0))
    new_time = new_day | np.append(True, stamps[1:] != stamps[:-1])
    later, differs = np.flatnonzero(new_time & ~new_day), np.zeros(len(prices), np.bool_)
    bars, before = (prices.take(at)[list(PRICE_COLUMNS)].to_numpy() for at in (later, later - 1))
    with np.errstate(all="ignore"):
        differs[later] = (np.abs(bars / before - 1) > SAME_PRICE).any(axis=1)
    torn = np.flatnonzero(new_day)[np.logical_or.reduceat(differs, np.flatnonzero(new_day))] if len(later) else later
    times, days, torn_days = (np.bincount(codes[at], minlength=len(tickers)) for at in (new_time, new_day, torn))
    intraday = (times > 2 * days) | ((torn_days >= TORN_DAYS) & (2 * torn_days > days))
    if intraday.any():
        worst = int((np.where(intraday, times, 0) / days).argmax())
        raise UserError(
            f"prices of {quoted(tickers[worst])} are intraday, {times[worst] / days[worst]:.0f} bars a day, first "
            f"{prices['date'][codes == worst].iloc[0]}: {remedy}"
        )


def wrong_prices(prices: Float[np.ndarray, "rows 4"]) -> dict[str, Bool[np.ndarray, "rows 4"]]:
    """Return which prices cannot be right, by reason: those not above 0, and high and low where they are crossed.

    Missing prices are not among them. A close or open outside [low, high] is tolerated: common data sets adjust the
    close alone.
    """
    crossed = np.zeros(prices.shape, dtype=np.bool_)
    crossed[:, [HIGH, LOW]] = (prices[:, HIGH] < prices[:, LOW])[:, None]
    return {"price not positive": prices < SMALLEST_PRICE, "high below low": crossed}


def usable_prices(prices: Float[np.ndarray, "rows 4"]) -> Float[np.ndarray, "rows 4"]:
    """Return the prices that count, NaN in place of `wrong_prices`.

    A row counts for what it has, if that is an open or a close; else all of it is NaN.
    """
    usable = np.where(np.logical_or.reduce(list(wrong_prices(prices).values())), np.nan, prices)
    usable[np.isnan(usable[:, OPEN]) & np.isnan(usable[:, CLOSE])] = np.nan
    return usable


def listed_tickers(
    ticker: Int[np.ndarray, " rows"], day: Int[np.ndarray, " rows"], days: int
) -> Int[np.ndarray, " days"]:
    """Return how many tickers are listed on each day: those with a row on it or on one of the 20 days before it.

    No later day counts, so that days added to a table change none before them. Counts of disjoint sets of tickers add
    up. Rows come by ticker (numbered) and then by day (0 to `days` - 1).
    """
    # a row lists its ticker until the next one takes over
    following = np.append(np.where(np.diff(ticker) == 0, day[1:], days), days)
    last = np.minimum(following - 1, day + LISTED_DAYS).clip(max=days - 1)
    counted = last >= day  # of rows of the same day, the last one
    first, last = day[counted], last[counted]
    return np.cumsum(np.bincount(first, minlength=days + 1) - np.bincount(last + 1, minlength=days + 1))[:days]


def stray_days(rows: Int[np.ndarray, " days"], listed: Int[np.ndarray, " days"]) -> Bool[np.ndarray, " days"]:
    """Return the days on which fewer than 10 % of at least 10 listed tickers have a row."""
    return (rows > 0) & (listed >= STRAY_TICKERS) & (100 * rows < STRAY_PERCENT * listed)
