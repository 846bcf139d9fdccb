"""Assert in a test that a run's memory stays flat."""

import gc
import re
from collections.abc import Callable

from eigen2.memory.growth import LEAK, judge, theil_sen
from eigen2.memory.process import measure, trim_malloc

_LEAST = 100e3  # bytes a generation by which anonymous memory may vary
_UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}


def assert_flat(run: Callable[[], object], generations: int = 30, per_generation: str = "1 kB") -> None:
    """Call `run` once a generation, and raise AssertionError if memory keeps growing by more than is allowed.

    Args:
        run: One generation, such as a training step, or a fit of one epoch.
        generations: Number of calls, at least 10; the first of them warm up.
        per_generation: Growth that is allowed, as a number and a unit (B, kB, MB or GB).

    Raises:
        ValueError: An argument is out of its range.
        AssertionError: Memory grows; the message says by how much.
    """
    amount = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(B|kB|MB|GB)\s*", per_generation)
    if amount is None:
        raise ValueError(f"per_generation is {per_generation!r}: give a number and a unit, such as '1 kB'")
    if generations < 10:
        raise ValueError(f"generations is {generations}: give 10 or more")
    allowed = float(amount[1]) * _UNITS[amount[2]]
    trend: dict[str, list[float]] = {}
    gc.collect()
    freeze = gc.get_freeze_count() == 0
    if freeze:
        gc.freeze()  # collections walk through what runs add alone
    try:
        for _ in range(generations):
            run()
            gc.collect()
            trim_malloc()
            for name, level in measure().levels().items():
                trend.setdefault(name, []).append(level)
    finally:
        if freeze:
            gc.unfreeze()
    live = theil_sen(trend.pop("memory")[generations // 3 :])
    problems = [f"memory grows by {live.median:,.0f} bytes"] if live.low > allowed else []
    for name, levels in trend.items():  # these vary by more than a leak may be worth
        verdict = judge(levels, max(allowed, _LEAST))
        if verdict.kind == LEAK:
            problems.append(f"{name} grows by {verdict.growths[-1].slope.median:,.0f} bytes")
    if problems:
        raise AssertionError(f"{' and '.join(problems)} a generation, where {per_generation} is allowed")
