"""Say in one line what a table of prices makes of the results: unadjusted splits, and no ticker that died."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, Float32, Shaped

from eigen2.market.data.cleaning.defects import CLOSE_BASIS_SHARE
from eigen2.market.data.cleaning.levels import Bars, find_jumps, find_spikes, split_ratio
from eigen2.market.data.cleaning.policy import Limits
from eigen2.market.data.source import LISTED_DAYS

SURVIVING = 0.95  # share of the tickers that trade to the end of a table of survivors

Prices = Float32[np.ndarray, "days columns 4"]


def unadjusted_splits(
    values: Float[np.ndarray, "days 5"], dates: Shaped[np.ndarray, " days"]
) -> Shaped[np.ndarray, " splits"]:
    """Return the days on which a ticker's prices look as if a split were not adjusted, as `data inspect` finds them.

    Values are open, high, low, close and volume, NaN where missing; the close is missing on days without trading.
    """
    row, limits = np.flatnonzero(np.isfinite(values[:, 3])), Limits()
    bars = Bars(row, np.zeros_like(row), dates[row], *values[row].T)
    outside = (bars.close > bars.high * 1.001) | (bars.close < bars.low * 0.999)
    whole = np.ones(len(row), np.bool_)
    bars = bars.comparable(whole, whole & (outside.sum() > CLOSE_BASIS_SHARE * len(row)))
    if np.isnan(split_ratio(bars.open, bars.last_close, limits)).all():
        return dates[:0].copy()  # mostly, and the rest takes longer
    bars = bars.take(~find_spikes(bars, limits))
    days: np.ndarray = bars.days[find_jumps(bars, limits)[1]]
    return days


def splits_line(days: Mapping[str, Shaped[np.ndarray, " splits"]]) -> str | None:
    """Describe the `unadjusted_splits` of all tickers; None without any."""
    found = [(ticker, day) for ticker, splits in days.items() for day in splits]
    if not found:
        return None
    (ticker, day), splits = found[0], f"{len(found)} split{'s' * (len(found) > 1)}"
    return (
        f"prices do not seem to be adjusted for {splits}, first {ticker} on {day}: python -m eigen2.cli data prepare "
        "PRICES OUT.parquet repairs them"
    )


def survivors_line(prices: Prices) -> str | None:
    """Say that (nearly) all of two or more tickers trade to the end of the table; None where others have died.

    A ticker without a price on the last days counts as listed for `LISTED_DAYS`, as it may only be late or halted.
    """
    ever = np.isfinite(prices[..., 3]).any(axis=0)
    total, living = int(ever.sum()), int(np.isfinite(prices[-LISTED_DAYS:, :, 3]).any(axis=0).sum())
    if total < 2 or living < SURVIVING * total:
        return None
    who, what = ("all", "survivors only") if living == total else (f"{living} of", "hardly any but survivors")
    return f"{who} {total} tickers trade to the last day: the table holds {what}, so results are too good"
