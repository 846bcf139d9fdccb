"""The prices of a day as the trading environment needs them."""

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor

OPEN, TOP, BOTTOM, LAST, LEAST = range(5)
"""Rows of a day, see `market_table`."""


def market_table(prices: Float[Tensor, "days columns 4"]) -> Float32[np.ndarray, "days 5 columns"]:
    """All that a day decides, by column.

    Open, highest and lowest of what follows it, NaN where the column did not trade; the last valid close, 0 before the
    first; and the least size of an order, 1, or infinite where the column did not trade.
    """
    traded = (torch.isfinite(prices) & (prices > 0)).all(-1)
    open_, high, low, close = prices.where(traded[..., None], torch.nan).unbind(-1)
    least = torch.where(traded, 1.0, torch.inf)
    return torch.stack([open_, open_.maximum(high), open_.minimum(low), _forward_fill(close), least], dim=1).numpy()


def _forward_fill(close: Float[Tensor, "days columns"]) -> Float[Tensor, "days columns"]:
    """Each column's last valid close up to each day; 0 before its first."""
    days = torch.arange(len(close))[:, None]
    last = torch.where(torch.isfinite(close), days, -1).cummax(0).values
    return torch.where(last >= 0, close.gather(0, last.clamp(min=0)), 0.0)
