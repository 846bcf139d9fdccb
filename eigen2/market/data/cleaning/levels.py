"""Find where a ticker's price leaves its level: spikes, jumps, and jumps that look like splits.

Array operations find the few places where something may have happened; only those are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int, Shaped

from eigen2.market.data.cleaning.policy import Limits
from eigen2.market.data.source import VALUES

# ratios of the new price to the old: splits and reverse splits by these numbers, and 3, 4 or 5 shares for 2, 3 or 4
WHOLE = np.array([2, 3, 4, 5, 6, 7, 8, 10, 15, 20, 25, 30, 50, 100])
SPLIT_RATIOS = np.sort(np.concatenate([1 / WHOLE, [2 / 3, 3 / 4, 4 / 5], WHOLE]))
# largest high over low of a day that trades like any other, as that of a split does
ORDINARY_RANGE = 1.25
# rows after a split that must stay nearer to the new level than to the old one
CONFIRMING_ROWS = 5
# rows before a day whose median its volume is compared with
VOLUME_ROWS = 20
# volume of a real jump, as a multiple of that median: overnight moves of large American stocks by more than a quarter
# had at least 4.4 times the money, splits and spin-offs at most 3.7 times (2013 to 2018)
VOLUME_OF_JUMP = 4.0
# volume below which the day of a split needs no other witness than its range
VOLUME_OF_SPLIT = 2.5
# how far from a split's ratio, as a fraction, a price may open where no volume tells a split from a crash: half of the
# crashes of tests/market/data/cleaning/events.csv lie within 5 % of some ratio, one within 2.5 %
CLOSE_TO_RATIO = 0.025
# median move of the days after a split, in those of `VOLUME_ROWS` before; days after a crash are wilder
CALM, CALM_MOVE = 2.5, 0.01
# days without a row after which prices are not compared with those before
LONGEST_GAP = np.timedelta64(30, "D")
# a price that changes by two ticks has not left its level: cents, of a penny stock; less where prices change by less
TICKS, CENT = 2.01, 0.01
STEP_QUANTILE = 0.1  # of a ticker's changes, which a tick is not above
ROUNDING = 1e-6  # relative changes that are no steps
FINE = 20  # cents, from which no change by two of them is an excursion or a jump
# an excursion is over when at most a third of its distance is left, in logarithms: within 6 % of the old level after
# a factor of 1.2, 22 % after 1.8, 44 % after 3
REMAINING_DISTANCE = 1 / 3

Mask = Bool[np.ndarray, " bars"]
Floats = Float[np.ndarray, " bars"]


@dataclass(frozen=True)
class Bars:
    """Rows of a block as arrays, by stretch (numbered) and day (datetime64[D]).

    A stretch holds the bars that may be compared: all of a ticker, after `comparable` those without a long gap. `row`
    is the position in the block; `resumes` says whether the ticker's row before has neither open nor close.
    """

    row: Int[np.ndarray, " bars"]
    stretch: Int[np.ndarray, " bars"]
    days: Shaped[np.ndarray, " bars"]
    resumes: Mask
    open: Floats
    high: Floats
    low: Floats
    close: Floats
    volume: Floats

    @staticmethod
    def of(block: pd.DataFrame) -> Bars:
        """Return all rows of a block."""
        ticker, days = pd.factorize(block["ticker"])[0], block["date"].to_numpy().astype("datetime64[D]")
        empty = block[["open", "close"]].isna().all(axis=1).to_numpy()
        resumes = np.append(False, empty[:-1] & (ticker[1:] == ticker[:-1]))[: len(block)]
        return Bars(np.arange(len(block)), ticker, days, resumes, *(block[name].to_numpy() for name in VALUES))

    def take(self, kept: Mask) -> Bars:
        """Return some of the bars."""
        return Bars(*(values[kept] for values in vars(self).values()))

    def comparable(self, compared: Mask, close_basis: Mask) -> Bars:
        """Return the bars to compare, which have an open or a close; one stands for the other where it is missing.

        The close stands for all prices of `close_basis`.
        After `LONGEST_GAP` without a row another stretch begins.
        """
        bars, basis = self.take(compared), close_basis[compared]
        bars = replace(bars, close=np.where(np.isnan(bars.close), bars.open, bars.close))
        open_ = np.where(basis | np.isnan(bars.open), bars.close, bars.open)
        high = np.where(basis | np.isnan(bars.high), np.maximum(open_, bars.close), bars.high)
        low = np.where(basis | np.isnan(bars.low), np.minimum(open_, bars.close), bars.low)
        starts = (np.diff(bars.stretch) != 0) | (np.diff(bars.days) > LONGEST_GAP)
        stretch = np.cumsum(np.append(False, starts)[: len(bars.row)])
        return replace(bars, stretch=stretch, open=open_, high=high, low=low)

    @property
    def last_close(self) -> Floats:
        """Return the close of the bar before; NaN on a stretch's first."""
        last = np.full(len(self.close), np.nan)
        same = self.stretch[1:] == self.stretch[:-1]
        last[1:][same] = self.close[:-1][same]
        return last

    @property
    def two_ticks(self) -> Floats:
        """Return how far a bar's price may change without leaving its level; it is known for all bars of a stretch."""
        reach = np.full(len(self.close), TICKS * CENT)
        low = np.unique(self.stretch[self.close < FINE * CENT])
        for first, end in zip(*(np.searchsorted(self.stretch, low, side) for side in ("left", "right")), strict=True):
            steps = np.abs(np.diff(self.close[first:end]))
            if len(steps := steps[steps > ROUNDING * np.median(self.close[first:end])]):
                reach[first:end] = TICKS * min(CENT, np.quantile(steps, STEP_QUANTILE))
        return reach

    def end(self, bar: int) -> int:
        """Return the position after the last bar of a bar's stretch."""
        return int(np.searchsorted(self.stretch, self.stretch[bar] + 1))

    def relative_volume(self, bar: int) -> float:
        """Return a bar's volume over the median of the bars before; NaN where unknown.

        It counts in shares, or in money at the last close where the price fell: a share that was divided trades more
        often for the same money.
        """
        first = max(int(np.searchsorted(self.stretch, self.stretch[bar])), bar - VOLUME_ROWS)
        volume = self.volume[first : bar + 1]
        known = np.isfinite(volume) & (volume >= 0)
        median = np.median(volume[:-1][known[:-1]]) if known[:-1].any() else 0.0
        if not known[-1] or median == 0:
            return np.nan
        return float(volume[-1] / median * min(1.0, self.close[bar] / self.close[bar - 1]))


