"""Tables and the picture of the power curve in docs/learning.md."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.harness import Figures, Row
from benchmarks.learning.power import CELLS, COEFFICIENTS, COLUMNS, DAYS, LEARNERS, SCORES, Cell
from benchmarks.pages import interval, table

CELL = {"information coefficient": "{coefficient:g}", "columns": "{columns:,}", "days": "{days:,}"}
LABELS = {"erl": "ERL", "gradients alone": "gradients alone", "ridge": "ridge", "momentum": "momentum"}
WEAK = {"filter": "Kalman filter", "ridge": "ridge", "champion": "champions of ERL", "agents": "all agents of ERL"}
LEAST_GAIN = 2.0  # of the filter, points: parts of less are mostly noise
PICTURE = "![Gains as parts of the filter's, by information coefficient](images/power.png)\n\n"


def lines(rules: Figures, learned: Figures | None = None) -> list[Row]:
    """Return a line for each cell: the filter's gain, and the part of it that each method gains.

    A gain is what a method earns more than random orders. Parts are in percent of the filter's gain on the same
    markets, those on which champions were measured if there are any; None unless that gain is at least `LEAST_GAIN`.
    """
    found = []
    for cell in CELLS:
        own, runs = rules["runs"][str(cell)], learned["runs"] if learned else {}
        fitness = {name: [row[name] for row in own] for name in SCORES}
        fitness |= {name: [row["champion"] for row in runs.get(f"{name}: {cell}", [])] for name in LEARNERS if runs}
        markets = min((len(each) for name, each in fitness.items() if name in LEARNERS and each), default=len(own))
        random = np.array([row["random"] for row in own[:markets]])
        gain = {name: np.array(each[:markets]) - random for name, each in fitness.items() if each}
        best = gain["filter"].mean()
        parts = {
            name: 100 * gain[name].mean() / best if best >= LEAST_GAIN and name in gain else None for name in fitness
        }
        found.append({**cell._asdict(), **parts, "filter": f"{best:.1f}", "own": own})
    return found


def power_table(rules: Figures, learned: Figures | None = None) -> str:
    """Return the part of the filter's gain of each method; without champions, also how well the rules forecast."""
    shown = [name for name in LABELS if learned or name not in LEARNERS]
    columns = {**CELL, "filter": "{filter}", **{f"{LABELS[name]} of filter": f"{{{name}}}" for name in shown}}
    if not learned:
        columns |= {f"{name}'s correlation": f"{{ic[{name}]:.3f}}" for name in SCORES}
    rows = [
        {
            **line,
            **{name: "" if line[name] is None else f"{line[name]:z.0f} %" for name in shown},
            "ic": {name: np.mean([row["ic"][name] for row in line["own"]]) for name in SCORES},
        }
        for line in lines(rules, learned)
    ]
    return PICTURE * bool(learned) + table(columns, rows)


def weak_table(figures: Figures) -> str:
    """Return what each method gains more than random orders on markets of weak edges, and how well it ranks."""
    columns = {"information coefficient": "{coefficient}", "": "{name}", "gain": "{gain:.1f}"}
    columns |= {"of the filter": "{part}", "less ridge": "{less}"}
    columns |= {"Rank IC": "{ic}", "Rank IC less ridge's": "{ic_less}"}
    return table(columns, [line for case, rows in figures["runs"].items() for line in _weak_lines(case, rows)])


def _weak_lines(case: str, rows: list[Row]) -> Iterator[Row]:
    """Yield a line for each method on the markets of a cell; agents lack a Rank IC.

    Parts of the filter's gain are left out unless that is above twice its standard error.
    """
    gains = {name: np.array([row[name] - row["random"] for row in rows]) for name in WEAK}
    ranked = {name: np.array([row["ic"][name] for row in rows]) for name in WEAK if name in rows[0]["ic"]}
    best = gains["filter"]
    earns = best.mean() > 2 * best.std(ddof=1) / np.sqrt(len(best))
    for name, label in WEAK.items():
        gain, ic, other = gains[name].mean(), ranked.get(name), name != "ridge"
        yield {
            **{"coefficient": case.split()[0], "name": label, "gain": gain},
            "part": f"{100 * gain / best.mean():.0f} %" if earns else None,
            "less": interval(gains[name] - gains["ridge"]) if other else None,
            "ic": None if ic is None else interval(ic, 4),
            "ic_less": interval(ic - ranked["ridge"], 4) if other and ic is not None else None,
        }


def draw(path: Path, rules: Figures, learned: Figures) -> None:
    """Draw each method's part of the filter's gain against the information coefficient, a panel for each size."""
    found = {Cell(*(line[name] for name in Cell._fields)): line for line in lines(rules, learned)}
    figure = Figure(figsize=(8, 7), facecolor="white", layout="constrained")
    axes = figure.subplots(len(COLUMNS), len(DAYS), squeeze=False, sharex=True, sharey=True)
    for axis, (columns, days) in zip(axes.flat, ((columns, days) for columns in COLUMNS for days in DAYS), strict=True):
        for (method, label), marker in zip(LABELS.items(), "os^D", strict=True):
            parts = [found[Cell(coefficient, columns, days)][method] for coefficient in COEFFICIENTS]
            axis.semilogx(COEFFICIENTS, np.array(parts, float), marker=marker, markersize=4, label=label)
        axis.axhline(100, linestyle="--", color="#AAAAAA", label="Kalman filter")
        axis.set(title=f"{columns} columns, {days:,} days", ylim=(-50, 150))
        axis.set_xticks(COEFFICIENTS, [f"{coefficient:g}" for coefficient in COEFFICIENTS])
        axis.minorticks_off()
        axis.grid(visible=True, color="#DDDDDD")
    figure.supxlabel("information coefficient of the hidden drift")
    figure.supylabel("percent of the filter's gain over random orders")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=5, frameon=False)
    figure.savefig(path, dpi=130)
