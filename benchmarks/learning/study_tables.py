"""Tables of the study of champions on real prices, its summary computed from them, and the text of docs/study.md.

`study-trainings.parquet` has a row for each training, `study-returns.parquet` the daily returns of each policy.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.harness import Figures, Row, as_json
from benchmarks.learning.intervals import over_seeds
from benchmarks.pages import Block, Page, table, where
from eigen2.core.saved_run import flatten
from eigen2.market.intervals import over_days
from eigen2.market.performance import YEAR

CHAMPION = "champion"
NAMES = {  # policies that a champion is compared with
    "buy and hold": "equal-weight buy-and-hold",
    "1/N": "equal weights restored each month (1/N)",
    "minimum variance": "minimum variance",
    "12-1 momentum": "12-1 momentum",
    "ridge": "ridge regression",
    "ridge refitted": "ridge regression refitted with the validation days",
    "LightGBM": "boosted trees (LightGBM)",
    "random": "the same weights in random columns",
}
RANKERS = (CHAMPION, "12-1 momentum", "ridge", "ridge refitted", "LightGBM")  # of which Rank IC is measured
MEASURES = {  # titles, with factor and format of the values
    "annual_return": ("return a year, %", 100, "{:.1f}"),
    "sharpe": ("Sharpe", 1, "{:.2f}"),
    "max_drawdown": ("largest drawdown, %", 100, "{:.1f}"),
    "alpha": ("alpha to buy-and-hold, % a year", 100, "{:.1f}"),
    "turnover": ("turnover a year", 1, "{:.2f}"),
    "exposure": ("exposure", 1, "{:.2f}"),
    "trades": ("trades a fold", 1, "{:.0f}"),
}
DIFFERENCES = {  # titles of the champion's measures minus those of another policy
    "annual_return": "return, points a year",
    "sharpe": "Sharpe",
    "max_drawdown": "largest drawdown, points",
    "daily": "mean daily return x 252, points; over days",
}
DIAGNOSTICS = {  # titles of what the last generation says of a training, by the name of the metric
    "trading/funded_share": "orders paid for",
    "fitness/money_correlation": "rank correlation of fitness and money",
    "operators/elite_survival": "elites that stay elites",
    "train/action_saturation": "outputs at the bound",
    "trading/exposure": "days with a position",
}


def as_tables(rows: Sequence[Row]) -> dict[str, pd.DataFrame]:
    """Return the study as tables: `trainings`, a row for each, and `returns`, a row for each policy and day of one."""
    address = ("table", "fold", "seed")
    trainings = [flatten({name: row[name] for name in row if name not in ("dates", "returns")}) for row in rows]
    returns = [
        pd.DataFrame({"date": row["dates"], "return": np.float32(series)}).assign(
            policy=policy, **{name: row[name] for name in address}
        )
        for row in rows
        for policy, series in row["returns"].items()
    ]
    columns = [*address, "policy", "date", "return"]
    return {"trainings": pd.DataFrame(trainings), "returns": pd.concat(returns, ignore_index=True)[columns]}


def summarise(trainings: pd.DataFrame, returns: pd.DataFrame) -> Figures:
    """Return means and intervals over all folds and seeds, deterministically and whatever the order of the rows."""
    of_table = trainings.groupby("table", sort=False)
    return {
        "generations": int(trainings["generations"].max()),
        "seeds": int(trainings["seed"].nunique()),
        "seconds": float(trainings.sort_values(["table", "fold", "seed"])["seconds"].sum()),
        "commits": sorted(trainings["commit"].dropna().unique()),
        "tables": {name: _summarise_table(rows, returns[returns["table"] == name]) for name, rows in of_table},
    }


def _summarise_table(rows: pd.DataFrame, returns: pd.DataFrame) -> Figures:
    policies = (CHAMPION, *NAMES)
    folds = rows[rows["seed"] == rows["seed"].min()].sort_values("fold")
    annual = {name: _values(rows, name, "annual_return").mean(1) for name in policies}
    return {
        "folds": [
            {
                **{span: [fold[f"{span}.first"], fold[f"{span}.last"]] for span in ("train", "test")},
                **{name: int(fold[name]) for name in ("test_days", "columns")},
                "annual_return": {name: float(values[place]) for name, values in annual.items()},
            }
            for place, (_, fold) in enumerate(folds.iterrows())
        ],
        "policies": {
            name: {measure: _interval(_values(rows, name, measure)) for measure in MEASURES} for name in policies
        },
        "excess": {name: _excess(rows, returns, name) for name in NAMES},
        "rank_ic": {name: _rank_ic(rows, name) for name in RANKERS},
        "diagnostics": {name: _mean(rows.sort_values(["fold", "seed"]), name) for name in DIAGNOSTICS},
    }


def _interval(values: np.ndarray) -> dict[str, float]:
    """Return the interval over seeds, with fixed draws so that a summary is reproducible."""
    return over_seeds(values, np.random.default_rng(0))._asdict()


def _values(rows: pd.DataFrame, policy: str, measure: str) -> np.ndarray:
    """Return a measure of one policy, (folds, seeds)."""
    return _by_seed(rows, f"policies.{policy}.{measure}")


def _by_seed(rows: pd.DataFrame, column: str) -> np.ndarray:
    """Return a column as (folds, seeds)."""
    return rows.pivot(index="fold", columns="seed", values=column).to_numpy(np.float64)


def _rank_ic(rows: pd.DataFrame, policy: str) -> Figures:
    """Return the Rank IC of a policy, and by how much the champion's is above it, over folds and seeds."""
    champion, own = (_by_seed(rows, f"rank_ic.{name}") for name in (CHAMPION, policy))
    return {"mean": _interval(own), "champion_less": _interval(champion - own)}


