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

OF_INDICATORS = DEFECTS[:6]
"""Defects of a series that is no price, such as a rate: only its close must be there, of any sign."""
SATURDAY = 5
# share of all rows on a Saturday or Sunday, each, on which the market trades: 14 % (every day), 20 % (five days a week)
TRADED_WEEKEND = (0.07, 0.35)
STRAY_LISTED = 10
CLOSE_BASIS_ROWS = 5

Mask = Bool[np.ndarray, " rows"]


def find(block: pd.DataFrame, calendar: Calendar, limits: Limits, indicators: Sequence[str] = ()) -> dict[str, Mask]:
    """Find what is wrong with each row.

    Args:
        block: all rows of some tickers, with the columns `market.data.source.COLUMNS`, sorted by (ticker, date).
        calendar: the days of all inputs.
        limits: those beyond which a value is a defect.
        indicators: tickers that are series such as a rate, not prices: only `OF_INDICATORS` are looked for.

    Returns:
        For each of `DEFECTS`, in that order, a mask over the rows; a row may have several.
    """
    rows = Bars.of(block)
    priced = ~block["ticker"].isin(list(indicators)).to_numpy()
    found = _unusable(rows, priced)
    usable = ~any_of(found, *found)
    bars = usable & priced
    found |= _duplicates(rows, usable, limits) | _wrong_days(rows, calendar, limits) | _outside(rows, bars, limits)
    found |= _levels(rows, found, bars, limits)
    found["wick"] = _wicks(rows, limits) & bars & ~any_of(found, "outside_bar", "close_basis")
    flat = (rows.open == rows.close) & (rows.high == rows.low) & (rows.open == rows.high) & bars
    alone = ~any_of(found, "duplicate", "weekend", "stray_day")
    found["stale_run"] = _stale_runs(rows, flat, alone, limits)
    found |= _volumes(rows, flat, bars)
    return {name: found[name] for name in DEFECTS}


def holes(block: pd.DataFrame, calendar: Calendar) -> pd.DataFrame:
    """List the market days inside a ticker's life on which it has no row.

    A market day is one on which at least half of the listed tickers have a row.

    Args:
        block: rows sorted by (ticker, date).
        calendar: the days of all inputs.

    Returns:
        One row a hole, in the order of the block: ticker, first (the first missing market day, datetime64[s]) and days
        (market days missing in a row, int64).
    """
    market = calendar.days[(2 * calendar.rows >= calendar.listed) & (calendar.listed > 0)]
    rows = Bars.of(block)
    begins = np.searchsorted(market, rows.days[:-1], side="right")
    missing = np.searchsorted(market, rows.days[1:], side="left") - begins
    last = np.flatnonzero((rows.ticker[1:] == rows.ticker[:-1]) & (missing > 0))
    return pd.DataFrame(
        {
            "ticker": block["ticker"].take(last).reset_index(drop=True),
            "first": market[begins[last]].astype("datetime64[s]"),
            "days": missing[last].astype(np.int64),
        }
    )


def _unusable(rows: Bars, priced: Mask) -> dict[str, Mask]:
    """Find rows whose four prices are no bar: those that the panel leaves out or refuses."""
    prices = (rows.open, rows.high, rows.low, rows.close)
    missing = np.logical_or.reduce([np.isnan(price) for price in prices])
    return {
        "missing_price": np.where(priced, missing, np.isnan(rows.close)),
        "infinite_price": np.logical_or.reduce([np.abs(price) > LARGEST_PRICE for price in prices]),
        "nonpositive_price": np.logical_or.reduce([price < SMALLEST_PRICE for price in prices]) & priced,
        "high_below_low": (rows.high < rows.low) & priced,
    }


def _duplicates(rows: Bars, usable: Mask, limits: Limits) -> dict[str, Mask]:
    """Find, of the rows of one (date, ticker), those to remove, and those that contradict each other."""
    extra, conflict = np.zeros((2, len(usable)), dtype=np.bool_)
    again = np.append(False, (rows.ticker[1:] == rows.ticker[:-1]) & (rows.days[1:] == rows.days[:-1]))
    at = np.flatnonzero(again | np.append(again[1:], False))
    if len(at):
        group = np.cumsum(~again[at]) - 1
        # the row that stays is the last in this order
        order = np.lexsort((at, np.nan_to_num(rows.volume[at], nan=-1.0), usable[at], group))
        at, group = at[order], group[order]
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        disagree = np.zeros(len(starts), dtype=np.bool_)
        for price in (rows.open, rows.high, rows.low, rows.close):
            most = np.maximum.reduceat(np.where(usable[at], price[at], -np.inf), starts)
            least = np.minimum.reduceat(np.where(usable[at], price[at], np.inf), starts)
            none_usable = most < least
            most[none_usable] = least[none_usable] = 0
            disagree |= most - least > np.maximum(np.abs(most), np.abs(least)) * (limits.tolerance_bps / 10_000)
        conflict[at] = disagree[group] & usable[at]
        stays = np.append(np.diff(group) > 0, True)
        extra[at] = ~stays & ~conflict[at]
    return {"duplicate": extra, "conflicting_duplicate": conflict}


def _wrong_days(rows: Bars, calendar: Calendar, limits: Limits) -> dict[str, Mask]:
    """Find rows of days on which the market did not trade."""
    # 1970-01-01 was a Thursday
    weekday = (calendar.days.astype("datetime64[D]").astype(np.int64) + 3) % 7
    share = np.bincount(weekday, calendar.rows, minlength=7) / max(int(calendar.rows.sum()), 1)
    closed = (share < TRADED_WEEKEND[0]) | (share > TRADED_WEEKEND[1])
    closed[:SATURDAY] = False
    stray = (calendar.rows < limits.stray_share * calendar.listed) & (calendar.listed >= STRAY_LISTED)
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
        basis = ((count > total * limits.close_basis_share) & (count >= CLOSE_BASIS_ROWS))[rows.ticker] & bars
    return {"close_basis": basis, "outside_bar": (close_out | open_out) & ~basis}


def _levels(rows: Bars, found: dict[str, Mask], bars: Mask, limits: Limits) -> dict[str, Mask]:
    """Find spikes, jumps and jumps that look like splits."""
    compared = rows.comparable(compared_rows(found) & bars, found["close_basis"])
    spike = find_spikes(compared, limits)
    rest = compared.take(~spike)
    jump, split = find_jumps(rest, limits)
    at = {"spike": compared.row[spike], "split_like": rest.row[split], "jump": rest.row[jump]}
    return {name: np.isin(rows.row, some) for name, some in at.items()}


def _wicks(rows: Bars, limits: Limits) -> Mask:
    """Find rows whose high or low lies far beyond both open and close."""
    with np.errstate(over="ignore"):
        high = rows.high > np.maximum(rows.open, rows.close) * limits.wick
        low = rows.low * limits.wick < np.minimum(rows.open, rows.close)
    return np.asarray(high | low)


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


def _volumes(rows: Bars, flat: Mask, bars: Mask) -> dict[str, Mask]:
    """Find rows on which nothing was traded, and those whose volume cannot be right."""
    traded = np.isfinite(rows.volume) & (rows.volume > 0)
    has_volume = np.bincount(rows.ticker[traded], minlength=rows.ticker[-1] + 1) > 0
    nothing = (rows.volume == 0) & bars
    return {
        "zero_volume": nothing & flat & has_volume[rows.ticker],
        "unknown_volume": (~traded & (rows.volume != 0) & bars) | (nothing & ~flat),
    }
