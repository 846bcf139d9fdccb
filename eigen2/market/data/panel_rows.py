"""Select the rows of a price table that make the panel."""

import difflib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float32, Int, Shaped

from eigen2.errors import UserError
from eigen2.market.data.files import quoted
from eigen2.market.data.source import (
    CLOSE,
    PRICE_COLUMNS,
    SMALLEST_PRICE,
    check_not_returns,
    listed_tickers,
    stray_days,
)

log = logging.getLogger(__name__)

MEMBER = 4  # place in prices of whether a column may be opened, after open, high, low and close


@dataclass(frozen=True)
class PanelRows:
    """The rows of a price table that make the panel.

    Attributes:
        dates: (days,) datetime64[D], strictly increasing.
        day: (rows,) index into `dates` of every row of the table; meaningless for rows outside all groups.
        groups: for each ticker, sorted, indicators included, the positions of its rows in the table, by day.
    """

    dates: Shaped[np.ndarray, " days"]
    day: Int[np.ndarray, " rows"]
    groups: dict[str, Int[np.ndarray, " _"]]


def select_rows(prices_long: pd.DataFrame, indicators: Sequence[str]) -> PanelRows:
    """Select the rows that make the panel; warn about other rows, days and tickers.

    Args:
        prices_long: long table as `eigen2.market.data.source.read_prices` returns it; rows may come in any order.
        indicators: the tickers that are indicator series.

    Raises:
        UserError: when closes must be returns, no row of a ticker is usable, two rows have the same date and ticker, or
            an indicator is unknown or has no close on any day of the panel.
    """
    codes, names = pd.factorize(prices_long["ticker"], sort=True)
    check_known("data.indicators", indicators, names)
    of_indicator = names.isin(indicators)[codes]
    close = prices_long["close"].to_numpy()[~of_indicator]
    remedy = "give prices, or name other series in data.indicators"
    check_not_returns(int((close < 0).sum()), int((np.abs(close) > 0).sum()), "the price table", remedy)
    usable = _usable(prices_long, of_indicator)
    day, distinct = pd.factorize(prices_long["date"].to_numpy().astype("datetime64[D]").astype(np.int64), sort=True)
    distinct = distinct.astype("datetime64[D]")
    of_ticker = ~of_indicator
    kept = _kept_days(day[of_ticker], codes[of_ticker], usable[of_ticker], distinct)
    day_of_row, dates = (np.cumsum(kept) - 1)[day], distinct[kept]
    rows = np.flatnonzero(usable & kept[day])
    rows = rows[np.lexsort((day_of_row[rows], codes[rows]))]
    repeated = np.flatnonzero((np.diff(codes[rows]) == 0) & (np.diff(day_of_row[rows]) == 0))
    if len(repeated):
        row = rows[repeated[0]]
        name, date = names[codes[row]], dates[day_of_row[row]]
        raise UserError(f"the price table has more than one row of {name!r} on {date}: keep one of them")
    edges = np.searchsorted(codes[rows], np.arange(len(names) + 1))
    groups = {str(name): rows[start:stop] for name, (start, stop) in zip(names, pairwise(edges), strict=True)}
    empty = {name for name, group in groups.items() if len(group) == 0}
    if empty & set(indicators):
        name = min(empty & set(indicators))
        raise UserError(f"data.indicators has {name!r}, which has no close on any day of prices: leave out its rows")
    if empty:
        log.warning("%d of %d tickers left out: no usable row", len(empty), len(names))
    return PanelRows(dates, day_of_row, {name: group for name, group in groups.items() if len(group)})


def _usable(prices_long: pd.DataFrame, of_indicator: Bool[np.ndarray, " rows"]) -> Bool[np.ndarray, " rows"]:
    """Return which rows count, see `usable_prices`; warn about the others, and about those used in part."""
    open_, high, low, close = (prices_long[name].to_numpy() for name in PRICE_COLUMNS)
    missing = np.where(of_indicator, np.isnan(close), ~((open_ >= SMALLEST_PRICE) | (close >= SMALLEST_PRICE)))
    if missing[~of_indicator].all():
        raise UserError(
            f"none of the {np.sum(~of_indicator)} rows of prices is usable: bring rows with an open or a close above 0"
        )
    if missing.any():
        log.warning("%d of %d rows left out: no usable open or close", missing.sum(), len(missing))
    whole = (open_ >= SMALLEST_PRICE) & (close >= SMALLEST_PRICE) & (low >= SMALLEST_PRICE) & (high >= low)
    if partial := np.sum(~whole & ~missing & ~of_indicator):
        why = "the others are missing, not above 0, or a high below a low"
        log.warning("%d of %d rows count for some of their prices: %s", partial, len(missing), why)
    return ~missing


