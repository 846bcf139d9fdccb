"""What to believe of a champion: its money on days that no fit has seen, beside rules, lots and its own kin."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Shaped

from eigen2.errors import UserError
from eigen2.market.evaluation import metrics, performance
from eigen2.market.evaluation.formatting import measure_word
from eigen2.market.evaluation.selection_bias import deflated_sharpe_ratio, overfitting_logits
from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.policies import buy_and_hold, momentum, random_baseline
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.simulate import Policy, Prices, Simulation, simulate
from eigen2.runtime.files import archive_other_test, move_into_place

RANDOM_POLICIES = 2000
"""Policies by lot that the champion is compared with."""
BLOCKS = 16
"""Blocks of days that cross-validation halves, as in its paper; fewer where there are not `BLOCK_DAYS` for each."""
BLOCK_DAYS = 5
MEASURES: dict[str, Callable[[], metrics.MarketMetric]] = {
    "total return": metrics.TotalReturn,
    "annual return": metrics.AnnualReturn,
    "Sharpe": metrics.SharpeRatio,
    "Sortino": metrics.SortinoRatio,
    "Calmar": metrics.CalmarRatio,
    "max drawdown": metrics.MaxDrawdown,
    "longest drawdown": metrics.LongestDrawdown,
    "alpha": metrics.Alpha,
    "beta": metrics.Beta,
    "turnover": metrics.Turnover,
    "exposure": metrics.Exposure,
    "hit rate": metrics.HitRate,
    "profit factor": metrics.ProfitFactor,
}
"""Each measure's name and what computes it; returns and drawdowns are shares, the longest drawdown is in days."""


@dataclass(frozen=True)
class Market:
    """What all policies play: prices of the columns that may be bought, what is allowed and costs, money, and the days.

    The first day is the one at whose close the first orders are given: the last that a fit may have seen.
    """

    prices: Prices
    rules: TradingRules
    account: AccountRules
    days: range
    dates: Shaped[np.ndarray, " days"]
    """Of all days of the prices."""


