"""What a daily equity series is worth: return, risk and how much was traded.

A ratio whose denominator does not exist, such as gains over losses where nothing was lost, is NaN.
"""

import math

import numpy as np
from jaxtyping import Float

YEAR = 252
"""Trading days of a year."""
LEAST_DEVIATION = 1e-12
"""Of daily returns; below it they do not vary but by rounding."""

Series = Float[np.ndarray, "*accounts days"]
Each = Float[np.ndarray, "*accounts"] | float
"""One number an account; of a single series, a number."""


def daily_returns(equity: Series) -> Float[np.ndarray, "*accounts returns"]:
    """Share by which each day's equity differs from the day before; one fewer than days.

    Args:
        equity: money at each close, the first before any order; above 0 but perhaps on the last day.
    """
    returns: np.ndarray = equity[..., 1:] / equity[..., :-1] - 1
    return returns


def total_return(equity: Series) -> Each:
    """Share gained from the first day to the last; -1 is everything lost."""
    gained: Each = equity[..., -1] / equity[..., 0] - 1
    return gained


def annualised_return(equity: Series) -> Each:
    """Share gained a year of 252 days at the pace of the whole; -1 where nothing is left."""
    kept = np.clip(1 + total_return(equity), 0, None)
    gained: Each = kept ** (YEAR / (equity.shape[-1] - 1)) - 1
    return gained


def sharpe_ratio(equity: Series) -> Each:
    """Mean over deviation (n - 1) of daily returns, times the root of 252 (Sharpe, "The Sharpe Ratio", 1994).

    The risk-free rate counts as 0: cash earns nothing here. 0 where returns do not vary.
    """
    returns = daily_returns(equity)
    mean, deviation = returns.mean(-1), returns.std(-1, ddof=1)
    varies = deviation > LEAST_DEVIATION
    ratio: Each = YEAR**0.5 * mean * varies / np.where(varies, deviation, 1)
    return ratio


def max_drawdown(equity: Series) -> Each:
    """Largest share lost from a highest close before it; 0 where the equity never falls."""
    lost: Each = drawdown(equity).max(-1)
    return lost


def sortino_ratio(equity: Series) -> Each:
    """Mean of daily returns over the root of their mean squared losses, times the root of 252.

    Sortino and Price, "Performance Measurement in a Downside Risk Framework", 1994, with 0 for the return wanted. NaN
    where no day lost.
    """
    returns = daily_returns(equity)
    downside = np.sqrt(np.square(np.minimum(returns, 0)).mean(-1))
    return _ratio(YEAR**0.5 * returns.mean(-1), downside, LEAST_DEVIATION)


def calmar_ratio(equity: Series) -> Each:
    """Annualised return over the largest drawdown (Young, "Calmar Ratio: A Smoother Tool", 1991); NaN without one."""
    return _ratio(annualised_return(equity), max_drawdown(equity), LEAST_DEVIATION)


def drawdown(equity: Series) -> Series:
    """Share lost at each close from the highest before or at it, 0 to 1 and more."""
    lost: np.ndarray = 1 - equity / np.maximum.accumulate(equity, axis=-1)
    return lost


def longest_drawdown(equity: Series) -> Each:
    """Most days in a row that closed below a close before them."""
    below = equity < np.maximum.accumulate(equity, axis=-1)
    days = np.arange(1, equity.shape[-1] + 1)
    last_high = np.maximum.accumulate(np.where(below, 0, days), axis=-1)
    longest: Each = (days - last_high).max(-1).astype(np.float64)
    return longest


def alpha_beta(equity: Series, benchmark: Series) -> tuple[Each, Each]:
    """Annualised intercept and slope of the daily returns regressed on a benchmark's (Jensen, 1968).

    The risk-free rate counts as 0. A year of 252 days compounds the daily intercept. NaN where the benchmark does not
    move.

    Args:
        equity: of what is judged.
        benchmark: on the same days.
    """
    own, market = daily_returns(equity), daily_returns(benchmark)
    away = market - market.mean(-1, keepdims=True)
    beta = _ratio((away * own).mean(-1), np.square(away).mean(-1), LEAST_DEVIATION**2)
    alpha = (1 + own.mean(-1) - beta * market.mean(-1)) ** YEAR - 1
    return alpha, beta


def hit_rate(gains: Float[np.ndarray, " trades"]) -> float:
    """Share of trades that gained; NaN without trades."""
    return float((gains > 0).mean()) if gains.size else math.nan


def profit_factor(gains: Float[np.ndarray, " trades"]) -> float:
    """What winning trades gained over what losing ones lost, in money; NaN where none lost."""
    return float(_ratio(gains[gains > 0].sum(), -gains[gains < 0].sum(), 0.0))


def _ratio(of: Each, by: Each, least: float) -> Each:
    """NaN where the denominator is at most `least`."""
    there = np.asarray(by) > least
    found: Each = np.where(there, of, np.nan) / np.where(there, by, 1)
    return found


def turnover(equity: Series, traded: Each) -> Each:
    """Half of the money bought and sold, a year of 252 days, in units of the mean equity: 1 replaces all once a year.

    Args:
        equity: money at each close.
        traded: sum of what was bought and what was sold, in money.
    """
    years = (equity.shape[-1] - 1) / YEAR
    replaced: Each = traded / 2 / equity.mean(-1) / years
    return replaced


def mean_exposure(equity: Series, exposure: Series) -> Each:
    """Mean share of the equity in positions at the closes after the first, where none can be yet."""
    share: Each = (exposure[..., 1:] / equity[..., 1:]).mean(-1)
    return share
