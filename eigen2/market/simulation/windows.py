"""Which windows are played within spans of days."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np


def window_starts(spans: Iterable[range], window_days: int, first: int = 0) -> list[range]:
    """Return, for each span of days, the first days of windows that lie within it, from day `first` on."""
    return [range(max(span.start, first), span.stop - window_days + 1) for span in spans]


def walk_forward(spans: Sequence[range], window_days: int, windows: int) -> list[int]:
    """Return first days of windows that walk forward evenly over each span; its last ends on its last day.

    There are `windows` in all or more: as many for each span, and enough to cover it, but none twice. Spans are of one
    length.
    """
    starts = window_starts(spans, window_days)
    to_cover_all = -(-len(spans[0]) // window_days)
    count = min(max(-(-windows // len(spans)), to_cover_all), len(starts[0]))
    return [round(day) for days in starts for day in np.linspace(days[0], days[-1], count).tolist()]


def draw_starts(starts: Sequence[int], counts: Iterable[int], rng: np.random.Generator) -> list[int]:
    """Draw first days of windows: for each count, one from each of so many equal parts of `starts`."""
    fractions = [(part + rng.random()) / count for count in counts for part in range(count)]
    # a fraction just below 1 may round to 1
    return [starts[min(int(fraction * len(starts)), len(starts) - 1)] for fraction in fractions]


def window_options(starts: Iterable[int], trading_days: int, window_days: int) -> dict[str, Any]:
    """Return the reset options of windows of `window_days` from their first days, with orders on `trading_days`."""
    return {"starts": list(starts), "trading_days": trading_days, "window_days": window_days}