@dataclass(frozen=True)
class Backtest:
    """The champion on unseen days, and what it is measured by.

    Attributes:
        dates: of the closes of all tracks.
        tracks: by policy: champion, buy and hold, momentum, and `RANDOM_POLICIES` accounts that trade by lot.
        agents: daily returns of every agent of the population on the same days.
        tried: strategies whose fitness the run has looked at, champion and agents among them.
        generation: the champion's.
    """

    dates: Shaped[np.ndarray, " closes"]
    tracks: dict[str, Simulation]
    agents: Float[np.ndarray, "returns agents"]
    tried: int
    generation: int

    @property
    def champion(self) -> Simulation:
        """Its track."""
        return self.tracks["champion"]

    def luck(self) -> dict[str, float]:
        """Where the champion's money stands among that of the policies by lot.

        `p_value` is (1 + those that made as much or more) / (1 + all): how likely lots alone do as well (Davison and
        Hinkley, "Bootstrap Methods and their Application", 1997, section 4.2).
        """
        own, lots = (performance.total_return(self.tracks[name].equity) for name in ("champion", "random"))
        better = int((np.asarray(lots) >= np.asarray(own)).sum())
        count = np.size(lots)
        return {
            "policies": count,
            "p_value": (1 + better) / (1 + count),
            "percentile": 100 * float((np.asarray(lots) < np.asarray(own)).mean()),
            **{f"return_{share}": float(np.quantile(lots, share / 100)) for share in (5, 50, 95)},
        }

    def selection(self) -> dict[str, float]:
        """Whether the champion's success may be that of the best of many; see `selection_bias`."""
        mean, deviation = self.agents.mean(0), self.agents.std(0, ddof=1)
        varies = deviation > performance.LEAST_DEVIATION
        found = {
            "tried": self.tried,
            "agents": self.agents.shape[1],
            "deflated_sharpe": math.nan,
            "overfitting": math.nan,
        }
        if varies.sum() < 2:  # nothing to tell apart
            return found
        sharpes = mean[varies] / deviation[varies]
        found["deflated_sharpe"] = deflated_sharpe_ratio(self.champion.returns, self.tried, sharpes)
        blocks = min(BLOCKS, len(self.agents) // BLOCK_DAYS // 2 * 2)
        if blocks >= 2:
            logits = overfitting_logits(self.agents[:, varies], blocks)
            found["overfitting"] = float((logits <= 0).mean())
        return found

    def measures(self) -> dict[str, dict[str, float]]:
        """Of each policy but those by lot."""
        market = torch.from_numpy(self.tracks["buy and hold"].returns)
        return {name: measures(track, market) for name, track in self.tracks.items() if name != "random"}

    def summary(self) -> dict[str, Any]:
        """All of it as plain values; a number that does not exist is None."""
        first, last = str(self.dates[1])[:10], str(self.dates[-1])[:10]
        found = {
            "days": {"first": first, "last": last, "count": len(self.dates) - 1},
            "champion_generation": self.generation,
            "measures": self.measures(),
            "luck": self.luck(),
            "selection": self.selection(),
            "random_returns": np.sort(performance.total_return(self.tracks["random"].equity)).tolist(),
        }
        known: dict[str, Any] = _without_nan(found)
        return known

    def scalars(self) -> dict[str, float]:
        """What curves and tables of several runs compare, by full name."""
        named = {f"test/{name.replace(' ', '_').lower()}": value for name, value in self.measures()["champion"].items()}
        luck, selection = self.luck(), self.selection()
        return named | {
            "test/p_value": luck["p_value"],
            "test/deflated_sharpe": selection["deflated_sharpe"],
            "test/overfitting": selection["overfitting"],
        }

    def text(self) -> str:
        """All of it for a terminal of 80 columns."""
        summary = self.summary()
        names = list(summary["measures"])
        lines = [
            f"test         {summary['days']['first']} to {summary['days']['last']} "
            f"({summary['days']['count']} days), champion of generation {self.generation}",
            "",
            f"{'':<18}" + "".join(f"{name:>16}" for name in names),
        ]
        for measure in summary["measures"]["champion"]:
            values = [measure_word(measure, summary["measures"][name][measure]) for name in names]
            lines.append(f"{measure:<18}" + "".join(f"{value:>16}" for value in values))
        luck, selection = summary["luck"], summary["selection"]
        deflated, overfitting = (_share(selection[name]) for name in ("deflated_sharpe", "overfitting"))
        lines += [
            "",
            f"luck         better than {luck['percentile']:.1f} % of {luck['policies']:,} policies with its orders on",
            f"             random days and columns; p = {luck['p_value']:.4f}",
            f"selection    deflated Sharpe ratio {deflated} of {self.tried:,} agents tried;",
            f"             probability of backtest overfitting {overfitting}",
        ]
        return "\n".join(lines)

    def curves(self) -> pd.DataFrame:
        """Equity at each close by policy, of those by lot three quantiles, and the champion's exposure."""
        lots = np.quantile(self.tracks["random"].equity, (0.05, 0.5, 0.95), axis=0)
        columns = {name: track.equity[0] for name, track in self.tracks.items() if name != "random"}
        columns |= {f"random {share} %": curve for share, curve in zip((5, 50, 95), lots, strict=True)}
        columns["champion exposure"] = self.champion.exposure[0]
        return pd.DataFrame(columns, index=pd.Index(self.dates, name="date"))


def measures(track: Simulation, market: torch.Tensor) -> dict[str, float]:
    """Every one of `MEASURES` of a track's first account, and its number of trades.

    Args:
        track: of one account.
        market: (days,) daily returns of the benchmark.
    """
    equity, exposure = torch.tensor(track.equity[0]), torch.tensor(track.exposure[0])
    traded = torch.zeros_like(equity)
    traded[-1] = float(track.traded[0])
    series = {
        "returns": torch.from_numpy(track.returns),
        "benchmark": market,
        "equity": equity,
        "exposure": exposure,
        "traded": traded,
        "gains": torch.tensor(track.gains),
    }
    found = {"trades": float(track.trades[0])}
    for name, make in MEASURES.items():
        metric = make()
        metric.update(*(series[each] for each in metric.names))
        found[name] = float(metric.compute())
    return found


def backtest(
    market: Market,
    champion: Policy,
    agents: list[Policy],
    tried: int,
    generation: int,
    chance: np.random.Generator,
    policies: int = RANDOM_POLICIES,
) -> Backtest:
    """Play champion, rules, lots and agents on the same days with the same money and costs.

    Args:
        market: what they play.
        champion: what is to be judged.
        agents: the population it came from, as it is at its end.
        tried: strategies that the run has looked at.
        generation: the champion's.
        chance: draws the lots.
        policies: how many trade by lot.

    Raises:
        UserError: there are fewer than two days after the first.
    """
    prices, rules, account, days = market.prices, market.rules, market.account, market.days
    if len(days) < 3:
        raise UserError(f"data.holdout_days is {len(days) - 1}; a test needs at least 2 days that fit has not seen")
    played = simulate(prices, rules, account, days, champion)
    lots = random_baseline(prices, rules, played.orders, days, policies, chance)
    tracks = {
        "champion": played,
        "buy and hold": buy_and_hold(prices, rules, account, days),
        "momentum": simulate(prices, rules, account, days, momentum(prices, rules)),
        "random": simulate(prices, rules, account, days, lots, policies),
    }
    kin = [simulate(prices, rules, account, days, agent).returns for agent in agents]
    return Backtest(market.dates[days.start : days.stop], tracks, np.stack(kin, axis=1), tried, generation)


def write(found: Backtest, trades: pd.DataFrame, folder: Path, settings: Mapping[str, Any]) -> None:
    """Put `summary.json`, `equity.csv` and `trades.csv` into a folder, each whole or not at all.

    Args:
        found: what to write.
        trades: the champion's, with names and dates.
        folder: made if it is not there; a test with other settings or of another champion that lies in it is moved
            beside it, as `test-1`, `test-2`, ...
        settings: by full key, what was tested with.
    """
    summary = {**found.summary(), "settings": dict(settings)}
    text = json.dumps(summary, indent=1, allow_nan=False) + "\n"
    archive_other_test(folder / "summary.json", json.loads(text), ("settings", "champion_generation", "days"))
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"equity.csv": found.curves().to_csv(), "trades.csv": trades.to_csv(index=False), "summary.json": text}
    for name, text in texts.items():
        (folder / f".{name}").write_text(text)
        move_into_place(folder / f".{name}", folder / name)


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(part) for name, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
