"""The report's charts as Vega-Lite specifications, by name; a chart without data is left out."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from eigen2.report.record import POLICIES, RunRecord

HEIGHT = 260
MB = 1e6
BARS = 40
"""Of a histogram."""
CONTRIBUTORS = 20
"""Tickers in the chart of contributions, those that moved most money."""
OPERATORS = ("elite", "offspring", "mutant", "injected", "reinjected")
PHASES = ("evaluate", "train", "evolve", "validate")
BASELINE = "baseline/"
"""How scalars begin that say what a policy without learning reaches in validation."""
SHADE = 0.25
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
"""Pixels of a legend's letter, of its symbol and the space between two columns, and of a y axis, at most."""

Chart = Any  # of altair; its types do not say what encoding and layering return


def charts(run: RunRecord) -> dict[str, dict[str, Any]]:
    """Every chart for which the run has data, in the order of the page."""
    makers: dict[str, Callable[[RunRecord], Chart | None]] = {
        "equity": equity,
        "drawdown": drawdown,
        "luck": luck,
        "scores": scores,
        "contribution": contribution,
        "validation": validation,
        "baselines": baselines,
        "fitness": fitness,
        "survival": survival,
        "diversity": diversity,
        "rss": rss,
        "owners": owners,
        "seconds": seconds,
    }
    made = {name: make(run) for name, make in makers.items()}
    return {
        name: chart.properties(width="container", height=HEIGHT).to_dict()
        for name, chart in made.items()
        if chart is not None
    }


def equity(run: RunRecord) -> Chart | None:
    """Money of each policy on the test's days, with a band of those that trade by lot."""
    if run.equity is None:
        return None
    lots = run.equity.rename(columns={"random 5 %": "low", "random 95 %": "high"})[["date", "low", "high"]]
    band = alt.Chart(lots).mark_area(opacity=SHADE, color="gray")
    band = band.encode(x=DATE, y=alt.Y("low:Q", scale=alt.Scale(zero=False)), y2="high:Q")
    return alt.layer(band, *_curves(run.equity, "date:T", POLICIES, "equity", ",.0f"))


def drawdown(run: RunRecord) -> Chart | None:
    """Share lost from the highest close before, on the test's days."""
    if run.equity is None:
        return None
    lost = run.equity[list(POLICIES)] / run.equity[list(POLICIES)].cummax() - 1
    return alt.layer(*_curves(lost.assign(date=run.equity["date"]), "date:T", POLICIES, "drawdown", ".1%"))


def luck(run: RunRecord) -> Chart | None:
    """What the policies by lot made of the test's days, and the champion."""
    if run.test is None:
        return None
    counts, edges = np.histogram(run.test["random_returns"], BARS)
    bars = pd.DataFrame({"from": edges[:-1], "to": edges[1:], "policies": counts})
    champion = pd.DataFrame({"return": [run.test["measures"]["champion"]["total return"]], "who": ["champion"]})
    percent = alt.Axis(format=".0%")
    histogram = (
        alt.Chart(bars)
        .mark_bar(color="gray", opacity=0.6)
        .encode(
            x=alt.X("from:Q", bin="binned", title="total return", axis=percent),
            x2="to:Q",
            y=alt.Y("policies:Q", title="policies by lot"),
            tooltip=[alt.Tooltip("from:Q", format=".1%"), alt.Tooltip("to:Q", format=".1%"), "policies:Q"],
        )
    )
    rule = alt.Chart(champion).mark_rule(strokeWidth=3)
    tooltip = ["who:N", alt.Tooltip("return:Q", format=".1%")]
    return histogram + rule.encode(
        x="return:Q", color=alt.Color("who:N", legend=_legend(None, ["champion"])), tooltip=tooltip
    )


def scores(run: RunRecord) -> Chart | None:
    """What champion and baselines reached in each case of the test, and their means."""
    if run.scores is None:
        return None
    names = list(run.scores["scores"])
    each = [(name, number, value) for name, found in run.scores["scores"].items() for number, value in enumerate(found)]
    cases = pd.DataFrame(each, columns=["who", "case", "score"])
    means = cases.groupby("who", sort=False)["score"].mean().reset_index()
    who = alt.Y("who:N", sort=names, title=None)
    across = alt.X("score:Q", title=run.scores["unit"], axis=alt.Axis(tickCount=8))
    champion = alt.condition("datum.who == 'champion'", alt.value("#e07b39"), alt.value("#2f7ed8"))
    points = alt.Chart(cases).mark_circle(size=60, opacity=0.45)
    points = points.encode(
        x=across, y=who, color=champion, tooltip=["who:N", "case:Q", alt.Tooltip("score:Q", format=",.1f")]
    )
    ticks = alt.Chart(means).mark_tick(thickness=3, size=18)
    return points + ticks.encode(
        x=across, y=who, color=champion, tooltip=["who:N", alt.Tooltip("score:Q", format=",.1f", title="mean")]
    )


