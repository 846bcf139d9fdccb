"""Rows to find fault with, made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from eigen2.market.data.cleaning.blocks import Calendar
from eigen2.market.data.cleaning.defects import find
from eigen2.market.data.cleaning.policy import Limits
from eigen2.market.data.source import COLUMNS

Row = tuple[str, str, float, float, float, float, float]


def table(rows: Sequence[Row]) -> pd.DataFrame:
    """A block of the rows (date, ticker, open, high, low, close, volume), sorted as blocks are."""
    return as_block(pd.DataFrame(rows, columns=list(COLUMNS)))


def as_block(frame: pd.DataFrame) -> pd.DataFrame:
    """Any rows in the form and order of a block."""
    frame = frame.astype({"date": "datetime64[s]", "ticker": "str"} | dict.fromkeys(COLUMNS[2:], "float64"))
    return frame[list(COLUMNS)].sort_values(["ticker", "date"], kind="stable", ignore_index=True)


def series(
    closes: Sequence[float], ticker: str = "A", first: str = "2020-01-06", volume: float = 100.0
) -> pd.DataFrame:
    """Ordinary bars on business days, each from its close 1 % up and down, open in the middle between two closes."""
    close = np.asarray(closes, float)
    days = np.busday_offset(np.datetime64(first), np.arange(len(close)), roll="forward")
    bars = {"open": close * 1.001, "high": close * 1.01, "low": close * 0.99, "close": close, "volume": volume}
    return as_block(pd.DataFrame({"date": days, "ticker": ticker, **bars}))


def fillers(days: np.ndarray, tickers: int = 12) -> pd.DataFrame:
    """Tickers FILL00, FILL01 and so on that trade on all days and have no defect."""
    rng = np.random.default_rng(7)
    frames = []
    for i in range(tickers):
        close = 50 * np.exp(np.cumsum(rng.normal(0, 0.01, len(days))))
        bars = {"open": close * 1.001, "high": close * 1.01, "low": close * 0.99, "close": close, "volume": 1000.0}
        frames.append(pd.DataFrame({"date": days, "ticker": f"FILL{i:02d}", **bars}))
    return pd.concat(frames)


def calendar_of(block: pd.DataFrame, indicators: Sequence[str] = ()) -> Calendar:
    """The calendar of a table that is the only input."""
    days = np.unique(block["date"].to_numpy().astype("datetime64[D]"))
    priced = block[~block["ticker"].isin(list(indicators))]
    rows = np.bincount(np.searchsorted(days.astype("datetime64[s]"), priced["date"]), minlength=len(days))
    lives = priced.groupby("ticker")["date"].agg(["min", "max"])
    first, last = (np.sort(lives[edge].to_numpy().astype("datetime64[D]")) for edge in ("min", "max"))
    listed = np.searchsorted(first, days, side="right") - np.searchsorted(last, days, side="left")
    return Calendar(days=days, rows=rows.astype(np.int64), listed=listed.astype(np.int64))


def defects(
    block: pd.DataFrame, limits: Limits | None = None, indicators: Sequence[str] = (), calendar: Calendar | None = None
) -> list[set[str]]:
    """What `find` finds, row by row."""
    return by_row(find(block, calendar or calendar_of(block, indicators), limits or Limits(), indicators))


def by_row(found: Mapping[str, np.ndarray]) -> list[set[str]]:
    """Masks as a set of names for each row."""
    return [{name for name, mask in found.items() if mask[row]} for row in range(len(next(iter(found.values()))))]
