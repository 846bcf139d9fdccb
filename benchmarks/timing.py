"""How pairs are timed: both in one process, in turns, so that a busy machine slows both."""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple


class Row(NamedTuple):
    """A line of the table: a figure of eigen2's, its reference's or its bound's, and what it means."""

    key: str
    """Name in the JSON."""
    what: str
    """What was measured, with its unit."""
    ours: float
    reference: float
    """The same figure of a reference in the same process, or the bound it must keep."""
    ratio: float
    """How many times better eigen2 is; at least 1 keeps a bound."""


def median_ratio(ours: Callable[[], None], reference: Callable[[], None], runs: int) -> tuple[float, float, float]:
    """Median seconds of both and the median of reference over ours, in alternating runs after a warm-up each."""
    ours(), reference()
    pairs = []
    for _ in range(runs):
        seconds = []
        for run in (ours, reference):
            begun = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - begun)
        pairs.append(seconds)
    return (
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        statistics.median(b / a for a, b in pairs),
    )


def seconds_of(run: Callable[[], None]) -> float:
    """Seconds that `run` takes."""
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun
