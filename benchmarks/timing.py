"""How pairs are timed: both in one process, in turns, so that a busy machine slows both."""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

RATIO, SECONDS, PERCENT = "x", "s", "%"
"""Units of a row's bound: the least ratio, the most seconds, the most percent."""


class Row(NamedTuple):
    """A line of the table: a figure of eigen2's, its reference's or its bound's, and what it means."""

    key: str
    """Name in the JSON, and for `--only`."""
    what: str
    """What was measured, with its unit."""
    ours: float
    reference: float
    """The same figure of a reference in the same process, or the bound it must keep."""
    ratio: float
    """How many times better eigen2 is; at least 1 keeps a bound."""
    bound: float = 1.0
    """What must be kept: the least `ratio`, or, in seconds or percent, the most of `ours`."""
    unit: str = RATIO
    """Of the bound, see `RATIO`, `SECONDS` and `PERCENT`."""

    @property
    def kept(self) -> bool:
        """Whether the bound is kept; a figure that is not a number keeps none."""
        return self.ratio >= self.bound if self.unit == RATIO else self.ours <= self.bound

    def json(self) -> dict[str, Any]:
        """All fields and whether the bound is kept, as plain values."""
        return {**self._asdict(), "kept": self.kept}


def at_most(key: str, what: str, ours: float, bound: float, unit: str) -> Row:
    """A row without a reference: seconds or percent that must not exceed `bound`."""
    return Row(key, what, ours, bound, bound / ours, bound, unit)


def median_ratio(ours: Callable[[], None], reference: Callable[[], None], runs: int) -> tuple[float, float, float]:
    """Median seconds of both and the median of reference over ours, in alternating runs after a warm-up each."""
    for run in (ours, reference):
        run()
    pairs = [(seconds_of(ours), seconds_of(reference)) for _ in range(runs)]
    return (
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        statistics.median(b / a for a, b in pairs),
    )


def seconds_of(run: Callable[[], object]) -> float:
    """Seconds that `run` takes, work that it queued on a GPU included."""
    _finish_queued()
    begun = time.perf_counter()
    run()
    _finish_queued()
    return time.perf_counter() - begun


def _finish_queued() -> None:
    # a GPU that nothing has used yet is left alone: asking it would claim some of its memory
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
