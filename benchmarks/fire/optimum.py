"""Placements without learning against the optimum on small landscapes, and local search on a large one."""

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.fire.integer_program import solve
from benchmarks.harness import Benchmark, Figures, Row, Settings, Task
from benchmarks.pages import table, where
from eigen2.fire.landscapes.landscape import synthetic
from eigen2.fire.simulation.baselines import PLACEMENTS, greedy
from eigen2.fire.simulation.local_search import FIRES, Limit, improve
from eigen2.fire.simulation.optimum import optimum
from eigen2.fire.simulation.spread import FireModel

SMALL = {
    "10 x 10, 3 breaks": (10, 3, "seeds"),
    "10 x 10, 5 breaks": (10, 5, "seeds"),
    "20 x 20, 3 breaks": (20, 3, "large"),
}
PART = 5  # landscapes of a task
PROGRAM, SCALE = "integer program", "100 x 100, 500 breaks"
PROGRAM_FIRES, PROGRAM_MINUTES = 24, 120.0
SHARE = {"": "{case}", **{name: f"{{{name}:.0f}}" for name in PLACEMENTS}}
SEARCH = {
    "": "{case}",
    "landscapes": "{landscapes}",
    "proven": "{proven}",
    "optimum, s": "{optimum_s!n}",
    "local search reaches it": "{reached}",
    "local search, s": "{search_s!n}",
}


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Measure a case, or PART of its landscapes, in seconds of the processor."""
    if task.case == PROGRAM:
        return {"landscapes": [_program(seed) for seed in range(1, settings["programs"] + 1)]}
    if task.case == SCALE:
        return _scale(settings)
    size, breaks, _ = SMALL[task.case]
    return {"landscapes": [_compare(size, breaks, seed, settings) for seed in landscape_seeds(task, settings)]}


def landscape_seeds(task: Task, settings: Settings) -> Sequence[int]:
    """Return the seeds of the landscapes of a task: PART of them, or what is left at the end."""
    if task.case not in SMALL:
        return ()
    first, count = 1 + PART * task.seed, settings[SMALL[task.case][-1]]
    return range(first, min(first + PART, count + 1))


def _compare(size: int, breaks: int, seed: int, settings: Settings) -> Row:
    """Return what the optimum saves of all fires of a landscape, and what placements without learning do."""
    model = FireModel.of(synthetic(size, seed, 0))
    burned = int(model.start().burns.sum())
    rng = np.random.default_rng([seed, 1])
    placed = {name: place(model, breaks, rng) for name, place in PLACEMENTS.items() if name != "local_search"}
    start = time.process_time()
    limit = Limit(evaluations=settings["evaluations"])
    placed["local_search"] = improve(model, placed["adaptive_downstream"], rng, limit, fires=model.cells)
    searched = time.process_time()
    best = optimum(model, breaks, start=placed["local_search"])
    return {
        "seed": seed,
        "burned": burned,
        "optimum": best.saved,
        "bound": best.bound,
        "optimum_s": round(time.process_time() - searched, 2),
        "search_s": round(searched - start, 2),
        "saved": {name: burned - int(model.start(breaks=cells).burns.sum()) for name, cells in placed.items()},
    }


def _program(seed: int) -> Row:
    """Solve a landscape by HiGHS and by branch and bound."""
    model = FireModel.of(synthetic(10, seed, 0), duration=PROGRAM_MINUTES)
    ignitions = model.draw(PROGRAM_FIRES, np.random.default_rng(seed))
    start = time.process_time()
    program = solve(model, 3, ignitions, seconds=300)
    solved = time.process_time()
    best = optimum(model, 3, ignitions)
    seconds = {"program_s": round(solved - start, 2), "optimum_s": round(time.process_time() - solved, 2)}
    return {"seed": seed, "program": program.saved, "program_bound": program.bound, "optimum": best.saved, **seconds}


def _scale(settings: Settings) -> Row:
    """Improve a placement on a large landscape; other fires than those of the search judge it."""
    model = FireModel.of(synthetic(100, 1, 0))
    rng = np.random.default_rng(1)
    searched, others = model.draw(FIRES, rng), model.draw(FIRES, rng)
    start = time.process_time()
    cells = greedy(model, settings["scale_breaks"], rng, candidates=1, ignitions=searched)
    placed = time.process_time()
    limit = Limit(evaluations=settings["scale_evaluations"])
    better = improve(model, cells, rng, limit)
    ended = time.process_time()
    burned = model.start(others).burned
    saved = [round(100 * (1 - model.start(others, each).burned / burned), 2) for each in (cells, better)]
    return {
        "saved": saved,
        "start_s": round(placed - start, 1),
        "search_s": round(ended - placed, 1),
        "evaluations": limit.used,
    }


def share_table(figures: Figures) -> str:
    """Return the percent of what the optimum saves that each placement saves, the mean over landscapes."""
    rows = []
    for case in SMALL:
        found = [each for row in figures["runs"][case] for each in row["landscapes"]]
        shares = {name: fmean(100 * each["saved"][name] / each["optimum"] for each in found) for name in PLACEMENTS}
        rows.append({"case": case, **shares})
    return table(SHARE, rows)


def search_table(figures: Figures) -> str:
    """Return how often the optimum is proven, how often local search reaches it, and their time per landscape."""
    rows = []
    for case in SMALL:
        found = [each for row in figures["runs"][case] for each in row["landscapes"]]
        rows.append(
            {
                "case": case,
                "landscapes": len(found),
                "proven": sum(each["optimum"] == each["bound"] for each in found),
                "reached": sum(each["saved"]["local_search"] == each["optimum"] for each in found),
                "optimum_s": fmean(each["optimum_s"] for each in found),
                "search_s": fmean(each["search_s"] for each in found),
            }
        )
    return table(SEARCH, rows)


def text(figures: Figures) -> str:
    """Return what the check by HiGHS and the large landscape gave."""
    solved, large = figures["runs"][PROGRAM][0]["landscapes"], figures["runs"][SCALE][0]
    same = sum(each["program"] == each["optimum"] == each["program_bound"] for each in solved)
    seconds = [fmean(each[name] for each in solved) for name in ("program_s", "optimum_s")]
    before, after = large["saved"]
    return (
        f"HiGHS proves the same optimum on {same} of {len(solved)} landscapes of 10 x 10 cells with 3 breaks and "
        f"{PROGRAM_FIRES} fires of {PROGRAM_MINUTES:.0f} minutes, in {seconds[0]:.1f} s on average against "
        f"{seconds[1]:.2f} s. On 100 x 100 cells with 500 breaks, judged by {FIRES} other fires than those of the "
        f"search, {large['evaluations']:,} evaluations in {large['search_s']:.0f} s raise what `adaptive_downstream` "
        f"saves ({large['start_s']:.0f} s) from {before:.1f} to {after:.1f} %. "
        f"Seconds are of the processor: {where(figures)}."
    )


SETTINGS = {
    "seeds": 20,
    "large": 5,
    "programs": 3,
    "evaluations": 20_000,
    "scale_breaks": 500,
    "scale_evaluations": 2000,
}
SMALLEST = {"seeds": 1, "evaluations": 20}


def _tasks(settings: Settings) -> list[Task]:
    parts = {case: range(0, settings[count], PART) for case, (_, _, count) in SMALL.items()}
    return [Task(case, first // PART) for case in SMALL for first in parts[case]] + [Task(PROGRAM), Task(SCALE)]


BENCHMARK = Benchmark(
    measure, _tasks, SETTINGS, SMALLEST, key=lambda task, settings: [*landscape_seeds(task, settings)]
)