def _kept_days(
    day: Int[np.ndarray, " rows"],
    codes: Int[np.ndarray, " rows"],
    usable: Bool[np.ndarray, " rows"],
    dates: Shaped[np.ndarray, " days"],
) -> Bool[np.ndarray, " days"]:
    """Return on which dates tickers traded, and not just a stray few; warn about the others."""
    there = np.bincount(day, minlength=len(dates)) > 0
    rows = np.bincount(day[usable], minlength=len(dates))
    order = np.lexsort((day[usable], codes[usable]))
    stray = stray_days(rows, listed_tickers(codes[usable][order], day[usable][order], len(dates)))
    if empty := np.sum(there & (rows == 0)):
        log.warning("%d of %d days left out: no usable row", empty, there.sum())
    if stray.any():
        why = "fewer than 10 % of at least 10 listed tickers traded"
        numbers = (np.sum(stray), rows[stray].sum(), dates[stray.argmax()], why)
        log.warning("%d stray days left out with %d rows, first %s: %s", *numbers)
    return (rows > 0) & ~stray


def members(prices: Float32[np.ndarray, "days columns bars"]) -> Bool[np.ndarray, "days columns"]:
    """Return the days on which each column may be opened, see `MarketPanel.prices`; all without membership."""
    return prices[..., MEMBER] > 0 if prices.shape[-1] > MEMBER else np.ones(prices.shape[:2], np.bool_)


def orderable(prices: Float32[np.ndarray, "days columns bars"]) -> Bool[np.ndarray, "days columns"]:
    """Return the days on which each column may be ordered: it may be opened, and has a close."""
    return members(prices) & (prices[..., CLOSE] > 0)


def describe_members(prices: Float32[np.ndarray, "days columns bars"]) -> str:
    """Return how many columns may be bought on a day, as text."""
    count = members(prices).sum(1)
    return f"{count.min()} to {count.max()} columns may be bought, {count.mean():.1f} on average"


def member_days(
    spans: pd.DataFrame, tickers: Sequence[str], dates: Shaped[np.ndarray, " days"]
) -> tuple[Bool[np.ndarray, "days columns"], Int[np.ndarray, " days"]]:
    """Return on which days each ticker is a member, and how many members each day has, tickers without prices too.

    `spans` is as `universe.read_membership` returns it. Warns about those without prices; raises a UserError if all
    are.
    """
    stamps, place = dates.astype("datetime64[s]"), {name: column for column, name in enumerate(tickers)}
    first = np.searchsorted(stamps, spans["first"].to_numpy("datetime64[s]"))
    last = spans["last"].to_numpy("datetime64[s]")
    stop = np.where(np.isnat(last), len(dates), np.searchsorted(stamps, last, side="right"))
    days, total = np.zeros((len(dates), len(tickers)), np.bool_), np.zeros(len(dates) + 1, np.int64)
    for name, start, end in zip(spans["ticker"], first.tolist(), stop.tolist(), strict=True):
        total[start] += 1
        total[end] -= 1
        if name in place:
            days[start:end, place[name]] = True
    names = sorted({*spans["ticker"]})
    missing = [name for name in names if name not in place]
    if len(missing) == len(names):
        raise UserError(f"the prices have none of the {len(names)} tickers of data.membership ({some(missing)})")
    if missing:
        log.warning("no prices of %d of %d tickers of data.membership: %s", len(missing), len(names), some(missing))
    return days, total[:-1].cumsum()


def check_known(key: str, names: Sequence[str], known: Iterable[str], where: str = "the prices do") -> None:
    """Raise a UserError if a name is not known, with the nearest that are; `key` is the setting that has the names."""
    known = sorted(known)
    unknown = sorted(set(names) - set(known))
    if not unknown:
        return
    # a name that differs only in case is near
    folded = {name.casefold(): name for name in known}
    near = [folded[match] for name in unknown[:5] for match in difflib.get_close_matches(name.casefold(), folded, n=1)]
    hint = f"the {len(known)} they have go from {known[0]!r} to {known[-1]!r}"
    if near:
        hint = f"did you mean {', '.join(map(repr, dict.fromkeys(near)))}?"
    raise UserError(f"{key} has {some(unknown)}, which {where} not have: {hint}")


def describe_barred(
    cap: float, traded_value: np.ndarray, tickers: Sequence[str], columns: Sequence[int]
) -> dict[str, str]:
    """Return a line on the columns whose usual traded value of 0 lets a cap bar them, none without a cap or such."""
    barred = [tickers[column] for column, value in zip(columns, traded_value, strict=True) if cap and not value]
    if not barred:
        return {}
    return {"volume cap": f"{some(barred)} trade on less than half of the training days: they are never bought"}


def some(names: Sequence[str]) -> str:
    """Return the first five names in quotes, and the number of others."""
    return ", ".join(map(quoted, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
