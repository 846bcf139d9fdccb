"""How much of a backtest's success is the choice of the best of many.

`deflated_sharpe_ratio` asks how likely the Sharpe ratio of the one that was chosen is above what the best of as many
without skill would show. `overfitting_probability` asks how often the one that is best on half of the days is below the
median on the other half.
"""

import math
from itertools import combinations
from statistics import NormalDist

import numpy as np
from jaxtyping import Float

from eigen2.errors import require_range

NORMAL = NormalDist()


def expected_best_sharpe(variance: float, trials: int) -> float:
    """Sharpe ratio that the best of independent trials without skill is expected to show.

    Bailey and Lopez de Prado, "The Deflated Sharpe Ratio", 2014, equation 1 (with a mean of 0), from the normal
    distribution's extremes.

    Args:
        variance: of the trials' Sharpe ratios.
        trials: how many there were (1 or more); of one, no best can be chosen, and 0 is expected.

    Returns:
        In the unit of the trials' ratios, a day or a year.
    """
    require_range("trials", trials, least=1)
    if trials == 1:
        return 0.0
    euler = float(np.euler_gamma)
    best = (1 - euler) * NORMAL.inv_cdf(1 - 1 / trials) + euler * NORMAL.inv_cdf(1 - 1 / (trials * math.e))
    return math.sqrt(variance) * best


def probabilistic_sharpe_ratio(
    sharpe: float, threshold: float, days: int, skewness: float = 0.0, kurtosis: float = 3.0
) -> float:
    """Probability that the true Sharpe ratio is above a threshold, given an estimate of it.

    Bailey and Lopez de Prado, "The Sharpe Ratio Efficient Frontier", 2012, equation 11.

    Args:
        sharpe: estimated from daily returns, not annualised.
        threshold: in the same unit.
        days: returns it was estimated from (2 or more).
        skewness: of the returns.
        kurtosis: of the returns; 3 is that of normal ones.
    """
    require_range("days", days, least=2)
    spread = 1 - skewness * sharpe + (kurtosis - 1) / 4 * sharpe**2
    # rounding may take it below 0 where returns have two values only
    return NORMAL.cdf((sharpe - threshold) * math.sqrt(days - 1) / math.sqrt(max(spread, 1e-12)))


def deflated_sharpe_ratio(
    returns: Float[np.ndarray, " days"], trials: int, trial_sharpes: Float[np.ndarray, " known"]
) -> float:
    """Probability that the true Sharpe ratio is above what the best of all trials would show without any skill.

    Bailey and Lopez de Prado, "The Deflated Sharpe Ratio", 2014, equation 2.

    Args:
        returns: daily, of the trial that was chosen (2 or more).
        trials: how many strategies were tried in all. They count as independent; those of a population are kin, so
            that the result is too strict rather than too kind.
        trial_sharpes: daily Sharpe ratios of those that are known, whose variance stands for that of all (2 or more).

    Returns:
        0 to 1; above 0.95 is a significant skill at the usual level. NaN where the returns do not vary.
    """
    mean, deviation = returns.mean(), returns.std(ddof=1)
    if not deviation > 0:
        return math.nan
    away = (returns - mean) / returns.std()
    threshold = expected_best_sharpe(float(trial_sharpes.var(ddof=1)), trials)
    skewness, kurtosis = float((away**3).mean()), float((away**4).mean())
    return probabilistic_sharpe_ratio(float(mean / deviation), threshold, len(returns), skewness, kurtosis)


def overfitting_logits(returns: Float[np.ndarray, "days strategies"], blocks: int = 16) -> Float[np.ndarray, " splits"]:
    """For each way to halve the blocks of days: the rank, in the other half, of the strategy that is best in the one.

    Combinatorially symmetric cross-validation (Bailey, Borwein, Lopez de Prado and Zhu, "The Probability of Backtest
    Overfitting", 2017, section 3): the rank among n strategies, divided by n + 1, as a logit. Best is the highest
    Sharpe ratio; ties go to the first.

    Args:
        returns: daily returns of each strategy on the same days (2 strategies or more).
        blocks: even number of blocks of consecutive days (2 to `days`); days left over at the end are not used.
    """
    days, strategies = returns.shape
    require_range("strategies", strategies, least=2)
    require_range("blocks", blocks, least=2, most=days)
    if blocks % 2:
        raise ValueError(f"blocks is {blocks}; it must be even")
    size = days // blocks
    parts = returns[: size * blocks].reshape(blocks, size, strategies)
    halves = np.array(list(combinations(range(blocks), blocks // 2)))
    chosen = np.zeros((len(halves), blocks))
    np.put_along_axis(chosen, halves, 1.0, axis=1)
    sums, squares = parts.sum(1), np.square(parts).sum(1)
    counted = size * blocks // 2

    def sharpe(weights: np.ndarray) -> np.ndarray:
        mean = weights @ sums / counted
        variance = weights @ squares / counted - mean**2
        ratio: np.ndarray = mean / np.sqrt(np.maximum(variance, 1e-300))
        return ratio

    best = sharpe(chosen).argmax(1)
    outside: np.ndarray = sharpe(1 - chosen)
    own = np.take_along_axis(outside, best[:, None], axis=1)
    # equal ones share their places, so that luck among them counts neither for nor against
    rank = (outside < own).sum(1) + ((outside == own).sum(1) + 1) / 2
    share = rank / (strategies + 1)
    logits: np.ndarray = np.log(share / (1 - share))
    return logits


def overfitting_probability(returns: Float[np.ndarray, "days strategies"], blocks: int = 16) -> float:
    """Share of the splits in which the strategy best in one half is at or below the median in the other.

    See `overfitting_logits`. About 0.5 means that the past of these strategies says nothing of their future order.
    """
    return float((overfitting_logits(returns, blocks) <= 0).mean())
