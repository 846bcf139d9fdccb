"""Timing of functions, and rows that compare a figure of eigen2 with a reference or a bound."""

import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.harness import Row


def seconds_of(run: Callable[[], object]) -> float:
    """Return the seconds of `run`, including the work it queues on a GPU."""
    _finish_queued()
    start = time.perf_counter()
    run()
    _finish_queued()
    return time.perf_counter() - start


def _finish_queued() -> None:
    if torch.cuda.is_initialized():  # synchronizing an unused GPU would allocate memory on it
        torch.cuda.synchronize()


def median_seconds(run: Callable[[], object], runs: int) -> float:
    """Return the median seconds of `run` after a warm-up."""
    run()
    return statistics.median(seconds_of(run) for _ in range(runs))


def median_ratio(ours: Callable[[], object], reference: Callable[[], object], runs: int) -> tuple[float, float, float]:
    """Return both median seconds and the median ratio of reference to ours; runs alternate, so load slows both."""
    for run in (ours, reference):
        run()
    pairs = [(seconds_of(ours), seconds_of(reference)) for _ in range(runs)]
    ours_s, reference_s = (statistics.median(column) for column in zip(*pairs, strict=True))
    return ours_s, reference_s, statistics.median(b / a for a, b in pairs)


def at_least(key: str, what: str, ours: float, reference: float, ratio: float, bound: float) -> Row:
    """Return the row of a figure `ratio` times better than its reference, where `bound` times is required."""
    return _row(key, what, ours, reference, ratio, bound, "x", ratio >= bound)


def at_most(key: str, what: str, ours: float, bound: float) -> Row:
    """Return the row of seconds without a reference, which must not exceed `bound`."""
    return _row(key, what, ours, bound, bound / ours, bound, "s", ours <= bound)


def at_rate(key: str, what: str, ours: float, bound: float) -> Row:
    """Return the row of a rate without a reference, which must be `bound` or more."""
    return _row(key, what, ours, bound, ours / bound, bound, "rate", ours >= bound)


def _row(key: str, what: str, ours: float, reference: float, ratio: float, bound: float, unit: str, kept: bool) -> Row:
    figures = {"ours": ours, "reference": reference, "ratio": ratio, "bound": bound}
    return {"key": key, "what": what, **figures, "unit": unit, "kept": kept}
