"""Exponents, tables and pictures of docs/scaling.md."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator

from benchmarks.harness import Figures
from benchmarks.pages import Block, Page, commit, grid, table

PHASES = ("evaluate", "train", "evolve", "validate")
BOUND = 1.1  # largest exponent that counts as linear: what is left is noise
UNITS = {
    "agents": "agents",
    "columns": "columns of the panel",
    "investable": "investable columns",
    "days": "days of the panel",
    "context": "days of context",
    "replay": "replay capacity, transitions",
}
MAPPED = ("panel", "encoder")  # owners whose bytes lie in mapped files
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9")
TIME = {phase: phase for phase in PHASES} | {"draw": "draw and gather a micro-batch"}
MEMORY = {"rss": "resident", "anon": "anonymous", "peak": "highest resident"}
PANEL = {
    "panel": "{columns:,} columns x {days:,} days",
    "features GB": "{gb:.2f}",
    "generation s": "{seconds[generation]!n}",
    "start s": "{start_s!n}",
    "RssAnon MB": "{memory_mb[anon]:,.0f}",
    "RssFile MB": "{memory_mb[file]:,.0f}",
    "VmHWM MB": "{memory_mb[peak]:,.0f}",
    "owners MB": "{owned:,.0f}",
    "build s": "{build[seconds]!n}",
    "build peak MB": "{build[peak_mb]:,.0f}",
}


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


def series(name: str, curve: Any) -> dict[str, list[float]]:
    """Return what is fitted: seconds by phase and of the buffer's draws, and MB above an import by kind."""
    points, imports = curve["points"], curve["imports_mb"]
    return {
        **{phase: [point["seconds"][phase] for point in points] for phase in PHASES},
        **({"draw": [point["draw_ms"] / 1e3 for point in points]} if name == "replay" else {}),
        **{kind: [point["memory_mb"][kind] - imports[kind] for point in points] for kind in MEMORY},
    }


def exponents(curves: Figures) -> dict[tuple[str, str], tuple[float, float]]:
    """Return exponents (over all sizes, over the upper half) by curve and what is fitted."""
    return {
        (name, what): (exponent(sizes, values), exponent(upper(sizes), upper(values)))
        for name in UNITS.keys() & curves.keys()
        for sizes in [[point[name] for point in curves[name]["points"]]]
        for what, values in series(name, curves[name]).items()
    }


def curve_table(name: str, found: Figures) -> str:
    """Return time and memory of each point of a curve."""
    columns = {UNITS[name].split(",")[0]: f"{{{name}:,}}"}
    columns |= {f"{phase} s": f"{{seconds[{phase}]!n}}" for phase in PHASES}
    columns |= {"draw ms": "{draw_ms!n}"} if name == "replay" else {}
    columns |= {"start s": "{start_s!n}", "RSS MB": "{memory_mb[rss]:,.0f}", "anonymous MB": "{memory_mb[anon]:,.0f}"}
    columns |= {"peak MB": "{memory_mb[peak]:,.0f}"}
    if name in ("columns", "days"):
        columns |= {"build s": "{build[seconds]!n}", "build peak MB": "{build[peak_mb]:,.0f}"}
    return table(columns, found[name]["points"])


def exponents_table(found: Figures) -> str:
    """Return the exponents of all curves."""
    fitted = exponents(found)
    titles = {what: what for what in (*PHASES, "draw")} | {"rss": "RSS", "anon": "anonymous", "peak": "peak"}
    rows = [
        [UNITS[name].split(",")[0], *(_pair(fitted[name, what]) if (name, what) in fitted else "" for what in titles)]
        for name in UNITS
        if name in found
    ]
    return grid(["size", *titles.values()], rows)


def _pair(fitted: tuple[float, float]) -> str:
    return " / ".join("-" if np.isnan(value) else f"{value + 0.0:.2f}" for value in np.round(fitted, 2))


def verdict(found: Figures) -> str:
    """Return the largest exponents, and whether they keep the bound."""
    largest = {key: max(pair) for key, pair in exponents(found).items() if not np.isnan(pair).any()}
    if not largest:
        return "There are too few sizes to fit."
    (name, what), top = max(largest.items(), key=lambda item: item[1])
    held = "nothing grows" if top <= BOUND else "this grows"
    text = f"The largest exponent is {top:.2f}, of {what} over {name}: {held} faster than linearly."
    if context := [(value, what) for (name, what), value in largest.items() if name == "context"]:
        text += " The largest one over days of context is {:.2f}, of {}.".format(*max(context))
    return text


