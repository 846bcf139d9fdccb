"""Daily prices in the layout that the trading environment reads."""

import numpy as np
from jaxtyping import Float, Float32

OPEN, HIGHEST, LOWEST, CLOSE, LEAST_SIZE = range(5)  # rows of a day in `market_table`


def market_table(prices: Float32[np.ndarray, "days columns 4"]) -> Float32[np.ndarray, "days 5 columns"]:
    """Return each day's rows by column: open, highest and lowest price from the open on, last close, least order size.

    Prices are NaN where the column did not trade, the last valid close is 0 before the first, and the least size of an
    order is 1, or infinite where the column did not trade.
    """
    traded = (np.isfinite(prices) & (prices > 0)).all(-1)
    open_, high, low, close = np.moveaxis(np.where(traded[..., None], prices, np.float32(np.nan)), -1, 0)
    least_size = np.where(traded, np.float32(1), np.float32(np.inf))
    rows = [open_, np.maximum(open_, high), np.minimum(open_, low), last_valid(close), least_size]
    return np.stack(rows, axis=1)


def last_valid(close: Float[np.ndarray, "days columns"]) -> Float[np.ndarray, "days columns"]:
    """Return each column's last close above 0 up to each day; 0 before its first."""
    valid = np.where(close > 0, np.arange(len(close))[:, None], -1)
    day = np.maximum.accumulate(valid, axis=0)
    filled: np.ndarray = np.where(day >= 0, np.take_along_axis(close, day.clip(0), axis=0), close.dtype.type(0))
    return filled
