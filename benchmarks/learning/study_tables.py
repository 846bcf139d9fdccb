"""Summary of the study of champions on real prices, and the tables of docs/study.md."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

import numpy as np

from benchmarks.harness import Figures, Row
from benchmarks.learning.intervals import Interval, over_days, over_seeds
from benchmarks.pages import Block, Page, grid, table
from eigen2.market.evaluation.performance import YEAR

CHAMPION = "champion"
NAMES = {  # policies that a champion is compared with
    "buy and hold": "equal-weight buy-and-hold",
    "momentum": "momentum",
    "random": "random entries of equal turnover",
}
PERCENT = ("annual_return", "max_drawdown")  # measures shown in percent
MEASURES = {"annual_return": "return a year, %", "sharpe": "Sharpe", "max_drawdown": "largest drawdown, %"}
MEASURES |= {"turnover": "turnover a year", "exposure": "exposure", "trades": "trades a span"}
DIFFERENCES = ("annual_return", "sharpe", "max_drawdown")


def summarise(rows: Sequence[Row]) -> Figures:
    """Return means and intervals of the rows of every fold and seed: the same rows give the same figures."""
    names = dict.fromkeys(row["table"] for row in rows)
    return {
        "generations": rows[0]["generations"],
        "seeds": len({row["seed"] for row in rows}),
        "seconds": sum(row["seconds"] for row in rows),
        "commits": sorted({row["commit"] for row in rows if row["commit"]}),
        "tables": {name: _summarise_table([row for row in rows if row["table"] == name]) for name in names},
    }


def _summarise_table(rows: Sequence[Row]) -> Figures:
    grid, policies = _grid(rows), (CHAMPION, *NAMES)
    facts = ("train", "train_days", "test", "test_days", "columns")
    return {
        "folds": [
            {key: fold[0][key] for key in facts}
            | {"annual_return": {name: _mean(fold, name, "annual_return") for name in policies}}
            for fold in grid
        ],
        "policies": {
            name: {measure: _interval(_values(grid, name, measure)) for measure in MEASURES} for name in policies
        },
        "excess": {name: _excess(grid, name) for name in NAMES},
    }


def _interval(values: np.ndarray) -> dict[str, float]:
    """Return the interval over seeds, always of the same draws, so that a summary can be made again."""
    return asdict(over_seeds(values, np.random.default_rng(0)))


def _grid(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows by fold and seed."""
    folds = sorted({row["fold"] for row in rows})
    return [sorted((row for row in rows if row["fold"] == fold), key=lambda row: row["seed"]) for fold in folds]


def _mean(rows: Sequence[Row], policy: str, measure: str) -> float:
    return float(np.mean([row["policies"][policy][measure] for row in rows]))


def _values(grid: Sequence[Sequence[Row]], policy: str, measure: str) -> np.ndarray:
    """Return a measure of one policy, (folds, seeds)."""
    return np.array([[row["policies"][policy][measure] for row in fold] for fold in grid])


def _excess(grid: Sequence[Sequence[Row]], other: str) -> Figures:
    """Return the champion's measures less those of another policy on the same days."""
    found: Figures = {
        measure: _interval(_values(grid, CHAMPION, measure) - _values(grid, other, measure)) for measure in DIFFERENCES
    }
    days = YEAR * np.concatenate([_daily(fold, CHAMPION) - _daily(fold, other) for fold in grid])
    found["daily"] = asdict(over_days(days, np.random.default_rng(0)))
    ahead = [_mean(fold, CHAMPION, "annual_return") > _mean(fold, other, "annual_return") for fold in grid]
    return {**found, "folds_ahead": sum(ahead), "folds": len(ahead)}


def _daily(fold: Sequence[Row], policy: str) -> np.ndarray:
    """Return daily returns of a fold's test span, the mean of the seeds."""
    mean: np.ndarray = np.mean([row["policies"][policy]["returns"] for row in fold], axis=0)
    return mean


