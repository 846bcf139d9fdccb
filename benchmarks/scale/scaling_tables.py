"""Exponents, tables and the picture of docs/scaling.md."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.harness import Figures
from benchmarks.pages import Block, Page, table, where
from eigen2.runtime.phases import PHASES

BOUND = 1.1  # largest exponent that counts as linear, to allow for noise
UNITS = {  # titles of the sizes that the curves vary
    "agents": "agents",
    "columns": "columns of the panel",
    "investable": "investable columns",
    "days": "days of the panel",
    "context": "days of context",
    "replay": "replay capacity",
}
MEMORY = {"rss": "RSS", "anon": "anonymous", "peak": "peak"}
TIMES = {f"{phase} s": f"{{seconds[{phase}]!n}}" for phase in PHASES} | {"start s": "{start_s!n}"}
SIZES = {f"{title} MB": f"{{memory_mb[{kind}]:,.0f}}" for kind, title in MEMORY.items()}
BUILD = {"build s": "{build[seconds]!n}", "build peak MB": "{build[peak_mb]:,.0f}"}


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return p of values = a x sizes^p by least squares of logarithms; NaN if fewer than two values are above 0."""
    pairs = [(size, value) for size, value in zip(sizes, values, strict=True) if value > 0]
    if len(pairs) < 2:
        return float("nan")
    size, value = np.log(np.array(pairs, dtype=float)).T
    return float(np.polyfit(size, value, 1)[0])


def upper(values: Sequence[Any]) -> Sequence[Any]:
    """Return the upper half, with the middle value if their number is odd."""
    return values[len(values) // 2 :]


def exponents(name: str, curve: Any) -> dict[str, tuple[float, float]]:
    """Return exponents over all sizes and over their upper half, of seconds by phase and of MB above the imports."""
    points, imports = curve["points"], curve["imports_mb"]
    sizes = [point[name] for point in points]
    series = {phase: [point["seconds"][phase] for point in points] for phase in PHASES}
    series |= {title: [point["memory_mb"][kind] - imports[kind] for point in points] for kind, title in MEMORY.items()}
    return {what: (exponent(sizes, line), exponent(upper(sizes), upper(line))) for what, line in series.items()}


def exponents_table(figures: Figures) -> str:
    """Return the exponents of all curves."""
    columns = {"size": "{size}", **{title: f"{{{title}}}" for title in (*PHASES, *MEMORY.values())}}
    rows = [
        {"size": UNITS[name], **{what: _pair(pair) for what, pair in exponents(name, figures[name]).items()}}
        for name in UNITS
        if name in figures
    ]
    return table(columns, rows)


def _pair(fitted: tuple[float, float]) -> str:
    return " / ".join("-" if np.isnan(value) else f"{value + 0.0:.2f}" for value in np.round(fitted, 2))


def verdict(figures: Figures) -> str:
    """Return a sentence about the largest exponents, and whether they exceed the bound."""
    largest = {
        (name, what): max(pair)
        for name in UNITS.keys() & figures.keys()
        for what, pair in exponents(name, figures[name]).items()
        if not np.isnan(pair).any()
    }
    (name, what), top = max(largest.items(), key=lambda item: item[1])
    growth = "nothing grows" if top <= BOUND else "this grows"
    text = f"The largest exponent is {top:.2f}, of {what} over {name}: {growth} faster than linearly."
    if context := [(value, what) for (name, what), value in largest.items() if name == "context"]:
        text += " The largest one over days of context is {:.2f}, of {}.".format(*max(context))
    return text


def curve_table(name: str, figures: Figures) -> str:
    """Return time and memory of each point of a curve."""
    build = BUILD if name == "columns" else {}
    return table({UNITS[name]: f"{{{name}:,}}", **TIMES, **SIZES, **build}, figures[name]["points"])


def machine_text(figures: Figures) -> str:
    """Return the machine of the figures, and the memory of a process after its imports."""
    rss, anonymous = (min(figures[name]["imports_mb"][kind] for name in UNITS) for kind in ("rss", "anon"))
    return f"{where(figures)}. After its imports a process holds {rss:,.0f} MB, {anonymous:,.0f} of them anonymous."


def draw(path: Path, figures: Figures) -> None:
    """Draw the seconds of each phase against each size, on logarithmic axes that share the vertical scale."""
    names = [name for name in UNITS if name in figures]
    rows = -(-len(names) // 2)
    figure = Figure(figsize=(8, 2.8 * rows), facecolor="white", layout="constrained")
    axes = figure.subplots(rows, 2, squeeze=False, sharey=True).flat
    for axis, name in zip(axes, names, strict=False):
        points = figures[name]["points"]
        sizes = [point[name] for point in points]
        for phase, marker in zip(PHASES, "os^D", strict=True):
            axis.loglog(sizes, [point["seconds"][phase] for point in points], marker=marker, markersize=4, label=phase)
        axis.loglog(sizes, [size / sizes[0] for size in sizes], "--", color="#AAAAAA", label="linear")
        axis.set(xlabel=UNITS[name], ylabel="seconds a generation")
        axis.grid(visible=True, color="#DDDDDD")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=5, frameon=False)
    figure.savefig(path, dpi=130)


SCALING = ("scaling",)
PAGE = Page(
    {
        **{name: Block(partial(curve_table, name), SCALING) for name in ("agents", "columns", "replay")},
        "exponents": Block(exponents_table, SCALING),
        "verdict": Block(verdict, SCALING),
        "machine": Block(machine_text, SCALING),
    },
    {"images/scaling-time.png": Block(draw, SCALING)},
)
