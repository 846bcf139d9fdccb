"""Describe what distorts results on a table: splits not adjusted, closes alone adjusted, tickers that died missing."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float32, Shaped

from eigen2.market.data.cleaning.defects import close_basis
from eigen2.market.data.cleaning.levels import Bars, find_jumps, find_spikes, repeated, split_ratio
from eigen2.market.data.cleaning.policy import Limits
from eigen2.market.data.source import CLOSE, LISTED_DAYS, OPEN

PRICES = "PRICES"  # stands for the file of the table in a command
SURVIVING = 0.95  # share of the tickers that trade to the end of a table of survivors
MOST_STEP, LONGEST_BREAK = 3, 14  # days from a row to the next, the median and the largest, as of long holidays
COVERED = 0.995  # share of the days of membership from which prices leave nothing out but halts

Prices = Float32[np.ndarray, "days columns bars"]


@dataclass(frozen=True)
class TickerCheck:
    """What `data prepare` would repair in the prices of a ticker."""

    splits: Shaped[np.ndarray, " splits"]
    """Days on which they look as if a split were not adjusted."""
    close_basis: bool
    """Whether closes are adjusted and the other prices are not."""
    repeated: Shaped[np.ndarray, " copies"]
    """Days whose row is a copy of the one before."""


def check_ticker(values: Float[np.ndarray, "days 5"], dates: Shaped[np.ndarray, " days"]) -> TickerCheck:
    """Check the prices of a ticker as `data inspect` does.

    Values are open, high, low, close and volume, NaN where missing; open and close are on days without trading.
    """
    row, limits = np.flatnonzero(np.isfinite(values[:, [OPEN, CLOSE]]).any(axis=1)), Limits()
    bars = Bars(row, np.zeros_like(row), dates[row], np.diff(row, prepend=row[:1] - 1) > 1, *values[row].T)
    copies, basis = bars.days[repeated(bars)], close_basis(bars, limits)
    bars = bars.comparable(np.isfinite(bars.close) | ~basis, basis)
    last = bars.last_close
    least, most = last * (1 - limits.jump), last / (1 - limits.jump)
    if np.isnan(split_ratio(bars, limits)).all() and not ((bars.open < least) | (bars.open > most)).any():
        return TickerCheck(dates[:0].copy(), bool(basis.any()), copies)  # mostly, and the rest takes longer
    bars = bars.take(~find_spikes(bars, limits))
    return TickerCheck(bars.days[find_jumps(bars, limits)[1]], bool(basis.any()), copies)


def repair_lines(checks: Mapping[str, TickerCheck], file: str) -> list[str]:
    """Describe what `check_ticker` found in all tickers, one line for each kind, with the command that repairs it."""
    prepare = f"python -m eigen2.cli data prepare {file} OUT.parquet"
    lines = []
    if splits := [(ticker, day) for ticker, check in checks.items() for day in check.splits]:
        (ticker, day), count = splits[0], f"{len(splits)} split{'s' * (len(splits) > 1)}"
        lines.append(f"prices do not seem to be adjusted for {count}, first {ticker} on {day}: {prepare} repairs them")
    if basis := [ticker for ticker, check in checks.items() if check.close_basis]:
        count = f"{len(basis)} of {len(checks)} tickers, first {basis[0]}"
        lines.append(f"closes of {count}, are adjusted, and their open, high and low are not: {prepare} repairs them")
    if copies := [(ticker, day) for ticker, check in checks.items() for day in check.repeated]:
        (ticker, day), count = copies[0], f"{len(copies)} row{'s' * (len(copies) > 1)}"
        lines.append(f"{count} copied from the day before, first {ticker} on {day}: {prepare} masks them")
    return lines


def steps_line(dates: Shaped[np.ndarray, " days"]) -> str | None:
    """Describe days that are not those of a daily table, None if they are: a row counts as a trading day."""
    steps = np.diff(dates).astype("timedelta64[D]").astype(int)
    if len(steps) and (median := np.median(steps)) > MOST_STEP:
        return f"rows are {median:.0f} days apart: each counts as a trading day, of 252 a year; bring daily prices"
    if len(steps) and steps.max() > LONGEST_BREAK:
        first, last = (str(dates[steps.argmax() + more])[:10] for more in (0, 1))
        return f"no prices between {first} and {last}: these days count as neighbours; bring the rest"
    return None


def survivors_line(prices: Prices, delisting_return: float, covered: float | None = None) -> str | None:
    """Describe how many tickers trade to the end of the table, and how positions in others end; None for one ticker.

    A ticker without a price on the last days counts as listed for `LISTED_DAYS`, as it may only be late or halted.
    With membership, describe what share of its days has prices (`covered`): the others are those that a table of
    survivors leaves out.
    """
    ever = np.isfinite(prices[..., CLOSE]).any(axis=0)
    total, living = int(ever.sum()), int(np.isfinite(prices[-LISTED_DAYS:, :, CLOSE]).any(axis=0).sum())
    if total < 2:
        return None
    if covered is not None and (covered < COVERED or living == total):
        found = f"prices cover {100 * covered:.1f} % of the days of data.membership"
        return found + ": results are too good by what the others lost" * (covered < COVERED)
    if living >= SURVIVING * total and covered is None:
        who, what = ("all", "survivors only") if living == total else (f"{living} of", "hardly any but survivors")
        return (
            f"{who} {total} tickers trade to the last day: the table holds {what}, so results are too good "
            "(data.membership takes an index's past tickers)"
        )
    where = f"{-100 * delisting_return:g} % below" if delisting_return else "at"
    return (
        f"{living} of {total} tickers trade to the last day; positions in the others end {where} their last close"
        + ", deals for cash excepted" * (delisting_return != 0)
    )
