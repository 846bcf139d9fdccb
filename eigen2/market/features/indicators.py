"""The nine features of one column, of prices or of an indicator series, by TA-Lib."""

import numpy as np
import talib
from jaxtyping import Float

from eigen2.market.data.source import CLOSE

FEATURES = ("open", "close", "high", "low", "rsi", "macd", "macd_signal", "trix", "ma20_distance")

RSI_DAYS = 14
MACD_DAYS = (12, 26, 9)
# 15, not TA-Lib's default of 30: first defined on the 44th day of a stretch, not the 89th, so that a column
# is complete again after a hole almost as soon as its MACD (34 days)
TRIX_DAYS = 15
MA_DAYS = 20


def ticker_features(prices: Float[np.ndarray, "days 4"]) -> Float[np.ndarray, "days 9"]:
    """Compute the features of one column from open, high, low and close above 0; NaN where undefined.

    A day without a close is a hole: nothing is carried over it. One that lacks another price lacks its feature alone.

    - open, close, high, low: log of the price over the previous day's close; undefined on a stretch's first day.
    - rsi: relative strength index over 14 days, 0 to 100 (0 where the close never moved); from the 15th day on.
    - macd, macd_signal: MACD(12, 26) and its 9-day signal, in percent of the close; from the 34th day on.
    - trix: one-day change of the triple exponential average over 15 days, in percent; from the 44th day on.
    - ma20_distance: the close's distance from its 20-day mean, in percent of that mean; from the 20th day on.
    """
    return _by_stretch(prices, relative=True)


def indicator_features(values: Float[np.ndarray, "days 4"]) -> Float[np.ndarray, "days 9"]:
    """Compute the features of an indicator series, which may be zero or negative, from differences in its units.

    As `ticker_features`, without logs and percent: value minus the previous day's close; the same rsi; MACD(12, 26) and
    its signal; the one-day difference of the triple exponential average; the close minus its 20-day mean.
    """
    return _by_stretch(values, relative=False)


def _by_stretch(values: Float[np.ndarray, "days 4"], relative: bool) -> Float[np.ndarray, "days 9"]:
    features = np.full((len(values), len(FEATURES)), np.nan)
    edges = np.flatnonzero(np.diff(np.isfinite(values[:, CLOSE]), prepend=False, append=False))
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        _fill(features[start:stop], values[start:stop], relative)
    return features


def _fill(features: Float[np.ndarray, "days 9"], values: Float[np.ndarray, "days 4"], relative: bool) -> None:
    close = np.ascontiguousarray(values[:, CLOSE], dtype=np.float64)
    now, before = values[1:, [0, 3, 1, 2]], close[:-1, None]
    mean = talib.SMA(close, MA_DAYS)
    macd, signal, _ = talib.MACD(close, *MACD_DAYS)
    features[:, 4] = talib.RSI(close, RSI_DAYS)
    if relative:
        features[1:, :4] = np.log(now / before)
        features[:, 5], features[:, 6] = 100 * macd / close, 100 * signal / close
        features[:, 7] = talib.TRIX(close, TRIX_DAYS)
        features[:, 8] = 100 * (close - mean) / mean
    else:
        triple = close
        for _ in range(3):
            triple = talib.EMA(triple, TRIX_DAYS)
        features[1:, :4] = now - before
        features[:, 5], features[:, 6] = macd, signal
        features[1:, 7] = np.diff(triple)
        features[:, 8] = close - mean
