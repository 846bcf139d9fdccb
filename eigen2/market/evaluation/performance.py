"""Return, risk and trading measures of daily equity series; the risk-free rate counts as 0.

A ratio whose denominator does not exist, such as gains over losses where nothing was lost, is NaN.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

YEAR = 252  # trading days of a year
MIN_DEVIATION = 1e-12  # daily returns with a smaller standard deviation vary by rounding alone

Series = Float[np.ndarray, "*accounts days"]
PerAccount = Float[np.ndarray, "*accounts"] | float  # one number per account; for a single series, a number


def daily_returns(equity: Series) -> Float[np.ndarray, "*accounts returns"]:
    """Return the relative change of each day's equity, one value fewer than days; only the last may be 0 or below."""
    returns: np.ndarray = equity[..., 1:] / equity[..., :-1] - 1
    return returns


def total_return(equity: Series) -> PerAccount:
    """Return the relative gain from the first day to the last; -1 is everything lost."""
    gained: PerAccount = equity[..., -1] / equity[..., 0] - 1
    return gained


def annualised_return(equity: Series) -> PerAccount:
    """Return the relative gain per year of 252 days, compounded; -1 where nothing is left."""
    kept = np.clip(1 + total_return(equity), 0, None)
    gained: PerAccount = kept ** (YEAR / (equity.shape[-1] - 1)) - 1
    return gained


def sharpe_ratio(equity: Series) -> PerAccount:
    """Return mean / standard deviation (n - 1) of daily returns x sqrt(252); 0 where returns do not vary.

    Sharpe, "The Sharpe Ratio", 1994.
    """
    returns = daily_returns(equity)
    mean, deviation = returns.mean(-1), returns.std(-1, ddof=1)
    varies = deviation > MIN_DEVIATION
    ratio: PerAccount = YEAR**0.5 * mean * varies / np.where(varies, deviation, 1)
    return ratio


def sortino_ratio(equity: Series) -> PerAccount:
    """Return the mean of daily returns / root mean square of the losses x sqrt(252); NaN where no day lost.

    Sortino and Price, "Performance Measurement in a Downside Risk Framework", 1994, with a target return of 0.
    """
    returns = daily_returns(equity)
    downside = np.sqrt(np.square(np.minimum(returns, 0)).mean(-1))
    return _ratio(YEAR**0.5 * returns.mean(-1), downside, MIN_DEVIATION)


def calmar_ratio(equity: Series) -> PerAccount:
    """Return annualised return / largest drawdown (Young, "Calmar Ratio: A Smoother Tool", 1991); NaN without one."""
    return _ratio(annualised_return(equity), max_drawdown(equity), MIN_DEVIATION)


def max_drawdown(equity: Series) -> PerAccount:
    """Return the largest fraction lost from an earlier high, 0 or more."""
    lost: PerAccount = (1 - equity / np.maximum.accumulate(equity, axis=-1)).max(-1)
    return lost


def longest_drawdown(equity: Series) -> PerAccount:
    """Return the largest number of days in a row that closed below an earlier close."""
    below = equity < np.maximum.accumulate(equity, axis=-1)
    days = np.arange(1, equity.shape[-1] + 1)
    last_high = np.maximum.accumulate(np.where(below, 0, days), axis=-1)
    longest: PerAccount = (days - last_high).max(-1).astype(np.float64)
    return longest


def alpha_beta(equity: Series, benchmark: Series) -> tuple[PerAccount, PerAccount]:
    """Regress daily returns on a benchmark's; return the annualised intercept and the slope (Jensen, 1968).

    The daily intercept is compounded over 252 days. Both are NaN where the benchmark does not move.
    """
    own, market = daily_returns(equity), daily_returns(benchmark)
    away = market - market.mean(-1, keepdims=True)
    beta = _ratio((away * own).mean(-1), np.square(away).mean(-1), MIN_DEVIATION**2)
    alpha = (1 + own.mean(-1) - beta * market.mean(-1)) ** YEAR - 1
    return alpha, beta


def turnover(equity: Series, traded: PerAccount) -> PerAccount:
    """Return half of the money bought and sold per year, relative to the mean equity: 1 replaces all once a year."""
    years = (equity.shape[-1] - 1) / YEAR
    replaced: PerAccount = traded / 2 / equity.mean(-1) / years
    return replaced


