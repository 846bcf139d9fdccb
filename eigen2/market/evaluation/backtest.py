"""Backtest of a champion on unseen days, beside simple and random policies and its population."""

import json
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Float32, Shaped

from eigen2.errors import UserError
from eigen2.files import Folder, archive_other_test, writing
from eigen2.market.data.panel_rows import MEMBER
from eigen2.market.evaluation.information import HORIZONS, Information, Scores, information
from eigen2.market.evaluation.robustness import COSTS_BPS, Contender, Leak, Robustness, robustness
from eigen2.market.evaluation.selection_bias import deflated_sharpe_ratio, overfitting_probability
from eigen2.market.features.boosting import HAS_LIGHTGBM
from eigen2.market.intervals import LEVEL, Interval, over_days, over_trainings
from eigen2.market.performance import (
    MEASURES,
    MIN_DEVIATION,
    YEAR,
    format_measure,
    growth_beyond,
    mean_exposure,
    measure_all,
    overlapping_t,
    overlapping_tail,
    total_return,
)
from eigen2.market.simulation.account import AccountRules, Capacity
from eigen2.market.simulation.policies import (
    HAS_SCIKIT_LEARN,
    best_of_rank,
    buy_and_hold,
    equal_weights,
    minimum_variance,
    momentum,
    monthly,
)
from eigen2.market.simulation.random_policies import random_baseline
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.simulate import Policy, Prices, Simulation, preferences, simulate
from eigen2.market.spreadsheets import without_formulas

RANDOM_POLICIES = 2000  # policies of the random baseline
BLOCKS, LEAST_BLOCK_DAYS = 16, 5  # of the cross-validation, as in its paper; fewer blocks if they were shorter
BUY_AND_HOLD, BENCHMARK, EQUAL, ENSEMBLE = "buy and hold", "benchmark", "1/N", "ensemble"
VERDICT_DRAWS = 2000  # of the bootstrap interval in the verdict
DETAILED = ("champion", BUY_AND_HOLD, BENCHMARK, "momentum")  # policies with all measures on a terminal
COMPARED = "champion", EQUAL
BRIEF = ("total return", "Sharpe", "max drawdown", "turnover", "alpha p")  # measures of the others there
PERCENTILES = (5, 50, 95)  # reported of the random baseline


@dataclass(frozen=True)
class Market:
    """Prices of the investable columns, rules, costs and money, the same for all policies.

    The first orders are given at the close of the first of `days`, which is the last that a fit may have seen. A
    UserError refuses fewer than two days after it.
    """

    prices: Prices
    rules: TradingRules
    account: AccountRules
    days: range
    dates: Shaped[np.ndarray, " days"]  # dates of all days of the prices
    benchmark: tuple[str, Float32[np.ndarray, "days 1 4"]] | None = None  # ticker and prices
    survivors: str | None = None  # how many tickers trade to the end, if prices are real
    capacity: Capacity = None  # most money that an order puts into each column
    scores: Mapping[str, Scores] = field(default_factory=dict)  # of the columns, by ranker

    def __post_init__(self) -> None:
        if (traded := len(self.days) - 1) < 2:
            raise UserError(
                f"the holdout has {traded} days; a test needs at least 2: raise data.holdout_days or give an earlier "
                "data.holdout_from"
            )


