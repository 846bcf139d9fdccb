"""What `benchmarks.scale.scaling` measured, as exponents, tables and pictures."""

import hashlib
import json
from collections.abc import Sequence
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

from benchmarks.pages import fill_in, number, table

Curves = dict[str, Any]
"""Curve by name, as `benchmarks.scale.scaling` writes them."""
PHASES = ("evaluate", "train", "evolve", "validate")
BOUND = 1.1
"""Largest exponent that counts as linear: what is left is noise."""
UNITS = {
    "agents": "agents",
    "columns": "columns of the panel",
    "investable": "investable columns",
    "days": "days of the panel",
    "context": "days of context",
    "replay": "replay capacity, transitions",
}
LARGE = "panel"
"""The one entry that is a pair and no curve."""
MAPPED = ("panel", "encoder")
"""Owners whose bytes lie in mapped files."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v")
MEMORY = {"rss": "resident", "anon": "anonymous", "peak": "highest resident"}


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The p of values = a x sizes^p, by least squares of the logarithms; NaN unless two or more values are above 0.

    Args:
        sizes: above 0.
        values: one a size; all that are not above 0 are left out.
    """
    kept = [(size, value) for size, value in zip(sizes, values, strict=True) if value > 0]
    if len(kept) < 2:
        return float("nan")
    size, value = np.log(np.array(kept, dtype=float)).T
    return float(np.polyfit(size, value, 1)[0])


