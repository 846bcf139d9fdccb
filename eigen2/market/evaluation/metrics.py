"""The measures of `performance` as torchmetrics, fed day by day or all at once.

States keep what they were fed, in order. Of several processes, each must have been fed days that follow those of the
process before it.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from eigen2.market.evaluation import performance


class MarketMetric(Metric):
    """A measure of series that grow.

    `update` takes one tensor for each of the class's `names`, (n,) each: the next days or trades. `compute` returns a
    float64 scalar, NaN before there are `least`.
    """

    full_state_update = False
    names: ClassVar[tuple[str, ...]]
    least: ClassVar[int] = 2
    measure: ClassVar[Callable[..., Any]]
    """Of whole series, as `_whole` hands them over."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name in self.names:
            self.add_state(name, [], dist_reduce_fx="cat")

    def update(self, *values: Tensor) -> None:
        """Add days or trades."""
        for name, value in zip(self.names, values, strict=True):
            getattr(self, name).append(value.double().flatten())

    def compute(self) -> Tensor:
        """Of all so far."""
        kept = [getattr(self, name) for name in self.names]
        series = [dim_zero_cat(each).cpu().numpy() if len(each) else np.zeros(0) for each in kept]
        known = len(series[0]) >= self.least
        value = type(self).measure(*map(self._whole, series)) if known else np.nan
        return torch.tensor(float(value), dtype=torch.float64)

    @staticmethod
    def _whole(series: np.ndarray) -> np.ndarray:
        """What `measure` takes."""
        return series


class ReturnMetric(MarketMetric):
    """A measure of daily `returns`."""

    names: ClassVar[tuple[str, ...]] = ("returns",)

    @staticmethod
    def _whole(series: np.ndarray) -> np.ndarray:
        """Money at each close, of 1 before the first."""
        curve: np.ndarray = np.cumprod(np.concatenate([[1.0], 1 + series]))
        return curve


class TotalReturn(ReturnMetric):
    """Of daily `returns`; see `performance.total_return`."""

    measure = staticmethod(performance.total_return)


class AnnualReturn(ReturnMetric):
    """Of daily `returns`; see `performance.annualised_return`."""

    measure = staticmethod(performance.annualised_return)


class SharpeRatio(ReturnMetric):
    """Of daily `returns`; see `performance.sharpe_ratio`."""

    measure = staticmethod(performance.sharpe_ratio)


class SortinoRatio(ReturnMetric):
    """Of daily `returns`; see `performance.sortino_ratio`."""

    measure = staticmethod(performance.sortino_ratio)


class CalmarRatio(ReturnMetric):
    """Of daily `returns`; see `performance.calmar_ratio`."""

    measure = staticmethod(performance.calmar_ratio)


class MaxDrawdown(ReturnMetric):
    """Of daily `returns`; see `performance.max_drawdown`."""

    measure = staticmethod(performance.max_drawdown)


class LongestDrawdown(ReturnMetric):
    """Of daily `returns`, in days; see `performance.longest_drawdown`."""

    measure = staticmethod(performance.longest_drawdown)


class Alpha(ReturnMetric):
    """Of daily `returns` and a `benchmark`'s on the same days; see `performance.alpha_beta`."""

    names = ("returns", "benchmark")
    measure = staticmethod(lambda own, benchmark: performance.alpha_beta(own, benchmark)[0])


class Beta(ReturnMetric):
    """Of daily `returns` and a `benchmark`'s on the same days; see `performance.alpha_beta`."""

    names = ("returns", "benchmark")
    measure = staticmethod(lambda own, benchmark: performance.alpha_beta(own, benchmark)[1])


class HitRate(MarketMetric):
    """Of the `gains` of trades, money after costs; see `performance.hit_rate`."""

    names = ("gains",)
    least = 1
    measure = staticmethod(performance.hit_rate)


class ProfitFactor(MarketMetric):
    """Of the `gains` of trades, money after costs; see `performance.profit_factor`."""

    names = ("gains",)
    least = 1
    measure = staticmethod(performance.profit_factor)


class Turnover(MarketMetric):
    """Of `equity` at each close and money `traded` since the close before; see `performance.turnover`."""

    names = ("equity", "traded")
    measure = staticmethod(lambda equity, traded: performance.turnover(equity, traded.sum()))


class Exposure(MarketMetric):
    """Of `equity` and of the money in positions at each close; see `performance.mean_exposure`."""

    names = ("equity", "exposure")
    measure = staticmethod(performance.mean_exposure)
