"""The report's charts as Vega-Lite specifications."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from eigen2.report.record import RANDOM, RunRecord

HEIGHT = 260
MB = 1e6
BINS = 40  # bars of the histogram
RANKED_DAYS = 5  # horizon of the Rank IC that is drawn
PHASES = ("evaluate", "train", "evolve", "validate")
BASELINE = "baseline/"  # prefix of the columns with a baseline's validation score
EXPOSURE = "champion exposure"  # column of the test's equity with the champion's positions, in money
ORANGE, BLUE = "#e07b39", "#2f7ed8"
X: dict[str, dict[str, Any]] = {
    "generation": {
        **{"field": "generation", "type": "quantitative", "title": "generation", "scale": {"nice": False}},
        # label whole generations only, each once
        "axis": {
            "tickCount": {"expr": "max(1, min(ceil(width / 40), span(domain('x'))))"},
            "labelExpr": "datum.value % 1 ? '' : format(datum.value, 'd')",
        },
    },
    "date": {"field": "date", "type": "temporal", "title": None, "axis": {"labelSeparation": 5}},
}
LETTER, SYMBOL, AXIS = 6, 30, 50  # maximum pixels of a legend's letter, of its symbol with spacing, and of a y axis

Chart = dict[str, Any]


def charts(run: RunRecord) -> dict[str, Chart]:
    """Return the charts by name, in the order of the page, without those that have no data."""
    functions = (
        equity,
        exposure,
        luck,
        rank_ic,
        scores,
        validation,
        baselines,
        fitness,
        survival,
        rss,
        owners,
        seconds,
    )
    specs = {function.__name__: function(run) for function in functions}
    size = {"width": "container", "height": HEIGHT}
    return {name: {**size, **chart} for name, chart in specs.items() if chart is not None}


def equity(run: RunRecord) -> Chart | None:
    """Return each policy's equity over the days of the test, with a band for the random baseline."""
    frame = None if run.equity is None else run.equity.drop(columns=EXPOSURE, errors="ignore")
    return _lines(frame, "date", "equity", ",.0f", bands=[RANDOM])


def exposure(run: RunRecord) -> Chart | None:
    """Return the share of the champion's equity in positions over the days of the test."""
    if run.equity is None or EXPOSURE not in run.equity:
        return None
    share = (run.equity[EXPOSURE] / run.equity["champion"]).rename("champion")
    return _lines(pd.concat([run.equity["date"], share], axis=1), "date", "share of the equity", ".0%")


def luck(run: RunRecord) -> Chart | None:
    """Return a histogram of the random baseline's returns in the test, with a rule at the champion's."""
    if run.test is None:
        return None
    counts, edges = np.histogram(np.round(run.test["random_returns"], 9), BINS)  # of equal ones bins have no width
    bars = pd.DataFrame({"from": edges[:-1], "to": edges[1:], "policies": counts})
    champion = pd.DataFrame({"from": [run.test["measures"]["champion"]["total return"]], "who": ["champion"]})
    returns = {**_number("from", ".1%"), "title": "total return"}
    histogram = {
        "x": {**returns, "bin": "binned", "axis": {"format": ".0%"}},
        "x2": {"field": "to"},
        "y": {**_number("policies"), "title": "random policies"},
    }
    rule = {"x": returns, "color": _color("who", ["champion"])}
    return {
        "layer": [
            {**_data(bars), "mark": {"type": "bar", "color": "gray", "opacity": 0.6}, "encoding": histogram},
            {**_data(champion), "mark": {"type": "rule", "strokeWidth": 3}, "encoding": rule},
        ]
    }


def rank_ic(run: RunRecord) -> Chart | None:
    """Return the sum of the daily Rank IC of champion and rankers over the days of the test, for one horizon."""
    if run.rank_ic is None:
        return None
    daily = run.rank_ic.set_index("date").filter(regex=f" {RANKED_DAYS}$")
    if bool(daily.isna().all(axis=None)):
        return None
    sums = daily.cumsum().rename(columns=lambda name: name.rpartition(" ")[0])
    return _lines(sums.reset_index(), "date", "sum of Rank IC", ".1f", legend="ranked by")