def _mean(rows: pd.DataFrame, diagnostic: str) -> float | None:
    """Return the mean of a diagnostic, None where it was not measured."""
    mean = float(rows[f"diagnostics.{diagnostic}"].astype(np.float64).mean())
    return mean if math.isfinite(mean) else None


def _excess(rows: pd.DataFrame, returns: pd.DataFrame, other: str) -> Figures:
    """Return the champion's measures minus those of another policy on the same days."""
    excess: Figures = {
        measure: _interval(_values(rows, CHAMPION, measure) - _values(rows, other, measure))
        for measure in DIFFERENCES
        if measure in MEASURES
    }
    champion, others = (  # daily returns, (days of all folds, seeds)
        returns[returns["policy"] == policy].pivot(index=["fold", "date"], columns="seed", values="return").to_numpy()
        for policy in (CHAMPION, other)
    )
    daily = champion.mean(1, np.float64) - others.mean(1, np.float64)
    excess["daily"] = over_days(YEAR * daily, np.random.default_rng(0))._asdict()
    ahead = _values(rows, CHAMPION, "annual_return").mean(1) > _values(rows, other, "annual_return").mean(1)
    return {**excess, "folds_ahead": int(ahead.sum()), "folds": len(ahead)}


def recompute(figures: Path) -> None:
    """Compute the summary in `study.json` anew from the tables beside it, if there is one."""
    path = figures / "study.json"
    if path.exists():
        machine = json.loads(path.read_text())["machine"]
        tables = {name: pd.read_parquet(figures / f"study-{name}.parquet") for name in ("trainings", "returns")}
        path.write_text(as_json({"machine": machine, **summarise(**tables)}) + "\n")


def folds_table(figures: Figures) -> str:
    """Return the returns of each fold."""
    columns = {"table": "{table}", "trained on": "{train[0]} to {train[1]}", "tested on": "{test[0]} to {test[1]}"}
    columns |= {"days": "{test_days:,}", "columns": "{columns}"}
    shown = next(iter(figures["tables"].values()))["policies"]
    columns |= {f"{name}, % a year": f"{{{name}:+.1f}}" for name in shown}
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
    columns = {"table": "{table}", "champions minus": "{other}"}
    columns |= {title: f"{{{measure}}}" for measure, title in DIFFERENCES.items()}
    rows = [
        {**excess, "table": name, "other": NAMES[other]}
        | {measure: _shown(excess[measure], measure) for measure in DIFFERENCES}
        for name, summary in figures["tables"].items()
        for other, excess in summary["excess"].items()
    ]
    return table({**columns, "folds ahead": "{folds_ahead} of {folds}"}, rows)


def rank_ic_table(figures: Figures) -> str:
    """Return how well champions, momentum and rankers rank the columns, and the champions beside each."""
    columns = {"table": "{table}", "ranked by": "{name}", "Rank IC": "{mean}", "champions minus": "{champion_less}"}
    rows = [
        {"table": name, "name": ranker, **{key: _shown(value, "rank_ic") for key, value in found.items()}}
        | ({"champion_less": None} if ranker == CHAMPION else {})
        for name, summary in figures["tables"].items()
        for ranker, found in summary.get("rank_ic", {}).items()
    ]
    return table(columns, rows) if rows else "Not measured yet."


def diagnostics_table(figures: Figures) -> str:
    """Return what the last generations of the trainings say of them, on average."""
    columns = {"table": "{table}"} | {title: f"{{{name}:.2f}}" for name, title in DIAGNOSTICS.items()}
    return table(columns, [{"table": name, **each["diagnostics"]} for name, each in figures["tables"].items()])


def _shown(interval: dict[str, float], measure: str) -> str:
    """Return the mean, with its interval if it has a width."""
    special = {"daily": MEASURES["annual_return"], "rank_ic": ("", 1, "{:.4f}")}
    _, factor, form = special.get(measure) or MEASURES[measure]
    mean, low, high = (form.format(factor * interval[key]) for key in ("mean", "low", "high"))
    return mean if low == high else f"{mean} ({low} to {high})"


def machine_text(figures: Figures) -> str:
    """Return how and where the study was run."""
    seeds, generations = figures["seeds"], figures["generations"]
    minutes = f"{figures['seconds'] / 60:,.0f} minutes of training in all"
    return f"{seeds} seeds, {generations} generations, {minutes} on {where(figures, *figures['commits'])}."


TEXTS = {
    "folds": folds_table,
    "policies": policies_table,
    "excess": excess_table,
    "rank_ic": rank_ic_table,
    "diagnostics": diagnostics_table,
    "machine": machine_text,
}
PAGE = Page({name: Block(make, ("study",)) for name, make in TEXTS.items()}, recompute=recompute)
