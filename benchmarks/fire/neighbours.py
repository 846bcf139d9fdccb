"""Fires over four and eight neighbours against those of pyretechnics, which solves the front by a level set."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float32, Int
from scipy import sparse
from scipy.sparse import csgraph

from benchmarks.harness import Benchmark, Figures, Row, Settings, Task
from eigen2.fire.evaluation.validator import VARIABLE, Conditions, ask_pyretechnics, request, require_pyretechnics
from eigen2.fire.landscapes.landscape import synthetic
from eigen2.fire.simulation.baselines import PLACEMENTS
from eigen2.fire.simulation.spread import DEGREES, STEPS, Weather, spread_rates

PLACED = "random", "adaptive_downstream", "greedy"
NONE, LEVEL_SET = "no breaks", "pyretechnics"
CORNERS = {"four neighbours": None, "eight": 0, "eight, one side open": 1, "eight, both sides open": 2}
"""How many of the two cells beside it must burn for fire to take a diagonal; None if it takes none."""
DIAGONALS, DIAGONAL_DEGREES = ((-1, 1), (1, 1), (1, -1), (-1, -1)), (45.0, 135.0, 225.0, 315.0)
BUDGET = 0.05
COLUMNS = {
    "": "{name}",
    "cells a fire burns": "{burned:.0f}",
    "correlation": "{plain:.2f}",
    "with greedy's breaks": "{broken:.2f}",
    **{f"{name} saves, %": f"{{saved[{name}]:.0f}}" for name in PLACED},
}


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Burn the same fires on a landscape by each model: cells burned, by model, placement and fire."""
    landscape, weather = synthetic(settings["size"], 0, task.seed), Weather()
    conditions = Conditions(weather, settings["minutes"], settings["fires"])
    model, rng = conditions.model(landscape), np.random.default_rng([0, task.seed, 1])
    placed: dict[str, list[int]] = {NONE: []}
    placed |= {name: PLACEMENTS[name](model, int(BUDGET * model.cells), rng) for name in PLACED}
    ignitions = model.draw(conditions.fires, np.random.default_rng([0, task.seed, 2]))
    requests = [request(landscape, ignitions, breaks, conditions) for breaks in placed.values()]
    replies = ask_pyretechnics(os.environ[VARIABLE], requests)
    rates = spread_rates(landscape, weather, DEGREES + DIAGONAL_DEGREES)
    burned = {LEVEL_SET: {name: reply["surface"] for name, reply in zip(placed, replies, strict=True)}}
    for name, sides in CORNERS.items():
        burned[name] = {}
        for placement, breaks in placed.items():
            burns = model.burnable.copy()
            burns[breaks] = False
            minutes = graph(rates, landscape.cell_size, burns.reshape(landscape.shape), sides)
            arrival = csgraph.dijkstra(minutes, indices=ignitions, limit=conditions.duration)
            burned[name][placement] = np.where(burns[ignitions], np.isfinite(arrival).sum(1), 0).tolist()
    return {"burned": burned}


def graph(
    rates: Float32[np.ndarray, "8 rows columns"],
    cell_size: float,
    burns: Bool[np.ndarray, "rows columns"],
    sides: int | None,
) -> sparse.csr_array:
    """Return the minutes between neighbours, (cells, cells), by rates in m/min; see `CORNERS` for the `sides`."""
    cells = np.arange(burns.size).reshape(burns.shape)
    edges = [_edges(cells, burns, *step) for step in STEPS]
    if sides is not None:
        edges += [_edges(cells, burns, *step, sides) for step in DIAGONALS]
    lengths = cell_size * np.hypot(*np.array(STEPS + DIAGONALS).T)
    minutes = [
        length / rate.reshape(-1)[ends]
        for (_, ends), rate, length in zip(edges, rates, lengths, strict=False)  # the diagonals are last
    ]
    starts, ends = (np.concatenate(each) for each in zip(*edges, strict=True))
    return sparse.csr_array((np.concatenate(minutes), (starts, ends)), shape=(burns.size, burns.size))


def _edges(
    cells: Int[np.ndarray, "rows columns"],
    burns: Bool[np.ndarray, "rows columns"],
    down: int,
    right: int,
    sides: int = 0,
) -> tuple[Int[np.ndarray, " edges"], Int[np.ndarray, " edges"]]:
    """Return starts and ends of the edges one step down and right, of which so many `sides` burn."""
    rows, columns = cells.shape
    inside = np.s_[max(-down, 0) : rows - max(down, 0), max(-right, 0) : columns - max(right, 0)]
    starts = cells[inside].reshape(-1)
    ends, flat = starts + down * columns + right, burns.reshape(-1)
    beside = flat[starts + down * columns].astype(int) + flat[starts + right]
    taken = flat[starts] & flat[ends] & (beside >= sides)
    return starts[taken], ends[taken]


def fires(measured: Mapping[Task, Row]) -> pd.DataFrame:
    """Return how many `cells` each fire burns, by landscape, model and placement."""
    rows = [
        (task.seed, model, placement, fire, cells)
        for task, row in measured.items()
        for model, placed in row["burned"].items()
        for placement, burned in placed.items()
        for fire, cells in enumerate(burned)
    ]
    return pd.DataFrame(rows, columns=["landscape", "model", "placement", "fire", "cells"])


def summarise(measured: Mapping[Task, Row]) -> Figures:
    """Return what a fire burns by each model, its correlation with pyretechnics over fires, and what breaks save."""
    table = fires(measured).pivot(index=["landscape", "fire"], columns=["model", "placement"], values="cells")
    lines = []
    for name in (LEVEL_SET, *CORNERS):
        own, burned = table[name], float(table[name][NONE].mean())
        plain, broken = (float(own[placed].corr(table[LEVEL_SET][placed])) for placed in (NONE, "greedy"))
        saved = {placed: 100 * (1 - float(own[placed].mean()) / burned) for placed in PLACED}
        lines.append({"name": name, "burned": burned, "plain": plain, "broken": broken, "saved": saved})
    return {"models": lines}


def tasks(settings: Settings) -> list[Task]:
    """Return a task for each landscape; raise UserError without pyretechnics."""
    require_pyretechnics(os.environ.get(VARIABLE, ""))
    return [Task("fires", number) for number in range(settings["landscapes"])]


BENCHMARK = Benchmark(
    measure,
    tasks,
    {"landscapes": 20, "size": 32, "fires": 60, "minutes": 240.0},
    {"landscapes": 1, "size": 12, "fires": 4, "minutes": 60.0},
    summarise,
    lambda measured: {"fires": fires(measured)},
)
