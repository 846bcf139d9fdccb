"""The windows of an episode as options of `TradingEnvironment.reset`."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from eigen2.errors import UserError


def window_options(starts: Iterable[int], trading_days: int, window_days: int) -> dict[str, list[int]]:
    """Return the reset options of windows of one length, given their first days."""
    starts = list(starts)
    return {
        "start_idx": starts,
        "trading_end_idx": [start + trading_days for start in starts],
        "end_idx": [start + window_days for start in starts],
    }


def window_bounds(
    options: Mapping[str, Any], windows: int, num_days: int, settlement_days: int
) -> tuple[list[int], int, int]:
    """Return the first days, the trading days and the total days of windows, which are all of one length.

    Args:
        options: `start_idx`, `trading_end_idx` and `end_idx`, one for all windows or one for each; None or left out
            for the whole market, with the last days for settlement.
        windows: how many there are.
        num_days: days of the market.
        settlement_days: days without orders at the end where no `trading_end_idx` is given; one day always has them.

    Raises:
        UserError: a window is not inside the days, has fewer than two days, or the windows differ in length.
    """

    def each(name: str, default: int | list[int]) -> list[int]:
        value = options.get(name)
        values = [int(v) for v in np.atleast_1d(np.asarray(default if value is None else value))]
        values = values * windows if len(values) == 1 else values
        if len(values) != windows:
            raise UserError(f"{len(values)} window bounds given for {windows} windows: give one or {windows}")
        return values

    starts, ends = each("start_idx", 0), each("end_idx", num_days)
    default = [max(start + 1, end - settlement_days) for start, end in zip(starts, ends, strict=True)]
    trading_ends = each("trading_end_idx", default)
    lengths = {(stop - start, end - start) for start, stop, end in zip(starts, trading_ends, ends, strict=True)}
    if len(lengths) > 1:
        raise UserError(f"windows differ in (trading, total) days: {sorted(lengths)}; give all the same length")
    trading_days, days = lengths.pop()
    if min(starts) < 0 or max(ends) > num_days or days < 2 or not 1 <= trading_days <= days:
        raise UserError(
            f"window start_idx {starts}, trading_end_idx {trading_ends}, end_idx {ends} does not fit "
            f"0 <= start < trading end <= end <= {num_days} with at least 2 days"
        )
    return starts, trading_days, days
