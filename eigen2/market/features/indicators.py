"""The nine features of one column, of prices or of an indicator series, by TA-Lib."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import talib
from jaxtyping import Float

FEATURES = ("open", "close", "high", "low", "rsi", "macd", "macd_signal", "trix", "ma20_distance")

RSI_DAYS = 14
MACD_DAYS = (12, 26, 9)
# 15 rather than TA-Lib's default 30: first defined on the 44th day of a stretch instead of the 89th,
# so that a column is whole again about as soon after a hole as its MACD (34 days)
TRIX_DAYS = 15
MA_DAYS = 20


def ticker_features(prices: Float[np.ndarray, "days 4"]) -> Float[np.ndarray, "days 9"]:
    """Compute the features of one column, each day from that day and earlier ones alone.

    Every unbroken stretch of days is computed by itself: nothing is carried over a hole.

    - open, close, high, low: log of the price over the previous day's close; undefined on a stretch's first
      day.
    - rsi: relative strength index over 14 days, 0 to 100 (0 where the close never moved); from the 15th day
      on.
    - macd, macd_signal: MACD(12, 26) and its 9-day signal, in percent of the close; from the 34th day on.
    - trix: one-day change of the triple exponential average over 15 days, in percent; from the 44th day on.
    - ma20_distance: the close's distance from its 20-day mean, in percent of that mean; from the 20th day on.

    Args:
        prices: open, high, low, close of each day, above 0; a day with a NaN is a hole.

    Returns:
        float64 in the order of `FEATURES`, NaN where undefined.
    """
    return _by_stretch(prices, _ticker_stretch)


def indicator_features(values: Float[np.ndarray, "days 4"]) -> Float[np.ndarray, "days 9"]:
    """Compute the features of an indicator series, whose values may be zero or negative, from differences.

    Each day comes from that day and earlier ones alone, each unbroken stretch of days by itself, defined on the same
    days as in `ticker_features`. In units of the series:

    - open, close, high, low: value minus the previous day's close.
    - rsi: as of prices, which takes differences already, 0 to 100.
    - macd, macd_signal: MACD(12, 26) and its 9-day signal.
    - trix: one-day difference of the triple exponential average over 15 days.
    - ma20_distance: the close minus its 20-day mean.

    Args:
        values: open, high, low, close of each day, of any sign; a day with a NaN is a hole.

    Returns:
        float64 in the order of `FEATURES`, NaN where undefined.
    """
    return _by_stretch(values, _indicator_stretch)


def _by_stretch(
    prices: Float[np.ndarray, "days 4"], stretch_features: Callable[[np.ndarray], np.ndarray]
) -> Float[np.ndarray, "days 9"]:
    """Compute the features of every run of days without a hole by themselves."""
    features = np.full((len(prices), len(FEATURES)), np.nan)
    traded = np.isfinite(prices).all(axis=1)
    edges = np.flatnonzero(np.diff(traded, prepend=False, append=False))
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        features[start:stop] = stretch_features(prices[start:stop])
    return features


def _ticker_stretch(prices: Float[np.ndarray, "days 4"]) -> Float[np.ndarray, "days 9"]:
    features = np.full((len(prices), len(FEATURES)), np.nan)
    close = np.ascontiguousarray(prices[:, 3], dtype=np.float64)
    features[1:, :4] = np.log(prices[1:, [0, 3, 1, 2]] / close[:-1, None])
    features[:, 4] = talib.RSI(close, RSI_DAYS)
    macd, signal, _ = talib.MACD(close, *MACD_DAYS)
    features[:, 5] = 100 * macd / close
    features[:, 6] = 100 * signal / close
    features[:, 7] = talib.TRIX(close, TRIX_DAYS)
    mean = talib.SMA(close, MA_DAYS)
    features[:, 8] = 100 * (close - mean) / mean
    return features


def _indicator_stretch(values: Float[np.ndarray, "days 4"]) -> Float[np.ndarray, "days 9"]:
    features = np.full((len(values), len(FEATURES)), np.nan)
    close = np.ascontiguousarray(values[:, 3], dtype=np.float64)
    features[1:, :4] = values[1:, [0, 3, 1, 2]] - close[:-1, None]
    features[:, 4] = talib.RSI(close, RSI_DAYS)
    features[:, 5], features[:, 6], _ = talib.MACD(close, *MACD_DAYS)
    triple = close
    for _ in range(3):
        triple = talib.EMA(triple, TRIX_DAYS)
    features[1:, 7] = np.diff(triple)
    features[:, 8] = close - talib.SMA(close, MA_DAYS)
    return features