def any_of(found: Mapping[str, Mask], *defects: str) -> Mask:
    """Return which rows have at least one of some defects."""
    return np.asarray(np.logical_or.reduce([found[name] for name in defects]))


def company_numbers(ticker: Int[np.ndarray, " rows"], reused: Mask) -> Int[np.ndarray, " rows"]:
    """Number the companies of a block: rows of a ticker (numbered) that are reused are another one's."""
    return np.cumsum(np.append(False, (np.diff(ticker) != 0) | (np.diff(reused) != 0))[: len(ticker)])


def repeated(bars: Bars) -> Mask:
    """Return which bars copy the one before, its volume too, although it was traded and its price moved."""
    values = np.stack([getattr(bars, name) for name in VALUES], axis=1)
    same = (bars.stretch[1:] == bars.stretch[:-1]) & (values[1:] == values[:-1]).all(axis=1)
    return np.append(False, same)[: len(values)] & (bars.high > bars.low) & (bars.volume > 0)


def find_spikes(bars: Bars, limits: Limits) -> Mask:
    """Return which bars belong to an excursion: the price is at another level for a while and then back.

    Every bar of an excursion lies, from low to high, beyond the last close before it by a factor, and the open of the
    next bar is back near that close: a market that runs away and returns has bars or opens that lie between. The factor
    is `limits.spike` for up to `limits.spike_days` bars, `limits.one_day_spike` for a single one on which no more was
    traded than usual: markets come back too, but not unnoticed. An excursion longer than the ticker's history before it
    is none: the shorter side of the two is the wrong one.
    """
    spike = _excursions(bars, limits.spike, limits.spike_days)
    rest = bars.take(~spike)
    unnoticed = _excursions(rest, limits.one_day_spike, 1)
    for bar in np.flatnonzero(unnoticed).tolist():
        unnoticed[bar] = rest.relative_volume(bar) < VOLUME_OF_JUMP
    spike[np.flatnonzero(~spike)[unnoticed]] = True
    return spike


