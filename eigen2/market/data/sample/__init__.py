"""Five American stocks, 2000 to 2013: real prices that ship with the package (README.md says where from)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

PRICES = ("Open", "High", "Low", "Close")


def sample_path() -> Path:
    """Return the path of the sample, a Parquet file for `eigen2.market.data.panel.load_panel`."""
    return Path(__file__).parent / "stocks.parquet"


def adjust(raw: pd.DataFrame) -> pd.DataFrame:
    """Apply splits and dividends to all four prices, by each row's factor Adj Close / Close.

    Args:
        raw: Ticker, Date, Open, High, Low, Close, Volume and Adj Close as traded, one row a (date, ticker).

    Returns:
        date, ticker, open, high, low, close (float32) and volume (as it was), sorted by (ticker, date).
    """
    factor = raw["Adj Close"] / raw["Close"]
    adjusted = pd.DataFrame({"date": pd.to_datetime(raw["Date"]), "ticker": raw["Ticker"].astype(str)})
    for name in PRICES:
        adjusted[name.lower()] = (raw[name] * factor).astype(np.float32)
    adjusted["volume"] = raw["Volume"]
    return adjusted.sort_values(["ticker", "date"], ignore_index=True)