def upper(values: Sequence[Any]) -> Sequence[Any]:
    """The upper half, with the middle of an odd number."""
    return values[len(values) // 2 :]


def series(name: str, curve: Any) -> dict[str, list[float]]:
    """What is fitted: seconds by phase, milliseconds of a draw for the buffer, MB above an import by kind."""
    points, imports = curve["points"], curve["imports_mb"]
    draws = {"draw": [point["draw_ms"] for point in points]} if name == "replay" else {}
    return {
        **{phase: [point["seconds"][phase] for point in points] for phase in PHASES},
        **draws,
        **{kind: [point["memory_mb"][kind] - imports[kind] for point in points] for kind in ("rss", "anon", "peak")},
    }


def exponents(curves: Curves) -> dict[tuple[str, str], tuple[float, float]]:
    """(over all sizes, over the upper half) by curve and what is fitted."""
    found = {}
    for name in UNITS.keys() & curves.keys():
        sizes = _sizes(name, curves[name])
        for what, values in series(name, curves[name]).items():
            found[name, what] = exponent(sizes, values), exponent(upper(sizes), upper(values))
    return found


def tables(curves: Curves) -> dict[str, str]:
    """Markdown by name: a table a curve, `exponents`, `verdict`, `machine`; the same figures give the same text."""
    found = {name: _curve_table(name, curves[name]) for name in UNITS if name in curves}
    found["exponents"] = _exponents_table(curves)
    found["verdict"] = _verdict(curves)
    found["machine"] = _machine(curves)
    if LARGE in curves:
        found[LARGE] = _panel_table(curves[LARGE])
    return found


def _sizes(name: str, curve: Any) -> list[float]:
    return [point[name] for point in curve["points"]]


def _curve_table(name: str, curve: Any) -> str:
    draws, builds = name == "replay", name in ("columns", "days")
    header = [UNITS[name].split(",")[0], *(f"{phase} s" for phase in PHASES)]
    header += ["draw ms"] * draws + ["start s", "RSS MB", "anonymous MB", "peak MB"] + ["build s", "peak MB"] * builds
    rows = []
    for point in curve["points"]:
        memory = point["memory_mb"]
        row = [f"{point[name]:,}", *(number(point["seconds"][phase]) for phase in PHASES)]
        row += [number(point["draw_ms"])] * draws
        row += [number(point["start_s"]), *(f"{memory[kind]:,.0f}" for kind in MEMORY)]
        row += [number(point["build"]["seconds"]), f"{point['build']['peak_mb']:,.0f}"] if builds else []
        rows.append(row)
    return table(header, rows)


def _exponents_table(curves: Curves) -> str:
    fitted = exponents(curves)
    columns = [*PHASES, "draw", "rss", "anon", "peak"]
    titles = {"rss": "RSS", "anon": "anonymous"}
    rows = [
        [UNITS[name].split(",")[0], *(_pair(fitted[name, what]) if (name, what) in fitted else "" for what in columns)]
        for name in UNITS
        if name in curves
    ]
    return table(["size", *(titles.get(what, what) for what in columns)], rows)


def _pair(fitted: tuple[float, float]) -> str:
    return " / ".join("-" if np.isnan(value) else f"{value + 0.0:.2f}" for value in np.round(fitted, 2))


def _verdict(curves: Curves) -> str:
    """The largest exponents, and whether they keep the bound."""
    largest = {key: max(pair) for key, pair in exponents(curves).items() if not np.isnan(pair).any()}
    if not largest:
        return "There are too few sizes to fit."
    parts = []
    (name, what), top = max(largest.items(), key=lambda item: item[1])
    held = "nothing grows" if top <= BOUND else "this grows"
    parts.append(f"The largest exponent is {top:.2f}, of {what} over {name}: {held} faster than linearly.")
    context = {what: value for (name, what), value in largest.items() if name == "context"}
    if context:
        what, top = max(context.items(), key=lambda item: item[1])
        parts.append(f"The largest one over days of context is {top:.2f}, of {what}.")
    return " ".join(parts)


def _machine(curves: Curves) -> str:
    """Each machine with the curves measured there, how busy it was, and what a process takes at the least."""
    by_machine: dict[str, list[str]] = {}
    for name, curve in curves.items():
        info = curve["machine"]
        plural, changed = "s" * (info["threads"] != 1), " with changes" * bool(info["dirty"])
        text = (
            f"{info['machine']}, {info['cores']} cores, torch {info['torch']} with {info['threads']} thread{plural}, "
            f"commit {str(info['commit'])[:7]}{changed}"
        )
        by_machine.setdefault(text, []).append(name)
    lines = [f"- {', '.join(names)}: {text}." for text, names in by_machine.items()]
    shares = [point["processor_share"] for curve in curves.values() for point in curve["points"]]
    rss, anonymous = (min(curve["imports_mb"][kind] for curve in curves.values()) for kind in ("rss", "anon"))
    lines += [
        f"- Generations had {min(shares):.2f} to {max(shares):.2f} of a processor, half of them {median(shares):.2f} "
        "or more; the rest of the time other processes ran or files were written.",
        f"- After its imports a process holds {rss:,.0f} MB, {anonymous:,.0f} of them anonymous.",
    ]
    return "\n".join(lines)


def _panel_table(curve: Any) -> str:
    header = ["panel", "features GB", "generation s", "start s", "RssAnon MB", "RssFile MB", "VmHWM MB"]
    header += ["owners MB", "build s", "build peak MB"]
    rows, anonymous, owned = [], [], []
    for point in curve["points"]:
        memory, build = point["memory_mb"], point["build"]
        anonymous.append(memory["anon"])
        owned.append(sum(size for owner, size in point["owners_mb"].items() if owner not in MAPPED))
        rows.append(
            [
                f"{point['columns']:,} columns x {point['days']:,} days",
                f"{point['columns'] * point['days'] * 9 * 4 / 1e9:.2f}",
                number(point["seconds"]["generation"]),
                number(point["start_s"]),
                *(f"{memory[kind]:,.0f}" for kind in ("anon", "file", "peak")),
                f"{owned[-1]:,.0f}",
                number(build["seconds"]),
                f"{build['peak_mb']:,.0f}",
            ]
        )
    more = (
        f"The last takes {anonymous[-1] - anonymous[0]:,.0f} MB more of anonymous memory than the first, of which "
        f"{owned[-1] - owned[0]:,.0f} MB are its owners'."
    )
    return f"{table(header, rows)}\n\n{more}"


def digest(measured: Path) -> str:
    """What a picture carries to tell what it was drawn from."""
    return hashlib.blake2b(measured.read_bytes(), digest_size=16).hexdigest()


def draw(measured: Path, docs: Path) -> str:
    """Draw both pictures into `docs`/images, put the tables into `docs`/scaling.md where they have a place there.

    Args:
        measured: JSON file of `benchmarks.scale.scaling`.
        docs: the folder of the documentation.

    Returns:
        The tables.
    """
    curves = json.loads(measured.read_text())
    for picture, lines_of, unit in (
        ("time", _time_lines, "seconds a generation"),
        ("memory", _memory_lines, "MB above imports"),
    ):
        lines = {name: lines_of(name, curves[name]) for name in UNITS if name in curves}
        _picture(lines, curves, unit, docs / "images" / f"scaling-{picture}.png", digest(measured))
    found = tables(curves)
    page = docs / "scaling.md"
    if page.exists():
        page.write_text(fill_in(page.read_text(), found))
    return "\n\n".join(f"{name}\n\n{text}" for name, text in found.items())


def _picture(lines: dict[str, dict[str, list[float]]], curves: Curves, unit: str, path: Path, source: str) -> None:
    """Small multiples, a curve each, on logarithmic axes of which the vertical one is common to all."""
    names = [name for name in UNITS if name in curves]
    rows = -(-len(names) // 2)
    values = [value for name in names for line in lines[name].values() for value in line if value > 0]
    with plt.rc_context({"font.size": 10, "axes.grid": True, "grid.color": "#DDDDDD", "axes.axisbelow": True}):
        figure, axes = plt.subplots(rows, 2, figsize=(8, 2.8 * rows), squeeze=False, facecolor="white", sharey=True)
        shown: dict[str, Line2D] = {}
        for axis, name in zip(axes.flat, names, strict=False):
            shown |= _plot(axis, _sizes(name, curves[name]), lines[name])
            axis.set(xlabel=UNITS[name], ylabel=unit, ylim=(min(values) / 1.5, max(values) * 1.5))
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if max(values) < 100 * min(values) else (1,)))
        for axis in axes.flat[len(names) :]:
            axis.set_visible(False)
        figure.tight_layout(rect=(0, 0, 1, 1 - 0.55 / (2.8 * rows)))
        figure.legend(
            shown.values(), shown.keys(), loc="upper center", ncols=4 if len(shown) == 4 else 3, frameon=False
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130, metadata={"Source": source})
        plt.close(figure)


