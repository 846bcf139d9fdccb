"""Find where a ticker's price leaves its level: spikes, jumps, and jumps that look like splits.

Array operations find the few places where something may have happened; only those are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int, Shaped

from eigen2.market.data.cleaning.policy import DEFECTS, Limits
from eigen2.market.data.source import VALUES

# defects whose rows are not compared with others to find a level
NOT_COMPARED = {*DEFECTS[:8], "outside_bar", "spike"}
# ratios of the new price to the old: splits and reverse splits by these numbers, and 3, 4 or 5 shares for 2, 3 or 4
WHOLE = np.array([2, 3, 4, 5, 6, 7, 8, 10, 15, 20, 25, 30, 50, 100])
SPLIT_RATIOS = np.sort(np.concatenate([1 / WHOLE, [2 / 3, 3 / 4, 4 / 5], WHOLE]))
# largest high over low on the day of a split, which trades like any other day
ORDINARY_RANGE = 1.25
# rows after a split that must stay nearer to the new level than to the old one
CONFIRMING_ROWS = 5
# an excursion is over when at most a third of its distance is left, in logarithms: within 6 % of the old level after
# a factor of 1.2, 22 % after 1.8, 44 % after 3
REMAINING_DISTANCE = 1 / 3

Mask = Bool[np.ndarray, " bars"]
Floats = Float[np.ndarray, " bars"]


@dataclass(frozen=True)
class Bars:
    """Rows of a block as arrays, by ticker (numbered) and day (datetime64[D]); `row` is the position in the block."""

    row: Int[np.ndarray, " bars"]
    ticker: Int[np.ndarray, " bars"]
    days: Shaped[np.ndarray, " bars"]
    open: Floats
    high: Floats
    low: Floats
    close: Floats
    volume: Floats

    @staticmethod
    def of(block: pd.DataFrame) -> Bars:
        """Return all rows of a block."""
        ticker, days = pd.factorize(block["ticker"])[0], block["date"].to_numpy().astype("datetime64[D]")
        return Bars(np.arange(len(block)), ticker, days, *(block[name].to_numpy() for name in VALUES))

    def take(self, kept: Mask) -> Bars:
        """Return some of the bars."""
        return Bars(*(values[kept] for values in vars(self).values()))

    def comparable(self, compared: Mask, close_basis: Mask) -> Bars:
        """Return the bars to compare; on those of `close_basis` the close stands for all four prices."""
        bars, basis = self.take(compared), close_basis[compared]
        open_, high, low = (np.where(basis, bars.close, price) for price in (bars.open, bars.high, bars.low))
        return replace(bars, open=open_, high=high, low=low)

    @property
    def last_close(self) -> Floats:
        """Return the close of the bar before; NaN on a ticker's first."""
        last = np.full(len(self.close), np.nan)
        same = self.ticker[1:] == self.ticker[:-1]
        last[1:][same] = self.close[:-1][same]
        return last


def any_of(found: Mapping[str, Mask], *defects: str) -> Mask:
    """Return which rows have at least one of some defects."""
    return np.asarray(np.logical_or.reduce([found[name] for name in defects]))


def compared_rows(found: Mapping[str, Mask]) -> Mask:
    """Return which rows have none of the defects of `NOT_COMPARED` that were looked for."""
    return ~any_of(found, *NOT_COMPARED & found.keys())


def find_spikes(bars: Bars, limits: Limits) -> Mask:
    """Return which bars belong to an excursion: the price is at another level for a while and then back.

    Every bar of an excursion lies, from low to high, beyond the last close before it by a factor, and the open of the
    next bar is back near that close: a market that runs away and returns has bars or opens that lie between. The factor
    is `limits.spike` for up to `limits.spike_days` bars, `limits.one_day_spike` for a single one. An excursion longer
    than the ticker's history before it is none: the shorter side of the two is the wrong one.
    """
    spike = _excursions(bars, limits.spike, limits.spike_days)
    rest = bars.take(~spike)
    spike[np.flatnonzero(~spike)[_excursions(rest, limits.one_day_spike, 1)]] = True
    return spike


