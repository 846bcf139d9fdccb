"""Summary of the study of champions on real prices, and the tables of docs/study.md."""

from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.harness import Figures, Row
from benchmarks.learning.intervals import Interval, over_days, over_seeds
from benchmarks.pages import Block, Page, table, where
from eigen2.market.evaluation.performance import YEAR

CHAMPION = "champion"
NAMES = {  # policies that a champion is compared with
    "buy and hold": "equal-weight buy-and-hold",
    "momentum": "momentum",
    "random": "random entries of equal turnover",
}
MEASURES = {  # titles, with factor and format of the values
    "annual_return": ("return a year, %", 100, "{:.1f}"),
    "sharpe": ("Sharpe", 1, "{:.2f}"),
    "max_drawdown": ("largest drawdown, %", 100, "{:.1f}"),
    "turnover": ("turnover a year", 1, "{:.2f}"),
    "exposure": ("exposure", 1, "{:.2f}"),
    "trades": ("trades a span", 1, "{:.0f}"),
}
DIFFERENCES = {  # titles of the champion's measures minus those of another policy
    "annual_return": "return, points a year",
    "sharpe": "Sharpe",
    "max_drawdown": "largest drawdown, points",
    "daily": "mean daily return x 252, points; over days",
}


def summarise(rows: Sequence[Row]) -> Figures:
    """Return means and intervals over the rows of all folds and seeds, deterministically."""
    names = dict.fromkeys(row["table"] for row in rows)
    return {
        "generations": rows[0]["generations"],
        "seeds": len({row["seed"] for row in rows}),
        "seconds": sum(row["seconds"] for row in rows),
        "commits": sorted({row["commit"] for row in rows if row["commit"]}),
        "tables": {name: _summarise_table([row for row in rows if row["table"] == name]) for name in names},
    }


def _summarise_table(rows: Sequence[Row]) -> Figures:
    numbers = sorted({row["fold"] for row in rows})
    folds = [sorted((row for row in rows if row["fold"] == n), key=lambda row: row["seed"]) for n in numbers]
    policies = (CHAMPION, *NAMES)
    fold_keys = ("train", "test", "test_days", "columns")
    return {
        "folds": [
            {key: fold[0][key] for key in fold_keys}
            | {"annual_return": {name: float(_values([fold], name, "annual_return").mean()) for name in policies}}
            for fold in folds
        ],
        "policies": {
            name: {measure: _interval(_values(folds, name, measure)) for measure in MEASURES} for name in policies
        },
        "excess": {name: _excess(folds, name) for name in NAMES},
    }


def _interval(values: np.ndarray) -> dict[str, float]:
    """Return the interval over seeds, with fixed draws so that a summary is reproducible."""
    return over_seeds(values, np.random.default_rng(0))._asdict()


def _values(folds: Sequence[Sequence[Row]], policy: str, measure: str) -> np.ndarray:
    """Return a measure of one policy, (folds, seeds), or its daily returns, (folds, seeds, days)."""
    return np.array([[row["policies"][policy][measure] for row in fold] for fold in folds])


def _excess(folds: Sequence[Sequence[Row]], other: str) -> Figures:
    """Return the champion's measures minus those of another policy on the same days."""
    excess: Figures = {
        measure: _interval(_values(folds, CHAMPION, measure) - _values(folds, other, measure))
        for measure in DIFFERENCES
        if measure in MEASURES
    }
    daily = [  # of each fold, averaged over seeds
        np.subtract(*(_values([fold], policy, "returns")[0].mean(axis=0) for policy in (CHAMPION, other)))
        for fold in folds
    ]
    excess["daily"] = over_days(YEAR * np.concatenate(daily), np.random.default_rng(0))._asdict()
    champion, others = (_values(folds, policy, "annual_return").mean(1) for policy in (CHAMPION, other))
    return {**excess, "folds_ahead": int((champion > others).sum()), "folds": len(folds)}


