"""Settings of cleaning: the limits beyond which a value is a defect, and the action for each defect."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Literal, get_args, get_type_hints

from eigen2.errors import UserError, require_range

Action = Literal["keep", "repair", "mask", "drop", "fail"]
Unrepairable = Literal["keep", "mask", "drop", "fail"]
Removable = Literal["keep", "drop", "fail"]


@dataclass(frozen=True)
class Limits:
    """Limits beyond which a price, a volume or a day is a defect."""

    tolerance_bps: float = 10.0
    """How far open or close may lie outside [low, high], and how far prices of two rows of one day may differ and still
    count as equal, in basis points of the price (0 to 1000)."""
    jump: float = 0.5
    """Fall from the last close to the next open or close that counts as a jump, as does the rise that undoes it, as a
    fraction (above 0, at most 0.99; 0.5: to less than half, or more than double)."""
    split_tolerance: float = 0.05
    """How far the next open may lie from last close x split ratio to look like a split, as a fraction (0 to 0.1)."""
    spike: float = 1.8
    """Factor by which whole bars of a spike lie beyond the level before and after them (above 1, at most 1000)."""
    spike_days: int = 20
    """Longest spike, in rows (1 to 250)."""
    one_day_spike: float = 1.2
    """The factor for a spike of a single row without raised volume (above 1, at most 1000)."""
    wick: float = 3.0
    """Factor by which high or low lies beyond both open and close to be a wick (above 1, at most 1000)."""
    stale_days: int = 5
    """Consecutive rows that repeat the last close, with one price all day and no volume, to be stale (1 to 250)."""

    def __post_init__(self) -> None:
        require_range("limits.tolerance_bps", self.tolerance_bps, least=0, most=1000)
        require_range("limits.jump", self.jump, above=0, most=0.99)
        require_range("limits.split_tolerance", self.split_tolerance, least=0, most=0.1)
        for name in ("spike", "one_day_spike", "wick"):
            require_range(f"limits.{name}", getattr(self, name), above=1, most=1000)
        for name in ("spike_days", "stale_days"):
            require_range(f"limits.{name}", getattr(self, name), least=1, most=250)


@dataclass(frozen=True)
class CleaningPolicy:
    """Action for each defect.

    keep leaves the row; repair corrects it; mask empties what is wrong: some prices, so that the row counts for the
    others, or all of the row, a day without trading; drop removes the row; fail refuses the files. No return and no
    indicator spans a day without a close.
    """

    duplicate: Literal["drop", "fail"] = "drop"
    """Another row of the same date and ticker with equal or unusable prices. The row that stays is that of most usable
    prices, then that of larger volume, then the last."""
    conflicting_duplicate: Literal["repair", "mask", "drop", "fail"] = "mask"
    """Rows of the same date and ticker with different prices. mask leaves one empty row; repair keeps the last,
    whose prices are not compared with those of other days."""
    weekend: Unrepairable = "drop"
    """A Saturday or Sunday on which the market does not trade: at most half as many tickers have a row as on the last
    weekday before."""
    stray_day: Unrepairable = "drop"
    """A day on which fewer than a tenth of at least 10 listed tickers have a row: a hole for the others. A ticker is
    listed from each of its rows on for 20 days."""
    missing_price: Removable = "keep"
    """One of the four prices is empty, or the close of an indicator series. keep uses the others."""
    infinite_price: Literal["mask", "drop", "fail"] = "mask"
    """A price is infinite or too large for float32; a file that has one cannot be read. mask empties that price."""
    nonpositive_price: Unrepairable = "mask"
    """A price is zero, negative or too small for float32. mask empties that price."""
    high_below_low: Unrepairable = "mask"
    """The high is below the low. mask empties both, and all prices where open and close differ by a fifth."""
    close_basis: Action = "repair"
    """A ticker's close is adjusted and its other prices are not: it lies outside the bar on more than a quarter of the
    rows, at least 5. Applies to all rows of the ticker; repair sets open, high and low to the close."""
    outside_bar: Unrepairable = "mask"
    """Open or close lies outside the bar from low to high. mask empties that price; or the other three, where the next
    price is nearer to a close outside than to the bar."""
    wick: Unrepairable = "mask"
    """High or low lies far beyond both open and close. mask empties it."""
    reused_ticker: Removable = "drop"
    """Rows of another company under the same name. Companies are told apart by gaps of more than 250 days of the
    market, or of more than 20 with a price 10 times higher after it. The last with at least 20 rows stays, or one that
    is newer. Rows without trading do not count."""
    spike: Unrepairable = "mask"
    """The price leaves its level overnight and comes back likewise: a placeholder, a shifted decimal point, rows of
    another day or instrument. Applies to all rows of the excursion, whatever their volume; below `limits.spike` to a
    single row without raised volume."""
    split_like: Action = "repair"
    """The price changes overnight by the ratio of a split, or falls by more than `limits.jump` by another one as at a
    spin-off, and stays there for 5 rows. The day's range is at most a quarter and its traded value less than 4 times
    the median of 20 rows before: it is no crash. A rise that stays, to more than double, with no more shares traded
    than that median, is a reverse split, whatever its ratio and the day's range. Where volume and range leave it open,
    the 5 rows must also move about as much as those before; without volume, the ratio must be met within 2.5 %. repair
    multiplies earlier prices by the ratio. mask keeps features clean, but a position held across the row sees the
    change."""
    jump: Unrepairable = "mask"
    """Open or close is far from the last close, and neither volume nor the next price confirms it. A jump with 4
    times the median volume of 20 rows before, in money if it falls, or a range wider than a quarter, is kept if the
    next open is nearer to it than to the last close: it is real. mask empties the first row at the new level. In a row
    after one without prices no jump and no split is looked for."""
    repeated_row: Unrepairable = "mask"
    """All prices and the volume are those of the ticker's row before, on a day on which the price moved: a copy, whose
    open was known the day before."""
    stale_run: Unrepairable = "mask"
    """One price all day, equal to the last close, and no volume in many consecutive rows: a halted or delisted
    ticker."""
    zero_volume: Unrepairable = "mask"
    """One price all day and a volume of 0, on a ticker that has volume on other days: nothing was traded. A close alone
    is such a price if it repeats the last one."""
    unknown_volume: Unrepairable = "keep"
    """The volume is empty, negative or infinite, or 0 although the price moved. mask empties it; infinite ones are
    always emptied."""

    def __post_init__(self) -> None:
        for name, action in asdict(self).items():
            if action not in ACTIONS[name]:
                raise UserError(f"policy.{name} is {action}; it must be {' or '.join(ACTIONS[name])}")

    def lenient(self) -> CleaningPolicy:
        """Return the policy with every fail replaced by the default action."""
        return CleaningPolicy(**{name: action for name, action in asdict(self).items() if action != "fail"})


MEANINGS = {
    "duplicate": "same day again",
    "conflicting_duplicate": "same day, other prices",
    "weekend": "no trading on weekends",
    "stray_day": "a day of few tickers",
    "missing_price": "empty, the other prices count",
    "infinite_price": "infinite",
    "nonpositive_price": "zero or negative",
    "high_below_low": "high below low",
    "close_basis": "the close alone is adjusted",
    "outside_bar": "open or close not between low and high",
    "wick": "high or low far from open and close",
    "reused_ticker": "another company beyond a long gap",
    "spike": "leaves its level and comes back",
    "split_like": "split or spin-off, not adjusted",
    "jump": "far from the last close, unconfirmed",
    "repeated_row": "copy of the row before",
    "stale_run": "last close repeated without volume",
    "zero_volume": "nothing traded",
    "unknown_volume": "volume not known",
}
"""What each defect is, in a few words."""
DEFECTS = tuple(field.name for field in fields(CleaningPolicy))
"""Every defect; the log names a row with several by the first."""
ACTIONS = {name: get_args(kind) for name, kind in get_type_hints(CleaningPolicy).items()}
"""Possible actions for each defect."""
