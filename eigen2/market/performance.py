"""Return, risk and trading measures of daily returns and equity.

Functions of returns assume a risk-free rate of 0; for another, subtract it from the returns, as `measure_all` does.

Measures take one account, or several with leading axes `*accounts`. A ratio whose denominator does not exist, such as
gains over losses where nothing was lost, is NaN.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from jaxtyping import Float

from eigen2.market.intervals import student_tail

YEAR = 252  # trading days of a year
RUIN = 1e-6  # least share of the money that counts as left, because 0 has no logarithm
MIN_DEVIATION = 1e-12  # daily returns with a smaller standard deviation vary by rounding alone

Series = Float[np.ndarray, "*accounts days"]
Curve = Float[np.ndarray, " days"]
Gains = Float[np.ndarray, " trades"]
PerAccount = Any  # Float[np.ndarray, "*accounts"], or a number for a single series


def daily_returns(equity: Series) -> Any:
    """Return the relative change of each day's equity, one value fewer than days; 0 once it was 0 or below: ruin."""
    before = equity[..., :-1]
    alive = np.minimum.accumulate(before, axis=-1) > 0
    return np.divide(equity[..., 1:], before, out=np.ones_like(before, dtype=np.float64), where=alive) - 1


def total_return(equity: Series) -> PerAccount:
    """Return the relative gain from the first day to the last, or to ruin; -1 is everything lost."""
    ruined = equity <= 0
    last = np.where(ruined.any(-1), ruined.argmax(-1), equity.shape[-1] - 1)
    final = np.take_along_axis(equity, last[..., None], -1)[..., 0]
    return final / equity[..., 0] - 1


def annualised_return(equity: Series) -> PerAccount:
    """Return the relative gain per year of 252 days, compounded; -1 where nothing is left."""
    return np.clip(1 + total_return(equity), 0, None) ** (YEAR / (equity.shape[-1] - 1)) - 1


def growth_beyond(returns: Curve, others: Curve) -> Curve:
    """Return daily log returns less another's, x 252."""
    own, other = (np.log(np.maximum(1 + each, RUIN)) for each in (returns, others))
    return YEAR * (own - other)


def sharpe_ratio(returns: Series) -> PerAccount:
    """Return mean / deviation (n - 1) of daily returns x sqrt(252) (Sharpe, 1994); 0 where returns do not vary."""
    mean, deviation = returns.mean(-1), returns.std(-1, ddof=1)
    varies = deviation > MIN_DEVIATION
    return YEAR**0.5 * mean * varies / np.where(varies, deviation, 1)


def sortino_ratio(returns: Series) -> PerAccount:
    """Return mean of daily returns / root mean square of losses x sqrt(252) (Sortino, 1994); NaN where no day lost."""
    downside = np.sqrt(np.square(np.minimum(returns, 0)).mean(-1))
    return _ratio(YEAR**0.5 * returns.mean(-1), downside, MIN_DEVIATION)


def calmar_ratio(equity: Series) -> PerAccount:
    """Return annualised return / largest drawdown (Young, "Calmar Ratio: A Smoother Tool", 1991); NaN without one."""
    return _ratio(annualised_return(equity), max_drawdown(equity), MIN_DEVIATION)


def max_drawdown(equity: Series) -> PerAccount:
    """Return the largest fraction lost from an earlier high, 0 or more."""
    return (1 - equity / np.maximum.accumulate(equity, axis=-1)).max(-1)


def longest_drawdown(equity: Series) -> PerAccount:
    """Return the largest number of days in a row that closed below an earlier close."""
    below = equity < np.maximum.accumulate(equity, axis=-1)
    days = np.arange(1, equity.shape[-1] + 1)
    last_high = np.maximum.accumulate(np.where(below, 0, days), axis=-1)
    return (days - last_high).max(-1).astype(np.float64)


def alpha_beta(returns: Series, market: Series) -> tuple[PerAccount, PerAccount]:
    """Regress daily returns on a benchmark's; return the intercept, compounded to a year, and the slope (Jensen, 1968).

    Both are NaN where the benchmark does not move.
    """
    deviation = market - market.mean(-1, keepdims=True)
    beta = _ratio((deviation * returns).mean(-1), np.square(deviation).mean(-1), MIN_DEVIATION**2)
    return (1 + returns.mean(-1) - beta * market.mean(-1)) ** YEAR - 1, beta