def mean_exposure(equity: Series, exposure: Series) -> PerAccount:
    """Return the mean fraction of the equity in positions at all closes but the first, before which none can be."""
    fraction: PerAccount = (exposure[..., 1:] / equity[..., 1:]).mean(-1)
    return fraction


def hit_rate(gains: Float[np.ndarray, " trades"]) -> float:
    """Return the fraction of trades that gained; NaN without trades."""
    return float((gains > 0).mean()) if gains.size else math.nan


def profit_factor(gains: Float[np.ndarray, " trades"]) -> float:
    """Return the money gained by winning trades / money lost by losing ones; NaN where none lost."""
    return float(_ratio(gains[gains > 0].sum(), -gains[gains < 0].sum(), 0.0))


def _ratio(numerator: PerAccount, denominator: PerAccount, least: float) -> PerAccount:
    """Divide; NaN where the denominator is at most `least`."""
    exists = np.asarray(denominator) > least
    ratio: PerAccount = np.where(exists, numerator, np.nan) / np.where(exists, denominator, 1)
    return ratio


@dataclass(frozen=True)
class Measure:
    """A named measure: what it is computed from and how it is written.

    Attributes:
        function: of one array for each of `series`.
        series: of `returns` (daily), `benchmark` (its daily returns), `equity` and `exposure` (money at each close),
            `traded` (money since the close before), `gains` (money of each trade, after costs).
        least: values of the first series below which the measure does not exist.
        unit: " %" for fractions.
        digits: behind the decimal point.
    """

    function: Callable[..., Any]
    series: tuple[str, ...]
    least: int = 2
    unit: str = ""
    digits: int = 2

    def __call__(self, series: Mapping[str, np.ndarray]) -> float:
        """Return the measure, NaN where it does not exist."""
        given = [series[name] for name in self.series]
        return float(self.function(*given)) if len(given[0]) >= self.least else math.nan


def _curve(returns: Float[np.ndarray, " days"]) -> Float[np.ndarray, " closes"]:
    curve: np.ndarray = np.cumprod(np.concatenate([[1.0], 1 + returns]))
    return curve


def _of_returns(function: Callable[..., Any], *more: str, unit: str = "", digits: int = 2) -> Measure:
    """Make a measure of equity one of daily returns."""
    return Measure(lambda *series: function(*map(_curve, series)), ("returns", *more), unit=unit, digits=digits)


MEASURES = {
    "trades": Measure(np.size, ("gains",), least=0, digits=0),
    "total return": _of_returns(total_return, unit=" %", digits=1),
    "annual return": _of_returns(annualised_return, unit=" %", digits=1),
    "Sharpe": _of_returns(sharpe_ratio),
    "Sortino": _of_returns(sortino_ratio),
    "Calmar": _of_returns(calmar_ratio),
    "max drawdown": _of_returns(max_drawdown, unit=" %", digits=1),
    "longest drawdown": _of_returns(longest_drawdown, digits=0),
    "alpha": _of_returns(lambda own, market: alpha_beta(own, market)[0], "benchmark", unit=" %", digits=1),
    "beta": _of_returns(lambda own, market: alpha_beta(own, market)[1], "benchmark"),
    "turnover": Measure(lambda equity, traded: turnover(equity, traded.sum()), ("equity", "traded")),
    "exposure": Measure(mean_exposure, ("equity", "exposure"), unit=" %", digits=1),
    "hit rate": Measure(hit_rate, ("gains",), least=1, unit=" %", digits=1),
    "profit factor": Measure(profit_factor, ("gains",), least=1),
}
"""Measures by name; the longest drawdown is in days, turnover per year."""


def format_measure(name: str, value: float | None) -> str:
    """Return a measure's value with its unit; a dash for None. An unknown measure is a ratio."""
    if value is None:
        return "-"
    measure = MEASURES.get(name, Measure(float, ()))
    rounded = round(100 * value if measure.unit else value, measure.digits) + 0.0  # no minus zero
    return f"{rounded:,.{measure.digits}f}{measure.unit}"
