"""The report's charts as Vega-Lite specifications, by name; a chart without data is left out."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from eigen2.report.record import POLICIES, RunRecord

HEIGHT = 260
MB = 1e6
BINS = 40  # bars of the histogram
MOST_TICKERS = 20  # tickers in the chart of contributions, those with the largest gains and losses
PHASES = ("evaluate", "train", "evolve", "validate")
BASELINE = "baseline/"  # prefix of the scalars that hold a baseline's score in validation
SHADE = 0.25
GREEN, RED, ORANGE, BLUE = "#2a9d5c", "#d1495b", "#e07b39", "#2f7ed8"
GENERATION = alt.X(
    "generation:Q",
    title="generation",
    scale=alt.Scale(nice=False),
    # whole generations, each once: no more ticks than there are, and no label between two
    axis=alt.Axis(
        tickCount=alt.ExprRef("max(1, min(ceil(width / 40), span(domain('x'))))"),
        labelExpr="datum.value % 1 ? '' : format(datum.value, 'd')",
    ),
)
DATE = alt.X(
    "date:T",
    title=None,
    # the year stands below the first label and those in a year's first days
    axis=alt.Axis(
        labelExpr="hours(datum.value) ? '' : [timeFormat(datum.value, date(datum.value) == 1 ? '%b' : '%b %d'), "
        "datum.index == 0 || dayofyear(datum.value) <= 14 ? timeFormat(datum.value, '%Y') : '']"
    ),
)
LETTER, SYMBOL, AXIS = 6, 30, 50
"""Largest pixels of a legend's letter, of its symbol with the space to the next column, and of a y axis."""

Chart = Any  # altair's types do not say what encoding and layering return


def charts(run: RunRecord) -> dict[str, dict[str, Any]]:
    """Return every chart for which the run has data, in the order of the page."""
    makers: tuple[tuple[Callable[[Any], Chart | None], Any], ...] = (
        *((equity, run.equity), (drawdown, run.equity), (luck, run.test), (scores, run.scores)),
        *((contribution, run.trades), (validation, run.validation), (baselines, run), (fitness, run)),
        *((survival, run), (diversity, run), (rss, run.memory), (owners, run.memory), (seconds, run)),
    )
    made = {make.__name__: make(found) for make, found in makers if found is not None}
    size = {"width": "container", "height": HEIGHT}
    return {name: chart.properties(**size).to_dict() for name, chart in made.items() if chart is not None}


def equity(curves: pd.DataFrame) -> Chart:
    """Return each policy's equity on the test's days, with a band of the random baseline."""
    band = curves.rename(columns={"random 5 %": "low", "random 95 %": "high"})[["date", "low", "high"]]
    area = alt.Chart(band).mark_area(opacity=SHADE, color="gray").encode(x=DATE, y=_near("low"), y2="high:Q")
    return alt.layer(area, *_curves(curves, "date:T", POLICIES, "equity", ",.0f"))


def drawdown(curves: pd.DataFrame) -> Chart:
    """Return the loss of each policy since its highest close, on the test's days."""
    lost = curves[list(POLICIES)] / curves[list(POLICIES)].cummax() - 1
    return alt.layer(*_curves(lost.assign(date=curves["date"]), "date:T", POLICIES, "drawdown", ".1%"))


def luck(test: dict[str, Any]) -> Chart:
    """Return the distribution of the random baseline's returns in the test, with the champion's."""
    counts, edges = np.histogram(test["random_returns"], BINS)
    bars = pd.DataFrame({"from": edges[:-1], "to": edges[1:], "policies": counts})
    champion = pd.DataFrame({"return": [test["measures"]["champion"]["total return"]], "who": ["champion"]})
    histogram = alt.Chart(bars).mark_bar(color="gray", opacity=0.6)
    histogram = histogram.encode(
        x=alt.X("from:Q", bin="binned", title="total return", axis=alt.Axis(format=".0%")),
        x2="to:Q",
        y=alt.Y("policies:Q", title="random baselines"),
        tooltip=[_tip("from", ".1%"), _tip("to", ".1%"), "policies:Q"],
    )
    rule = alt.Chart(champion).mark_rule(strokeWidth=3)
    colour = alt.Color("who:N", legend=_legend(None, ["champion"]))
    return histogram + rule.encode(x="return:Q", color=colour, tooltip=["who:N", _tip("return", ".1%")])


def scores(test: dict[str, Any]) -> Chart:
    """Return what champion and baselines reached in each case of the test, and their means."""
    found = test["scores"]
    cases = pd.DataFrame(
        [(name, number, value) for name, values in found.items() for number, value in enumerate(values)],
        columns=["who", "case", "score"],
    )
    means = cases.groupby("who", sort=False)["score"].mean().reset_index()
    shared = {
        "x": alt.X("score:Q", title=test["unit"], axis=alt.Axis(tickCount=8)),
        "y": alt.Y("who:N", sort=list(found), title=None),
        "color": alt.condition("datum.who == 'champion'", alt.value(ORANGE), alt.value(BLUE)),
    }
    points = alt.Chart(cases).mark_circle(size=60, opacity=0.45)
    ticks = alt.Chart(means).mark_tick(thickness=3, size=18)
    return points.encode(**shared, tooltip=["who:N", "case:Q", _tip("score", ",.1f")]) + ticks.encode(
        **shared, tooltip=["who:N", _tip("score", ",.1f", title="mean")]
    )


