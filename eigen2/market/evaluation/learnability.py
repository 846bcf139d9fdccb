"""Whether ridge regression or boosted trees find anything in prices, before agents train (`data learnability`)."""

import textwrap
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from eigen2.market.data.panel import MarketPanel
from eigen2.market.data.panel_rows import MEMBER
from eigen2.market.data.source import CLOSE
from eigen2.market.data.splits import describe_days
from eigen2.market.evaluation.information import HORIZONS, Information, forward_returns, information, rank_ic
from eigen2.market.evaluation.rankers import fit_rankers
from eigen2.market.features.boosting import HAS_LIGHTGBM
from eigen2.market.features.encoding import AverageEncoder
from eigen2.market.simulation.bars import last_valid
from eigen2.market.simulation.simulate import Prices

SHUFFLES = 99
SIGNIFICANT = 0.05  # p-value below which a ranker counts as better than chance
UNKNOWN = "-: all scores or all returns are equal (opens are closes: 1 day earns nothing)"


@dataclass(frozen=True)
class Finding:
    """What a ranker finds on the holdout, beside what the same forecasts find on shuffled prices."""

    ranker: str
    information: Information
    shuffled: Float[np.ndarray, " shuffles"]  # mean Rank IC on each
    p: float
    """Probability of so much by luck in any of the findings: the larger of two p-values, one of the shuffles (the
    largest of all findings, Westfall and Young, 1993), one of the t-statistic (times the findings)."""

    @property
    def row(self) -> str:
        """Return the finding as a line of the table, with dashes where the Rank IC is not known."""
        own = self.information
        start = f"{self.ranker:<12}{own.horizon:>4} day{'s' if own.horizon > 1 else ' '}"
        if not len(own.known):
            return f"{start}{'-':>9}{'-':>8}{'-':>7}{'-':>19}{'-':>9}"
        low, high = (f"{np.percentile(self.shuffled, percent):.3f}" for percent in (5, 95))
        return f"{start}{own.mean:>9.4f}{own.icir:>8.2f}{own.t:>7.2f}{f'{low} to {high}':>19}{self.p:>9.3f}"


def shuffle_columns(prices: Prices, rng: np.random.Generator) -> Prices:
    """Return prices with each day's moves dealt to the columns at random: only what all columns have in common is left.

    A move is a bar relative to the column's last close. Columns trade on their own days, and start at 1; membership
    stays as it is.
    """
    prices, more = prices[..., :MEMBER], prices[..., MEMBER:]
    close = prices[..., CLOSE].astype(np.float64)
    before = np.vstack([np.zeros_like(close[:1]), last_valid(close)[:-1]])[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        moves = np.where(before > 0, np.log(prices / before), np.nan)
    known = np.isfinite(moves[..., CLOSE])
    drawn = np.where(known, rng.random(known.shape), np.inf).argsort(1)
    dealt = np.empty_like(moves)
    np.put_along_axis(dealt, (~known).argsort(1, kind="stable")[..., None], _take(moves, drawn), axis=1)
    level = np.nan_to_num(dealt[..., CLOSE]).cumsum(0)
    first = (close > 0) & ~known  # no move, as there is no earlier close
    start = np.vstack([np.zeros_like(level[:1]), level[:-1]])[..., None] + np.where(first[..., None], 0, dealt)
    bars = np.where(np.isnan(prices), np.nan, np.exp(start)).astype(np.float32)
    return np.concatenate([bars, more], axis=-1)


def _take(moves: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return np.take_along_axis(moves, columns[..., None], axis=1)


def find(encoder: AverageEncoder, panel: MarketPanel, rng: np.random.Generator) -> list[Finding]:
    """Fit rankers to the training days for each horizon, and score them on the holdout and on shuffles of it."""
    days, rules = panel.splits.holdout, encoder.episode.rules
    prices = panel.prices[:, encoder.investable]
    scores = {
        (name, horizon): each
        for horizon in HORIZONS
        for name, each in fit_rankers(encoder, panel, horizon, days).items()
    }
    own = {key: information(each, prices, rules, days, key[1:])[key[1]] for key, each in scores.items()}
    chance = np.zeros((SHUFFLES, len(scores)))
    for means in chance:
        shuffled = shuffle_columns(prices[days.start :], rng)
        returns = {horizon: forward_returns(shuffled, rules, horizon) for horizon in HORIZONS}
        for i, ((_, horizon), each) in enumerate(scores.items()):
            means[i] = Information(horizon, rank_ic(each[days.start :], returns[horizon]), 1.0).mean
    chance = np.nan_to_num(chance)
    tries = sum(len(each.known) > 0 for each in own.values())
    p = np.maximum(
        luck(np.nan_to_num([each.mean for each in own.values()]), chance),
        np.nan_to_num([tries * each.p for each in own.values()], nan=1.0).clip(max=1),
    )
    return [Finding(name, own[name, horizon], chance[:, i], p[i]) for i, (name, horizon) in enumerate(own)]


def luck(
    means: Float[np.ndarray, " findings"], chance: Float[np.ndarray, "shuffles findings"]
) -> Float[np.ndarray, " findings"]:
    """Return how often a shuffle's largest finding is as large as each, in deviations from the mean of shuffles."""
    deviation = chance.std(0)
    deviation = np.where(deviation > 0, deviation, 1)
    largest = ((chance - chance.mean(0)) / deviation).max(1)
    own = (means - chance.mean(0)) / deviation
    return (1 + (largest[:, None] >= own).sum(0)) / (1 + len(chance))


def describe(findings: list[Finding], panel: MarketPanel, columns: int) -> str:
    """Return the findings as a table of 80 columns, and what they mean."""
    splits, dates = panel.splits, panel.dates
    heading = f"{'':<12}{'horizon':>9}{'Rank IC':>9}{'ICIR':>8}{'t':>7}{'90 % of shuffles':>19}{'p':>9}"
    lines = [
        f"columns      {columns:,}",
        f"trained on   {describe_days(splits.train, dates)}",
        f"scored on    {describe_days([splits.holdout], dates)}",
        *(() if HAS_LIGHTGBM else ("left out     LightGBM: install the extra baselines",)),
        *("", heading, *(finding.row for finding in findings), ""),
        *([UNKNOWN, ""] if any(not len(finding.information.known) for finding in findings) else ()),
    ]
    return "\n".join([*lines, textwrap.fill(verdict(findings), 79)])


def verdict(findings: list[Finding]) -> str:
    """Return what the findings mean, in a sentence or two."""
    best = min(findings, key=lambda finding: finding.p)
    tries = sum(len(finding.information.known) > 0 for finding in findings)
    tried = f"p = {best.p:.3f}, which counts all {tries} tries"
    if best.p < SIGNIFICANT:
        horizon = best.information.horizon
        return (
            f"There is something to learn: {best.ranker} ranks the columns better than chance, most surely over "
            f"{horizon} day{'s' * (horizon > 1)} ({tried}). Agents have to find more than that, net of costs."
        )
    return (
        f"Nothing found: no ranker ranks the columns better than chance ({tried}). What agents find here is likely "
        "luck; bring more columns, days or features before a long training."
    )
