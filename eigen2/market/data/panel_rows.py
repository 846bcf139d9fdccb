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
from eigen2.market.data.source import unusable_rows

log = logging.getLogger(__name__)

STRAY_TICKERS = 10
STRAY_PERCENT = 10


@dataclass(frozen=True)
class PanelRows:
    """The rows of a price table that make the panel.

    Attributes:
        dates: (days,) datetime64[D], strictly increasing.
        day: (rows,) index into `dates` of every row of the table; meaningless for rows that are in no group.
        groups: for each ticker, sorted, indicators included, the positions of its rows in the table, by day.
    """

    dates: Shaped[np.ndarray, " days"]
    day: Int[np.ndarray, " rows"]
    groups: dict[str, Int[np.ndarray, " _"]]


def select_rows(prices_long: pd.DataFrame, indicators: tuple[str, ...]) -> PanelRows:
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
    usable &= kept[day]
    day_of_row = (np.cumsum(kept) - 1)[day]
    rows = np.flatnonzero(usable)
    rows = rows[np.lexsort((day_of_row[rows], codes[rows]))]
    edges = np.searchsorted(codes[rows], np.arange(len(names) + 1))
    groups = {str(name): rows[start:stop] for name, (start, stop) in zip(names, pairwise(edges), strict=True)}
    dates = distinct[kept]
    for name, group in groups.items():
        repeated = np.flatnonzero(np.diff(day_of_row[group]) == 0)
        if len(repeated):
            date = dates[day_of_row[group[repeated[0]]]]
            raise UserError(f"the price table has more than one row of {name!r} on {date}: keep one of them")
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
    """Return on which dates tickers traded, and not just a stray few; warn about the others."""
    there = np.bincount(day, minlength=len(dates)) > 0
    day, codes = day[usable], codes[usable]
    rows = np.bincount(day, minlength=len(dates))
    first, last = np.full(codes.max() + 1, len(dates)), np.full(codes.max() + 1, -1)
    np.minimum.at(first, codes, day)
    np.maximum.at(last, codes, day)
    begun, ended = (np.bincount(edge[last >= 0], minlength=len(dates) + 1) for edge in (first, last + 1))
    listed = np.cumsum(begun - ended)[:-1]
    stray = (rows > 0) & (listed >= STRAY_TICKERS) & (100 * rows < STRAY_PERCENT * listed)
    empty = np.sum(there & (rows == 0))
    if empty:
        log.warning("%d of %d days left out: no usable row", empty, there.sum())
    if stray.any():
        log.warning(
            "%d stray days left out with %d rows, first %s: fewer than %d %% of at least %d listed tickers traded",
            np.sum(stray),
            rows[stray].sum(),
            dates[stray.argmax()],
            STRAY_PERCENT,
            STRAY_TICKERS,
        )
    kept: Bool[np.ndarray, " days"] = (rows > 0) & ~stray
    return kept


def check_known(key: str, names: Sequence[str], known: Iterable[str]) -> None:
    """Raise a UserError if a name is not known, with the nearest that are; `key` is the setting that has the names."""
    known = sorted(known)
    unknown = sorted(set(names) - set(known))
    if not unknown:
        return
    first = unknown[:5]
    # upper and lower case mistaken for each other are near
    folded = {name.casefold(): name for name in known}
    near = [folded[match] for name in first for match in difflib.get_close_matches(name.casefold(), folded, n=1)]
    more = f" and {len(unknown) - len(first)} more" if len(unknown) > len(first) else ""
    if near:
        hint = f"did you mean {', '.join(map(repr, dict.fromkeys(near)))}?"
    else:
        hint = f"the {len(known)} they have go from {known[0]!r} to {known[-1]!r}"
    raise UserError(f"{key} has {', '.join(map(quoted, first))}{more}, which the prices do not have: {hint}")
