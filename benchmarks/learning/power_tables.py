"""Tables of the power curve in docs/learning.md."""

from collections.abc import Iterator

import numpy as np

from benchmarks.harness import Figures, Row
from benchmarks.learning.power import CELLS, SCORES
from benchmarks.pages import interval, table

CELL = {"information coefficient": "{coefficient:g}", "columns": "{columns:,}", "days": "{days:,}"}
WEAK = {"filter": "Kalman filter", "ridge": "ridge", "champion": "champions of ERL", "agents": "all agents of ERL"}
LEAST_GAIN = 2.0  # of the filter, points: parts of less are mostly noise


def power_table(figures: Figures) -> str:
    """Return the filter's gain in each cell, the part of it that the other rules gain, and how well all forecast.

    A gain is what a rule earns more than random orders on the same markets. Parts are in percent of the filter's, left
    out unless that is at least `LEAST_GAIN`.
    """
    columns = {**CELL, "filter": "{filter:.1f}", **{f"{name} of filter": f"{{part[{name}]}}" for name in SCORES[1:]}}
    columns |= {f"{name}'s correlation": f"{{ic[{name}]:.3f}}" for name in SCORES}
    lines = []
    for cell in CELLS:
        rows = figures["runs"][str(cell)]
        gain = {name: np.mean([row[name] - row["random"] for row in rows]) for name in SCORES}
        best = gain["filter"]
        part = {name: f"{100 * gain[name] / best:z.0f} %" if best >= LEAST_GAIN else "" for name in SCORES}
        ic = {name: np.mean([row["ic"][name] for row in rows]) for name in SCORES}
        lines.append({**cell._asdict(), "filter": best, "part": part, "ic": ic})
    return table(columns, lines)


def weak_table(figures: Figures) -> str:
    """Return what each method gains more than random orders on markets of weak edges, and how well it ranks."""
    columns = {"information coefficient": "{coefficient}", "": "{name}", "gain": "{gain:.1f}"}
    columns |= {"of the filter": "{part}", "minus ridge": "{minus}"}
    columns |= {"Rank IC": "{ic}", "Rank IC minus ridge's": "{ic_minus}"}
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
            "minus": interval(gains[name] - gains["ridge"]) if other else None,
            "ic": None if ic is None else interval(ic, 4),
            "ic_minus": interval(ic - ranked["ridge"], 4) if other and ic is not None else None,
        }
