"""What came out of the study, summed up, and the figures of docs/study.md."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.intervals import Interval, over_days, over_seeds
from benchmarks.machine import ROOT
from benchmarks.pages import fill_in, table
from eigen2.market.evaluation.performance import YEAR

FIGURES = ROOT / "docs" / "figures" / "study.json"
PAGE = ROOT / "docs" / "study.md"
NOT_YET = "Not measured yet."
CHAMPION = "champion"
NAMES = {
    "buy and hold": "equal-weight buy-and-hold",
    "momentum": "momentum",
    "random": "random entries of equal turnover",
}
"""What a champion is compared with."""
SHARES = ("annual_return", "max_drawdown")
"""Measures told in percent."""
MEASURES = {
    "annual_return": "return a year, %",
    "sharpe": "Sharpe",
    "max_drawdown": "largest drawdown, %",
    "turnover": "turnover a year",
    "exposure": "exposure",
    "trades": "trades a span",
}
DIFFERENCES = ("annual_return", "sharpe", "max_drawdown")

Row = dict[str, Any]
Figures = dict[str, Any]


def load(path: Path = FIGURES) -> Figures | None:
    """The summary, None before the study was run."""
    return json.loads(path.read_text()) if path.exists() else None


def summarise(rows: Sequence[Row]) -> Figures:
    """Means and intervals of all rows: the same rows give the same figures.

    Args:
        rows: of every fold and seed of every table.
    """
    return {
        "generations": rows[0]["generations"],
        "seeds": len({row["seed"] for row in rows}),
        "seconds": sum(row["seconds"] for row in rows),
        "commits": sorted({row["commit"] for row in rows if row["commit"]}),
        "tables": {name: _summarise_table([row for row in rows if row["table"] == name]) for name in _names(rows)},
    }


def _names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["table"] for row in rows))


def _summarise_table(rows: Sequence[Row]) -> Figures:
    grid = _grid(rows)
    folds = [
        {key: fold[0][key] for key in ("train", "train_days", "test", "test_days", "columns")}
        | {"annual_return": {name: _mean(fold, name, "annual_return") for name in (CHAMPION, *NAMES)}}
        for fold in grid
    ]
    return {
        "folds": folds,
        "policies": {
            name: {measure: over_seeds(_values(grid, name, measure), _chance()).json() for measure in MEASURES}
            for name in (CHAMPION, *NAMES)
        },
        "excess": {name: _excess(grid, name) for name in NAMES},
    }


def _grid(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows by fold and seed."""
    folds = sorted({row["fold"] for row in rows})
    return [sorted((row for row in rows if row["fold"] == fold), key=lambda row: row["seed"]) for fold in folds]


def _mean(rows: Sequence[Row], policy: str, measure: str) -> float:
    return float(np.mean([row["policies"][policy][measure] for row in rows]))


def _values(grid: Sequence[Sequence[Row]], policy: str, measure: str) -> np.ndarray:
    """(folds, seeds) of one policy."""
    return np.array([[row["policies"][policy][measure] for row in fold] for fold in grid])


def _excess(grid: Sequence[Sequence[Row]], other: str) -> Figures:
    """The champion's measures less those of another policy on the same days."""
    found: Figures = {
        measure: over_seeds(_values(grid, CHAMPION, measure) - _values(grid, other, measure), _chance()).json()
        for measure in DIFFERENCES
    }
    days = YEAR * np.concatenate([_daily(fold, CHAMPION) - _daily(fold, other) for fold in grid])
    found["daily"] = over_days(days, _chance()).json()
    ahead = [_mean(fold, CHAMPION, "annual_return") > _mean(fold, other, "annual_return") for fold in grid]
    return {**found, "folds_ahead": sum(ahead), "folds": len(ahead)}


def _daily(fold: Sequence[Row], policy: str) -> np.ndarray:
    """Daily returns of a fold's test span, the mean of the seeds."""
    mean: np.ndarray = np.mean([row["policies"][policy]["returns"] for row in fold], axis=0)
    return mean


def _chance() -> np.random.Generator:
    """The same draws for every interval, so that a summary can be made again."""
    return np.random.default_rng(0)