def contribution(run: RunRecord) -> Chart | None:
    """Money that the champion's trades gained, by ticker."""
    if run.trades is None or run.trades.empty:
        return None
    gained = run.trades.groupby("ticker")["profit"].agg(["sum", "size"]).reset_index()
    gained = gained.rename(columns={"sum": "profit", "size": "trades"})
    most = gained.reindex(gained["profit"].abs().sort_values(ascending=False, kind="stable").index)[:CONTRIBUTORS]
    sign = alt.condition("datum.profit >= 0", alt.value("#2a9d5c"), alt.value("#d1495b"))
    return (
        alt.Chart(most)
        .mark_bar()
        .encode(
            x=alt.X("ticker:N", sort="-y", title=None),
            y=alt.Y("profit:Q", title="profit"),
            color=sign,
            tooltip=["ticker:N", alt.Tooltip("profit:Q", format=",.0f"), "trades:Q"],
        )
    )


def validation(run: RunRecord) -> Chart | None:
    """The champion's money in each validation window, as a share of its start."""
    if run.validation is None:
        return None
    frame = run.validation.assign(window=run.validation["window"].astype(str))
    frame["growth"] = frame["equity"] / frame.groupby("window")["equity"].transform("first") - 1
    return (
        alt.Chart(frame)
        .mark_line(strokeWidth=1.5)
        .encode(
            x=DATE,
            y=alt.Y("growth:Q", axis=alt.Axis(format=".0%"), title="growth in the window"),
            color=alt.Color("window:N", legend=_legend("window", frame["window"])),
            tooltip=["window:N", "date:T", alt.Tooltip("growth:Q", format=".1%")],
        )
        .add_params(_zoom())
    )


def fitness(run: RunRecord) -> Chart | None:
    """Fitness of the population, bands of all agents and of their middle half, and the champion's in validation."""
    names = {"fitness/mean": "mean", "champion/validation_fitness": "champion, validated"}
    bounds = {"fitness/min": "least", "fitness/max": "most", "fitness/q25": "low", "fitness/q75": "high"}
    frame = _metrics(run, {**names, **bounds})
    if frame is None or not {"least", "most"} <= set(frame):
        return None
    bands = [
        alt.Chart(frame)
        .mark_area(opacity=SHADE)
        .encode(x=GENERATION, y=alt.Y(f"{least}:Q", scale=alt.Scale(zero=False)), y2=f"{most}:Q")
        for least, most in (("least", "most"), ("low", "high"))
        if least in frame
    ]
    return alt.layer(*bands, *_curves(frame, "generation:Q", list(names.values()), fitness_words(run)["unit"], ",.1f"))


def baselines(run: RunRecord) -> Chart | None:
    """Champion, validation and fitness beside what baselines reach in the same validation, where there are any."""
    known = {str(name): str(name).removeprefix(BASELINE) for name in run.metrics if str(name).startswith(BASELINE)}
    frame = _metrics(run, known)
    if frame is None:
        return None
    names = {"champion/validation_fitness": "champion", "validation/mean": "validation", "fitness/mean": "fitness"}
    frame = _metrics(run, {**names, **known})
    assert frame is not None
    order, unit = [*names.values(), *known.values()], fitness_words(run)["unit"]
    return alt.layer(*_curves(frame, "generation:Q", order, unit, ",.1f", dashed=list(known.values())))


def fitness_words(run: RunRecord) -> dict[str, str]:
    """What fitness is measured in, and over what its spread is, as the run says it."""
    return {"unit": "fitness", "over": "agents", **run.facts.get("fitness", {})}


def survival(run: RunRecord) -> Chart | None:
    """Share of each kind of agent that the next evolution kept as elites."""
    return _several(run, {f"operators/{kind}_survival": kind for kind in OPERATORS}, "share that survives", ".0%")


def diversity(run: RunRecord) -> Chart | None:
    """How far agents lie apart."""
    names = {"diversity/weights": "weights", "diversity/actions": "actions"}
    return _several(run, names, "distance between agents", ".3f")


def rss(run: RunRecord) -> Chart | None:
    """Resident memory at the end of each phase."""
    if run.memory is None:
        return None
    frame = run.memory[["generation", "phase", "rss_bytes"]].query("phase != 'baseline'")
    frame = frame.assign(MB=(frame["rss_bytes"] / MB).round(1)).drop(columns="rss_bytes")
    return (
        alt.Chart(frame)
        .mark_line(point=len(frame) < 200)
        .encode(
            x=GENERATION,
            y=alt.Y("MB:Q", scale=alt.Scale(zero=False), title="resident MB"),
            color=alt.Color("phase:N", sort=[*PHASES, "generation"], legend=_legend("after", frame["phase"])),
            tooltip=["generation:Q", "phase:N", alt.Tooltip("MB:Q", format=",.1f")],
        )
        .add_params(_zoom())
    )


