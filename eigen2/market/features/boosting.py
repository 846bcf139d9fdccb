"""Boosted trees on the averages that agents see: how each column will rank among those of its day (LightGBM)."""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float

from eigen2.market.features.ridge import Days, Describe, Returns, day_blocks, mean_over

HAS_LIGHTGBM = find_spec("lightgbm") is not None
MOST_ROWS = 250_000  # days x columns that trees learn from; of more days, evenly spaced ones
ROUNDS, PATIENCE = 200, 20  # trees, and those in a row without a smaller error on the validation days
SETTINGS: dict[str, Any] = {
    "objective": "l2",
    "learning_rate": 0.05,
    "num_leaves": 15,
    "feature_fraction": 0.5,
    "max_bin": 63,
    "seed": 0,
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
}


def boosted_scores(
    describe: Describe,
    returns: Returns,
    counted: Bool[np.ndarray, "days columns"],
    spans: tuple[Sequence[range], Sequence[range]],
    purged: int,
    days: range,
) -> Returns:
    """Return forecasts, for `days`, of where each column's return (NaN where unknown) ranks among those of its day.

    Trees learn the ranks from the averages, less each day's mean over the columns that are `counted`, of the first of
    `spans`, the training days, and stop early by the second, the validation days. A return is known `purged` days
    later, so the last `purged` days of each span are left out. Forecasts are 0 where that leaves no days, and NaN on
    other days than `days`.
    """
    import lightgbm

    ranks = pd.DataFrame(returns).rank(axis=1, pct=True).to_numpy()
    learned, watched = (_rows(describe, ranks, counted, each, purged) for each in spans)
    scores = np.full(returns.shape, np.nan)
    scores[days.start : days.stop] = 0
    if not (len(learned[1]) and len(watched[1])):
        return scores
    settings = {**SETTINGS, "min_data_in_leaf": max(20, len(learned[1]) // 200), "num_threads": torch.get_num_threads()}
    data = lightgbm.Dataset(*learned, params=settings)
    valid = lightgbm.Dataset(*watched, reference=data, params=settings)
    stop = lightgbm.early_stopping(PATIENCE, verbose=False)
    model = lightgbm.train(settings, data, ROUNDS, valid_sets=[valid], callbacks=[stop])
    for block, rows in _centred(describe, counted, np.arange(days.start, days.stop)):
        scores[block] = np.asarray(model.predict(rows.reshape(-1, rows.shape[-1]))).reshape(rows.shape[:2])
    return scores


def _rows(
    describe: Describe, ranks: Returns, counted: np.ndarray, spans: Sequence[range], purged: int
) -> tuple[Float[np.ndarray, "rows width"], Float[np.ndarray, " rows"]]:
    """Return the averages and the ranks of the columns whose rank is known, on at most `MOST_ROWS` rows."""
    days = np.concatenate([np.arange(span.start, max(span.start, span.stop - purged)) for span in spans])
    days = days[:: -(-len(days) * ranks.shape[1] // MOST_ROWS) or 1]
    known = np.isfinite(ranks)
    rows = [described[known[block]] for block, described in _centred(describe, counted, days)]
    return np.concatenate(rows) if rows else np.zeros((0, 1), np.float32), ranks[days][known[days]]


def _centred(
    describe: Describe, counted: np.ndarray, days: Days
) -> Iterator[tuple[Days, Float[np.ndarray, "block columns width"]]]:
    """Yield blocks of days with their averages less the mean of each day, in single precision."""
    for block, rows in day_blocks(describe, days):
        yield block, (rows - mean_over(rows, counted[block])).astype(np.float32)