def find_jumps(bars: Bars, limits: Limits) -> tuple[Mask, Mask]:
    """Return which bars open or close far from the last close: unconfirmed jumps, and those that look like splits.

    A jump is confirmed, and not returned, if the market traded it (a range of more than `ORDINARY_RANGE`, or much more
    volume than before) and the next open is nearer to the new close than to the old one. After another jump there are
    two levels, the one left and the one reached. A bar that is back at the first, or stays at the second, is no jump.
    Neither is one that resumes: nothing is known of the day before, or it was a jump itself, and is masked. The bars
    must be without spikes.
    """
    last, reach = bars.last_close, bars.two_ticks
    ratio = split_ratio(bars, limits)
    far = _far(bars.open, last, reach, limits) | _far(bars.close, last, reach, limits)
    far, ratio = far & ~bars.resumes, np.where(bars.resumes, np.nan, ratio)
    jump, split = np.zeros((2, len(last)), dtype=np.bool_)
    level = np.nan
    for bar in np.flatnonzero(far | ~np.isnan(ratio)).tolist():
        if jump[bar - 1] or split[bar - 1]:
            if not any(_far(price, level, reach[bar], limits) for price in (bars.open[bar], bars.close[bar])):
                continue
        else:
            level = last[bar]
            split[bar] = _is_split(bars, bar, ratio[bar], limits)
        jump[bar] = far[bar] and not split[bar] and not _is_traded(bars, bar)
    return jump, split


def split_factors(bars: Bars, split: Mask, limits: Limits) -> Floats:
    """Return the factor on earlier prices at each split: its ratio, or else open / last close; 1 elsewhere."""
    ratio = split_ratio(bars, limits)
    return np.where(split, np.where(np.isnan(ratio), bars.open / bars.last_close, ratio), 1.0)


def split_ratio(bars: Bars, limits: Limits) -> Floats:
    """Return the usual split ratio, at least a jump by itself, that takes the last close to the open; else NaN."""
    ratios = SPLIT_RATIOS[(1 - limits.jump >= SPLIT_RATIOS) | (1 / (1 - limits.jump) <= SPLIT_RATIOS)]
    reach, last = 1 + limits.split_tolerance, bars.last_close
    change = bars.open / last
    least = ratios[ratios > 1].min(initial=np.inf) / reach
    most = ratios[ratios < 1].max(initial=0) * reach
    found = np.full(len(last), np.nan)
    places = np.flatnonzero(((change >= least) | (change <= most)) & (np.abs(bars.open - last) > bars.two_ticks))
    if len(places):
        off = np.abs(np.log(change[places, None] / ratios))
        near = off.min(axis=1) <= np.log(reach)
        found[places[near]] = ratios[off.argmin(axis=1)[near]]
    return found


