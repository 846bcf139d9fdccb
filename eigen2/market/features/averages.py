"""Causal averages of every feature over doubling spans of days, standardised, as one half-precision table.

The average over the s days up to day t is (S[t + 1] - S[t + 1 - s]) / s, where S is the running sum, so every span
costs the same and no window of days is copied. The table depends on the panel alone and can lie in a memory-mapped
file; reading one row of it per day is several times faster than computing the averages from running sums.
"""

from collections.abc import Iterator
from itertools import chain

import numpy as np
from jaxtyping import Float, Float16, Float32

from eigen2.market.data.panel import MarketPanel

CLIP = 5.0  # encoded values lie in [-CLIP, CLIP], in standard deviations over the training days
MIN_DEVIATION = 1e-3
SAMPLED_DAYS = 256
COLUMNS_PER_BLOCK = 8
DAYS_PER_BLOCK = 256


def spans(context_days: int) -> list[int]:
    """Return the averaging spans in days: 1, 2, 4, ... and the context itself."""
    doubling = [2**k for k in range(context_days.bit_length()) if 2**k < context_days]
    return [*doubling, context_days]


def column_groups(panel: MarketPanel, investable: list[int]) -> list[list[int]]:
    """Split the columns into groups to be averaged: investable, other tickers, indicators; leave out empty ones."""
    context = sorted(set(range(panel.num_columns)) - set(investable))
    indicators = [column for column in context if panel.tickers[column] in panel.indicators]
    tickers = [column for column in context if column not in indicators]
    return [group for group in (investable, tickers, indicators) if group]


def average_statistics(
    panel: MarketPanel, investable: list[int], context_days: int
) -> Float[np.ndarray, "2 spans described channels"]:
    """Compute mean and 1 / standard deviation of each average over a sample of the training days.

    On the axis `described`, index 0 holds the statistics of all investable columns pooled, the others those of each
    group, whose mean moves less than a single column.
    """
    lengths, train = spans(context_days), panel.splits.train_days
    groups = _group_means(panel, column_groups(panel, investable))
    usable = train[train >= min(lengths[-1] - 1, train[-1])]
    days = usable[:: max(1, len(usable) // SAMPLED_DAYS)]
    columns = len(investable)
    past = np.empty((len(lengths), len(days), columns + groups.shape[1], panel.channels), np.float32)
    for described, sums in _running_sums(panel, investable, groups):
        for i, span in enumerate(lengths):
            past[i, :, described] = _averages(sums, days, span)
    mean, deviation = np.empty((2, len(lengths), 1 + groups.shape[1], panel.channels))
    pooled, own = past[:, :, :columns], past[:, :, columns:]
    mean[:, 0], deviation[:, 0] = pooled.mean((1, 2), dtype=np.float64), pooled.std((1, 2), dtype=np.float64)
    mean[:, 1:], deviation[:, 1:] = own.mean(1, dtype=np.float64), own.std(1, dtype=np.float64)
    # the validity of a complete panel does not vary: the floor keeps it at 0 instead of amplifying rounding errors
    return np.stack([mean, 1 / deviation.clip(min=MIN_DEVIATION)])


def fill_averages(
    panel: MarketPanel,
    investable: list[int],
    context_days: int,
    statistics: Float[np.ndarray, "2 spans described channels"],
    out: Float16[np.ndarray, "days numbers"],
) -> None:
    """Write each day's standardised averages of the investable columns, then of each group's mean, into `out`.

    A row of `out` holds (columns + groups) x spans x channels numbers. A feature that is not valid counts as 0, its
    mean, with a validity of 0; so do days before the first.
    """
    lengths = spans(context_days)
    groups = _group_means(panel, column_groups(panel, investable))
    table = out.reshape(panel.num_days, len(investable) + groups.shape[1], len(lengths), panel.channels)
    row = np.zeros(table.shape[1], np.int64)  # of the statistics: all columns share the first
    row[len(investable) :] = 1 + np.arange(groups.shape[1])
    mean, scale = statistics[:, :, row]
    for described, sums in _running_sums(panel, investable, groups):
        for i, span in enumerate(lengths):
            average = _averages(sums, np.arange(panel.num_days), span)
            average -= mean[i, described]
            average *= scale[i, described]
            table[:, described, i] = average.clip(-CLIP, CLIP, out=average)


def _averages(sums: Float[np.ndarray, "rows columns channels"], days: np.ndarray, span: int) -> np.ndarray:
    """Compute the averages over the `span` days up to each of `days`, (days, columns, channels)."""
    total: np.ndarray = sums[days + 1] - sums[(days + 1 - span).clip(min=0)]
    total /= span
    return total


def _running_sums(
    panel: MarketPanel, investable: list[int], groups: Float32[np.ndarray, "days groups channels"]
) -> Iterator[tuple[slice, Float[np.ndarray, "rows columns channels"]]]:
    """Yield slices of columns and groups with their running sums: investable columns in blocks, then all groups."""
    blocks = (investable[i : i + COLUMNS_PER_BLOCK] for i in range(0, len(investable), COLUMNS_PER_BLOCK))
    start = 0
    for values in chain((_values(panel, slice(None), block) for block in blocks), [groups]):
        sums = np.zeros((len(values) + 1, *values.shape[1:]))
        np.cumsum(values, axis=0, dtype=np.float64, out=sums[1:])
        yield slice(start, start + values.shape[1]), sums
        start += values.shape[1]


def _group_means(panel: MarketPanel, groups: list[list[int]]) -> Float32[np.ndarray, "days groups channels"]:
    means = np.empty((panel.num_days, len(groups), panel.channels), np.float32)
    for first in range(0, panel.num_days, DAYS_PER_BLOCK):
        days = slice(first, first + DAYS_PER_BLOCK)
        for i, group in enumerate(groups):
            means[days, i] = _values(panel, days, group).mean(1)
    return means


def _values(panel: MarketPanel, days: slice, columns: list[int]) -> Float32[np.ndarray, "days columns channels"]:
    """Return features and validity concatenated."""
    validity = panel.valid[days, columns].mean(2, keepdims=True, dtype=np.float32)
    return np.concatenate([panel.features[days, columns], validity], axis=2)
