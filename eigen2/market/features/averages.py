"""Every day's causal averages over doubling spans, standardised, as one table of half precision.

The average of a feature over the s days up to day t is (S[t + 1] - S[t + 1 - s]) / s with S the running sum, so that
every span costs the same and no window of days is ever copied. A table of all of them is read in one piece a day, which
is several times faster than the running sums, and as it depends on the panel alone it can lie in a mapped file.
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Float16, Float32

from eigen2.market.data.panel import FEATURES, MarketPanel

CLIP = 5.0
"""Values lie in [-CLIP, CLIP], in standard deviations over the training days; half precision keeps 11 bits of them."""

CHANNELS = len(FEATURES) + 1
"""The features of a day, and the share of them that is valid."""

LEAST_DEVIATION = 1e-3
SAMPLED_DAYS = 256
COLUMNS_PER_BLOCK = 8
DAYS_PER_BLOCK = 256


def spans(context_days: int) -> list[int]:
    """1, 2, 4, ... and the context itself, in days."""
    doubling = [2**k for k in range(context_days.bit_length()) if 2**k < context_days]
    return [*doubling, context_days]


def groups_of(panel: MarketPanel, investable: list[int]) -> list[list[int]]:
    """Columns that are described by their mean: the investable ones, other tickers, indicators; none of them empty.

    Indicators have a group of their own because among hundreds of tickers a few of them would not be heard.
    """
    own = set(investable)
    context = [column for column in range(panel.num_columns) if column not in own]
    indicators = [column for column in context if panel.tickers[column] in panel.indicators]
    tickers = [column for column in context if panel.tickers[column] not in panel.indicators]
    return [group for group in (investable, tickers, indicators) if group]


def table_shape(days: int, columns: int, groups: int, context_days: int) -> tuple[int, int]:
    """Days, and numbers a day: for each column and each group CHANNELS for each span."""
    return days, (columns + groups) * len(spans(context_days)) * CHANNELS


def fill_averages(
    panel: MarketPanel,
    investable: list[int],
    context_days: int,
    standard: Float[np.ndarray, "2 spans described 10"],
    out: Float16[np.ndarray, "days numbers"],
) -> None:
    """Write the averages of each investable column, then of each group's mean, into `out` of `table_shape`.

    A column without a valid feature on a day counts there as 0, the mean of the feature, with a validity of 0; days
    before the first count alike.

    Args:
        panel: the market.
        investable: column indices that get a description of their own.
        context_days: the longest span, >= 1.
        standard: see `standardisation`.
        out: filled for every day.
    """
    lengths = spans(context_days)
    groups = _group_means(panel, groups_of(panel, investable))
    table = out.reshape(panel.num_days, len(investable) + groups.shape[1], len(lengths), CHANNELS)
    columns = np.zeros(table.shape[1], np.int64)  # of the standardisation: all columns have the first
    columns[len(investable) :] = 1 + np.arange(groups.shape[1])
    mean, scale = standard[:, :, columns]
    for described, sums in _running_sums(panel, investable, groups):
        for i, span in enumerate(lengths):
            average = _averages(sums, np.arange(panel.num_days), span)
            average -= mean[i, described]
            average *= scale[i, described]
            table[:, described, i] = average.clip(-CLIP, CLIP, out=average)


def standardisation(
    panel: MarketPanel, investable: list[int], context_days: int
) -> Float[np.ndarray, "2 spans described 10"]:
    """Mean and 1 / deviation of each average over training days: of columns pooled, of each group its own.

    The mean of a group moves less than a column.

    Args:
        panel: the market.
        investable: column indices that get a description of their own.
        context_days: the longest span, >= 1.

    Returns:
        Means, then reciprocals of deviations; of what is described first all columns, then each group.
    """
    lengths = spans(context_days)
    groups = _group_means(panel, groups_of(panel, investable))
    train = panel.splits.train
    usable = range(min(train.start + lengths[-1] - 1, train.stop - 1), train.stop)
    days = np.array(usable[:: max(1, len(usable) // SAMPLED_DAYS)])
    columns = len(investable)
    past = np.empty((len(lengths), len(days), columns + groups.shape[1], CHANNELS), np.float32)
    for described, sums in _running_sums(panel, investable, groups):
        for i, span in enumerate(lengths):
            past[i, :, described] = _averages(sums, days, span)
    mean, deviation = np.empty((2, len(lengths), 1 + groups.shape[1], CHANNELS))
    pooled, own = past[:, :, :columns], past[:, :, columns:]
    mean[:, 0], deviation[:, 0] = pooled.mean((1, 2), dtype=np.float64), pooled.std((1, 2), dtype=np.float64)
    mean[:, 1:], deviation[:, 1:] = own.mean(1, dtype=np.float64), own.std(1, dtype=np.float64)
    # the validity of a complete panel does not vary: a floor keeps it at 0 rather than at noise
    return np.stack([mean, 1 / deviation.clip(min=LEAST_DEVIATION)])


def _averages(
    sums: Float[np.ndarray, "rows columns 10"], days: np.ndarray, span: int
) -> Float[np.ndarray, "chosen columns 10"]:
    """Averages over the `span` days up to each of `days`."""
    total: np.ndarray = sums[days + 1] - sums[(days + 1 - span).clip(min=0)]
    total /= span
    return total


def _running_sums(
    panel: MarketPanel, investable: list[int], groups: Float32[np.ndarray, "days groups 10"]
) -> Iterator[tuple[slice, Float[np.ndarray, "rows columns 10"]]]:
    """Sums over the days before each day, a few described columns at a time: which of them, and their sums."""
    for first in range(0, len(investable), COLUMNS_PER_BLOCK):
        columns = investable[first : first + COLUMNS_PER_BLOCK]
        yield slice(first, first + len(columns)), _summed(_values(panel, slice(None), columns))
    yield slice(len(investable), len(investable) + groups.shape[1]), _summed(groups)


def _summed(values: Float32[np.ndarray, "days columns 10"]) -> Float[np.ndarray, "rows columns 10"]:
    sums = np.zeros((len(values) + 1, *values.shape[1:]))
    np.cumsum(values, axis=0, dtype=np.float64, out=sums[1:])
    return sums


def _group_means(panel: MarketPanel, groups: list[list[int]]) -> Float32[np.ndarray, "days groups 10"]:
    means = np.empty((panel.num_days, len(groups), CHANNELS), np.float32)
    for first in range(0, panel.num_days, DAYS_PER_BLOCK):
        days = slice(first, first + DAYS_PER_BLOCK)
        for i, group in enumerate(groups):
            means[days, i] = _values(panel, days, group).mean(1)
    return means


def _values(panel: MarketPanel, days: slice, columns: list[int]) -> Float32[np.ndarray, "days columns 10"]:
    """Features and validity."""
    validity = panel.valid[days, columns].mean(2, keepdims=True, dtype=np.float32)
    return np.concatenate([panel.features[days, columns], validity], axis=2)