def machines(found: Figures) -> str:
    """Return each machine with the curves measured there, how busy it was, and what a process takes at the least."""
    curves = {name: curve for name, curve in found.items() if name != "machine"}
    by_machine: dict[str, list[str]] = {}
    for name, curve in curves.items():
        machine = found.get("machine") or curve["machine"]  # older figures have a machine for each curve
        text = (
            f"{machine['machine']}, {machine['cores']} cores, torch {machine['torch']} with {machine['threads']} "
            f"thread{'s' * (machine['threads'] != 1)}, {commit(machine)}"
        )
        by_machine.setdefault(text, []).append(name)
    lines = [f"- {', '.join(names)}: {text}." for text, names in by_machine.items()]
    used = [point["processor_share"] for curve in curves.values() for point in curve["points"]]
    rss, anonymous = (min(curve["imports_mb"][kind] for curve in curves.values()) for kind in ("rss", "anon"))
    lines += [
        f"- Generations had {min(used):.2f} to {max(used):.2f} of a processor, half of them {median(used):.2f} "
        "or more; the rest of the time other processes ran or files were written.",
        f"- After its imports a process holds {rss:,.0f} MB, {anonymous:,.0f} of them anonymous.",
    ]
    return "\n".join(lines)


def panel_table(found: Figures) -> str:
    """Return time and memory with a large panel beside the usual one."""
    rows = [
        {
            **each,
            "owned": sum(size for owner, size in each["owners_mb"].items() if owner not in MAPPED),
            "gb": each["columns"] * each["days"] * 9 * 4 / 1e9,
        }
        for each in found["panel"]["points"]
    ]
    first, last = rows[0], rows[-1]
    return (
        f"{table(PANEL, rows)}\n\nThe last takes {last['memory_mb']['anon'] - first['memory_mb']['anon']:,.0f} MB more "
        f"of anonymous memory than the first, of which {last['owned'] - first['owned']:,.0f} MB are its owners'."
    )


def draw(path: Path, source: str, found: Figures, labels: Mapping[str, str], unit: str) -> None:
    """Draw small multiples of what has a label, a curve each, on logarithmic axes; the vertical one is common."""
    names = [name for name in UNITS if name in found]
    lines = {
        name: {labels[what]: values for what, values in series(name, found[name]).items() if what in labels}
        for name in names
    }
    rows = -(-len(names) // 2)
    values = [value for each in lines.values() for line in each.values() for value in line if value > 0]
    with plt.rc_context({"font.size": 10, "axes.grid": True, "grid.color": "#DDDDDD", "axes.axisbelow": True}):
        figure, axes = plt.subplots(rows, 2, figsize=(8, 2.8 * rows), squeeze=False, facecolor="white", sharey=True)
        shown: dict[str, Line2D] = {}
        for axis, name in zip(axes.flat, names, strict=False):
            shown |= _plot(axis, [point[name] for point in found[name]["points"]], lines[name])
            axis.set(xlabel=UNITS[name], ylabel=unit, ylim=(min(values) / 1.5, max(values) * 1.5))
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if max(values) < 100 * min(values) else (1,)))
        for axis in axes.flat[len(names) :]:
            axis.set_visible(False)
        figure.tight_layout(rect=(0, 0, 1, 1 - 0.55 / (2.8 * rows)))
        ncols = 4 if len(shown) == 4 else 3
        figure.legend(shown.values(), shown.keys(), loc="upper center", ncols=ncols, frameon=False)
        figure.savefig(path, dpi=130, metadata={"Source": source})
        plt.close(figure)


def _plot(axis: Axes, sizes: list[float], lines: dict[str, list[float]]) -> dict[str, Line2D]:
    """Plot one curve: its lines by label, and a dashed one of exponent 1 from the start of the highest."""
    highest = max(values[0] for values in lines.values())
    linear = [highest * size / sizes[0] for size in sizes]
    shown = {"linear": axis.plot(sizes, linear, "--", color="#AAAAAA", linewidth=1)[0]}
    for (label, values), colour, marker in zip(lines.items(), COLOURS, "os^Dv", strict=False):
        (shown[label],) = axis.plot(sizes, values, marker, color=colour, linestyle="-", markersize=4)
    axis.set(xscale="log", yscale="log")
    axis.set_xticks(sizes)
    axis.minorticks_off()
    axis.xaxis.set_major_formatter(FuncFormatter(lambda size, _: _short(size)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    return shown


def _short(size: float) -> str:
    """Return a size as a label: 31.6k for 31,623."""
    return f"{size:g}" if size < 10_000 else f"{size / 1000:.3g}k" if size < 1e6 else f"{size / 1e6:g}M"


SCALING = ("scaling",)
PAGE = Page(
    {
        **{name: Block(partial(curve_table, name), SCALING) for name in UNITS},
        "exponents": Block(exponents_table, SCALING),
        "verdict": Block(verdict, SCALING),
        "machine": Block(machines, SCALING),
        "panel": Block(panel_table, SCALING),
    },
    {
        "images/scaling-time.png": Block(partial(draw, labels=TIME, unit="seconds a generation"), SCALING),
        "images/scaling-memory.png": Block(partial(draw, labels=MEMORY, unit="MB above imports"), SCALING),
    },
)
