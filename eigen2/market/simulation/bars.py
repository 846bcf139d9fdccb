"""Prices of each day by column, and what follows from them: what can be ordered and closed, and at which price."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float, Float32, Int, Int16

from eigen2.market.data.panel_rows import members
from eigen2.market.data.source import CLOSE, LISTED_DAYS, OPEN

HIGHEST, LOWEST, LEAST_SIZE = 1, 2, 4  # rows of a day in `market_table`, its bars, beside `OPEN` and `CLOSE`
DEAL_DAYS, DEAL_RANGE = 10, 0.01  # closes of a column that is bought for cash, and how much they differ
NO_ORDER = np.float32(1e9)  # least size of an order in a column that is no member, above every size


def market_table(
    prices: Float32[np.ndarray, "days columns bars"], delisting_return: float = 0.0, stops: Sequence[int] = ()
) -> Float32[np.ndarray, "days 5 columns"]:
    """Return each day's rows by column: open, highest and lowest price from the open on, last close, least order size.

    A price that is missing is NaN, and without a close the least size is infinite; with one, on a day on which the
    column is no member, `NO_ORDER`: it can be closed, not opened. The last close is 0 before the first. Without high or
    low, the higher or lower of open and close takes its place. With a `delisting_return` other than 0, the least size
    of a column is NaN once it has stopped trading for good, and its last close changes by that return unless it was
    `bought_for_cash`. If it ends within the last 20 days it counts as listed: it may be late, or halted. Before each of
    `stops`, ascending, that is judged by the days before it alone.
    """
    may_open, prices = members(prices), prices[..., :4]
    valid = np.isfinite(prices) & (prices > 0)
    traded = valid.any(-1)
    open_, high, low, close = np.moveaxis(np.where(valid, prices, np.float32(np.nan)), -1, 0)
    high, low = (np.where(np.isnan(row), ends(open_, close), row) for row, ends in ((high, np.fmax), (low, np.fmin)))
    least_size = np.where(valid[..., CLOSE], np.where(may_open, np.float32(1), NO_ORDER), np.float32(np.inf))
    last_close = last_valid(close)
    if delisting_return:
        for start, stop in pairwise((0, *stops, len(prices))):
            ends = stop - traded[:stop][::-1].argmax(0)
            for column in np.flatnonzero(ends + LISTED_DAYS <= stop):
                gone = slice(max(ends[column], start), stop), column
                last_close[gone] *= np.float32(1 if bought_for_cash(close[:stop, column]) else 1 + delisting_return)
                least_size[gone] = np.nan
    rows = open_, np.fmax(open_, high), np.fmin(open_, low), last_close, least_size
    return np.ascontiguousarray(np.stack(rows, axis=1))  # days next to each other, whatever the layout of prices


def bought_for_cash(close: Float[np.ndarray, " days"]) -> bool:
    """Return whether a column that has stopped trading was bought for cash: its last 10 closes are almost equal.

    Once such a deal is announced, a share trades near what is paid for it: the highest of these closes is less than 1 %
    above the lowest. Closes that are missing are NaN; with fewer than 10 it is False.
    """
    last = close[close > 0][-DEAL_DAYS:]
    return len(last) == DEAL_DAYS and bool(last.max() < (1 + DEAL_RANGE) * last.min())


def final_closes(
    market: Float32[np.ndarray, "days 5 columns"],
    days: Int[np.ndarray, " some"],
    columns: Int[np.ndarray, " some"],
    stops: Sequence[int] = (),
) -> Float32[np.ndarray, " some"]:
    """Return the close of a day and column; without one the next price, mostly an open.

    Where there is none before the next of `stops` or the end of the table, it is the last close.
    """
    close: np.ndarray = market[days, CLOSE, columns]
    for i in np.flatnonzero(halted(market[days, :, columns].T)):
        later = market[days[i] : next((stop for stop in stops if stop > days[i]), None), :, columns[i]].T
        priced = np.flatnonzero((later[OPEN] > 0) | has_close(later))
        if priced.size:
            first = later[:, priced[0]]
            close[i] = first[OPEN] if first[OPEN] > 0 else first[CLOSE]
    return close


def may_open(bars: Float32[np.ndarray, "5 ..."]) -> Bool[np.ndarray, "..."]:
    """Return where a position may be opened: the column is a member and has a close."""
    return bars[LEAST_SIZE] == 1


def has_close(bars: Float32[np.ndarray, "5 ..."]) -> Bool[np.ndarray, "..."]:
    """Return where a column has a close on the day itself."""
    return np.isfinite(bars[LEAST_SIZE])


def halted(bars: Float32[np.ndarray, "5 ..."]) -> Bool[np.ndarray, "..."]:
    """Return where a column has no close, but has not stopped trading for good."""
    return np.isinf(bars[LEAST_SIZE])


def delisted(bars: Float32[np.ndarray, "5 ..."]) -> Bool[np.ndarray, "..."]:
    """Return where a column has stopped trading for good; nowhere if `market_table` marks no delistings."""
    return np.isnan(bars[LEAST_SIZE])


def can_close(bars: Float32[np.ndarray, "5 ..."]) -> Bool[np.ndarray, "..."]:
    """Return where positions can be closed: where a column has an open or a close, or has stopped trading for good."""
    return (bars[OPEN] > 0) | ~halted(bars)


def exit_prices(
    bars: Float32[np.ndarray, "5 ..."],
    side: Float32[np.ndarray, "..."],
    take_profit: Float32[np.ndarray, "..."],
    overdue: Bool[np.ndarray, "..."],
) -> tuple[Bool[np.ndarray, "..."], Float32[np.ndarray, "..."]]:
    """Return whether positions reach their take-profits, and their exit prices.

    These are the open for positions that are overdue or have no close, else the take-profit or better, else the close.
    Prices of short sales are negative, as are their take-profits.
    """
    first = (overdue | halted(bars)) & ~np.isnan(bars[OPEN])
    reached = (np.where(side > 0, bars[HIGHEST], bars[LOWEST]) >= take_profit) & ~overdue
    price = np.where(reached, np.fmax(bars[OPEN], take_profit), bars[CLOSE])
    return reached, np.where(first & ~reached, bars[OPEN], price)


def tie_breaks(prices: Float32[np.ndarray, "days columns bars"]) -> Int16[np.ndarray, "days columns"]:
    """Draw a number for each column and day, which decides between equal orders; -1 where the column has no close.

    It is a hash of the close (MurmurHash3's finalizer), so that the same day has the same draw in any panel.
    """
    bits: np.ndarray = np.ascontiguousarray(prices[..., CLOSE], np.float32).view(np.uint32)
    for factor, shift in ((0x85EBCA6B, 13), (0xC2B2AE35, 16)):
        bits = (bits ^ (bits >> 16)) * np.uint32(factor)
        bits ^= bits >> shift
    traded = np.isfinite(prices[..., CLOSE]) & (prices[..., CLOSE] > 0)
    return np.where(traded, (bits >> 17).astype(np.int16), np.int16(-1))


def last_valid(close: Float[np.ndarray, "days columns"]) -> Float[np.ndarray, "days columns"]:
    """Return each column's last close above 0 up to each day; 0 before its first."""
    valid = np.where(close > 0, np.arange(len(close))[:, None], -1)
    day = np.maximum.accumulate(valid, axis=0)
    return np.where(day >= 0, np.take_along_axis(close, day.clip(0), axis=0), close.dtype.type(0))