@dataclass(frozen=True)
class Backtest:
    """The champion on unseen days, and the policies that it is compared with."""

    dates: Shaped[np.ndarray, " closes"]
    simulations: dict[str, Simulation]  # champion, baselines, and the accounts of the random baseline
    agents: Float[np.ndarray, "returns agents"]  # daily returns of the population on the same days
    tried: int  # strategies that the run has evaluated, champion and agents among them
    generation: int  # generation of the champion
    information: dict[str, dict[int, Information]]  # Rank IC of champion and rankers, by horizon
    excess: Interval  # the champion's growth beyond 1/N: mean daily difference of log returns x 252
    holding_days: int  # for which a decision holds
    trainings: Float[np.ndarray, " trainings"]
    """`excess` of the champion and of those of trainings with other seeds."""
    checks: Robustness | None = None
    benchmark: str | None = None  # ticker that is bought and held beside the investable columns
    survivors: str | None = None  # how many tickers trade to the end, if prices are real
    risk_free: float = 0.0  # daily return of cash

    @property
    def champion(self) -> Simulation:
        """Return the champion's simulation."""
        return self.simulations["champion"]

    @cached_property
    def luck(self) -> dict[str, float]:
        """Compare the champion's total return with the random baseline's; p as in Davison and Hinkley, 1997, 4.2."""
        champion, random = (np.asarray(total_return(self.simulations[name].equity)) for name in ("champion", "random"))
        exposures = (self.simulations[name] for name in ("champion", "random"))
        own, theirs = (float(np.mean(mean_exposure(each.equity, each.exposure))) for each in exposures)
        return {
            "policies": random.size,
            "p_value": (1 + int((random >= champion).sum())) / (1 + random.size),
            "percentile": 100 * float((random < champion).mean()),
            "exposure": own,
            "random_exposure": theirs,
            **{f"return_{percent}": float(np.percentile(random, percent)) for percent in PERCENTILES},
        }

    @cached_property
    def selection(self) -> dict[str, float]:
        """Estimate how likely the champion's success comes from choosing the best of many; see `selection_bias`."""
        agents = self.agents[:, self.agents.std(0, ddof=1) > MIN_DEVIATION] - self.risk_free
        sharpes = agents.mean(0) / agents.std(0, ddof=1)
        deflated = deflated_sharpe_ratio(self.champion.returns - self.risk_free, self.tried, sharpes)
        blocks, overfitting = min(BLOCKS, len(agents) // LEAST_BLOCK_DAYS // 2 * 2), math.nan
        if blocks >= 2 and len(sharpes) > 1:  # else there is nothing to compare
            overfitting = overfitting_probability(agents, blocks)
        counts = {"tried": self.tried, "agents": self.agents.shape[1]}
        return {**counts, "deflated_sharpe": deflated, "overfitting": overfitting}

    @cached_property
    def measures(self) -> dict[str, dict[str, float]]:
        """Return all `performance.MEASURES` of each policy except the random baseline, against the benchmark."""
        market = self.simulations[BUY_AND_HOLD if self.benchmark is None else BENCHMARK].returns
        return {
            name: measure_all(
                each.returns,
                market,
                self.risk_free,
                equity=each.equity[0],
                exposure=each.exposure[0],
                traded=each.traded.sum(),
                gains=each.closed[each.closed["shares"] != 0]["profit"].to_numpy(np.float64),
            )
            | ({"trades": math.nan} if each.by_weights else {})
            for name, each in self.simulations.items()
            if name != "random"
        }

    @property
    def verdict(self) -> str:
        """Return in words what the champion earned beside 1/N, how it ranks beside ridge, and the part of luck."""
        champion, equal = (format_measure("total return", self.measures[name]["total return"]) for name in COMPARED)
        mean, low, high = _percent(self.excess)
        deflated = self.selection["deflated_sharpe"]
        skill = "unknown" if math.isnan(deflated) else f"{deflated:.2f}"
        leak = self.checks and self.checks.leak
        warning = f"{leak.text[0].upper()}{leak.text[1:]}. " if leak and leak.decision else ""
        return (
            f"{warning}Net of costs the champion earned {champion} in {len(self.dates) - 1} days, equal parts of all "
            f"columns (1/N) {equal}: {mean:+.1f} % a year beyond it, with a 95 % interval from {low:+.1f} to "
            f"{high:+.1f}{self._trainings()}. {self._ranking()} "
            f"By luck, its decisions in random columns earn as much with p = {self.luck['p_value']:.3f}; the "
            f"probability that its true Sharpe ratio is above that of the luckiest of {self.tried:,} agents without "
            f"skill is {skill}."
        )

    def _trainings(self) -> str:
        """Return what champions of several seeds earned beside 1/N; nothing if there is only one."""
        if len(self.trainings) < 2:
            return ""
        mean, low, high = _percent(over_trainings(self.trainings))
        return (
            f" over days, and {len(self.trainings)} trainings with different seeds {mean:+.1f} on average, from "
            f"{low:+.1f} to {high:+.1f}"
        )

    def _ranking(self) -> str:
        """Return how the champion ranks beside ridge, over the horizon nearest to the days for which it decides."""
        horizon = min(HORIZONS, key=lambda days: abs(days - self.holding_days))
        own, ridge = (self.information.get(name, {}).get(horizon) for name in ("champion", "ridge"))
        difference = np.zeros(0) if own is None or ridge is None else own.daily - ridge.daily
        known = difference[np.isfinite(difference)]
        if own is None or ridge is None or len(known) < 2 * horizon:
            return "How well it ranks the columns was not compared with a ridge regression."
        # an actor that has learned nothing ranks as the ridge regression that it starts from
        t = np.nan_to_num(overlapping_t(known, horizon))
        chance = 2 * overlapping_tail(abs(t), len(known), horizon) >= 1 - LEVEL
        found = "no better and no worse than" if chance else "better than" if t > 0 else "worse than"
        return (
            f"It ranks the columns {found} a ridge regression: Rank IC {own.mean:.3f} and {ridge.mean:.3f} over "
            f"{horizon} day{'s' * (horizon > 1)}, t {t:.1f} of the difference."
        )

    def summary(self) -> dict[str, Any]:
        """Return all results as plain values, None for NaN."""
        first, last = str(self.dates[1])[:10], str(self.dates[-1])[:10]
        values = json.dumps(
            {
                "days": {"first": first, "last": last, "count": len(self.dates) - 1},
                "champion_generation": self.generation,
                "verdict": self.verdict,
                "benchmark": self.benchmark,
                "survivors": self.survivors,
                "trainings": self.trainings.tolist(),
                "checks": None if self.checks is None else self.checks.summary(),
                "unfunded": self.champion.unfunded,
                "measures": self.measures,
                "luck": self.luck,
                "selection": self.selection,
                "information": {
                    name: {str(horizon): each.summary(self.dates) for horizon, each in horizons.items()}
                    for name, horizons in self.information.items()
                },
                "random_returns": np.sort(total_return(self.simulations["random"].equity)).tolist(),
            }
        )
        return json.loads(values, parse_constant=lambda _: None)

    def scalars(self) -> dict[str, float]:
        """Return the results to log, by full name."""
        values = {**self.measures["champion"], "p_value": self.luck["p_value"]}
        values |= {name: self.selection[name] for name in ("deflated_sharpe", "overfitting")}
        values |= {f"rank_ic_{horizon}": each.mean for horizon, each in self.information["champion"].items()}
        return {f"test/{name.replace(' ', '_').lower()}": value for name, value in values.items()}

    def text(self) -> str:
        """Return all results for a terminal of 80 columns."""
        summary = self.summary()
        days, policies, luck, selection = (summary[name] for name in ("days", "measures", "luck", "selection"))
        detailed = [name for name in DETAILED if name in policies]
        rows = [["", *detailed]] + [
            [name, *(format_measure(name, policies[own][name]) for own in detailed)] for name in MEASURES
        ]
        deflated, overfitting = (
            "unknown" if selection[name] is None else f"{selection[name]:.2f}"
            for name in ("deflated_sharpe", "overfitting")
        )
        table = _table(rows, min(16, 62 // len(detailed)))
        brief = [["", *(measure.removeprefix("max ") for measure in BRIEF)]] + [
            [name, *(format_measure(measure, own[measure]) for measure in BRIEF)]
            for name, own in policies.items()
            if name not in detailed
        ]
        ranked = [["Rank IC", *(f"{horizon} day{'s' * (horizon > 1)}" for horizon in HORIZONS)]] + [
            [name, *(_mean_and_t(each) for each in horizons.values())] for name, horizons in self.information.items()
        ]
        count = self.champion.unfunded
        notes = {
            "orders": f"{count:,} could not be paid for" if count else None,
            "benchmark": self.benchmark and f"{self.benchmark}: alpha, beta and information ratio are against it",
            "survivors": self.survivors,
            "trainings": self._each_training(),
            "future": self.checks and self.checks.leak.text,
            "left out": _left_out(),
        }
        lines = "".join(
            "\n" + textwrap.fill(text, 78, initial_indent=f"{name:<13}", subsequent_indent=" " * 13)
            for name, text in notes.items()
            if text
        )
        return f"""\
test         {days["first"]} to {days["last"]} ({days["count"]} days), champion of generation {self.generation}

{textwrap.fill(self.verdict, 78)}

{table}

{_table(brief, 12)}

{_table(ranked, 18)}
{self._robustness()}
luck         better than {luck["percentile"]:.1f} % of {luck["policies"]:,} policies with its
             decisions in random columns; p = {luck["p_value"]:.4f}
             exposure {100 * luck["exposure"]:.1f} %, of random ones {100 * luck["random_exposure"]:.1f} %
selection    deflated Sharpe ratio {deflated} of {self.tried:,} agents tried;
             probability of backtest overfitting {overfitting}{lines}"""

    def _each_training(self) -> str | None:
        """Return what each of several trainings earned beyond 1/N, and their ensemble; None if there is only one."""
        if len(self.trainings) < 2:
            return None
        ensemble = growth_beyond(self.simulations[ENSEMBLE].returns, self.simulations[EQUAL].returns).mean()
        *own, together = (f"{value:+.1f}" for value in _percent([*self.trainings, ensemble]))
        return f"% a year beyond 1/N by seed: {', '.join(own)}; their ensemble {together}"

    def _robustness(self) -> str:
        """Return returns at other costs and a day later as a table below a blank line; nothing if not checked."""
        if self.checks is None:
            return ""
        costs, lagged = self.checks.costs, self.checks.lagged
        rows = [["return a year", *(f"{cost:g} bp" for cost in COSTS_BPS), "a day late"]] + [
            [name, *(format_measure("annual return", value) for value in (*costs[name].values(), lagged[name]))]
            for name in costs
        ]
        return f"\n{_table(rows, 13)}\n"

    def rank_ic(self) -> pd.DataFrame:
        """Return the Rank IC of each day, a column for each of `information` and horizon in days."""
        columns = {
            f"{name} {horizon}": each.daily
            for name, horizons in self.information.items()
            for horizon, each in horizons.items()
        }
        return pd.DataFrame(columns, index=pd.Index(self.dates, name="date"))

    def curves(self) -> pd.DataFrame:
        """Return each policy's equity at each close, percentiles of the random baseline's, the champion's exposure."""
        columns = {name: each.equity[0] for name, each in self.simulations.items() if name != "random"}
        random = np.percentile(self.simulations["random"].equity, PERCENTILES, axis=0)
        columns |= {f"random {percent} %": curve for percent, curve in zip(PERCENTILES, random, strict=True)}
        columns["champion exposure"] = self.champion.exposure[0]
        return pd.DataFrame(columns, index=pd.Index(self.dates, name="date"))


def _mean_and_t(found: Information) -> str:
    mean = f"{found.mean:.4f}" if len(found.known) else "-"
    return f"{mean} (t {found.t:.1f})" if np.isfinite(found.t) else mean


def _table(rows: list[list[str]], width: int) -> str:
    """Return rows as lines of a terminal; all cells but the first are `width` wide."""
    return "\n".join(f"{name:<18}" + "".join(f"{value:>{width}}" for value in values) for name, *values in rows)


def backtest(
    market: Market,
    champion: Policy,
    agents: list[Policy],
    tried: int,
    generation: int,
    rng: np.random.Generator,
    policies: int = RANDOM_POLICIES,
    others: Sequence[Policy] = (),
    ensemble: Policy | None = None,
    leak: Leak | None = None,
) -> Backtest:
    """Simulate champion, baselines and agents on the same days with the same money and costs.

    `agents` are the population of the checkpoint, `others` the champions of trainings with other seeds, `ensemble` the
    mean of champion and others. With a `leak`, what `find_leak` found, the backtest is repeated at other costs and a
    day late. Raises UserError where there is nothing to buy and hold.
    """
    prices, rules, account, days = market.prices, market.rules, market.account, market.days
    contenders = _contenders(market, champion, ensemble)

    def play(contender: Contender, accounts: int = 1) -> Simulation:
        policy, own_rules, own_account = contender
        return simulate(prices, own_rules, own_account, days, policy, accounts, market.capacity)

    simulated = {name: play(contender) for name, contender in contenders.items()}
    random = random_baseline(prices, rules, account, simulated["champion"], days, policies, rng, market.capacity)
    ticker, benchmark = market.benchmark or (None, None)
    simulations = {
        "champion": simulated.pop("champion"),
        **({} if ensemble is None else {ENSEMBLE: simulated.pop(ENSEMBLE)}),
        BUY_AND_HOLD: _hold(market, "every investable ticker", prices, market.capacity),
        **({} if benchmark is None else {BENCHMARK: _hold(market, f"data.benchmark {ticker}", benchmark)}),
        **simulated,
        "random": play(Contender(random, rules, account), policies),
    }
    returns = [play(Contender(agent, rules, account)).returns for agent in (*agents, *others)]
    deciders = [(name, contenders[name].policy) for name in ("champion", ENSEMBLE) if name in contenders]
    own_scores = {name: preferences(prices, rules, account, days, each) for name, each in deciders}
    scores = {**own_scores, **market.scores}
    champions = [simulations["champion"].returns, *returns[len(agents) :]]
    differences = [growth_beyond(each, simulations[EQUAL].returns) for each in champions]
    return Backtest(
        dates=market.dates[days.start : days.stop],
        simulations=simulations,
        agents=np.stack(returns[: len(agents)], axis=1),
        tried=tried,
        generation=generation,
        information={name: information(each, prices, rules, days) for name, each in scores.items()},
        excess=over_days(differences[0], rng, VERDICT_DRAWS, rules.holding_days),
        holding_days=rules.holding_days,
        trainings=np.array([each.mean() for each in differences]),
        checks=None if leak is None else robustness(contenders, play, leak),
        benchmark=ticker,
        survivors=market.survivors,
        risk_free=account.cash_rate_pct / (100 * YEAR),
    )


def _percent(log_growth: Iterable[float]) -> list[float]:
    """Return yearly log growth as percent: that of one account over another's where it is a difference."""
    return [100 * math.expm1(value) for value in log_growth]


def _hold(market: Market, what: str, bought: Prices, capacity: Capacity = None) -> Simulation:
    """Buy and hold some columns; a UserError says `what` they are and which prices they lack."""
    days = market.days
    try:
        return buy_and_hold(bought, market.rules, market.account, days, capacity)
    except UserError as error:
        ordered, filled = (str(market.dates[day])[:10] for day in (days.start, days.start + 1))
        lacking = f"the close of {ordered}" + f" or the open of {filled}" * (market.rules.execution == "next_open")
        member = ", or is no member then" * (bought.shape[-1] > MEMBER)
        raise UserError(
            f"{what} lacks {lacking}, by which the test begins{member}: add it, or set data.holdout_from to another day"
        ) from error


def _left_out() -> str | None:
    """Return which baselines lack their library, and the extra that has it; None if none does."""
    found = {"LightGBM": HAS_LIGHTGBM, "minimum variance": HAS_SCIKIT_LEARN}
    missing = [name for name, is_found in found.items() if not is_found]
    return f"{' and '.join(missing)}: install the extra baselines" if missing else None


def _contenders(market: Market, champion: Policy, ensemble: Policy | None) -> dict[str, Contender]:
    """Return the champion, the ensemble, if there is one, and the baselines that are policies."""
    prices, rules, account = market.prices, market.rules, market.account
    rebalanced = monthly(rules), replace(account, max_leverage=1.0)  # unlevered, as buy and hold
    return {
        "champion": Contender(champion, rules, account),
        **({} if ensemble is None else {ENSEMBLE: Contender(ensemble, rules, account)}),
        "momentum": Contender(momentum(prices, rules), rules, account),
        EQUAL: Contender(equal_weights(prices), *rebalanced),
        **({"minimum variance": Contender(minimum_variance(prices), *rebalanced)} if HAS_SCIKIT_LEARN else {}),
        **{name: Contender(best_of_rank(scores, rules), rules, account) for name, scores in market.scores.items()},
    }


def write(result: Backtest, trades: pd.DataFrame | None, root: Folder, settings: Mapping[str, Any]) -> None:
    """Write `test/` into a run's folder: `summary.json`, `equity.csv`, `rank_ic.csv` and any trades, `trades.csv`.

    An earlier test with other settings (by full key), other checks or another number of trainings, or of another
    champion, is moved aside as `test-1`, `test-2`, ... Raises UserError if the disk refuses.
    """
    tested = {**settings, "checks": result.checks is not None, "trainings": len(result.trainings)}
    text = json.dumps({**result.summary(), "settings": tested}, indent=1, allow_nan=False) + "\n"
    texts = {"equity.csv": result.curves().to_csv(), "rank_ic.csv": result.rank_ic().to_csv()}
    if trades is not None:
        texts["trades.csv"] = without_formulas(trades).to_csv(index=False)
    texts["summary.json"] = text
    folder = root / "test"
    with writing(f"to {folder}", "make room and test again"):
        keys = ("settings", "champion_generation", "days")
        archive_other_test(root, folder.path.name, "summary.json", json.loads(text), keys)
        for name, content in texts.items():
            folder.write(name, content)
