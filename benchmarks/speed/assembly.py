"""A micro-batch of the whole population against copies of the two windows of each transition."""

from collections.abc import Callable

import numpy as np
import torch

from benchmarks.speed.dense import DenseMarket
from benchmarks.speed.full_scale import FullScale
from benchmarks.timing import Row, median_ratio

BOUND = 50.0
REFERENCE_WINDOWS = 4
"""Windows that the reference copies; its seconds are multiplied up to two a transition."""


def rows(full: FullScale, runs: int) -> list[Row]:
    """Milliseconds until a micro-batch lies ready for the networks.

    The reference copies and normalises `REFERENCE_WINDOWS` windows, and its seconds are multiplied by the number of
    windows of a micro-batch: each costs the same.
    """
    slots = full.slots()[0]
    ours, reference, ratio = median_ratio(assembled(full, slots), copied(full, slots), runs)
    windows = 2 * slots.numel()
    factor = windows / REFERENCE_WINDOWS
    agents, batch = slots.shape
    what = f"micro-batch of {agents} x {batch} transitions, ms (reference: from {REFERENCE_WINDOWS} windows)"
    return [Row("batch_assembly", what, 1e3 * ours, 1e3 * factor * reference, factor * ratio, BOUND)]


def assembled(full: FullScale, slots: torch.Tensor) -> Callable[[], None]:
    """Gather the transitions and describe both of their days."""
    replay = full.replay

    def run() -> None:
        full.inputs(replay.gather(slots))

    return run


def copied(full: FullScale, slots: torch.Tensor) -> Callable[[], None]:
    """Windows of the first of these transitions, and their next ones, copied one by one into one batch."""
    data = full.data
    market = DenseMarket(data.panel, data.investable_columns, data.context_days)
    stored = full.replay.gather(slots.flatten()[:REFERENCE_WINDOWS])
    days = torch.stack([stored["day"], stored["next_day"]], dim=1).flatten()[:REFERENCE_WINDOWS].tolist()
    batch = np.empty((len(days), data.context_days, *data.panel.features.shape[1:]), np.float32)

    def run() -> None:
        for row, day in zip(batch, days, strict=True):
            row[:] = market.window(day).values
        torch.from_numpy(batch).to(full.device)

    return run
