"""Select the rows of a price table that make the panel."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd
from jaxtyping import Bool, Int, Shaped

from eigen2.errors import UserError
from eigen2.market.data.files import quoted
from eigen2.market.data.source import listed_tickers, unusable_rows

log = logging.getLogger(__name__)

STRAY_TICKERS = 10
LISTED_DAYS = 20  # for which a ticker counts as listed after each of its rows, as it may only be late or halted
STRAY_PERCENT = 10


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
        UserError: when no row of a ticker is usable, two rows have the same date and ticker, or an indicator is unknown
            or has no close on any day of the panel.
    """
    codes, names = pd.factorize(prices_long["ticker"], sort=True)
    check_known("data.indicators", indicators, names)
    of_indicator = names.isin(indicators)[codes]
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
        raise UserError(f"data.indicators has {name!r}, which has no close on any day of prices: leave it out")
    if empty:
        log.warning("%d of %d tickers left out: no usable row", len(empty), len(names))
    return PanelRows(dates, day_of_row, {name: group for name, group in groups.items() if len(group)})


def _usable(prices_long: pd.DataFrame, of_indicator: Bool[np.ndarray, " rows"]) -> Bool[np.ndarray, " rows"]:
    """Return which rows are usable; warn about the others."""
    reasons = {reason: mask & ~of_indicator for reason, mask in unusable_rows(prices_long).items()}
    reasons["indicator without a close"] = of_indicator & np.isnan(prices_long["close"].to_numpy())
    usable: Bool[np.ndarray, " rows"] = ~np.logical_or.reduce(list(reasons.values()))
    if not (usable & ~of_indicator).any():
        raise UserError(
            f"none of the {np.sum(~of_indicator)} rows of prices is usable: bring rows with four prices above 0"
        )
    if not usable.all():
        counts = ", ".join(f"{mask.sum()} {reason}" for reason, mask in reasons.items() if mask.any())
        log.warning("%d of %d rows left out: %s", np.sum(~usable), len(usable), counts)
    return usable


def _kept_days(
    day: Int[np.ndarray, " rows"],
    codes: Int[np.ndarray, " rows"],
    usable: Bool[np.ndarray, " rows"],
    dates: Shaped[np.ndarray, " days"],
) -> Bool[np.ndarray, " days"]:
    """Return on which dates tickers traded, and not just a stray few; warn about the others.

    A day is judged by rows up to it alone, so that days added to a table change none before them.
    """
    there = np.bincount(day, minlength=len(dates)) > 0
    rows = np.bincount(day[usable], minlength=len(dates))
    order = np.lexsort((day[usable], codes[usable]))
    first, ticker = day[usable][order], codes[usable][order]
    # a row lists its ticker until the next one takes over
    following = np.append(np.where(np.diff(ticker) == 0, first[1:], len(dates)), len(dates))
    listed = listed_tickers(first, np.minimum(following - 1, first + LISTED_DAYS).clip(max=len(dates) - 1), len(dates))
    stray = (rows > 0) & (listed >= STRAY_TICKERS) & (100 * rows < STRAY_PERCENT * listed)
    if empty := np.sum(there & (rows == 0)):
        log.warning("%d of %d days left out: no usable row", empty, there.sum())
    if stray.any():
        why = f"fewer than {STRAY_PERCENT} % of at least {STRAY_TICKERS} listed tickers traded"
        numbers = (np.sum(stray), rows[stray].sum(), dates[stray.argmax()], why)
        log.warning("%d stray days left out with %d rows, first %s: %s", *numbers)
    kept: Bool[np.ndarray, " days"] = (rows > 0) & ~stray
    return kept


def check_known(key: str, names: Sequence[str], known: Iterable[str]) -> None:
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
    raise UserError(f"{key} has {some(unknown)}, which the prices do not have: {hint}")


def some(names: Sequence[str]) -> str:
    """Return the first five names in quotes, and the number of others."""
    return ", ".join(map(quoted, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
