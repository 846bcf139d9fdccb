"""What a daily equity series is worth: return, risk and how much was traded."""

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
    highest = np.maximum.accumulate(equity, axis=-1)
    lost: Each = (1 - equity / highest).max(-1)
    return lost


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