def verdicts(summary: Figures) -> Iterator[str]:
    """Yield the result of each comparison in each table, favourable or not, as a sentence."""
    for name, table_summary in summary["tables"].items():
        for other, title in NAMES.items():
            excess = table_summary["excess"][other]
            seeds, days = Interval(**excess["annual_return"]), Interval(**excess["daily"])
            points = 100 * seeds.mean
            yield (
                f"{name}: the champions earned {abs(points):.1f} points a year {'more' if points > 0 else 'less'} than "
                f"{title}, in {excess['folds_ahead']} of {excess['folds']} folds more; {_significance(seeds, days)}."
            )


def _significance(seeds: Interval, days: Interval) -> str:
    """Return which of the two intervals exclude 0, in words."""
    if seeds.side and days.side:
        both = "both 95 % intervals exclude 0"
        return both if seeds.side == days.side else f"{both}, on different sides"
    if seeds.side or days.side:
        one, other = ("seeds", "days") if seeds.side else ("days", "seeds")
        return f"the 95 % interval over {one} excludes 0, that over {other} does not"
    return "no 95 % interval excludes 0: not told apart from chance"


def folds_table(figures: Figures) -> str:
    """Return the returns of each fold."""
    columns = {"table": "{table}", "trained on": "{train[0]} to {train[1]}", "tested on": "{test[0]} to {test[1]}"}
    columns |= {"days": "{test_days:,}", "columns": "{columns}"}
    columns |= {f"{name}, % a year": f"{{{name}:+.1f}}" for name in (CHAMPION, *NAMES)}
    rows = [
        {**fold, "table": name, **{policy: 100 * value for policy, value in fold["annual_return"].items()}}
        for name, summary in figures["tables"].items()
        for fold in summary["folds"]
    ]
    return table(columns, rows)


def policies_table(figures: Figures) -> str:
    """Return the measures of each policy."""
    columns = {"table": "{table}", "policy": "{policy}"}
    columns |= {title: f"{{{measure}}}" for measure, (title, *_) in MEASURES.items()}
    rows = [
        {"table": name, "policy": policy, **{measure: _shown(measures[measure], measure) for measure in MEASURES}}
        for name, summary in figures["tables"].items()
        for policy, measures in summary["policies"].items()
    ]
    return table(columns, rows)


def excess_table(figures: Figures) -> str:
    """Return the champions' measures minus those of each other policy."""
    columns = {"table": "{table}", "champions less": "{other}"}
    columns |= {title: f"{{{measure}}}" for measure, title in DIFFERENCES.items()}
    rows = [
        {**excess, "table": name, "other": NAMES[other]}
        | {measure: _shown(excess[measure], measure) for measure in DIFFERENCES}
        for name, summary in figures["tables"].items()
        for other, excess in summary["excess"].items()
    ]
    return table({**columns, "folds ahead": "{folds_ahead} of {folds}"}, rows)


def _shown(interval: dict[str, float], measure: str) -> str:
    """Return the mean, with its interval if it has a width."""
    _, factor, form = MEASURES["annual_return" if measure == "daily" else measure]
    mean, low, high = (form.format(factor * interval[key]) for key in ("mean", "low", "high"))
    return mean if interval["low"] == interval["high"] else f"{mean} ({low} to {high})"


def machine_text(figures: Figures) -> str:
    """Return how and where the study was run."""
    seeds, generations = figures["seeds"], figures["generations"]
    minutes = f"{figures['seconds'] / 60:,.0f} minutes of training in all"
    return f"{seeds} seeds, {generations} generations, {minutes} on {where(figures, *figures['commits'])}."


TEXTS = {
    "folds": folds_table,
    "verdict": lambda figures: "\n".join(f"- {line}" for line in verdicts(figures)),
    "policies": policies_table,
    "excess": excess_table,
    "machine": machine_text,
}
PAGE = Page({name: Block(make, ("study",)) for name, make in TEXTS.items()})