def _excursions(bars: Bars, factor: float, longest: int) -> Mask:
    """Return the bars of excursions of at most `longest` bars, by at least the factor."""
    found = np.zeros(len(bars.close), dtype=np.bool_)
    resume = 0
    last = bars.last_close
    left = ((bars.low > last * factor) | (bars.high * factor < last)) & (np.abs(bars.close - last) > bars.two_ticks)
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
    start = np.searchsorted(bars.stretch, bars.stretch[first])
    away = slice(first, min(first + longest + 1, bars.end(first)))
    above = bars.low[first] > level
    apart = bars.low[away] > level * factor if above else bars.high[away] * factor < level
    length = int(apart.argmin())
    if length == 0 or length > first - start:
        return None
    distance = np.abs(np.log(bars.close[first : first + length] / level)).min()
    left = abs(np.log(bars.open[first + length] / level))
    return first + length if left <= distance * REMAINING_DISTANCE else None


def _is_split(bars: Bars, bar: int, ratio: float, limits: Limits) -> bool:
    """Return whether the price was divided: an ordinary day at a new level, without the trading of a crash.

    By a usual ratio, up or down; by any other downward, as at a spin-off, if the volume says so; and upward by any and
    whatever the day's range, if no more shares than usual were traded. Where volume and range leave it open, the days
    after must be calm, and the open very close to the ratio if no volume is known.
    """
    later = bars.close[bar + 1 : min(bar + 1 + CONFIRMING_ROWS, bars.end(bar))]
    if len(later) == 0:
        return False
    left, reached = (np.abs(np.log(later / level)) for level in bars.close[[bar - 1, bar]])
    volume, wide = bars.relative_volume(bar), bars.high[bar] > bars.low[bar] * ORDINARY_RANGE
    if not (reached < left).all() or volume >= VOLUME_OF_JUMP:
        return False
    if wide or np.isnan(ratio):
        change = bars.open[bar] / bars.close[bar - 1]
        falls = change < 1 - limits.jump and not wide
        rises = change > max(1 / (1 - limits.jump), WHOLE[0]) and volume <= 1
        return bool((falls or rises) and volume > 0 and bars.high[bar] > bars.low[bar] and _is_calm(bars, bar))
    if np.isnan(volume):
        off = abs(np.log(bars.open[bar] / bars.close[bar - 1] / ratio))
        return bool(off <= np.log1p(CLOSE_TO_RATIO) and _is_calm(bars, bar))
    return bool(volume < VOLUME_OF_SPLIT and bars.high[bar] > bars.low[bar]) or _is_calm(bars, bar)


def _is_calm(bars: Bars, bar: int) -> bool:
    """Return whether closes move about as much after a bar as before it; True where too few are known."""
    first = max(int(np.searchsorted(bars.stretch, bars.stretch[bar])), bar - 1 - VOLUME_ROWS)
    before = np.abs(np.diff(np.log(bars.close[first:bar])))
    after = np.abs(np.diff(np.log(bars.close[bar : min(bar + 1 + CONFIRMING_ROWS, bars.end(bar))])))
    return len(before) < CONFIRMING_ROWS or bool(np.median(after) <= max(CALM * np.median(before), CALM_MOVE))


def _is_traded(bars: Bars, bar: int) -> bool:
    """Return whether the market itself went to the bar's level, and did not go back by the next open.

    A fall on a ticker's last day counts as traded unless the volume says otherwise: many tickers end so.
    """
    wide = bars.high[bar] > bars.low[bar] * ORDINARY_RANGE and bars.volume[bar] != 0  # NaN where it is unknown
    volume, is_last = bars.relative_volume(bar), bar + 1 == bars.end(bar)
    if not wide and not volume >= VOLUME_OF_JUMP:
        return is_last and bool(np.isnan(volume) and bars.close[bar] < bars.close[bar - 1])
    if is_last:
        return True
    left, reached = (abs(np.log(bars.open[bar + 1] / level)) for level in bars.close[[bar - 1, bar]])
    return bool(reached < left)


def _far(
    price: Floats | float, level: Floats | float, reach: Floats | float, limits: Limits
) -> Bool[np.ndarray, " *bars"]:
    change = price / level
    far = (change < 1 - limits.jump) | (change > 1 / (1 - limits.jump))
    return np.asarray(far & (np.abs(price - level) > reach))