def scores(run: RunRecord) -> Chart | None:
    """Return the scores of champion and baselines in each case of the test, with their means."""
    if run.scores is None:
        return None
    policies = run.scores["scores"]
    rows = [(name, value) for name, values in policies.items() for value in values]
    cases = pd.DataFrame(rows, columns=["who", "score"])
    score = {**_number("score", ",.1f"), "title": run.scores["unit"]}
    ticked = {**score, "axis": {"tickCount": 8}}
    return {
        **_data(cases),
        "encoding": {
            "y": {"field": "who", "type": "nominal", "sort": list(policies), "title": None},
            "color": {"condition": {"test": "datum.who == 'champion'", "value": ORANGE}, "value": BLUE},
        },
        "layer": [
            {"mark": {"type": "circle", "size": 60, "opacity": 0.45}, "encoding": {"x": ticked, "tooltip": [score]}},
            {"mark": {"type": "tick", "thickness": 3, "size": 18}, "encoding": {"x": {**ticked, "aggregate": "mean"}}},
        ],
    }


def validation(run: RunRecord) -> Chart | None:
    """Return the champion's growth in each validation window."""
    if run.validation is None or run.validation.empty:
        return None
    growth = run.validation.pivot(index="date", columns="window", values="equity").rename(columns="{:.0f}".format)
    growth = growth / growth.bfill().iloc[0] - 1
    return _lines(growth.reset_index(), "date", "growth in the window", ".1%", legend="window")


def baselines(run: RunRecord) -> Chart | None:
    """Return champion, validation and fitness with the baselines of validation, if there are any."""
    columns = {str(name): str(name).removeprefix(BASELINE) for name in run.metrics if str(name).startswith(BASELINE)}
    names = {"champion/validation_fitness": "champion", "validation/mean": "validation", "fitness/mean": "fitness"}
    frame = _metrics(run, {**names, **columns}) if columns else None
    return _lines(frame, "generation", run.unit, ",.1f", dashed=[*columns.values()])


def fitness(run: RunRecord) -> Chart | None:
    """Return fitness: its mean, bands of all agents and of the middle half, and the champion's validation."""
    names = {"fitness/mean": "mean", "champion/validation_fitness": "champion, validated"}
    bounds = {"fitness/min": "least", "fitness/max": "most", "fitness/q25": "low", "fitness/q75": "high"}
    frame = _metrics(run, {**names, **bounds})
    return _lines(frame, "generation", run.unit, ",.1f", bands=[("least", "most"), ("low", "high")])


def survival(run: RunRecord) -> Chart | None:
    """Return, for each operator, the fraction of its agents that became elites in the next evolution."""
    columns = [str(name) for name in run.metrics.filter(regex="^operators/.*_survival$")]
    frame = _metrics(run, {name: name[len("operators/") : -len("_survival")] for name in columns})
    return _lines(frame, "generation", "share that survives", ".0%", legend="operator")


def seconds(run: RunRecord) -> Chart | None:
    """Return the seconds of each phase."""
    return _lines(_metrics(run, {f"time/{phase}_s": phase for phase in PHASES}), "generation", "seconds", ".2f")


def rss(run: RunRecord) -> Chart | None:
    """Return resident memory at the end of each phase and of the generation."""
    if run.memory is None:
        return None
    ends = run.memory.query("phase != 'baseline'").replace({"phase": {"generation": "end"}})
    frame = ends.pivot_table("rss_bytes", "generation", "phase", sort=False) / MB
    return _lines(frame.reset_index(), "generation", "resident MB", ",.1f", legend="after")