def verdicts(summary: Figures) -> Iterator[str]:
    """Return what came out, a line for each table and comparison, favourable or not."""
    for name, found in summary["tables"].items():
        for other, words in NAMES.items():
            excess = found["excess"][other]
            seeds, days = Interval(**excess["annual_return"]), Interval(**excess["daily"])
            points = 100 * seeds.mean
            yield (
                f"{name}: the champions earned {abs(points):.1f} points a year {'more' if points > 0 else 'less'} than "
                f"{words}, in {excess['folds_ahead']} of {excess['folds']} folds more; {_significance(seeds, days)}."
            )


def _significance(seeds: Interval, days: Interval) -> str:
    """Return whether the difference is more than chance, by each interval."""
    if seeds.side and days.side:
        both = "both 95 % intervals leave 0 out"
        return both if seeds.side == days.side else f"{both}, on different sides"
    if seeds.side or days.side:
        one, other = ("seeds", "days") if seeds.side else ("days", "seeds")
        return f"the 95 % interval over {one} leaves 0 out, that over {other} does not"
    return "no 95 % interval leaves 0 out: not told apart from chance"


def folds_table(found: Figures) -> str:
    """Return the returns of each fold."""
    columns = {"table": "{table}", "trained on": "{train[0]} to {train[1]}", "tested on": "{test[0]} to {test[1]}"}
    columns |= {"days": "{test_days:,}", "columns": "{columns}"}
    columns |= {f"{name}, % a year": f"{{{name}:+.1f}}" for name in (CHAMPION, *NAMES)}
    rows = [
        {**fold, "table": name, **{policy: 100 * value for policy, value in fold["annual_return"].items()}}
        for name, each in found["tables"].items()
        for fold in each["folds"]
    ]
    return table(columns, rows)


def policies_table(found: Figures) -> str:
    """Return the measures of each policy."""
    rows = [
        [name, policy, *(_shown(measures[measure], measure) for measure in MEASURES)]
        for name, each in found["tables"].items()
        for policy, measures in each["policies"].items()
    ]
    return grid(["table", "policy", *MEASURES.values()], rows)


def excess_table(found: Figures) -> str:
    """Return what the champions earned more than each other policy."""
    rows = [
        [
            *(name, NAMES[other], *(_shown(excess[measure], measure) for measure in DIFFERENCES)),
            *(_shown(excess["daily"], "annual_return"), f"{excess['folds_ahead']} of {excess['folds']}"),
        ]
        for name, each in found["tables"].items()
        for other, excess in each["excess"].items()
    ]
    header = ["table", "champions less", "return, points a year", "Sharpe", "largest drawdown, points"]
    return grid([*header, "mean daily return x 252, points; over days", "folds ahead"], rows)


def _shown(found: dict[str, float], measure: str) -> str:
    """Return the mean, and its interval where it has a width."""
    factor, form = (100, "{:.1f}") if measure in PERCENT else (1, "{:.0f}" if measure == "trades" else "{:.2f}")
    mean, low, high = (form.format(factor * found[key]) for key in ("mean", "low", "high"))
    return mean if found["low"] == found["high"] else f"{mean} ({low} to {high})"


def machine_text(found: Figures) -> str:
    """Return how and where the study was run."""
    machine, plural = found["machine"], "s" * (found["machine"]["threads"] > 1)
    commits = ", ".join(commit[:7] for commit in found["commits"]) or "unknown"
    return (
        f"{found['seeds']} seeds, {found['generations']} generations, {found['seconds'] / 60:,.0f} minutes of training "
        f"in all on {machine['machine']}, {machine['threads']} thread{plural} a process, Python {machine['python']}, "
        f"torch {machine['torch']}, commit {commits}{' with changes' * bool(machine['dirty'])}."
    )


TEXTS = {
    "folds": folds_table,
    "verdict": lambda found: "\n".join(f"- {line}" for line in verdicts(found)),
    "policies": policies_table,
    "excess": excess_table,
    "machine": machine_text,
}
PAGE = Page({name: Block(make, ("study",)) for name, make in TEXTS.items()})
