"""Measures as torchmetrics: fed in pieces, kept, reset and reduced."""

import copy

import empyrical
import numpy as np
import pytest
import torch
from torchmetrics import MetricCollection

from eigen2.market.evaluation import metrics, performance

CHANCE = np.random.default_rng(0)
RETURNS, MARKET = CHANCE.standard_t(4, (2, 300)) * 0.01
EXPECTED = {
    metrics.AnnualReturn: empyrical.annual_return(RETURNS),
    metrics.SharpeRatio: empyrical.sharpe_ratio(RETURNS),
    metrics.SortinoRatio: empyrical.sortino_ratio(RETURNS),
    metrics.CalmarRatio: empyrical.calmar_ratio(RETURNS),
    metrics.MaxDrawdown: -empyrical.max_drawdown(RETURNS),
    metrics.TotalReturn: empyrical.cum_returns_final(RETURNS),
    metrics.Alpha: empyrical.alpha(RETURNS, MARKET),
    metrics.Beta: empyrical.beta(RETURNS, MARKET),
}


def fed(kind: type[metrics.MarketMetric], pieces: int) -> metrics.MarketMetric:
    metric = kind()
    series = [torch.from_numpy(each) for each in (RETURNS, MARKET)[: len(kind.names)]]
    for part in zip(*(each.tensor_split(pieces) for each in series), strict=True):
        metric.update(*part)
    return metric


@pytest.mark.parametrize("kind", EXPECTED, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("pieces", [1, 7, 300])
def test_pieces_add_up_to_what_empyrical_says(kind: type[metrics.MarketMetric], pieces: int) -> None:
    metric = fed(kind, pieces)
    assert float(metric.compute()) == pytest.approx(EXPECTED[kind], rel=1e-9)
    metric.reset()
    assert torch.isnan(metric.compute())


def test_longest_drawdown_trades_turnover_and_exposure() -> None:
    longest = fed(metrics.LongestDrawdown, 3)
    assert float(longest.compute()) == performance.longest_drawdown(np.cumprod([1.0, *(1 + RETURNS)]))
    for kind, expected in ((metrics.HitRate, 0.5), (metrics.ProfitFactor, 2.0)):
        metric = kind()
        metric.update(torch.tensor([4.0]))
        metric.update(torch.tensor([-2.0]))
        assert float(metric.compute()) == expected
    turnover, exposure = metrics.Turnover(), metrics.Exposure()
    for day in range(127):
        turnover.update(torch.tensor(100.0), torch.tensor(100.0 if day in (1, 126) else 0.0))
        exposure.update(torch.tensor(100.0), torch.tensor(0.0 if day == 0 else 25.0))
    assert float(turnover.compute()) == pytest.approx(2)
    assert float(exposure.compute()) == 0.25


def test_a_collection_feeds_all_at_once_and_what_was_kept_survives_a_copy() -> None:
    collection = MetricCollection([metrics.SharpeRatio(), metrics.MaxDrawdown()])
    collection.update(torch.from_numpy(RETURNS[:100]))
    twin = copy.deepcopy(collection)
    for each in (collection, twin):
        each.update(torch.from_numpy(RETURNS[100:]))
    assert float(twin.compute()["SharpeRatio"]) == pytest.approx(EXPECTED[metrics.SharpeRatio])
    assert twin.compute() == collection.compute()


def test_one_day_is_no_series() -> None:
    metric = metrics.SharpeRatio()
    metric.update(torch.tensor([0.1]))
    assert torch.isnan(metric.compute())
