"""Find defects of daily prices, each as a mask over the rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from eigen2.market.data.cleaning.blocks import Calendar
from eigen2.market.data.cleaning.levels import (
    Bars,
    Floats,
    any_of,
    company_numbers,
    find_jumps,
    find_spikes,
    repeated,
    split_factors,
)
from eigen2.market.data.cleaning.policy import DEFECTS, Limits
from eigen2.market.data.source import (
    CLOSE,
    HIGH,
    LARGEST_PRICE,
    LISTED_DAYS,
    LOW,
    OPEN,
    PRICE_COLUMNS,
    VOLUME,
    stray_days,
    wrong_prices,
)

SATURDAY = 5
# a weekend day is a session when it has more than this share of the rows of the last weekday before it
SESSION_SHARE = 0.5
# a ticker's close is on another basis when it lies outside the bar on more than this share of rows, at least so many
CLOSE_BASIS_SHARE, CLOSE_BASIS_ROWS = 0.25, 5
# where high and low are crossed, open and close are trusted if they differ by less than this factor
CROSSED_FACTOR = 1.2
# a ticker is used again when rows resume after so many days of the market; or after the second number of them at a
# price higher by the factor
REUSED_DAYS, REUSED_FACTOR = (250, LISTED_DAYS), 10.0
# fewer rows after such a gap than this are stray ones, unless the market had no more days for them
COMPANY_ROWS = 20

Mask = Bool[np.ndarray, " rows"]
Cells = Bool[np.ndarray, "rows 5"]
Prices = Float[np.ndarray, "rows 4"]


@dataclass(frozen=True)
class Found:
    """Defects of a block.

    Attributes:
        rows: for each of `DEFECTS`, the rows that have it; a row may have several.
        cells: which of open, high, low, close and volume are wrong in them, for those defects that spare the others.
        factor: at a split, that on earlier prices; else 1.
    """

    rows: dict[str, Mask]
    cells: dict[str, Cells]
    factor: Float[np.ndarray, " rows"]


def find(block: pd.DataFrame, calendar: Calendar, limits: Limits, indicators: Sequence[str] = ()) -> Found:
    """Find the defects of a block.

    The block has all rows of some tickers, sorted by (ticker, date). `indicators`, series such as a rate, need only a
    close, of any sign, and have none of the defects but duplicates, wrong days, missing and infinite values. Prices
    are compared without the cells that are wrong in themselves.
    """
    rows = Bars.of(block)
    priced = ~block["ticker"].isin(list(indicators)).to_numpy()
    cells = _wrong_cells(block[list(PRICE_COLUMNS)].to_numpy(), priced)
    prices = _without(block[list(PRICE_COLUMNS)].to_numpy(), *cells.values())
    missing = np.isnan(np.stack([rows.open, rows.high, rows.low, rows.close], axis=1))
    found = {"missing_price": np.where(priced, missing.any(axis=1), missing[:, CLOSE])}
    found |= _duplicates(rows, prices, limits) | _wrong_days(rows, calendar)
    bars = _with_prices(rows, np.where(priced[:, None], prices, np.nan))
    found["close_basis"] = close_basis(bars, limits)
    cells["outside_bar"] = _outside(bars, found["close_basis"], limits)
    prices = _without(prices, cells["outside_bar"])
    most, least = (edge(prices[:, OPEN], prices[:, CLOSE]) for edge in (np.fmax, np.fmin))
    with np.errstate(over="ignore"):
        wicks = {HIGH: prices[:, HIGH] > most * limits.wick, LOW: prices[:, LOW] * limits.wick < least}
    shaped = priced & ~found["close_basis"]
    cells["wick"] = _cells(len(block), {column: mask & shaped for column, mask in wicks.items()})
    prices = _without(prices, cells["wick"])
    has_close = ~np.isnan(prices[:, CLOSE]) & priced
    single = ~any_of(found, "duplicate", "conflicting_duplicate", "weekend", "stray_day")
    alone = has_close & single
    rows = _with_prices(rows, prices)
    found["repeated_row"] = np.isin(rows.row, rows.row[single][repeated(rows.take(single))]) & priced
    flat = has_close & (np.fmax.reduce(prices, axis=1) == np.fmin.reduce(prices, axis=1))
    found |= _untraded(rows, flat, alone, limits)
    traded = alone & ~any_of(found, "zero_volume", "stale_run")
    found["reused_ticker"] = _reused(rows.take(traded), rows, calendar)
    either = has_close | (~np.isnan(prices[:, OPEN]) & priced & ~found["close_basis"])
    companies = replace(rows, stretch=company_numbers(rows.stretch, found["reused_ticker"]))
    compared = companies.comparable(either & single, found["close_basis"])
    spike = find_spikes(compared, limits)
    rest = compared.take(~spike)
    jump, split = find_jumps(rest, limits)
    for name, at in (("spike", compared.row[spike]), ("split_like", rest.row[split]), ("jump", rest.row[jump])):
        found[name] = np.isin(rows.row, at)
    factor = np.ones(len(block))
    factor[rest.row] = split_factors(rest, split, limits)
    known = np.isfinite(rows.volume) & (rows.volume > 0)
    unknown = ~known & ((rows.volume != 0) | ~flat) & priced & ~np.isnan(prices).all(axis=1)
    cells["unknown_volume"] = _cells(len(block), {VOLUME: unknown})
    found |= {name: wrong.any(axis=1) for name, wrong in cells.items()}
    return Found({name: found[name] for name in DEFECTS}, cells, factor)


def _cells(rows: int, wrong: dict[int, Mask]) -> Cells:
    """Return an array of cells from its columns that are not empty."""
    cells = np.zeros((rows, VOLUME + 1), dtype=np.bool_)
    for column, mask in wrong.items():
        cells[:, column] = mask
    return cells


def _with_prices(rows: Bars, prices: Prices) -> Bars:
    return replace(rows, **dict(zip(PRICE_COLUMNS, prices.T, strict=True)))


def _without(prices: Prices, *wrong: Cells) -> Prices:
    """Return prices with NaN in place of wrong ones."""
    return np.where(np.logical_or.reduce([cells[:, :VOLUME] for cells in wrong]), np.nan, prices)


def _wrong_cells(prices: Prices, priced: Mask) -> dict[str, Cells]:
    """Find prices that cannot be right whatever those of other rows are."""
    of_tickers = np.where(priced[:, None], prices, np.nan)
    wrong = wrong_prices(of_tickers)
    crossed = wrong["high below low"]
    trusted = np.where(wrong["price not positive"], np.nan, of_tickers)
    with np.errstate(invalid="ignore", over="ignore"):
        change = trusted[:, OPEN] / trusted[:, CLOSE]
    apart = (change > CROSSED_FACTOR) | (change < 1 / CROSSED_FACTOR)
    crossed[apart & crossed.any(axis=1)] = True
    found = {"infinite_price": np.abs(prices) > LARGEST_PRICE, "nonpositive_price": wrong["price not positive"]}
    found["high_below_low"] = crossed
    return {name: np.append(cells, np.zeros((len(cells), 1), dtype=np.bool_), axis=1) for name, cells in found.items()}


def _duplicates(rows: Bars, prices: Prices, limits: Limits) -> dict[str, Mask]:
    """Find rows of the same (date, ticker): those to remove, and those that contradict each other."""
    extra, conflict = np.zeros((2, len(prices)), dtype=np.bool_)
    again = np.append(False, (rows.stretch[1:] == rows.stretch[:-1]) & (rows.days[1:] == rows.days[:-1]))
    at = np.flatnonzero(again | np.append(again[1:], False))
    if not len(at):
        return {"duplicate": extra, "conflicting_duplicate": conflict}
    group, count = np.cumsum(~again[at]), (~np.isnan(prices[at])).sum(axis=1)
    groups = pd.DataFrame(prices[at]).groupby(group)
    most, least = (groups.transform(edge).to_numpy() for edge in ("max", "min"))
    disagree = most - least > np.maximum(np.abs(most), np.abs(least)) * (limits.tolerance_bps / 10_000)
    conflict[at] = disagree.any(axis=1) & (count > 0)
    # the last row in this order stays
    order = np.lexsort((np.nan_to_num(rows.volume[at], nan=-1.0), count, group))
    extra[at[order]] = np.diff(group[order], append=np.inf) == 0
    return {"duplicate": extra & ~conflict, "conflicting_duplicate": conflict}


def _wrong_days(rows: Bars, calendar: Calendar) -> dict[str, Mask]:
    """Find rows of days on which the market did not trade."""
    stray = stray_days(calendar.rows, calendar.listed)
    # 1970-01-01 was a Thursday
    weekend = (calendar.days.astype("datetime64[D]").astype(np.int64) + 3) % 7 >= SATURDAY
    # rows of the last weekday before, or of the first after; without any, no weekend day is a session
    usual = pd.Series(calendar.rows).where(~weekend & ~stray).ffill().bfill().fillna(np.inf)
    closed = weekend & (calendar.rows <= SESSION_SHARE * usual.to_numpy())
    day = np.searchsorted(calendar.days, rows.days)
    return {"weekend": closed[day], "stray_day": stray[day]}


def close_basis(bars: Bars, limits: Limits) -> Mask:
    """Find the bars of tickers whose close lies outside the bar throughout."""
    tickers = bars.stretch.max(initial=-1) + 1
    whole = ~np.isnan(bars.open + bars.high + bars.low + bars.close)
    masks = (_is_outside(bars.close, bars, limits), whole)
    count, total = (np.bincount(bars.stretch[mask], minlength=tickers) for mask in masks)
    return ((count > total * CLOSE_BASIS_SHARE) & (count >= CLOSE_BASIS_ROWS))[bars.stretch]


def _is_outside(price: Floats, bars: Bars, limits: Limits) -> Mask:
    tolerance = limits.tolerance_bps / 10_000
    with np.errstate(over="ignore"):
        return (price > bars.high * (1 + tolerance)) | (price < bars.low * (1 - tolerance))


def _outside(bars: Bars, basis: Mask, limits: Limits) -> Cells:
    """Find what lies outside the bar on tickers whose close is not on another basis.

    An open outside is wrong. A close outside is wrong if the next price, or without one the last close, is nearer to
    the bar; else the bar is.
    """
    open_out, close_out = (_is_outside(price, bars, limits) & ~basis for price in (bars.open, bars.close))
    wrong = _cells(len(basis), {OPEN: open_out})
    if close_out.any():
        same, close = bars.stretch[1:] == bars.stretch[:-1], bars.close
        first = np.where(np.isnan(bars.open), close, bars.open)
        following = np.append(np.where(same, first[1:], np.nan), np.nan)
        near = np.where(np.isnan(following), np.append(np.nan, np.where(same, close[:-1], np.nan)), following)
        edge = np.fmax(np.fmin(close, bars.high), bars.low)
        of_close, of_bar = (np.abs(np.log(near / price)) for price in (close, edge))
        wrong[:, CLOSE] |= close_out & ~(of_close < of_bar)
        wrong[:, :CLOSE] |= (close_out & ~(of_bar <= of_close))[:, None]
    return wrong


def _reused(traded: Bars, rows: Bars, calendar: Calendar) -> Mask:
    """Find rows of other companies under a ticker: all but its last part between gaps that has enough rows.

    `traded` are the rows that count. Where no part has enough, the last one stays.
    """
    day = np.searchsorted(calendar.days, traded.days)
    gap, same = np.diff(day), traded.stretch[1:] == traded.stretch[:-1]
    rises = traded.close[1:] > traded.close[:-1] * REUSED_FACTOR
    again = np.flatnonzero(same & ((gap > REUSED_DAYS[0]) | ((gap > REUSED_DAYS[1]) & rises))) + 1
    reused = np.zeros(len(rows.row), np.bool_)
    for ticker in np.unique(traded.stretch[again]).tolist():
        first, stop = np.searchsorted(traded.stretch, [ticker, ticker + 1])
        edges = [first, *again[traded.stretch[again] == ticker], stop]
        enough = [
            end - start >= COMPANY_ROWS or day[start] > len(calendar.days) - COMPANY_ROWS
            for start, end in pairwise(edges)
        ]
        kept = max(np.flatnonzero(enough), default=len(enough) - 1)
        bounds = [*np.searchsorted(rows.stretch, [ticker, ticker + 1])]
        edges = [bounds[0], *traded.row[edges[1:-1]], bounds[1]]
        reused[bounds[0] : bounds[1]] = True
        reused[edges[kept] : edges[kept + 1]] = False
    return reused


def _untraded(rows: Bars, flat: Mask, alone: Mask, limits: Limits) -> dict[str, Mask]:
    """Find rows of one price on which nothing was traded: those that repeat the last close many times, and others."""
    traded = rows.volume > 0
    at = np.flatnonzero(alone)
    ticker, close = rows.stretch[at], rows.close[at]
    repeats = (
        np.append(False, (ticker[1:] == ticker[:-1]) & (close[1:] == close[:-1]))[: len(at)] & (flat & ~traded)[at]
    )
    edges = np.flatnonzero(np.diff(repeats, prepend=False, append=False))
    stale = np.zeros(len(flat), dtype=np.bool_)
    for start, stop in edges.reshape(-1, 2).tolist():
        stale[at[start:stop]] = stop - start >= limits.stale_days
    has_volume = np.bincount(rows.stretch[traded & np.isfinite(rows.volume)], minlength=rows.stretch[-1] + 1) > 0
    # a close alone that moved was made on a day of which the rest is lost, or in a table of closes
    ranges = np.bincount(rows.stretch[alone & ~flat], minlength=rows.stretch[-1] + 1) > 0
    close_alone = (np.isnan(rows.open) & np.isnan(rows.high) & np.isnan(rows.low)) | ~ranges[rows.stretch]
    repeated = np.append(False, (rows.stretch[1:] == rows.stretch[:-1]) & (rows.close[1:] == rows.close[:-1]))
    untraded = (rows.volume == 0) & flat & has_volume[rows.stretch] & (repeated | ~close_alone)
    return {"stale_run": stale, "zero_volume": untraded}