def information_ratio(active: Series) -> PerAccount:
    """Return mean / deviation (n - 1) x sqrt(252) of daily returns less a benchmark's (Goodwin, 1998); NaN if equal."""
    return _ratio(YEAR**0.5 * active.mean(-1), active.std(-1, ddof=1), MIN_DEVIATION)


def intercept_t(values: Curve, *regressors: Curve, lags: int | None = None) -> float:
    """Return the t-statistic of the intercept of a regression, that of the mean if there are no regressors.

    Standard errors allow for heteroskedasticity and autocorrelation (Newey and West, "A Simple, Positive Semi-Definite,
    Heteroskedasticity and Autocorrelation Consistent Covariance Matrix", 1987, equation 5), over `lags`, by default
    4 (n / 100)^(2/9) (the same, "Automatic Lag Selection in Covariance Matrix Estimation", 1994), times
    n / (n - coefficients). NaN where the values do not vary beyond the regressors, or these do not vary.
    """
    design = np.column_stack([np.ones(len(values)), *regressors])
    days, coefficients = design.shape
    if days <= coefficients or any(each.std() <= MIN_DEVIATION for each in regressors):
        return np.nan
    inverse = np.linalg.inv(design.T @ design)
    fitted = inverse @ (design.T @ values)
    moments = design * (values - design @ fitted)[:, None]
    if moments[:, 0].std() <= MIN_DEVIATION:
        return np.nan
    lags = min(int(4 * (days / 100) ** (2 / 9)) if lags is None else lags, days - 1)
    # the sums of both signs of a lag; the Bartlett weights fall from 1 to 0
    weighted = [(1 - lag / (lags + 1)) * (moments[lag:].T @ moments[: days - lag]) for lag in range(lags + 1)]
    covariance = inverse @ (sum(weighted) + np.transpose(sum(weighted[1:]))) @ inverse * days / (days - coefficients)
    return float(fitted[0] / np.sqrt(covariance[0, 0]))


def overlapping_t(values: Curve, horizon: int) -> float:
    """Return the t-statistic of the mean of n values of `horizon` days h each that overlap; NaN if n < 2 h.

    With h - 1 lags, the weights of Newey and West count (2 h^2 + 1) / (3 h^2) of the variance of a mean of sums of h
    days: the sum over lags k of (1 - k / h)^2 in place of that of 1 - k / h. Of that, deviations from the mean of the
    same n days lack another share of h / n, of which `intercept_t` adds 1 / n. Both are added.
    """
    days, square = len(values), horizon**2
    if days < 2 * horizon:
        return np.nan
    counted = (2 * square + 1) / (3 * square) * (days - horizon) / (days - 1)
    return intercept_t(values, lags=horizon - 1) * math.sqrt(counted)


def overlapping_tail(t: float, days: int, horizon: int) -> float:
    """Return the probability that `overlapping_t` of values without effect is `t` or more (one-sided p-value).

    It is that of Student's t with the equivalent degrees of freedom of Bartlett's weights at frequency 0, 1.5 n / h
    (Priestley, "Spectral Analysis and Time Series", 1981, table 6.2), or n - 1 if that is less. NaN if n < 2 h.
    """
    return np.nan if days < 2 * horizon else student_tail(t, min(1.5 * days / horizon, days - 1))


def upper_tail(t: float) -> float:
    """Return the probability that a statistic of many days without effect is `t` or more (one-sided p-value)."""
    return NormalDist().cdf(-t)


def turnover(equity: Series, traded: PerAccount) -> PerAccount:
    """Return half of the money bought and sold per year, relative to the mean equity: 1 replaces all once a year."""
    return traded / 2 / equity.mean(-1) / ((equity.shape[-1] - 1) / YEAR)


def mean_exposure(equity: Series, exposure: Series) -> PerAccount:
    """Return the mean fraction of the equity in positions at all closes but the first, which precedes any order.

    It counts as 0 where the equity is 0 or below.
    """
    share = np.zeros_like(equity[..., 1:], dtype=np.float64)
    return np.divide(exposure[..., 1:], equity[..., 1:], out=share, where=equity[..., 1:] > 0).mean(-1)


