"""Reference of dense systems: windows of days copied out of the panel, normalised and encoded one by one."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

from eigen2.market.data.panel import MarketPanel

FEATURES = 9
CLIP = 5.0  # encoded values lie in [-CLIP, CLIP]
STATISTICS_DAYS = 256
"""Least number of training days, where there are as many, from which the spread of an average is taken."""

Statistics = Float32[np.ndarray, "spans described 10"]


class Window(NamedTuple):
    """Past of a day, as dense systems keep it."""

    day: int  # the last day of the window
    values: Float32[np.ndarray, "context columns 9"]  # each feature minus its mean over its deviation in the window
    mean: Float32[np.ndarray, "columns 9"]
    deviation: Float32[np.ndarray, "columns 9"]


class DenseMarket:
    """Copies windows, and encodes from a window alone what `AverageEncoder` encodes of its last day."""

    def __init__(self, panel: MarketPanel, investable: list[int], context_days: int) -> None:
        self.panel, self.investable, self.context_days = panel, investable, context_days
        self.spans = [*(2**k for k in range(context_days.bit_length()) if 2**k < context_days), context_days]
        indicators = {column for column, name in enumerate(panel.tickers) if name in panel.indicators}
        others = sorted(set(range(panel.num_columns)) - set(investable) - indicators)
        self.groups = [group for group in (investable, others, sorted(indicators)) if group]
        self.validity = panel.valid.mean(axis=2, dtype=np.float32)
        self.mean, self.scale = self._statistics()

    def window(self, day: int) -> Window:
        """Return a copy of the window that ends with `day`; a feature that is constant in it becomes 0."""
        values = self.panel.features[day + 1 - self.context_days : day + 1].copy()
        mean = values.mean(axis=0)
        values -= mean
        deviation = np.sqrt(np.einsum("dcf,dcf->cf", values, values) / len(values)).clip(min=1e-6)
        values /= deviation
        return Window(day, values, mean, deviation)

    def encode(self, window: Window) -> tuple[Float32[np.ndarray, "columns width"], Float32[np.ndarray, " described"]]:
        """Return the encoding of each investable column and of the groups, from averages over each span."""
        averages = (self._described(self._averages(window)) - self.mean) * self.scale
        described = averages.clip(-CLIP, CLIP).swapaxes(0, 1).reshape(averages.shape[1], -1)
        columns = len(self.investable)
        return described[:columns], described[columns:].reshape(-1)

    def _averages(self, window: Window) -> Float32[np.ndarray, "spans columns 10"]:
        """Return averages of all columns over the last days of the window; every day is added up once."""
        last = window.day + 1
        total = np.zeros((self.panel.num_columns, FEATURES + 1), np.float32)
        averages, added = np.empty((len(self.spans), *total.shape), np.float32), 0
        for average, span in zip(averages, self.spans, strict=True):
            start, stop = self.context_days - span, self.context_days - added
            total[:, :FEATURES] += window.values[start:stop].sum(axis=0)
            total[:, FEATURES] += self.validity[last - span : last - added].sum(axis=0)
            np.divide(total, span, out=average)
            added = span
        averages[..., :FEATURES] *= window.deviation
        averages[..., :FEATURES] += window.mean
        return averages

    def _described(self, averages: np.ndarray) -> np.ndarray:
        """Return the investable columns, and each group's mean, along the axis of columns."""
        means = [averages[..., group, :].mean(axis=-2, keepdims=True) for group in self.groups]
        return np.concatenate([averages[..., self.investable, :], *means], axis=-2)

    def _statistics(self) -> tuple[Statistics, Statistics]:
        """Return mean and 1 / deviation of each average on training days, pooled over columns, one a group."""
        train, columns = self.panel.splits.train, len(self.investable)
        usable = range(min(train.start + self.context_days - 1, train.stop - 1), train.stop)
        days = np.array(usable[:: max(1, len(usable) // STATISTICS_DAYS)])
        known = np.concatenate([self.panel.features[: train.stop], self.validity[: train.stop, :, None]], axis=2)
        described = self._described(known)
        sums = np.concatenate([np.zeros((1, *described.shape[1:])), described.cumsum(axis=0, dtype=np.float64)])
        moments = []
        for span in self.spans:
            averages = (sums[days + 1] - sums[np.maximum(days + 1 - span, 0)]) / span
            parts = [averages[:, :columns].reshape(-1, FEATURES + 1)]
            parts += [averages[:, columns + group] for group in range(len(self.groups))]
            counts = [columns] + [1] * len(self.groups)
            moments.append([np.repeat([(p.mean(0), p.std(0))], n, 0) for p, n in zip(parts, counts, strict=True)])
        both = np.stack([np.concatenate(parts) for parts in moments]).astype(np.float32)
        return both[:, :, 0], 1 / both[:, :, 1].clip(min=1e-3)
