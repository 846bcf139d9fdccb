"""The measures of `performance` as torchmetrics, fed day by day or all at once."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from eigen2.market.evaluation.performance import MEASURES


class PerformanceMetric(Metric):
    """A measure of growing series, such as `PerformanceMetric("Sharpe")`.

    `update` takes one tensor for each series of the measure, see `performance.Measure`: the next days or trades, any
    shape. `compute` returns a float64 scalar, NaN where the measure does not exist yet. States keep what they were fed,
    in order; with several processes, each must have been fed days that follow those of the process before it.
    """

    full_state_update = False

    def __init__(self, measure: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.measure = measure
        for name in MEASURES[measure].series:
            self.add_state(name, [], dist_reduce_fx="cat")

    def update(self, *values: Tensor) -> None:
        """Add days or trades."""
        for name, value in zip(MEASURES[self.measure].series, values, strict=True):
            getattr(self, name).append(value.double().flatten())

    def compute(self) -> Tensor:
        """Return the measure of all values so far."""
        measure, none = MEASURES[self.measure], torch.zeros(0, dtype=torch.float64)
        kept = {name: getattr(self, name) for name in measure.series}
        series = {name: (dim_zero_cat(each) if len(each) else none).cpu().numpy() for name, each in kept.items()}
        return torch.tensor(measure(series), dtype=torch.float64)
