"""Exponents, tables and the picture of docs/scaling.md."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.harness import Figures
from benchmarks.pages import Block, Page, table, where

PHASES = ("evaluate", "train", "evolve", "validate")
BOUND = 1.1  # largest exponent that counts as linear: what is left is noise
UNITS = {  # what each curve varies
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
    """Return p of values = a x sizes^p by least squares of logarithms; NaN unless two or more values are above 0."""
    kept = [(size, value) for size, value in zip(sizes, values, strict=True) if value > 0]
    if len(kept) < 2:
        return float("nan")
    size, value = np.log(np.array(kept, dtype=float)).T
    return float(np.polyfit(size, value, 1)[0])


def upper(values: Sequence[Any]) -> Sequence[Any]:
    """Return the upper half, with the middle of an odd number."""
    return values[len(values) // 2 :]


def exponents(name: str, curve: Any) -> dict[str, tuple[float, float]]:
    """Return exponents, over all sizes and over the upper half, of seconds by phase and of MB above an import."""
    points, imports = curve["points"], curve["imports_mb"]
    sizes = [point[name] for point in points]
    series = {phase: [point["seconds"][phase] for point in points] for phase in PHASES}
    series |= {title: [point["memory_mb"][kind] - imports[kind] for point in points] for kind, title in MEMORY.items()}
    return {what: (exponent(sizes, line), exponent(upper(sizes), upper(line))) for what, line in series.items()}


def exponents_table(found: Figures) -> str:
    """Return the exponents of all curves."""
    columns = {"size": "{size}", **{title: f"{{{title}}}" for title in (*PHASES, *MEMORY.values())}}
    rows = [
        {"size": UNITS[name], **{what: _pair(pair) for what, pair in exponents(name, found[name]).items()}}
        for name in UNITS
        if name in found
    ]
    return table(columns, rows)


def _pair(fitted: tuple[float, float]) -> str:
    return " / ".join("-" if np.isnan(value) else f"{value + 0.0:.2f}" for value in np.round(fitted, 2))


def verdict(found: Figures) -> str:
    """Return the largest exponents, and whether they keep the bound."""
    largest = {
        (name, what): max(pair)
        for name in UNITS.keys() & found.keys()
        for what, pair in exponents(name, found[name]).items()
        if not np.isnan(pair).any()
    }
    (name, what), top = max(largest.items(), key=lambda item: item[1])
    held = "nothing grows" if top <= BOUND else "this grows"
    text = f"The largest exponent is {top:.2f}, of {what} over {name}: {held} faster than linearly."
    if context := [(value, what) for (name, what), value in largest.items() if name == "context"]:
        text += " The largest one over days of context is {:.2f}, of {}.".format(*max(context))
    return text


def curve_table(name: str, found: Figures) -> str:
    """Return time and memory of each point of a curve."""
    build = BUILD if name == "columns" else {}
    return table({UNITS[name]: f"{{{name}:,}}", **TIMES, **SIZES, **build}, found[name]["points"])


def machine_text(found: Figures) -> str:
    """Return where it was measured, and what a process takes at the least."""
    rss, anonymous = (min(found[name]["imports_mb"][kind] for name in UNITS) for kind in ("rss", "anon"))
    return f"{where(found)}. After its imports a process holds {rss:,.0f} MB, {anonymous:,.0f} of them anonymous."


def draw(path: Path, found: Figures) -> None:
    """Draw the seconds of each phase against each size, on logarithmic axes of which the vertical one is common."""
    names = [name for name in UNITS if name in found]
    rows = -(-len(names) // 2)
    figure = Figure(figsize=(8, 2.8 * rows), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, 2, squeeze=False, sharey=True).flat
    for axis, name in zip(axes, names, strict=False):
        points = found[name]["points"]
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