def verdicts(summary: Figures) -> Iterator[str]:
    """What came out, a line a table and comparison, favourable or not."""
    for name, found in summary["tables"].items():
        for other, words in NAMES.items():
            excess = found["excess"][other]
            seeds, days = _interval(excess["annual_return"]), _interval(excess["daily"])
            points = 100 * seeds.mean
            yield (
                f"{name}: the champions earned {abs(points):.1f} points a year {'more' if points > 0 else 'less'} than "
                f"{words}, in {excess['folds_ahead']} of {excess['folds']} folds more; {_told_apart(seeds, days)}."
            )


def _interval(found: dict[str, float]) -> Interval:
    return Interval(**found)


def _told_apart(seeds: Interval, days: Interval) -> str:
    """Whether the difference is more than chance, by each interval."""
    if seeds.side and days.side:
        both = "both 95 % intervals leave 0 out"
        return both if seeds.side == days.side else f"{both}, on different sides"
    if seeds.side or days.side:
        one, other = ("seeds", "days") if seeds.side else ("days", "seeds")
        return f"the 95 % interval over {one} leaves 0 out, that over {other} does not"
    return "no 95 % interval leaves 0 out: not told apart from chance"


def tables(found: Figures | None) -> dict[str, str]:
    """Markdown by name: the same figures give the same text; without any, that there are none."""
    if found is None:
        return dict.fromkeys(("folds", "verdict", "policies", "excess", "machine"), NOT_YET)
    return {
        "folds": _folds(found),
        "verdict": "\n".join(f"- {line}" for line in verdicts(found)),
        "policies": _policies(found),
        "excess": _excesses(found),
        "machine": _machine(found),
    }


def _folds(found: Figures) -> str:
    rows = [
        [
            name,
            f"{fold['train'][0]} to {fold['train'][1]}",
            f"{fold['test'][0]} to {fold['test'][1]}",
            f"{fold['test_days']:,}",
            f"{fold['columns']}",
            *(f"{100 * fold['annual_return'][policy]:+.1f}" for policy in (CHAMPION, *NAMES)),
        ]
        for name, each in found["tables"].items()
        for fold in each["folds"]
    ]
    policies = [f"{name}, % a year" for name in (CHAMPION, *NAMES)]
    return table(["table", "trained on", "tested on", "days", "columns", *policies], rows)


def _policies(found: Figures) -> str:
    rows = [
        [name, policy, *(_shown(measures[measure], measure) for measure in MEASURES)]
        for name, each in found["tables"].items()
        for policy, measures in each["policies"].items()
    ]
    return table(["table", "policy", *MEASURES.values()], rows)


def _excesses(found: Figures) -> str:
    rows = [
        [
            name,
            NAMES[other],
            *(_shown(excess[measure], measure) for measure in DIFFERENCES),
            _shown(excess["daily"], "annual_return"),
            f"{excess['folds_ahead']} of {excess['folds']}",
        ]
        for name, each in found["tables"].items()
        for other, excess in each["excess"].items()
    ]
    header = ["table", "champions less", "return, points a year", "Sharpe", "largest drawdown, points"]
    return table([*header, "mean daily return x 252, points; over days", "folds ahead"], rows)


def _shown(found: dict[str, float], measure: str) -> str:
    """The mean, and its interval where it has a width."""
    factor, form = (100, "{:.1f}") if measure in SHARES else (1, "{:.0f}" if measure == "trades" else "{:.2f}")
    mean, low, high = (form.format(factor * found[key]) for key in ("mean", "low", "high"))
    return mean if found["low"] == found["high"] else f"{mean} ({low} to {high})"


def _machine(found: Figures) -> str:
    facts = found["machine"]
    commits = ", ".join(commit[:7] for commit in found["commits"]) or "unknown"
    return (
        f"{found['seeds']} seeds, {found['generations']} generations, {found['seconds'] / 60:,.0f} minutes of training "
        f"in all on {facts['machine']}, {facts['threads']} thread{'s' * (facts['threads'] > 1)} a process, Python "
        f"{facts['python']}, torch {facts['torch']}, commit {commits}{' with changes' * bool(facts['dirty'])}."
    )


def main() -> None:
    """Put the figures into the page."""
    PAGE.write_text(fill_in(PAGE.read_text(), tables(load())))


if __name__ == "__main__":
    main()
