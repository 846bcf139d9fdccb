"""Daily bars made of intraday ones."""

import pandas as pd

from eigen2.market.data.source import COLUMNS


def daily_bars(bars: pd.DataFrame) -> pd.DataFrame:
    """Return one bar a day: first open, highest high, lowest low, last close, summed volume, empty cells left out.

    Args:
        bars: rows with `source.COLUMNS`, dates with times of day, sorted by (ticker, date); of rows with one time, the
            last counts.
    """
    bars = bars.drop_duplicates(["ticker", "date"], keep="last")
    days = bars.assign(date=bars["date"].dt.normalize()).groupby(["ticker", "date"], sort=False)
    daily = days.agg({"open": "first", "high": "max", "low": "min", "close": "last"})
    daily["volume"] = days["volume"].sum(min_count=1)
    return daily.reset_index()[list(COLUMNS)]