def contribution(trades: pd.DataFrame) -> Chart | None:
    """Return the profit of the champion's trades by ticker."""
    if trades.empty:
        return None
    gained = trades.groupby("ticker")["profit"].agg(profit="sum", trades="size").reset_index()
    most = gained.sort_values("profit", key=lambda profit: -profit.abs(), kind="stable")[:MOST_TICKERS]
    return _chart(
        alt.Chart(most).mark_bar(),
        alt.X("ticker:N", sort="-y", title=None),
        alt.Y("profit:Q", title="profit"),
        alt.condition("datum.profit >= 0", alt.value(GREEN), alt.value(RED)),
        ["ticker:N", _tip("profit", ",.0f"), "trades:Q"],
    )


def validation(windows: pd.DataFrame) -> Chart:
    """Return the champion's growth in each validation window."""
    frame = windows.assign(window=windows["window"].astype(str))
    frame["growth"] = frame["equity"] / frame.groupby("window")["equity"].transform("first") - 1
    return _chart(
        alt.Chart(frame).mark_line(strokeWidth=1.5),
        DATE,
        alt.Y("growth:Q", axis=alt.Axis(format=".0%"), title="growth in the window"),
        alt.Color("window:N", legend=_legend("window", frame["window"])),
        ["window:N", "date:T", _tip("growth", ".1%")],
    ).add_params(_zoom())


def fitness(run: RunRecord) -> Chart | None:
    """Return fitness: bands of all agents and of their middle half, their mean, and the champion in validation."""
    names = {"fitness/mean": "mean", "champion/validation_fitness": "champion, validated"}
    bounds = {"fitness/min": "least", "fitness/max": "most", "fitness/q25": "low", "fitness/q75": "high"}
    frame = _metrics(run, {**names, **bounds})
    if frame is None or not {"least", "most"} <= set(frame):
        return None
    bands = [
        alt.Chart(frame).mark_area(opacity=SHADE).encode(x=GENERATION, y=_near(low), y2=f"{high}:Q")
        for low, high in (("least", "most"), ("low", "high"))
        if low in frame
    ]
    return alt.layer(*bands, *_curves(frame, "generation:Q", list(names.values()), fitness_words(run)["unit"], ",.1f"))


def baselines(run: RunRecord) -> Chart | None:
    """Return champion, validation and fitness beside the baselines in the same validation, where there are any."""
    known = {str(name): str(name).removeprefix(BASELINE) for name in run.metrics if str(name).startswith(BASELINE)}
    if _metrics(run, known) is None:
        return None
    names = {"champion/validation_fitness": "champion", "validation/mean": "validation", "fitness/mean": "fitness"}
    return _lines(run, {**names, **known}, fitness_words(run)["unit"], ",.1f", dashed=list(known.values()))


def fitness_words(run: RunRecord) -> dict[str, str]:
    """Return the unit of fitness, and what its spread is over."""
    return {"unit": "fitness", "over": "agents", **run.facts.get("fitness", {})}


def survival(run: RunRecord) -> Chart | None:
    """Return the share of each kind of agent that the next evolution kept as elites."""
    columns = re.findall(r"^operators/(\w+)_survival$", "\n".join(map(str, run.metrics)), re.MULTILINE)
    return _lines(run, {f"operators/{name}_survival": name for name in columns}, "share that survives", ".0%")


def diversity(run: RunRecord) -> Chart | None:
    """Return the mean distance between agents."""
    names = {"diversity/weights": "weights", "diversity/actions": "actions"}
    return _lines(run, names, "distance between agents", ".3f")


def rss(memory: pd.DataFrame) -> Chart:
    """Return resident memory at the end of each phase."""
    frame = memory[["generation", "phase", "rss_bytes"]].query("phase != 'baseline'")
    frame = frame.assign(MB=(frame["rss_bytes"] / MB).round(1)).drop(columns="rss_bytes")
    return _chart(
        alt.Chart(frame).mark_line(point=len(frame) < 200),
        GENERATION,
        _near("MB", title="resident MB"),
        alt.Color("phase:N", sort=[*PHASES, "generation"], legend=_legend("after", frame["phase"])),
        ["generation:Q", "phase:N", _tip("MB", ",.1f")],
    ).add_params(_zoom())