def owners(run: RunRecord) -> Chart | None:
    """What holds memory at the end of each generation."""
    if run.memory is None:
        return None
    ends = run.memory.query("phase == 'generation'").dropna(axis=1, how="all")
    known = [str(name) for name in ends if str(name).startswith("owner_")]
    columns = {name: name.removeprefix("owner_").removesuffix("_bytes") for name in known}
    if not columns:
        return None
    frame = ends[["generation", *columns]].rename(columns=columns).melt("generation", var_name="owner", value_name="MB")
    frame["MB"] = (frame["MB"].astype(float) / MB).round(3)
    return (
        alt.Chart(frame)
        .mark_area()
        .encode(
            x=GENERATION,
            y=alt.Y("MB:Q", stack=True, title="MB"),
            color=alt.Color("owner:N", legend=_legend("owner", frame["owner"])),
            tooltip=["generation:Q", "owner:N", alt.Tooltip("MB:Q", format=",.2f")],
        )
    )


def seconds(run: RunRecord) -> Chart | None:
    """Time that each phase took, of those that the run has."""
    frame = _metrics(run, {f"time/{phase}_s": phase for phase in PHASES})
    if frame is None:
        return None
    phases = [phase for phase in PHASES if phase in frame]
    long = frame.melt("generation", var_name="phase", value_name="seconds")
    return (
        alt.Chart(long)
        .mark_bar()
        .encode(
            x=alt.X(
                "generation:O",
                title="generation",
                axis=alt.Axis(labelOverlap="parity", labelSeparation=6, labelAngle=0),
            ),
            y=alt.Y("seconds:Q", title="seconds"),
            color=alt.Color("phase:N", sort=phases, legend=_legend("phase", phases)),
            tooltip=["generation:O", "phase:N", alt.Tooltip("seconds:Q", format=".2f")],
        )
    )


def _metrics(run: RunRecord, names: dict[str, str]) -> pd.DataFrame | None:
    """The columns that are there and not empty, by new names, with the generation; None if there is none."""
    found = {name: new for name, new in names.items() if name in run.metrics and run.metrics[name].notna().any()}
    return run.metrics[["generation", *found]].rename(columns=found) if found else None


def _several(run: RunRecord, names: dict[str, str], title: str, digits: str) -> Chart | None:
    frame = _metrics(run, names)
    return None if frame is None else alt.layer(*_curves(frame, "generation:Q", list(names.values()), title, digits))


def _curves(
    frame: pd.DataFrame, along: str, names: Sequence[str], title: str, digits: str, dashed: Sequence[str] = ()
) -> list[Chart]:
    """Layers: lines of several columns along one, with all their values shown at the place of the pointer."""
    key, names = along.partition(":")[0], [name for name in names if name in frame]
    long = frame.melt(key, list(names), "which", "value").dropna()
    near = alt.selection_point(nearest=True, on="pointerover", fields=[key], empty=False)
    axis = alt.Axis(format=digits)
    base = alt.Chart(long).encode(x=DATE if key == "date" else GENERATION)
    lines = base.mark_line(strokeWidth=1.8).encode(
        y=alt.Y("value:Q", title=title, axis=axis, scale=alt.Scale(zero=False)),
        color=alt.Color("which:N", sort=list(names), legend=_legend(None, names)),
    )
    points = lines.mark_point(filled=True, size=50).encode(opacity=alt.condition(near, alt.value(1), alt.value(0)))
    if dashed:
        which = alt.FieldOneOfPredicate(field="which", oneOf=list(dashed))
        lines = lines.encode(strokeDash=alt.condition(which, alt.value([5, 4]), alt.value([1, 0])))
    tips = [along, *(alt.Tooltip(f"{name}:Q", format=digits) for name in names)]
    rule = (
        base.transform_pivot("which", value="value", groupby=[key])
        .mark_rule(color="gray")
        .encode(opacity=alt.condition(near, alt.value(0.5), alt.value(0)), tooltip=tips)
        .add_params(near)
    )
    return [lines.add_params(_zoom()), points, rule]


def _legend(title: str | None, names: Iterable[str]) -> alt.Legend:
    """A legend of as many columns as the page has room for."""
    # the plot's own width is settled after the legend; that it changed says that the page's has
    column = SYMBOL + LETTER * max(len(name) for name in names)
    return alt.Legend(
        title=title, columns=alt.ExprRef(f"max(1, floor((containerSize()[0] - {AXIS} + 0 * width) / {column}))")
    )


def _zoom() -> alt.Parameter:
    """Along x, by a drag of the mouse and Ctrl with its wheel: the wheel alone, and a finger, scroll the page."""
    return alt.selection_interval(
        bind="scales",
        encodings=["x"],
        zoom="wheel![event.ctrlKey]",
        translate="[pointerdown[event.pointerType !== 'touch'], window:pointerup] > window:pointermove!",
    )
