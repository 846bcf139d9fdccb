"""What is wrong with daily prices: every defect as a mask over the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int, Shaped

from eigen2.market.data.cleaning.blocks import Calendar
from eigen2.market.data.cleaning.levels import any_of, compared_rows, find_jumps, find_spikes, gather_bars
from eigen2.market.data.cleaning.limits import Limits
from eigen2.market.data.source import LARGEST_PRICE, PRICE_COLUMNS, SMALLEST_PRICE, unusable_rows

__all__ = ["DEFECTS", "Limits", "find", "holes"]

DEFECTS = (
    "duplicate",
    "conflicting_duplicate",
    "weekend",
    "stray_day",
    "missing_price",
    "infinite_price",
    "nonpositive_price",
    "high_below_low",
    "close_basis",
    "outside_bar",
    "spike",
    "split_like",
    "jump",
    "wick",
    "stale_run",
    "zero_volume",
    "unknown_volume",
)
"""Every defect, in the order in which a row with several is named; `Policy` says what each one is."""
OF_INDICATORS = DEFECTS[:6]
"""Those that a series which is no price can have, such as a rate: only its close must be there, of any sign."""
SATURDAY = 5
# share of all rows on a Saturday or Sunday, each, on which the market trades: 14 % (every day), 20 % (five days a week)
TRADED_WEEKEND = (0.07, 0.35)
STRAY_LISTED = 10
CLOSE_BASIS_ROWS = 5

Mask = Bool[np.ndarray, " rows"]


def find(
    block: pd.DataFrame, calendar: Calendar, limits: Limits, context: Sequence[str] = ()
) -> dict[str, Bool[np.ndarray, " rows"]]:
    """Find what is wrong with each row.

    Args:
        block: all rows of some tickers, with the columns `market.data.source.COLUMNS`, sorted by (ticker, date).
        calendar: the days of all inputs.
        limits: from where on a value counts as a defect.
        context: tickers that are series such as a rate, not prices: only `OF_INDICATORS` are looked for.

    Returns:
        For each of `DEFECTS`, in that order, a mask over the rows; a row may have several.
    """
    ticker = pd.factorize(block["ticker"])[0]
    prices = [block[name].to_numpy() for name in PRICE_COLUMNS]
    volume = block["volume"].to_numpy()
    priced = ~block["ticker"].isin(list(context)).to_numpy()
    found = {name: np.zeros(len(block), dtype=np.bool_) for name in DEFECTS}
    found |= _unusable(block, prices, priced)
    usable = ~any_of(found, "missing_price", "infinite_price", "nonpositive_price", "high_below_low")
    days = block["date"].to_numpy().astype("datetime64[D]")
    found |= _duplicates(ticker, days, prices, volume, usable, limits)
    found |= _wrong_days(days, calendar, limits)
    bars = usable & priced
    found |= _outside(ticker, prices, bars, limits)
    found |= _levels(block, ticker, found, bars, limits)
    found["wick"] = _wicks(prices, limits) & bars & ~any_of(found, "outside_bar", "close_basis")
    flat = (prices[0] == prices[3]) & (prices[1] == prices[2]) & (prices[0] == prices[1]) & bars
    alone = ~any_of(found, "duplicate", "weekend", "stray_day")
    found["stale_run"] = _stale_runs(ticker, prices[3], flat, alone, limits)
    found |= _volumes(ticker, volume, flat, bars)
    return found


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
    ticker = pd.factorize(block["ticker"])[0]
    days = block["date"].to_numpy().astype("datetime64[D]")
    begins = np.searchsorted(market, days[:-1], side="right")
    missing = np.searchsorted(market, days[1:], side="left") - begins
    last = np.flatnonzero((ticker[1:] == ticker[:-1]) & (missing > 0))
    return pd.DataFrame(
        {
            "ticker": block["ticker"].take(last).reset_index(drop=True),
            "first": market[begins[last]].astype("datetime64[s]"),
            "days": missing[last].astype(np.int64),
        }
    )


def _unusable(block: pd.DataFrame, prices: list[Float[np.ndarray, " rows"]], priced: Mask) -> dict[str, Mask]:
    """Rows whose four prices are no bar; the same that the panel leaves out or refuses."""
    missing = unusable_rows(block)["price missing"]
    return {
        "missing_price": np.where(priced, missing, np.isnan(prices[3])),
        "infinite_price": np.any([np.abs(price) > LARGEST_PRICE for price in prices], axis=0),
        "nonpositive_price": np.any([price < SMALLEST_PRICE for price in prices], axis=0) & priced,
        "high_below_low": (prices[1] < prices[2]) & priced,
    }


def _duplicates(
    ticker: Int[np.ndarray, " rows"],
    days: Shaped[np.ndarray, " rows"],
    prices: list[Float[np.ndarray, " rows"]],
    volume: Float[np.ndarray, " rows"],
    usable: Mask,
    limits: Limits,
) -> dict[str, Mask]:
    """Rows of a (date, ticker) that has more than one: those too many, and those that contradict each other."""
    extra, conflict = np.zeros((2, len(ticker)), dtype=np.bool_)
    again = np.append(False, (ticker[1:] == ticker[:-1]) & (days[1:] == days[:-1]))
    rows = np.flatnonzero(again | np.append(again[1:], False))
    if len(rows) == 0:
        return {"duplicate": extra, "conflicting_duplicate": conflict}
    group = np.cumsum(~again[rows]) - 1
    # the row that stays is the last in this order
    traded = np.nan_to_num(volume[rows], nan=-1.0)
    order = np.lexsort((rows, traded, usable[rows], group))
    rows, group = rows[order], group[order]
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    disagree = np.zeros(len(starts), dtype=np.bool_)
    for price in prices:
        most = np.maximum.reduceat(np.where(usable[rows], price[rows], -np.inf), starts)
        least = np.minimum.reduceat(np.where(usable[rows], price[rows], np.inf), starts)
        none_usable = most < least
        most[none_usable] = least[none_usable] = 0
        disagree |= most - least > np.maximum(np.abs(most), np.abs(least)) * (limits.tolerance_bps / 10_000)
    conflict[rows] = disagree[group] & usable[rows]
    stays = np.append(np.diff(group) > 0, True)
    extra[rows] = ~stays & ~conflict[rows]
    return {"duplicate": extra, "conflicting_duplicate": conflict}


def _wrong_days(days: Shaped[np.ndarray, " rows"], calendar: Calendar, limits: Limits) -> dict[str, Mask]:
    """Rows of days on which the market did not trade."""
    # 1970-01-01 was a Thursday
    weekday = (calendar.days.astype("datetime64[D]").astype(np.int64) + 3) % 7
    share = np.bincount(weekday, calendar.rows, minlength=7) / max(int(calendar.rows.sum()), 1)
    closed = (share < TRADED_WEEKEND[0]) | (share > TRADED_WEEKEND[1])
    closed[:SATURDAY] = False
    stray = (calendar.rows < limits.stray_share * calendar.listed) & (calendar.listed >= STRAY_LISTED)
    day = np.searchsorted(calendar.days, days)
    return {"weekend": closed[weekday][day], "stray_day": stray[day]}


def _outside(
    ticker: Int[np.ndarray, " rows"], prices: list[Float[np.ndarray, " rows"]], bars: Mask, limits: Limits
) -> dict[str, Mask]:
    """Rows whose open or close lies outside the bar; all rows of a ticker whose close does so throughout."""
    open_, high, low, close = prices
    tolerance = limits.tolerance_bps / 10_000
    with np.errstate(over="ignore"):
        highest, lowest = high * (1 + tolerance), low * (1 - tolerance)
    close_out = ((close > highest) | (close < lowest)) & bars
    open_out = ((open_ > highest) | (open_ < lowest)) & bars
    basis = np.zeros(len(ticker), dtype=np.bool_)
    if close_out.any():
        count = np.bincount(ticker[close_out], minlength=ticker[-1] + 1)
        rows = np.bincount(ticker[bars], minlength=ticker[-1] + 1)
        basis = ((count > rows * limits.close_basis_share) & (count >= CLOSE_BASIS_ROWS))[ticker] & bars
    return {"close_basis": basis, "outside_bar": (close_out | open_out) & ~basis}


def _levels(
    block: pd.DataFrame, ticker: Int[np.ndarray, " rows"], found: Mapping[str, Mask], bars: Mask, limits: Limits
) -> dict[str, Mask]:
    compared = gather_bars(block, ticker, compared_rows(found) & bars, found["close_basis"])
    spike = find_spikes(compared, limits)
    rest = compared.without(spike)
    jump, split = find_jumps(rest, limits)
    masks = {name: np.zeros(len(block), dtype=np.bool_) for name in ("spike", "split_like", "jump")}
    masks["spike"][compared.row[spike]] = True
    masks["split_like"][rest.row[split]] = True
    masks["jump"][rest.row[jump]] = True
    return masks


def _wicks(prices: list[Float[np.ndarray, " rows"]], limits: Limits) -> Mask:
    """Rows whose high or low lies far beyond both open and close."""
    open_, high, low, close = prices
    with np.errstate(over="ignore"):
        wick: Mask = (high > np.maximum(open_, close) * limits.wick) | (low * limits.wick < np.minimum(open_, close))
    return wick


def _stale_runs(
    ticker: Int[np.ndarray, " rows"], close: Float[np.ndarray, " rows"], flat: Mask, alone: Mask, limits: Limits
) -> Mask:
    """Rows that repeat the last close, with one price all day, many times in a row."""
    rows = np.flatnonzero(alone)
    same = (ticker[rows[1:]] == ticker[rows[:-1]]) & (close[rows[1:]] == close[rows[:-1]])
    repeats = np.append(False, same) & flat[rows]
    edges = np.flatnonzero(np.diff(repeats, prepend=False, append=False))
    starts, stops = edges[::2], edges[1::2]
    long = stops - starts >= limits.stale_days
    change = np.zeros(len(rows) + 1, dtype=np.int8)
    change[starts[long]], change[stops[long]] = 1, -1
    stale = np.zeros(len(ticker), dtype=np.bool_)
    stale[rows] = np.cumsum(change[:-1], dtype=np.int8) > 0
    return stale


def _volumes(
    ticker: Int[np.ndarray, " rows"], volume: Float[np.ndarray, " rows"], flat: Mask, bars: Mask
) -> dict[str, Mask]:
    """Rows on which nothing was traded, and those whose volume cannot be right."""
    traded = np.isfinite(volume) & (volume > 0)
    has_volume = np.bincount(ticker[traded], minlength=ticker[-1] + 1) > 0
    nothing = (volume == 0) & bars
    return {
        "zero_volume": nothing & flat & has_volume[ticker],
        "unknown_volume": (~traded & (volume != 0) & bars) | (nothing & ~flat),
    }