def owners(memory: pd.DataFrame) -> Chart | None:
    """Return what holds memory at the end of each generation."""
    ends = memory.query("phase == 'generation'").dropna(axis=1, how="all")
    known = [str(name) for name in ends if str(name).startswith("owner_")]
    if not known:
        return None
    frame = ends.melt("generation", known, var_name="owner", value_name="MB")
    frame["owner"] = frame["owner"].str.removeprefix("owner_").str.removesuffix("_bytes")
    frame["MB"] = (frame["MB"].astype(float) / MB).round(3)
    return _chart(
        alt.Chart(frame).mark_area(),
        GENERATION,
        alt.Y("MB:Q", stack=True, title="MB"),
        alt.Color("owner:N", legend=_legend("owner", frame["owner"])),
        ["generation:Q", "owner:N", _tip("MB", ",.2f")],
    )


def seconds(run: RunRecord) -> Chart | None:
    """Return the time of each phase."""
    frame = _metrics(run, {f"time/{phase}_s": phase for phase in PHASES})
    if frame is None:
        return None
    phases = [phase for phase in PHASES if phase in frame]
    axis = alt.Axis(labelOverlap="parity", labelSeparation=6, labelAngle=0)
    return _chart(
        alt.Chart(frame.melt("generation", var_name="phase", value_name="seconds")).mark_bar(),
        alt.X("generation:O", title="generation", axis=axis),
        alt.Y("seconds:Q", title="seconds"),
        alt.Color("phase:N", sort=phases, legend=_legend("phase", phases)),
        ["generation:O", "phase:N", _tip("seconds", ".2f")],
    )


def _metrics(run: RunRecord, names: dict[str, str]) -> pd.DataFrame | None:
    """Return the generation and those columns that are there and not empty, renamed; None without any."""
    found = {name: new for name, new in names.items() if name in run.metrics and run.metrics[name].notna().any()}
    return run.metrics[["generation", *found]].rename(columns=found) if found else None


def _lines(run: RunRecord, names: dict[str, str], title: str, digits: str, dashed: Sequence[str] = ()) -> Chart | None:
    frame = _metrics(run, names)
    if frame is None:
        return None
    return alt.layer(*_curves(frame, "generation:Q", list(names.values()), title, digits, dashed))


def _curves(
    frame: pd.DataFrame, along: str, names: Sequence[str], title: str, digits: str, dashed: Sequence[str] = ()
) -> list[Chart]:
    """Return layers: a line for each column, and a rule with all their values at the pointer."""
    key, names = along.partition(":")[0], [name for name in names if name in frame]
    near = alt.selection_point(nearest=True, on="pointerover", fields=[key], empty=False)
    base = alt.Chart(frame.melt(key, names, "which", "value").dropna())
    base = base.encode(x=DATE if key == "date" else GENERATION)
    lines = base.mark_line(strokeWidth=1.8).encode(
        y=_near("value", title=title, axis=alt.Axis(format=digits)),
        color=alt.Color("which:N", sort=names, legend=_legend(None, names)),
    )
    points = lines.mark_point(filled=True, size=50).encode(opacity=alt.condition(near, alt.value(1), alt.value(0)))
    if dashed:
        which = alt.FieldOneOfPredicate(field="which", oneOf=list(dashed))
        lines = lines.encode(strokeDash=alt.condition(which, alt.value([5, 4]), alt.value([1, 0])))
    rule = base.transform_pivot("which", value="value", groupby=[key]).mark_rule(color="gray")
    rule = rule.encode(
        opacity=alt.condition(near, alt.value(0.5), alt.value(0)),
        tooltip=[along, *(_tip(name, digits) for name in names)],
    )
    return [lines.add_params(_zoom()), points, rule.add_params(near)]


def _chart(marks: Chart, x: Chart, y: Chart, color: Chart, tooltip: list[Chart]) -> Chart:
    return marks.encode(x=x, y=y, color=color, tooltip=tooltip)


def _near(field: str, **kwargs: Any) -> Chart:
    """Return a y axis that need not begin at zero."""
    return alt.Y(f"{field}:Q", scale=alt.Scale(zero=False), **kwargs)


def _tip(field: str, digits: str, **kwargs: Any) -> alt.Tooltip:
    return alt.Tooltip(f"{field}:Q", format=digits, **kwargs)


def _legend(title: str | None, names: Iterable[str]) -> alt.Legend:
    """Return a legend of as many columns as the page has room for."""
    # a legend is laid out before the plot's width is known; naming the width repeats that when the page's changes
    column = SYMBOL + LETTER * max(len(name) for name in names)
    return alt.Legend(
        title=title, columns=alt.ExprRef(f"max(1, floor((containerSize()[0] - {AXIS} + 0 * width) / {column}))")
    )


def _zoom() -> alt.Parameter:
    """Return zooming along x, by a drag of the mouse and Ctrl with its wheel: the wheel alone, and a finger, scroll."""
    return alt.selection_interval(
        bind="scales",
        encodings=["x"],
        zoom="wheel![event.ctrlKey]",
        translate="[pointerdown[event.pointerType !== 'touch'], window:pointerup] > window:pointermove!",
    )
