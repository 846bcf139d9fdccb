"""Ridge regression on the averages that agents see: what a position in each column will earn beside the others."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Float, Int

from eigen2.market.data.panel_rows import orderable
from eigen2.market.data.source import CLOSE

PENALTIES = np.geomspace(1e-4, 10, 11)  # relative to the mean squared feature, summed over the rows
FOLDS = 10
SIGNIFICANT = 2.0  # standard errors from which forecasts count as more than chance
DAYS_PER_BLOCK = 64
TINY = float(np.finfo(np.float64).tiny)

Days = Int[np.ndarray, " _"]
Weights = Float[np.ndarray, " width"]
Returns = Float[np.ndarray, "days columns"]
Describe = Callable[[Days], Float[np.ndarray, "_ columns width"]]


@dataclass(frozen=True)
class Ridge:
    """Weights of a column's averages in its forecast, whose mean square over the days of the fit is 1."""

    weights: Weights
    """Fitted on all days of the fit."""
    folds: tuple[tuple[Days, Weights], ...] = ()
    """Consecutive days of the fit, and weights fitted without them."""
    worth: float = 1.0
    """1 - (`SIGNIFICANT` / t)^2, where t is the covariance of forecasts and returns in its standard errors, judged by
    the differences between folds; 0 where t is not above `SIGNIFICANT`. (Shrinkage as that of James and Stein,
    "Estimation with Quadratic Loss", 1961.)"""

    def scores(
        self, describe: Describe, prices: Float[np.ndarray, "days columns bars"]
    ) -> Float[np.ndarray, "days columns"]:
        """Return the forecasts of all days; those of the fit's days by its folds.

        They are less the mean of the columns that may be ordered that day, and 0 in columns without a close.
        """
        counted, priced, days = orderable(prices), prices[..., CLOSE] > 0, len(prices)
        forecasts = [
            (block, rows @ weights)
            for span, weights in ((np.arange(days), self.weights), *self.folds)
            for block, rows in day_blocks(describe, span)
        ]
        scores = np.empty((days, forecasts[0][1].shape[1]))
        for block, forecast in forecasts:
            scores[block] = np.where(priced[block], forecast - mean_over(forecast, counted[block]), 0.0)
        return scores


def mean_over(values: Float[np.ndarray, "days columns *rest"], counted: np.ndarray) -> np.ndarray:
    """Return each day's mean over the columns that count, (days, 1, *rest); 0 where none do."""
    weights = counted.reshape(*counted.shape, *[1] * (values.ndim - 2))
    return (values * weights).sum(1, keepdims=True) / weights.sum(1, keepdims=True).clip(1)


def fit_ridge(describe: Describe, returns: Returns, spans: Sequence[range], purged: int) -> Ridge:
    """Regress the returns (NaN where unknown) of the days of `spans` on their averages, each less the mean of its day.

    A return is known `purged` days later, so the last `purged` days of a span are left out. The days are divided into
    folds; each is forecast by a fit without it and the `purged` days on either side (blocked cross-validation), so that
    forecasts of the fit's own days are no better than those of later ones. The penalty is the one of `PENALTIES` at
    which forecasts of the folds correlate most with their returns.
    """
    width = describe(np.arange(1)).shape[-1]
    days = np.concatenate([np.arange(span.start, max(span.start, span.stop - purged)) for span in spans])
    edges = np.linspace(0, len(days), FOLDS + 1).astype(int)
    cuts = np.unique(np.concatenate([edges, edges - purged, edges + purged]).clip(0, len(days)))
    parts = [(*cut, _products(describe, returns, days[slice(*cut)], width)) for cut in pairwise(cuts.tolist())]
    total = _sum((part for _, _, part in parts), width)
    covariances, square, folds = [], np.zeros(len(PENALTIES)), []
    for first, last in pairwise(edges.tolist()):
        own = _sum((part for start, stop, part in parts if first <= start and stop <= last), width)
        others = (part for start, stop, part in parts if stop <= first - purged or start >= last + purged)
        weights = _solve(_sum(others, width))
        covariances.append(weights.T @ own[:-1, -1])
        square += (weights * (own[:-1, :-1] @ weights)).sum(0)
        folds.append((days[first:last], weights))
    correlations = np.sum(covariances, axis=0) / np.sqrt(np.maximum(square * total[-1, -1], TINY))
    best = int(np.argmax(correlations))
    chosen = np.array(covariances)[:, best]
    t = chosen.mean() / max(chosen.std(ddof=1) / np.sqrt(FOLDS), TINY)
    worth = 1 - (SIGNIFICANT / t) ** 2 if t > SIGNIFICANT else 0.0
    scale = np.sqrt(np.isfinite(returns[days]).sum() / square[best]) if square[best] > 0 else 0.0
    scaled = tuple((fold, scale * weights[:, best]) for fold, weights in folds)
    return Ridge(scale * _solve(total)[:, best], scaled, float(worth))


def _products(describe: Describe, returns: Returns, days: Days, width: int) -> Float[np.ndarray, "numbers numbers"]:
    """Return the sums of products of averages and return (numbers; the return is the last) over the known returns."""
    return _sum((_block_products(rows, returns[block]) for block, rows in day_blocks(describe, days)), width)


def _block_products(
    rows: Float[np.ndarray, "block columns width"], returns: Float[np.ndarray, "block columns"]
) -> Float[np.ndarray, "numbers numbers"]:
    known = np.isfinite(returns)[..., None]
    both = np.concatenate([rows, np.nan_to_num(returns)[..., None]], axis=-1) * known
    both -= known * (both.sum(1, keepdims=True) / known.sum(1, keepdims=True).clip(1))
    flat = both.reshape(-1, both.shape[-1])
    return np.matmul(flat.T, flat)


def _sum(products: Iterable[np.ndarray], width: int) -> Float[np.ndarray, "numbers numbers"]:
    total = np.zeros((width + 1, width + 1))
    for part in products:
        total += part
    return total


def _solve(products: Float[np.ndarray, "numbers numbers"]) -> Float[np.ndarray, "averages penalties"]:
    """Return the weights at each of `PENALTIES`."""
    values, vectors = np.linalg.eigh(products[:-1, :-1])
    mean, projected = values.mean(), vectors.T @ products[:-1, -1]
    return np.stack(
        [vectors @ (projected / np.maximum(values + penalty * mean, TINY)) for penalty in PENALTIES], axis=1
    )


def day_blocks(describe: Describe, days: Days) -> Iterator[tuple[Days, Float[np.ndarray, "block columns width"]]]:
    """Yield blocks of days with the averages of their columns."""
    for first in range(0, len(days), DAYS_PER_BLOCK):
        block = days[first : first + DAYS_PER_BLOCK]
        yield block, describe(block)