def owners(run: RunRecord) -> Chart | None:
    """Return the memory of each owner at the end of each generation."""
    if run.memory is None:
        return None
    ends = run.memory.query("phase == 'generation'").set_index("generation").filter(regex="^owner_") / MB
    ends = ends.dropna(axis=1, how="all").rename(columns=lambda name: name[len("owner_") : -len("_bytes")])
    return None if ends.empty else _lines(ends.round(3).reset_index(), "generation", "MB", ",.2f", "owner", area=True)


def _metrics(run: RunRecord, names: dict[str, str]) -> pd.DataFrame | None:
    """Return the generation and the non-empty columns among `names`, renamed; None without any."""
    columns = {name: new for name, new in names.items() if name in run.metrics and run.metrics[name].notna().any()}
    return run.metrics[["generation", *columns]].rename(columns=columns) if columns else None


def _lines(
    frame: pd.DataFrame | None,
    along: str,
    title: str,
    digits: str,
    legend: str | None = None,
    bands: Sequence[tuple[str, str]] = (),
    dashed: Sequence[str] = (),
    area: bool = False,
) -> Chart | None:
    """Return a line or stacked area for each column, along generations or dates, above shaded bands of two columns."""
    if frame is None:
        return None
    frame = frame.loc[:, ~frame.columns.duplicated()]  # a user's operator may be named as what lies along the axis
    bounds = {bound for band in bands for bound in band}
    names = [str(name) for name in frame if name not in {along, *bounds}]
    y = {"type": "quantitative", "title": title, "axis": {"format": digits}, "scale": {"zero": area}}
    layers: list[Chart] = []
    for low, high in bands:
        if {low, high} <= set(frame):
            shaded = {"x": X[along], "y": {**y, "field": "low"}, "y2": {"field": "high"}}
            data = _data(frame[[along, low, high]].set_axis([along, "low", "high"], axis=1))
            layers.append({**data, "mark": {"type": "area", "opacity": 0.25, "color": "gray"}, "encoding": shaded})
    marks: list[Chart] = [{"type": "area"}]
    if not area:  # points show the tooltip, since lines are too thin to hit; invisible if there are many
        points = {"type": "point", "filled": True, "size": 30, "opacity": 1.0 if len(frame) <= 30 else 0.0}
        marks = [{"type": "line", "strokeWidth": 1.8}, points]
    which = {"field": "which", "type": "nominal", "title": legend or title}
    encoding = {
        "x": X[along],
        "y": {**y, "field": "value"},
        "color": _color("which", names, legend),
        "tooltip": [{**X[along], "title": along}, which, _number("value", digits)],
    }
    if dashed:
        condition = {"test": {"field": "which", "oneOf": [*dashed]}, "value": [5, 4]}
        encoding["strokeDash"] = {"condition": condition, "value": [1, 0]}
    # not by `melt`, which refuses columns with the names of its results
    parts = [pd.DataFrame({along: frame[along], "which": name, "value": frame[name]}) for name in names]
    data = _data(pd.concat(parts).dropna()) if parts else _data(frame[[along]].iloc[:0])
    return {"layer": [*layers, {**data, "encoding": encoding, "layer": [{"mark": mark} for mark in marks]}]}


def _data(frame: pd.DataFrame) -> Chart:
    return {"data": {"values": json.loads(frame.to_json(orient="records", date_format="iso"))}}


def _number(field: str, digits: str = "") -> Chart:
    return {"field": field, "type": "quantitative", "format": digits}


def _color(field: str, names: Sequence[str], title: str | None = None) -> Chart:
    """Return colours by name, with as many columns in the legend as fit the page."""
    # a legend is laid out before the plot's width is known; `0 * width` repeats the layout when the page is resized
    column = SYMBOL + LETTER * max((len(name) for name in names), default=0)
    columns = {"expr": f"max(1, floor((containerSize()[0] - {AXIS} + 0 * width) / {column}))"}
    return {"field": field, "type": "nominal", "sort": [*names], "legend": {"title": title, "columns": columns}}
