"""How much of a backtest's success comes from choosing the best of many strategies."""

import math
from itertools import combinations
from statistics import NormalDist

import numpy as np
from jaxtyping import Float

from eigen2.market.performance import MIN_DEVIATION

NORMAL = NormalDist()


def expected_best_sharpe(variance: float, trials: int) -> float:
    """Return the Sharpe ratio that the best of independent trials (1 or more) without skill is expected to show.

    Bailey and Lopez de Prado, "The Deflated Sharpe Ratio", 2014, equation 1 (with a mean of 0). The variance is that of
    the trials' Sharpe ratios, per day or per year, as the result.
    """
    if trials == 1:
        return 0.0
    euler = float(np.euler_gamma)
    best = (1 - euler) * NORMAL.inv_cdf(1 - 1 / trials) + euler * NORMAL.inv_cdf(1 - 1 / (trials * math.e))
    return math.sqrt(variance) * best


def probabilistic_sharpe_ratio(
    sharpe: float, threshold: float, days: int, skewness: float = 0.0, kurtosis: float = 3.0
) -> float:
    """Return the probability that the true Sharpe ratio is above a threshold, from an estimate of it.

    Bailey and Lopez de Prado, "The Sharpe Ratio Efficient Frontier", 2012, equation 11. Both are daily, not annualised,
    and the estimate is from 2 or more days; the kurtosis of normal returns is 3.
    """
    spread = 1 - skewness * sharpe + (kurtosis - 1) / 4 * sharpe**2
    # rounding may make it negative where returns have two values only
    return NORMAL.cdf((sharpe - threshold) * math.sqrt(days - 1) / math.sqrt(max(spread, 1e-12)))


def deflated_sharpe_ratio(
    returns: Float[np.ndarray, " days"], trials: int, trial_sharpes: Float[np.ndarray, " known"]
) -> float:
    """Return the probability that the true Sharpe ratio is above what the best of all trials would show without skill.

    Bailey and Lopez de Prado, "The Deflated Sharpe Ratio", 2014, equation 2. `returns` are daily, of the chosen trial;
    the variance of `trial_sharpes`, the daily Sharpe ratios of trials, stands for that of all, but at least
    1 / (days - 1), that of independent trials without skill: a converged population's says nothing about the trials
    before it. Above 0.95 is significant at the usual level; NaN where the returns vary by rounding alone.
    """
    mean, deviation = returns.mean(), returns.std(ddof=1)
    if not deviation > MIN_DEVIATION:
        return math.nan
    away = (returns - mean) / returns.std()
    variance = float(trial_sharpes.var(ddof=1)) if len(trial_sharpes) > 1 else 0.0
    variance = max(variance, 1 / (len(returns) - 1))
    threshold = expected_best_sharpe(variance, trials)
    skewness, kurtosis = float((away**3).mean()), float((away**4).mean())
    return probabilistic_sharpe_ratio(float(mean / deviation), threshold, len(returns), skewness, kurtosis)


CONSTANT = 1e-9  # deviation of daily returns that only rounding makes; such a strategy has a Sharpe ratio of 0


def overfitting_probability(returns: Float[np.ndarray, "days strategies"], blocks: int = 16) -> float:
    """Return how often the strategy best in one half of the days is at or below the median in the other half.

    Combinatorially symmetric cross-validation over all ways to halve the blocks of days (Bailey, Borwein, Lopez de
    Prado and Zhu, "The Probability of Backtest Overfitting", 2017, section 3). Best is the highest Sharpe ratio, the
    first of equal ones. Days left over at the end are not used. About 0.5 means that the past of these strategies says
    nothing about their future order.
    """
    days, strategies = returns.shape
    if strategies < 2 or blocks % 2 or not 2 <= blocks <= days:
        raise ValueError(f"{strategies} strategies, {blocks} blocks of {days} days: give two or more, even blocks")
    size = days // blocks
    parts = returns[: size * blocks].reshape(blocks, size, strategies)
    halves = np.array(list(combinations(range(blocks), blocks // 2)))
    chosen = np.zeros((len(halves), blocks))
    np.put_along_axis(chosen, halves, 1.0, axis=1)
    counted = size * blocks // 2
    mean = chosen @ parts.sum(1) / counted
    deviation = np.sqrt(np.maximum(chosen @ np.square(parts).sum(1) / counted - mean**2, 0))
    inside = np.where(deviation > CONSTANT, mean / np.maximum(deviation, CONSTANT), 0.0)
    outside = inside[::-1]  # in their order the other half of the first is the last, and so on
    chosen_sharpe = np.take_along_axis(outside, inside.argmax(1)[:, None], axis=1)
    # tied strategies share their mean rank
    rank = (outside < chosen_sharpe).sum(1) + ((outside == chosen_sharpe).sum(1) + 1) / 2
    return float((rank <= (strategies + 1) / 2).mean())
