"""Ridge regression on the averages that agents see: the linear ranking of columns that a champion should beat."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from jaxtyping import Float

from eigen2.market.data.panel import Splits
from eigen2.market.features.encoding import AverageEncoder
from eigen2.market.simulation.policies import ranks
from eigen2.market.simulation.returns import relative_returns
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.simulate import Prices

PENALTIES = np.geomspace(1e-4, 10, 11)  # relative to the mean squared feature, summed over the rows
DAYS_PER_BLOCK = 64


@dataclass(frozen=True)
class Ridge:
    """A ranking of columns by their expected return, relative to the other columns of the day."""

    scores: Float[np.ndarray, "days columns"]
    """Expected percent log return of a position held for `holding_days`; NaN before the context is complete."""
    penalty: float
    """The one of `PENALTIES` with the highest rank correlation on the validation days, after a fit without them."""
    validation_ic: float
    """That correlation, the mean over days of the correlation over columns."""


def fit_ridge(
    encoder: AverageEncoder, prices: Prices, splits: Splits, rules: TradingRules, refit: bool = False
) -> Ridge:
    """Regress the return of a position on the averages of its column, with the training days alone.

    The return runs from the fill of an order to the close `TradingRules.holding_days` later, as a log return in percent
    less the mean of all columns on that day. Days whose returns end after their span are left out (purged). With
    `refit` the chosen penalty is applied to a second fit, with the validation days among those of training.
    """
    returns = relative_returns(prices, rules)
    first, purged = encoder.context_days - 1, rules.holding_days
    train = [range(max(first, span.start), span.stop - purged) for span in splits.train]
    validation = [range(span.start, span.stop - purged) for span in splits.validation]
    weights = _weights(encoder, returns, train)
    best, ic = len(PENALTIES) - 1, np.nan  # the strongest penalty if no correlation is known
    if any(validation):
        seen = np.concatenate([rows @ weights for _, rows in _described(encoder, validation)])
        later = returns[[*chain(*validation)]]
        correlations = [information_coefficient(seen[..., place], later) for place in range(len(PENALTIES))]
        best = int(np.argmax(np.nan_to_num(correlations, nan=-2)))
        ic = correlations[best]
    if refit:
        weights = _weights(encoder, returns, [range(first, splits.holdout.start - purged)])
    scores = np.full(returns.shape, np.nan)
    for days, rows in _described(encoder, [range(first, len(returns))]):
        scores[days] = rows @ weights[:, best]
    return Ridge(scores, float(PENALTIES[best]), ic)


def _weights(
    encoder: AverageEncoder, returns: Float[np.ndarray, "days columns"], spans: list[range]
) -> Float[np.ndarray, "width penalties"]:
    """Return the weights for each of `PENALTIES`; memory does not grow with the days."""
    products, targets = np.zeros((encoder.width, encoder.width)), np.zeros(encoder.width)
    for block, rows in _described(encoder, spans):
        known = np.isfinite(returns[block])
        products += rows[known].T @ rows[known]
        targets += rows[known].T @ returns[block][known]
    values, vectors = np.linalg.eigh(products)
    scale, projected = np.trace(products) / encoder.width, vectors.T @ targets
    return np.stack([vectors @ (projected / (values + penalty * scale)) for penalty in PENALTIES], axis=1)


def information_coefficient(
    scores: Float[np.ndarray, "days columns"], returns: Float[np.ndarray, "days columns"]
) -> float:
    """Return the mean over days of Spearman's correlation over columns; NaN without a day of three known columns."""
    known = np.isfinite(scores) & np.isfinite(returns)
    days = [
        np.corrcoef(ranks(scores[day][known[day]]), ranks(returns[day][known[day]]))[0, 1]
        for day in np.flatnonzero(known.sum(1) >= 3)
    ]
    finite = np.array(days)[np.isfinite(days)]
    return float(finite.mean()) if len(finite) else np.nan


def _described(encoder: AverageEncoder, spans: list[range]) -> Iterator[tuple[slice, np.ndarray]]:
    starts = [(start, span.stop) for span in spans for start in range(span.start, span.stop, DAYS_PER_BLOCK)]
    for start, stop in starts:
        block = slice(start, min(start + DAYS_PER_BLOCK, stop))
        columns, _ = encoder.describe(torch.arange(block.start, block.stop)[None])
        yield block, columns[0].double().numpy()
