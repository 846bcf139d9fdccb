"""Rankings of the columns by ridge regression and boosted trees, without agents."""

import numpy as np

from eigen2.market.data.panel import MarketPanel
from eigen2.market.data.panel_rows import orderable
from eigen2.market.evaluation.information import Scores, forward_returns
from eigen2.market.features.boosting import HAS_LIGHTGBM, boosted_scores
from eigen2.market.features.encoding import AverageEncoder, MarketEncoder
from eigen2.market.features.ridge import day_blocks, fit_ridge
from eigen2.market.simulation.policies import of_orderable


def fit_rankers(encoder: MarketEncoder, panel: MarketPanel, horizon: int, days: range) -> dict[str, Scores]:
    """Return the scores of `days` by ranker, of all columns that agents may order that day; NaN on others.

    They learn from the training days, and choose by the validation days when to stop, what a position earns over
    `horizon` days, known before `days`, from averages, whatever agents see. LightGBM is left out where it is not
    installed.
    """
    if not isinstance(encoder, AverageEncoder):
        encoder = AverageEncoder(panel, encoder.investable, encoder.context_days, encoder.episode)
    prices = panel.prices[:, encoder.investable]
    returns = np.full(prices.shape[:2], np.nan)
    returns[: days.start] = forward_returns(prices[: days.start], encoder.episode.rules, horizon)
    train = encoder.complete(panel.splits.train)
    ridge = fit_ridge(encoder.rows, returns, train, horizon)
    scores = {"ridge": np.full(returns.shape, np.nan)}
    for block, rows in day_blocks(encoder.rows, np.arange(days.start, days.stop)):
        scores["ridge"][block] = rows @ ridge.weights
    if HAS_LIGHTGBM:
        spans = train, panel.splits.validation
        scores["LightGBM"] = boosted_scores(encoder.rows, returns, orderable(prices), spans, horizon, days)
    return {name: of_orderable(each, prices) for name, each in scores.items()}
