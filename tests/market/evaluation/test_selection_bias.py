"""Luck in the choice of the best, against the papers' worked examples and against markets of known skill."""

import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize, stats

from eigen2.market.evaluation.selection_bias import (
    deflated_sharpe_ratio,
    expected_best_sharpe,
    overfitting_probability,
    probabilistic_sharpe_ratio,
)

DAY = 1 / math.sqrt(250)
ROOT = Path(__file__).parents[3]


def test_how_high_a_sharpe_ratio_the_page_asks_for() -> None:
    """Of 400 independent agents without skill, at a deflated Sharpe ratio of 0.95."""
    for days, sharpe in ((252, 4.7), (504, 3.3), (1000, 2.3)):
        threshold = expected_best_sharpe(1 / (days - 1), 400)
        found = optimize.brentq(
            lambda a_year, days=days, threshold=threshold: (
                probabilistic_sharpe_ratio(a_year / math.sqrt(252), threshold, days) - 0.95
            ),
            0,
            20,
        )
        assert found == pytest.approx(sharpe, abs=0.05)
    text = " ".join((ROOT / "docs" / "backtest.md").read_text().split())
    assert "takes a Sharpe ratio of 4.7 a year on 252 days, of 3.3 on 504 and of 2.3 on 1,000" in text


def test_interest_alone_shows_no_skill() -> None:
    """Daily returns of an account that trades nothing vary by rounding, so their Sharpe ratio would be huge."""
    equity = 100_000 * (1 + 0.02 / 252) ** np.arange(252)
    returns = equity[1:] / equity[:-1] - 1
    assert 0 < returns.std() < 1e-15
    assert math.isnan(deflated_sharpe_ratio(returns, 400, np.array([0.1, 0.2])))


def test_the_worked_example_of_the_deflated_sharpe_ratio() -> None:
    """Its numerical example: 1,250 days, Sharpe 2.5 a year, skewness -3, kurtosis 10, trials of variance 1/2."""
    threshold = expected_best_sharpe(0.5 / 250, 100)
    assert threshold == pytest.approx(0.1132, abs=5e-5)
    assert probabilistic_sharpe_ratio(2.5 * DAY, threshold, 1250, -3, 10) == pytest.approx(0.9004, abs=5e-5)
    fewer = expected_best_sharpe(0.5 / 250, 46)
    assert probabilistic_sharpe_ratio(2.5 * DAY, fewer, 1250, -3, 10) == pytest.approx(0.9505, abs=5e-5)
    normal = expected_best_sharpe(0.5 / 250, 88)
    assert probabilistic_sharpe_ratio(2.5 * DAY, normal, 1250) == pytest.approx(0.9505, abs=5e-4)


def test_the_best_of_many_is_expected_where_simulations_find_it() -> None:
    drawn = np.random.default_rng(0).normal(0, 0.3, (20_000, 50)).max(1).mean()
    assert expected_best_sharpe(0.09, 50) == pytest.approx(drawn, rel=0.02)
    assert expected_best_sharpe(0.09, 1) == 0


def test_moments_are_those_of_scipy() -> None:
    returns = np.random.default_rng(1).standard_t(5, 300) * 0.01 + 0.001
    sharpes = np.array([0.11, 0.13, -0.12])
    sharpe = returns.mean() / returns.std(ddof=1)
    expected = probabilistic_sharpe_ratio(
        sharpe,
        expected_best_sharpe(sharpes.var(ddof=1), 40),
        300,
        stats.skew(returns),
        stats.kurtosis(returns, fisher=False),
    )
    assert deflated_sharpe_ratio(returns, 40, sharpes) == pytest.approx(expected)
    assert math.isnan(deflated_sharpe_ratio(np.zeros(9), 40, sharpes))
    alike = probabilistic_sharpe_ratio(
        sharpe,
        expected_best_sharpe(1 / 299, 40),
        300,
        stats.skew(returns),
        stats.kurtosis(returns, fisher=False),
    )
    assert deflated_sharpe_ratio(returns, 40, sharpes[:2] * 1e-3) == pytest.approx(alike)
    assert deflated_sharpe_ratio(returns, 40, sharpes[:1]) == pytest.approx(alike), "of one agent"


def test_the_best_of_noise_is_significant_as_often_as_promised() -> None:
    chance = np.random.default_rng(2)
    found = []
    for _ in range(400):
        returns = chance.normal(0, 0.01, (250, 30))
        sharpes = returns.mean(0) / returns.std(0, ddof=1)
        found.append(deflated_sharpe_ratio(returns[:, sharpes.argmax()], 30, sharpes))
    assert np.mean(np.array(found) > 0.95) < 0.08


def by_loops(returns: np.ndarray, blocks: int) -> float:
    """Follow the paper's five steps as they stand there."""
    size, logits = len(returns) // blocks, []
    parts = [returns[i * size : (i + 1) * size] for i in range(blocks)]
    for inside in combinations(range(blocks), blocks // 2):
        half = np.concatenate([parts[i] for i in inside])
        other = np.concatenate([parts[i] for i in range(blocks) if i not in inside])
        best = (half.mean(0) / half.std(0)).argmax()
        rank = stats.rankdata(other.mean(0) / other.std(0))[best] / (returns.shape[1] + 1)
        logits.append(math.log(rank / (1 - rank)))
    return float(np.mean(np.array(logits) <= 0))


@pytest.mark.parametrize("blocks", [2, 4, 8])
@pytest.mark.parametrize("strategies", [2, 7])
def test_cross_validation_equals_the_steps_of_the_paper(blocks: int, strategies: int) -> None:
    for seed in range(4):
        returns = np.random.default_rng(seed).normal(0.0005, 0.01, (83, strategies))
        assert overfitting_probability(returns, blocks) == by_loops(returns, blocks)


def test_one_with_skill_among_noise_is_no_overfitting() -> None:
    """The paper's second test case: a Sharpe ratio of 1 and more among 0."""
    returns = np.random.default_rng(5).normal(0, 0.01, (1000, 50))
    returns[:, 7] += 0.003
    assert overfitting_probability(returns) < 0.01


def test_strategies_of_equal_mean_overfit_fully() -> None:
    """The paper's first test case: who gained more in one half gained less in the other."""
    returns = np.random.default_rng(6).normal(0, 0.01, (1000, 50))
    returns -= returns.mean(0)
    assert overfitting_probability(returns) > 0.95


def test_the_same_return_every_day_is_no_infinite_sharpe_ratio() -> None:
    """An idle account earns the same interest every day; its deviation is that of rounding."""
    returns = np.random.default_rng(6).normal(0.0005, 0.01, (320, 2))
    idle, zero = returns * [1, 0] + [0, 0.0002], returns * [1, 0]
    assert overfitting_probability(idle) == overfitting_probability(zero) > 0


def test_an_odd_number_of_blocks_or_one_strategy_is_refused() -> None:
    for strategies, blocks in ((3, 5), (1, 4), (3, 22)):
        with pytest.raises(ValueError, match=f"{strategies} strategies, {blocks} blocks of 20 days"):
            overfitting_probability(np.zeros((20, strategies)), blocks)
