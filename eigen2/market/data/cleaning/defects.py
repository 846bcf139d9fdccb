"""Find defects of daily prices, each as a mask over the rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Bool

from eigen2.market.data.cleaning.blocks import Calendar
from eigen2.market.data.cleaning.levels import Bars, any_of, compared_rows, find_jumps, find_spikes
from eigen2.market.data.cleaning.policy import DEFECTS, Limits
from eigen2.market.data.source import LARGEST_PRICE, SMALLEST_PRICE

SATURDAY = 5
# share of all rows on a Saturday (or a Sunday) if the market trades then: 14 % (seven days a week), 20 % (five)
TRADED_WEEKEND = (0.07, 0.35)
# a day is stray when fewer than this share of the listed tickers, at least so many, has a row
STRAY_SHARE, STRAY_LISTED = 0.1, 10
# a ticker's close is on another basis when it lies outside the bar on more than this share of rows, at least so many
CLOSE_BASIS_SHARE, CLOSE_BASIS_ROWS = 0.25, 5

Mask = Bool[np.ndarray, " rows"]


def find(block: pd.DataFrame, calendar: Calendar, limits: Limits, indicators: Sequence[str] = ()) -> dict[str, Mask]:
    """Return a mask over the rows for each of `DEFECTS`; a row may have several.

    The block has all rows of some tickers, sorted by (ticker, date). `indicators`, series such as a rate, need only a
    close, of any sign, and have none of the defects after the first six.
    """
    rows = Bars.of(block)
    priced = ~block["ticker"].isin(list(indicators)).to_numpy()
    found = _unusable(rows, priced)
    usable = ~any_of(found, *found)
    bars = usable & priced
    found |= _duplicates(rows, usable, limits) | _wrong_days(rows, calendar) | _outside(rows, bars, limits)
    compared = rows.comparable(compared_rows(found) & bars, found["close_basis"])
    spike = find_spikes(compared, limits)
    rest = compared.take(~spike)
    jump, split = find_jumps(rest, limits)
    at = {"spike": compared.row[spike], "split_like": rest.row[split], "jump": rest.row[jump]}
    found |= {name: np.isin(rows.row, some) for name, some in at.items()}
    with np.errstate(over="ignore"):
        high = rows.high > np.maximum(rows.open, rows.close) * limits.wick
        low = rows.low * limits.wick < np.minimum(rows.open, rows.close)
    found["wick"] = (high | low) & bars & ~any_of(found, "outside_bar", "close_basis")
    flat = (rows.open == rows.close) & (rows.high == rows.low) & (rows.open == rows.high) & bars
    alone = ~any_of(found, "duplicate", "weekend", "stray_day")
    found["stale_run"] = _stale_runs(rows, flat, alone, limits)
    traded = np.isfinite(rows.volume) & (rows.volume > 0)
    has_volume = np.bincount(rows.ticker[traded], minlength=rows.ticker[-1] + 1) > 0
    nothing = (rows.volume == 0) & bars
    found["zero_volume"] = nothing & flat & has_volume[rows.ticker]
    found["unknown_volume"] = (~traded & (rows.volume != 0) & bars) | (nothing & ~flat)
    return {name: found[name] for name in DEFECTS}


def _unusable(rows: Bars, priced: Mask) -> dict[str, Mask]:
    """Find rows whose four prices do not form a bar, which the panel leaves out or refuses."""
    prices = (rows.open, rows.high, rows.low, rows.close)
    missing = np.logical_or.reduce([np.isnan(price) for price in prices])
    return {
        "missing_price": np.where(priced, missing, np.isnan(rows.close)),
        "infinite_price": np.logical_or.reduce([np.abs(price) > LARGEST_PRICE for price in prices]),
        "nonpositive_price": np.logical_or.reduce([price < SMALLEST_PRICE for price in prices]) & priced,
        "high_below_low": (rows.high < rows.low) & priced,
    }


def _duplicates(rows: Bars, usable: Mask, limits: Limits) -> dict[str, Mask]:
    """Find rows of the same (date, ticker): those to remove, and those that contradict each other."""
    extra, conflict = np.zeros((2, len(usable)), dtype=np.bool_)
    again = np.append(False, (rows.ticker[1:] == rows.ticker[:-1]) & (rows.days[1:] == rows.days[:-1]))
    at = np.flatnonzero(again | np.append(again[1:], False))
    if not len(at):
        return {"duplicate": extra, "conflicting_duplicate": conflict}
    group = np.cumsum(~again[at])
    prices = np.stack([rows.open, rows.high, rows.low, rows.close], axis=1)[at]
    groups = pd.DataFrame(np.where(usable[at, None], prices, np.nan)).groupby(group)
    most, least = (groups.transform(edge).to_numpy() for edge in ("max", "min"))
    disagree = most - least > np.maximum(np.abs(most), np.abs(least)) * (limits.tolerance_bps / 10_000)
    conflict[at] = disagree.any(axis=1) & usable[at]
    # the last row in this order stays
    order = np.lexsort((np.nan_to_num(rows.volume[at], nan=-1.0), usable[at], group))
    extra[at[order]] = np.diff(group[order], append=np.inf) == 0
    return {"duplicate": extra & ~conflict, "conflicting_duplicate": conflict}


def _wrong_days(rows: Bars, calendar: Calendar) -> dict[str, Mask]:
    """Find rows of days on which the market did not trade."""
    # 1970-01-01 was a Thursday
    weekday = (calendar.days.astype("datetime64[D]").astype(np.int64) + 3) % 7
    share = np.bincount(weekday, calendar.rows, minlength=7) / max(int(calendar.rows.sum()), 1)
    closed = (share < TRADED_WEEKEND[0]) | (share > TRADED_WEEKEND[1])
    closed[:SATURDAY] = False
    stray = (calendar.rows < STRAY_SHARE * calendar.listed) & (calendar.listed >= STRAY_LISTED)
    day = np.searchsorted(calendar.days, rows.days)
    return {"weekend": closed[weekday][day], "stray_day": stray[day]}


def _outside(rows: Bars, bars: Mask, limits: Limits) -> dict[str, Mask]:
    """Find rows whose open or close lies outside the bar, and tickers whose close does so throughout."""
    tolerance = limits.tolerance_bps / 10_000
    with np.errstate(over="ignore"):
        highest, lowest = rows.high * (1 + tolerance), rows.low * (1 - tolerance)
    open_out, close_out = (((price > highest) | (price < lowest)) & bars for price in (rows.open, rows.close))
    basis = np.zeros(len(bars), dtype=np.bool_)
    if close_out.any():
        tickers = rows.ticker[-1] + 1
        count, total = (np.bincount(rows.ticker[mask], minlength=tickers) for mask in (close_out, bars))
        basis = ((count > total * CLOSE_BASIS_SHARE) & (count >= CLOSE_BASIS_ROWS))[rows.ticker] & bars
    return {"close_basis": basis, "outside_bar": (close_out | open_out) & ~basis}


def _stale_runs(rows: Bars, flat: Mask, alone: Mask, limits: Limits) -> Mask:
    """Find rows that repeat the last close, with one price all day, many times in a row."""
    at = np.flatnonzero(alone)
    ticker, close = rows.ticker[at], rows.close[at]
    repeats = np.append(False, (ticker[1:] == ticker[:-1]) & (close[1:] == close[:-1])) & flat[at]
    edges = np.flatnonzero(np.diff(repeats, prepend=False, append=False))
    stale = np.zeros(len(flat), dtype=np.bool_)
    for start, stop in edges.reshape(-1, 2).tolist():
        stale[at[start:stop]] = stop - start >= limits.stale_days
    return stale