def hit_rate(gains: Gains) -> PerAccount:
    """Return the fraction of trades that gained; NaN without trades."""
    return _ratio((gains > 0).sum(), gains.size, 0.0)


def profit_factor(gains: Gains) -> PerAccount:
    """Return the money gained by winning trades / money lost by losing trades; NaN where none lost."""
    return _ratio(gains[gains > 0].sum(), -gains[gains < 0].sum(), 0.0)


def _ratio(numerator: PerAccount, denominator: PerAccount, least: float) -> PerAccount:
    """Divide; NaN where the denominator is at most `least`."""
    exists = np.asarray(denominator) > least
    return np.where(exists, numerator, np.nan) / np.where(exists, denominator, 1)


@dataclass(frozen=True)
class Measure:
    """A function of one array for each of `series`.

    Series are `curve` (the growth of 1 by the daily returns), `excess` and `market` (these returns, and a benchmark's,
    less the risk-free rate), `active` (the difference of both), `equity` and `exposure` (money at each close), `traded`
    (money bought and sold) and `gains` (money of each trade, after costs).
    """

    function: Callable[..., Any]
    series: tuple[str, ...]
    unit: str = ""  # " %" for fractions
    digits: int = 2


CURVE, GAINS, ACTIVE = ("curve",), ("gains",), ("active",)
EXCESS, REGRESSED = ("excess",), ("excess", "market")
MEASURES = {  # by name; the longest drawdown is in days, turnover per year
    "trades": Measure(np.size, GAINS, digits=0),
    "total return": Measure(total_return, CURVE, " %", 1),
    "annual return": Measure(annualised_return, CURVE, " %", 1),
    "Sharpe": Measure(sharpe_ratio, EXCESS),
    "Sortino": Measure(sortino_ratio, EXCESS),
    "Calmar": Measure(calmar_ratio, CURVE),
    "max drawdown": Measure(max_drawdown, CURVE, " %", 1),
    "longest drawdown": Measure(longest_drawdown, CURVE, digits=0),
    "alpha": Measure(lambda own, market: alpha_beta(own, market)[0], REGRESSED, " %", 1),
    "alpha t": Measure(intercept_t, REGRESSED),
    "alpha p": Measure(lambda own, market: upper_tail(intercept_t(own, market)), REGRESSED, digits=4),
    "beta": Measure(lambda own, market: alpha_beta(own, market)[1], REGRESSED),
    "information ratio": Measure(information_ratio, ACTIVE),
    "information t": Measure(intercept_t, ACTIVE),
    "information p": Measure(lambda active: upper_tail(intercept_t(active)), ACTIVE, digits=4),
    "turnover": Measure(turnover, ("equity", "traded")),
    "exposure": Measure(mean_exposure, ("equity", "exposure"), " %", 1),
    "hit rate": Measure(hit_rate, GAINS, " %", 1),
    "profit factor": Measure(profit_factor, GAINS),
}


def measure_all(
    returns: Float[np.ndarray, " days"], benchmark: Float[np.ndarray, " days"], risk_free: float = 0.0, **series: Any
) -> dict[str, float]:
    """Return all `MEASURES` of 2 or more daily returns, a benchmark's returns and the other series.

    `risk_free` is the daily return of cash: Sharpe and Sortino ratio, alpha and beta are of the returns beyond it.
    """
    series |= {"excess": returns - risk_free, "market": benchmark - risk_free, "active": returns - benchmark}
    series["curve"] = np.cumprod(np.concatenate([[1.0], 1 + returns]))
    return {key: float(each.function(*(series[name] for name in each.series))) for key, each in MEASURES.items()}


def format_measure(name: str, value: float | None) -> str:
    """Return a measure's value with its unit; a dash for None. An unknown measure is a ratio."""
    if value is None:
        return "-"
    measure = MEASURES.get(name, Measure(float, ()))
    rounded = round(100 * value if measure.unit else value, measure.digits) + 0.0  # no minus zero
    return f"{rounded:,.{measure.digits}f}{measure.unit}"
