"""The long table of daily prices: one row per (date, ticker), read from Parquet or CSV."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Bool, Int

from eigen2.errors import UserError
from eigen2.market.data.files import PriceFile, quoted

PRICE_COLUMNS = ("open", "high", "low", "close")
VALUES = (*PRICE_COLUMNS, "volume")
COLUMNS = ("date", "ticker", *VALUES)
# prices are stored as float32: beyond these bounds they would become 0 or infinite
SMALLEST_PRICE = float(np.finfo(np.float32).tiny)
LARGEST_PRICE = float(np.finfo(np.float32).max)
BATCH_ROWS = 1_000_000


def read_prices(path: str | Path) -> pd.DataFrame:
    """Read a long table of daily prices.

    The file is Parquet (`.parquet`, `.pq`) or CSV (`.csv`, `.csv.gz`) with the columns date, ticker, open, high, low,
    close and volume, upper or lower case, in any order; further columns are ignored. Dates are timestamps or text that
    starts with YYYY-MM-DD or YYYYMMDD; a time of day is dropped, a time zone's local date is kept.

    Returns:
        Rows sorted by (ticker, date), with exactly `COLUMNS`: date datetime64[s] at midnight, ticker text (NA, NAN and
        TRUE are names, a number becomes its digits), the others float64, unchanged.

    Raises:
        UserError: when the file is missing, empty, damaged or of another format, lacks a column or has no rows, a date,
            ticker or number cannot be read, a number is infinite, or a (date, ticker) appears twice.
    """
    file = PriceFile(path)
    folded = [name.strip().lower() for name in file.header.names]
    if missing := [column for column in COLUMNS if column not in folded]:
        found = quoted(", ".join(file.header.names))
        raise UserError(f"{file.where} lacks the columns {', '.join(missing)}; it has {found}: rename or add them")
    if double := [column for column in COLUMNS if folded.count(column) > 1]:
        raise UserError(f"{file.where} has more than one column {', '.join(double)}: keep one of each")
    date, ticker, *values = map(folded.index, COLUMNS)
    batches = file.batches(date, ticker, values, BATCH_ROWS)
    parts = [pd.DataFrame(dict(zip(COLUMNS, batch, strict=True))) for batch in batches]
    if not sum(map(len, parts)):
        raise UserError(f"{file.where} has a header but no rows of prices: write one row for each date and ticker")
    prices = pd.concat(parts, ignore_index=True)
    del parts
    check_finite(prices, VALUES, file.where)
    codes, _ = pd.factorize(prices["ticker"], sort=True)
    order = np.lexsort((prices["date"].to_numpy(), codes))
    if np.any(np.diff(order) != 1):
        prices = prices.take(order).reset_index(drop=True)
    repeated = prices.duplicated(["date", "ticker"]).to_numpy()
    if repeated.any():
        first = prices.iloc[int(repeated.argmax())]
        raise UserError(
            f"{file.where} has {repeated.sum()} duplicate rows of one date and ticker, first"
            f" {first['date']:%Y-%m-%d} {quoted(first['ticker'])}: keep one row of each"
        )
    return prices


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


def unusable_rows(prices: pd.DataFrame) -> dict[str, Bool[np.ndarray, " rows"]]:
    """Return which rows the panel treats as days without trading, by reason; a row has only the first that applies.

    A close or open outside [low, high] is tolerated: common data sets adjust the close alone.
    """
    values = [prices[column].to_numpy() for column in PRICE_COLUMNS]
    missing = np.logical_or.reduce([np.isnan(value) for value in values])
    not_positive = np.logical_or.reduce([value < SMALLEST_PRICE for value in values]) & ~missing
    crossed = (prices["high"] < prices["low"]).to_numpy() & ~missing & ~not_positive
    return {"price missing": missing, "price not positive": not_positive, "high below low": crossed}


def listed_tickers(
    first: Int[np.ndarray, " tickers"], last: Int[np.ndarray, " tickers"], days: int
) -> Int[np.ndarray, " days"]:
    """Return how many tickers are listed on each day, from the days of each ticker's first and last row."""
    return np.cumsum(np.bincount(first, minlength=days + 1) - np.bincount(last + 1, minlength=days + 1))[:days]