def find_jumps(bars: Bars, limits: Limits) -> tuple[Mask, Mask]:
    """Return which bars open or close far from the last close, as other jumps and as those that look like splits.

    After a jump there are two levels, the one left and the one reached. A bar that is back at the first, or stays at
    the second, is no jump. The bars must be without spikes.
    """
    last = bars.last_close
    ratio = split_ratio(bars.open, last, limits)
    far = _far(bars.open, last, limits) | _far(bars.close, last, limits)
    jump, split = np.zeros((2, len(last)), dtype=np.bool_)
    level = np.nan
    for bar in np.flatnonzero(far | ~np.isnan(ratio)).tolist():
        if jump[bar - 1] or split[bar - 1]:
            if not (_far(bars.open[bar], level, limits) or _far(bars.close[bar], level, limits)):
                continue
        else:
            level = last[bar]
            split[bar] = not np.isnan(ratio[bar]) and _stays(bars, bar)
        jump[bar] = far[bar] and not split[bar]
    return jump, split


def split_ratio(open_: Floats, last_close: Floats, limits: Limits) -> Floats:
    """Return the usual split ratio, at least a jump by itself, that takes the last close to the open; else NaN."""
    ratios = SPLIT_RATIOS[(1 - limits.jump >= SPLIT_RATIOS) | (1 / (1 - limits.jump) <= SPLIT_RATIOS)]
    reach = 1 + limits.split_tolerance
    change = open_ / last_close
    least = ratios[ratios > 1].min(initial=np.inf) / reach
    most = ratios[ratios < 1].max(initial=0) * reach
    bars = np.flatnonzero((change >= least) | (change <= most))
    found = np.full(len(open_), np.nan)
    if len(bars):
        off = np.abs(np.log(change[bars, None] / ratios))
        near = off.min(axis=1) <= np.log(reach)
        found[bars[near]] = ratios[off.argmin(axis=1)[near]]
    return found


def _excursions(bars: Bars, factor: float, longest: int) -> Mask:
    """Return the bars of excursions of at most `longest` bars, by at least the factor."""
    found = np.zeros(len(bars.close), dtype=np.bool_)
    resume = 0
    last = bars.last_close
    left = (bars.low > last * factor) | (bars.high * factor < last)
    for first in np.flatnonzero(left).tolist():
        if first < resume:
            continue
        back = _back_at(bars, first, factor, longest)
        if back is not None:
            found[first:back] = True
            # the bar that came back is far from the excursion before it, but on its level
            resume = back + 1
    return found


def _back_at(bars: Bars, first: int, factor: float, longest: int) -> int | None:
    """Return the bar at which the price is back at the level it left at `first`; None if that was no excursion."""
    level = bars.close[first - 1]
    start, end = np.searchsorted(bars.ticker, [bars.ticker[first], bars.ticker[first] + 1])
    away = slice(first, min(first + longest + 1, int(end)))
    above = bars.low[first] > level
    apart = bars.low[away] > level * factor if above else bars.high[away] * factor < level
    length = int(apart.argmin())
    if length == 0 or length > first - start:
        return None
    distance = np.abs(np.log(bars.close[first : first + length] / level)).min()
    left = abs(np.log(bars.open[first + length] / level))
    return first + length if left <= distance * REMAINING_DISTANCE else None


def _stays(bars: Bars, split: int) -> bool:
    """Return whether the day trades like any other, and later closes stay nearer its close than the one before."""
    end = int(np.searchsorted(bars.ticker, bars.ticker[split] + 1))
    later = bars.close[split + 1 : min(split + 1 + CONFIRMING_ROWS, end)]
    if len(later) == 0 or bars.high[split] > bars.low[split] * ORDINARY_RANGE:
        return False
    left, reached = (np.abs(np.log(later / level)) for level in bars.close[[split - 1, split]])
    return bool((reached < left).all())


def _far(price: Floats | float, level: Floats | float, limits: Limits) -> Bool[np.ndarray, " *bars"]:
    change = price / level
    return np.asarray((change < 1 - limits.jump) | (change > 1 / (1 - limits.jump)))
