"""A figure of eigen2 beside a reference or a bound."""

from typing import Any, NamedTuple

RATIO, SECONDS, PERCENT = "x", "s", "%"  # units of a bound: the least ratio, the most seconds, the most percent


class Comparison(NamedTuple):
    """A figure of eigen2, that of its reference or its bound, and what it means."""

    key: str
    what: str  # what was measured, with its unit
    ours: float
    reference: float  # the same figure of a reference in the same process, or the bound to keep
    ratio: float  # how many times better eigen2 is
    bound: float = 1.0  # to keep: the least `ratio`, or, in seconds or percent, the most of `ours`
    unit: str = RATIO

    @property
    def kept(self) -> bool:
        """Return whether the bound is kept; a figure that is not a number keeps none."""
        return self.ratio >= self.bound if self.unit == RATIO else self.ours <= self.bound

    def json(self) -> dict[str, Any]:
        """Return all fields, and whether the bound is kept."""
        return {**self._asdict(), "kept": self.kept}


def at_most(key: str, what: str, ours: float, bound: float, unit: str) -> Comparison:
    """Return a figure without a reference: seconds or percent that must not exceed `bound`."""
    return Comparison(key, what, ours, bound, bound / ours, bound, unit)
