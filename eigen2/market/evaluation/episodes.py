"""Scalars of a generation's episodes: how agents trade, and whether fitness goes with money."""

import math
from typing import Literal

import torch
from torch import Tensor
from torchmetrics.functional import spearman_corrcoef

from eigen2.market.performance import YEAR


def episode_metrics(
    mode: Literal["orders", "weights"], summary: dict[str, Tensor], fitness: Tensor, windows: int, window_days: int
) -> dict[str, float]:
    """Return trading in the fitness windows, and the rank correlation of fitness and money, by full name.

    `summary` is that of the environment, sums over as many `windows` of `window_days` as `fitness` is of, (agents,).
    """
    money = {"fitness/money_correlation": _rank_correlation(fitness, summary["log_return_pct"])}
    if mode == "weights":
        years = windows * (window_days - 1) / YEAR
        return {"trading/turnover": float(summary["turnover"].double().mean()) / years, **money}
    idle, busy = summary["days_without_position"].sum(), summary["days_with_position"].sum()
    closed, trades = (summary["wins"] + summary["losses"]).sum(), summary["trades"].sum()
    return {
        "trading/trades": float(summary["trades"].double().mean()) / windows,
        "trading/win_rate": float(summary["wins"].sum() / closed.clamp(min=1)),
        "trading/exposure": float(busy / (idle + busy)),
        "trading/funded_share": float(trades / (trades + summary["unfunded"].sum()).clamp(min=1)),
        **money,
    }


def _rank_correlation(first: Tensor, second: Tensor) -> float:
    """Return Spearman's correlation of the finite values; NaN if there are fewer than two or all are equal."""
    finite = torch.isfinite(first) & torch.isfinite(second)
    first, second = first[finite].double(), second[finite].double()
    equal = len(first) < 2 or bool((first == first[0]).all() | (second == second[0]).all())
    return math.nan if equal else float(spearman_corrcoef(first, second))
