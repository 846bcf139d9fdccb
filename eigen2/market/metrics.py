"""The measures of `performance` as torchmetrics, fed day by day or all at once.

States keep what they were fed, in order. Of several processes, each must have been fed days that follow those of the
process before it.
"""

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from eigen2.market import performance


class MarketMetric(Metric):
    """A measure of series that grow.

    `update` takes one tensor for each of the class's `names`, (n,) each: the next days or trades. `compute` returns a
    float64 scalar, NaN before there are `least`.
    """

    full_state_update = False
    names: ClassVar[tuple[str, ...]]
    least: ClassVar[int] = 2

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
        value = self.measure(*series) if len(series[0]) >= self.least else np.nan
        return torch.tensor(float(value), dtype=torch.float64)

    @abstractmethod
    def measure(self, *series: np.ndarray) -> Any:
        """The value of whole series."""


def _curve(returns: np.ndarray) -> np.ndarray:
    """Money at each close, of 1 before the first."""
    curve: np.ndarray = np.cumprod(np.concatenate([[1.0], 1 + returns]))
    return curve


class TotalReturn(MarketMetric):
    """Of daily `returns`; see `performance.total_return`."""

    names = ("returns",)

    def measure(self, *series: np.ndarray) -> Any:
        """The value of whole series."""
        return performance.total_return(_curve(*series))


class AnnualReturn(TotalReturn):
    """Of daily `returns`; see `performance.annualised_return`."""

    def measure(self, *series: np.ndarray) -> Any:
        """The value of whole series."""
        return performance.annualised_return(_curve(*series))


class SharpeRatio(TotalReturn):
    """Of daily `returns`; see `performance.sharpe_ratio`."""

    def measure(self, *series: np.ndarray) -> Any:
        """The value of whole series."""
        return performance.sharpe_ratio(_curve(*series))


class SortinoRatio(TotalReturn):
    """Of daily `returns`; see `performance.sortino_ratio`."""

    def measure(self, *series: np.ndarray) -> Any:
        """The value of whole series."""
        return performance.sortino_ratio(_curve(*series))


class CalmarRatio(TotalReturn):
    """Of daily `returns`; see `performance.calmar_ratio`."""

    def measure(self, *series: np.ndarray) -> Any:
        """The value of whole series."""
        return performance.calmar_ratio(_curve(*series))


class MaxDrawdown(TotalReturn):
    """Of daily `returns`; see `performance.max_drawdown`."""

    def measure(self, *series: np.ndarray) -> Any:
        """The value of whole series."""
        return performance.max_drawdown(_curve(*series))


class LongestDrawdown(TotalReturn):
    """Of daily `returns`, in days; see `performance.longest_drawdown`."""

    def measure(self, *series: np.ndarray) -> Any:
        """The value of whole series."""
        return performance.longest_drawdown(_curve(*series))


class Alpha(MarketMetric):
    """Of daily `returns` and a `benchmark`'s on the same days; see `performance.alpha_beta`."""

    names = ("returns", "benchmark")

    def measure(self, *series: np.ndarray) -> Any:
        """The value of whole series."""
        return performance.alpha_beta(*map(_curve, series))[0]


class Beta(Alpha):
    """Of daily `returns` and a `benchmark`'s on the same days; see `performance.alpha_beta`."""

    def measure(self, *series: np.ndarray) -> Any:
        """The value of whole series."""
        return performance.alpha_beta(*map(_curve, series))[1]


class HitRate(MarketMetric):
    """Of the `gains` of trades, money after costs; see `performance.hit_rate`."""

    names = ("gains",)
    least = 1

    def measure(self, *series: np.ndarray) -> Any:
        """The value of whole series."""
        return performance.hit_rate(*series)


class ProfitFactor(HitRate):
    """Of the `gains` of trades, money after costs; see `performance.profit_factor`."""

    def measure(self, *series: np.ndarray) -> Any:
        """The value of whole series."""
        return performance.profit_factor(*series)


class Turnover(MarketMetric):
    """Of `equity` at each close and money `traded` since the close before; see `performance.turnover`."""

    names = ("equity", "traded")

    def measure(self, *series: np.ndarray) -> Any:
        """The value of whole series."""
        equity, traded = series
        return performance.turnover(equity, traded.sum())


class Exposure(MarketMetric):
    """Of `equity` and of the money in positions at each close; see `performance.mean_exposure`."""

    names = ("equity", "exposure")

    def measure(self, *series: np.ndarray) -> Any:
        """The value of whole series."""
        return performance.mean_exposure(*series)