def _plot(axis: Axes, sizes: list[float], lines: dict[str, list[float]]) -> dict[str, Line2D]:
    """One curve: its lines by label, and a dashed one of exponent 1 from the start of the highest."""
    highest = max(values[0] for values in lines.values())
    linear = [highest * size / sizes[0] for size in sizes]
    shown = {"linear": axis.plot(sizes, linear, "--", color="#AAAAAA", linewidth=1)[0]}
    for (label, values), colour, marker in zip(lines.items(), COLOURS, MARKERS, strict=False):
        (shown[label],) = axis.plot(sizes, values, marker, color=colour, linestyle="-", markersize=4)
    axis.set(xscale="log", yscale="log")
    axis.set_xticks(sizes)
    axis.minorticks_off()
    axis.xaxis.set_major_formatter(FuncFormatter(lambda size, _: _short(size)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    return shown


def _short(size: float) -> str:
    """A size as a label: 31.6k for 31,623."""
    return f"{size:g}" if size < 10_000 else f"{size / 1000:.3g}k" if size < 1e6 else f"{size / 1e6:g}M"


def _time_lines(name: str, curve: Any) -> dict[str, list[float]]:
    values = series(name, curve)
    lines = {phase: values[phase] for phase in PHASES}
    if "draw" in values:
        lines["draw and gather a micro-batch"] = [value / 1e3 for value in values["draw"]]
    return lines


def _memory_lines(name: str, curve: Any) -> dict[str, list[float]]:
    values = series(name, curve)
    return {label: values[kind] for kind, label in MEMORY.items()}
