"""Rank information coefficient (Rank IC): how well scores order the columns of a day by what they earn next."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Shaped

from eigen2.market.data.panel_rows import orderable
from eigen2.market.performance import MIN_DEVIATION, overlapping_t, overlapping_tail
from eigen2.market.simulation.returns import relative_returns
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.simulate import Prices

HORIZONS = (1, 5, 20)  # days over which forward returns are taken

Scores = Float[np.ndarray, "days columns"]
Daily = Float[np.ndarray, " days"]


def rank_ic(scores: Scores, returns: Scores) -> Daily:
    """Return Spearman's correlation of each day's scores and returns, over the columns that have both.

    Equal values have their mean rank. NaN on days where fewer than two columns differ in either.
    """
    known = np.isfinite(scores) & np.isfinite(returns)
    first, second = (pd.DataFrame(np.where(known, each, np.nan)).rank(axis=1) for each in (scores, returns))
    return first.corrwith(second, axis=1).to_numpy()


def forward_returns(prices: Prices, rules: TradingRules, horizon: int) -> Scores:
    """Return what a position ordered on each day earns until the close `horizon` days later, see `relative_returns`."""
    return relative_returns(prices, replace(rules, mode="orders", max_holding_days=horizon))


@dataclass(frozen=True)
class Information:
    """Rank IC of the scores of some days, for one horizon."""

    horizon: int
    daily: Daily  # NaN where unknown
    coverage: float
    """Share of the columns with a price that have a score and a return, over the days whose Rank IC is known."""

    @property
    def known(self) -> Daily:
        """Return the Rank IC of the days where it is known."""
        return self.daily[np.isfinite(self.daily)]

    @property
    def mean(self) -> float:
        """Return the mean over days; NaN if there are none."""
        return float(self.known.mean()) if len(self.known) else np.nan

    @property
    def icir(self) -> float:
        """Return mean / deviation (n - 1) over days; NaN where it does not vary."""
        deviation = self.known.std(ddof=1) if len(self.known) > 1 else 0.0
        return self.mean / deviation if deviation > MIN_DEVIATION else np.nan

    @property
    def t(self) -> float:
        """Return the t-statistic of the mean, see `overlapping_t`."""
        return overlapping_t(self.known, self.horizon)

    @property
    def p(self) -> float:
        """Return the one-sided p-value of `t`, see `overlapping_tail`."""
        return overlapping_tail(self.t, len(self.known), self.horizon)

    def summary(self, dates: Shaped[np.ndarray, " days"]) -> dict[str, Any]:
        """Return all figures as plain values, with the mean of each calendar year."""
        years = pd.Series(self.daily).groupby(pd.DatetimeIndex(dates).year).mean().dropna()
        values = {name: getattr(self, name) for name in ("mean", "icir", "t", "p", "coverage")}
        return {**values, "days": len(self.known), "years": {str(year): float(ic) for year, ic in years.items()}}


def information(
    scores: Scores, prices: Prices, rules: TradingRules, days: range, horizons: Iterable[int] = HORIZONS
) -> dict[int, Information]:
    """Return the Rank IC of the scores of `days` for each horizon; how it falls with the horizon is its decay.

    Scores and prices are of all days. Columns that cannot be ordered on a day have no score.
    """
    span = slice(days.start, days.stop)
    may_order = orderable(prices[span])
    scored = np.where(may_order, scores[span], np.nan)
    found = {}
    for horizon in horizons:
        returns = forward_returns(prices, rules, horizon)[span]
        daily = rank_ic(scored, returns)
        known = np.isfinite(daily)
        both = (np.isfinite(scored) & np.isfinite(returns))[known].sum()
        found[horizon] = Information(horizon, daily, float(both / max(may_order[known].sum(), 1)))
    return found
