"""From where on a price or a day counts as a defect."""

from __future__ import annotations

from dataclasses import dataclass

from eigen2.errors import require_range


@dataclass(frozen=True)
class Limits:
    """From where on a value counts as a defect."""

    tolerance_bps: float = 10.0
    """How far open or close may lie outside the bar from low to high, and how far the prices of two rows of one day may
    differ and still be the same, in basis points of the price (0 to 1000)."""
    close_basis_share: float = 0.25
    """A ticker's close counts as adjusted, and its other prices as not, when it lies outside the bar on more than this
    share of the rows, and on at least 5 (0 to below 1)."""
    jump: float = 0.5
    """Fall from the last close to the next open or close beyond which it is a jump, and so is the rise that undoes such
    a fall, as a fraction (above 0, at most 0.99; 0.5: less than half, or more than double)."""
    split_tolerance: float = 0.02
    """How far the next open may lie from last close x split ratio and still look like a split, as a fraction of it (0
    to 0.1)."""
    spike: float = 1.8
    """Factor by which whole bars lie above or below the level before and after them to be a spike (above 1, at most
    1000; a bit below 2, so that days on the other side of a two-for-one split count)."""
    spike_days: int = 20
    """Rows after which a price that has not come back is no spike (1 to 250)."""
    one_day_spike: float = 1.2
    """The same for a spike of a single row (above 1, at most 1000)."""
    wick: float = 3.0
    """Factor by which high or low lies beyond both open and close to be a wick (above 1, at most 1000)."""
    stale_days: int = 5
    """Rows in a row that repeat the last close, with one price all day, to be stale (1 to 250)."""
    stray_share: float = 0.1
    """A day is stray when fewer than this share of the listed tickers has a row, and at least 10 are listed (0, never,
    to 0.5)."""

    def __post_init__(self) -> None:
        require_range("limits.tolerance_bps", self.tolerance_bps, least=0, most=1000)
        require_range("limits.close_basis_share", self.close_basis_share, least=0, most=0.999)
        require_range("limits.jump", self.jump, above=0, most=0.99)
        require_range("limits.split_tolerance", self.split_tolerance, least=0, most=0.1)
        for name in ("spike", "one_day_spike", "wick"):
            require_range(f"limits.{name}", getattr(self, name), above=1, most=1000)
        for name in ("spike_days", "stale_days"):
            require_range(f"limits.{name}", getattr(self, name), least=1, most=250)
        require_range("limits.stray_share", self.stray_share, least=0, most=0.5)
