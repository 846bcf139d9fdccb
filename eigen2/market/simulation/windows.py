"""The days of an episode's windows, as asked for."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from eigen2.errors import UserError


def window_bounds(asked: Mapping[str, Any], windows: int, num_days: int, settlement: int) -> tuple[list[int], int, int]:
    """First days, trading days and days of windows that are all of one length.

    Args:
        asked: `start_idx`, `trading_end_idx` and `end_idx`, one for all windows or one a window each; None or left out
            for the whole market, with the last days for settlement.
        windows: how many.
        num_days: of the market.
        settlement: days without orders at the end where no `trading_end_idx` is given; one day always has them.

    Raises:
        UserError: a window is not inside the days, has fewer than two days, or the windows differ in length.
    """

    def each(name: str, default: int | list[int]) -> list[int]:
        value = asked.get(name)
        values = [int(v) for v in np.atleast_1d(np.asarray(default if value is None else value))]
        values = values * windows if len(values) == 1 else values
        if len(values) != windows:
            raise UserError(f"{len(values)} window bounds given for {windows} windows: give one or {windows}")
        return values

    starts, ends = each("start_idx", 0), each("end_idx", num_days)
    default = [max(start + 1, end - settlement) for start, end in zip(starts, ends, strict=True)]
    trading_ends = each("trading_end_idx", default)
    spans = zip(starts, trading_ends, ends, strict=True)
    shapes = {(trading_end - start, end - start) for start, trading_end, end in spans}
    if len(shapes) > 1:
        raise UserError(f"windows differ in (trading, total) days: {sorted(shapes)}; give all the same length")
    trading_length, length = shapes.pop()
    if min(starts) < 0 or max(ends) > num_days or length < 2 or not 1 <= trading_length <= length:
        raise UserError(
            f"window start_idx {starts}, trading_end_idx {trading_ends}, end_idx {ends} does not fit "
            f"0 <= start < trading end <= end <= {num_days} with at least 2 days"
        )
    return starts, trading_length, length
