"""Rows to find fault with, made by hand."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from eigen2.market.data.cleaning.blocks import Calendar
from eigen2.market.data.cleaning.defects import find
from eigen2.market.data.cleaning.policy import Limits
from eigen2.market.data.source import COLUMNS, listed_tickers

DATA = Path(__file__).resolve().parents[4].parent / "shared" / "data"  # not part of the repository
Row = tuple[str, str, float, float, float, float, float]


def typed(frame: pd.DataFrame) -> pd.DataFrame:
    """Any rows in the form of a block."""
    types = {"date": "datetime64[s]", "ticker": "str"} | dict.fromkeys(COLUMNS[2:], "float64")
    return frame.astype(types)[list(COLUMNS)]


def as_block(frame: pd.DataFrame) -> pd.DataFrame:
    """Any rows in the form and order of a block."""
    return typed(frame).sort_values(["ticker", "date"], kind="stable", ignore_index=True)


def table(rows: Sequence[Row]) -> pd.DataFrame:
    """A block of the rows (date, ticker, open, high, low, close, volume)."""
    return as_block(pd.DataFrame(rows, columns=list(COLUMNS)))


def business_days(first: str, count: int) -> np.ndarray:
    return np.busday_offset(np.datetime64(first), np.arange(count), roll="forward")


def bars(days: np.ndarray, ticker: str, close: np.ndarray, volume: float) -> pd.DataFrame:
    """Ordinary bars; volumes fall a little, so that no row copies another."""
    prices = {"open": close * 1.001, "high": close * 1.01, "low": close * 0.99, "close": close}
    return pd.DataFrame({"date": days, "ticker": ticker, **prices, "volume": volume - np.arange(len(days)) * 1e-9})


def series(
    closes: Sequence[float], ticker: str = "A", first: str = "2020-01-06", volume: float = 100.0
) -> pd.DataFrame:
    """Ordinary bars on business days, each from its close 1 % up and down."""
    return as_block(bars(business_days(first, len(closes)), ticker, np.asarray(closes, float), volume))


def flat(ticker: str, closes: Sequence[float], volume: float = 100.0, first: str = "2020-01-06") -> list[Row]:
    """One price a day."""
    days = business_days(first, len(closes))
    return [(str(day), ticker, c, c, c, c, volume) for day, c in zip(days, closes, strict=True)]


def fillers(days: np.ndarray, tickers: int = 12) -> pd.DataFrame:
    """Tickers FILL00, FILL01 and so on that trade on all days and have no defect."""
    moves = np.random.default_rng(7).normal(0, 0.01, (tickers, len(days)))
    closes = 50 * np.exp(np.cumsum(moves, axis=1))
    return pd.concat([bars(days, f"FILL{i:02d}", close, 1000.0) for i, close in enumerate(closes)])


def calendar_of(block: pd.DataFrame, indicators: Sequence[str] = ()) -> Calendar:
    """The calendar of a table that is the only input."""
    days, day = np.unique(block["date"].to_numpy("datetime64[D]"), return_inverse=True)
    priced = ~block["ticker"].isin(list(indicators)).to_numpy()
    listed = listed_tickers(pd.factorize(block["ticker"])[0][priced], day[priced], len(days))
    return Calendar(days, np.bincount(day[priced], minlength=len(days)), listed)


def defects(
    block: pd.DataFrame, limits: Limits | None = None, indicators: Sequence[str] = (), calendar: Calendar | None = None
) -> list[set[str]]:
    """What `find` finds, row by row."""
    return by_row(find(block, calendar or calendar_of(block, indicators), limits or Limits(), indicators).rows)


def by_row(found: Mapping[str, np.ndarray]) -> list[set[str]]:
    """Masks as a set of names for each row."""
    return [{name for name, mask in found.items() if mask[row]} for row in range(len(next(iter(found.values()))))]
