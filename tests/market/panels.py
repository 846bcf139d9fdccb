"""Panels made by hand."""

import numpy as np

from eigen2.market.data.panel import FeatureScale
from eigen2.market.features.indicators import FEATURES


def plain_scale(tickers: tuple[str, ...], indicators: tuple[str, ...] = ()) -> FeatureScale:
    """Leaves features as they are."""
    shape = (len(tickers), len(FEATURES))
    return FeatureScale(tickers, indicators, np.ones(len(tickers)), np.zeros(shape), np.ones(shape))
