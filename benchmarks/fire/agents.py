"""Fuel breaks over seeds: fits of configs/dqn_fuel_breaks.yaml, and of changes of it, on landscapes no fit has used."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import fmean, median

import numpy as np

from benchmarks.fire import ground, neighbours, optimum, place
from benchmarks.harness import MB, ROOT, Benchmark, Figures, Row, Settings, Task
from benchmarks.pages import Block, Page, interval, machines, spread, table, where
from benchmarks.runs import eigen2, fit
from eigen2.runtime.yaml_files import read_yaml

CONFIG = "configs/dqn_fuel_breaks.yaml"
SMALL_MAPS = (
    "data.grid_size=10",
    "data.num_landscapes=512",
    "data.num_parallel_envs=16",
    "data.eval_landscapes=40",
    "data.test_landscapes=40",
    "data.fire_simulation_max_duration=240",
    "data.wind_speed=15",
    "data.wind_from=270",
    "model.gamma=1",  # the last break counts as much as the first
    "model.final_epsilon=0.1",
    "model.epsilon_decay_steps=10000",
    "model.validate_every=25",
    "model.networks=1",
    "data.replay_capacity=10000",
)
CASES: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "one network": ("model.networks=1",),
    "10 x 10, 3 breaks": (*SMALL_MAPS, "data.budget=0.03", "trainer.max_epochs=600"),
    "10 x 10, 5 breaks": (*SMALL_MAPS, "data.budget=0.05", "trainer.max_epochs=400"),
    "without the prior": ("model.prior=false", "model.networks=1", "trainer.max_epochs=20"),
}
"""What a case changes of the configuration."""
AGAINST = {"agent minus": "{name}", "saved, points": "{gain}", "landscapes better": "{better} of {landscapes}"}
OTHERS = {"": "{case}", "seeds": "{seeds}", **{name: f"{{{name}:.1f}}" for name in ("agent", "greedy", "local_search")}}
OTHERS |= {"agent, % of local_search": "{share:.1f}", "after swaps, %": "{swapped:.1f}", "fit, s": "{seconds:.0f}"}
SCORES = {"": "{name}", "saved, %": "{mean:.1f}", "each seed": "{each}", "fit, s": "{seconds:.0f}"}
VALIDATE = {
    "placement": "{name}",
    "here, all fires": "{travel_time}",
    "here, the same 60 fires": "{same_fires}",
    "pyretechnics, no canopy": "{surface}",
    "pyretechnics, crown fire": "{crown}",
}


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Fit and test a seed; return time, memory and `scores`: percent of burned area saved, by policy and landscape."""
    run, words = folder / task.case.replace(" ", "-") / str(task.seed), [f"--{each}" for each in CASES[task.case]]
    words += settings["words"]
    options = {"seed_everything": task.seed, "data.landscape_seed": task.seed, "trainer.accelerator": "auto"}
    result = fit(run, CONFIG, {**options, "num_threads": settings["threads"]}, words)
    options |= {"trainer.default_root_dir": run, "num_threads": 1, "ckpt_path": "best"}
    eigen2("test", CONFIG, options, *words)
    return {
        "fit_s": round(result.seconds, 1),
        "rss_mb": [round(size / MB, 1) for size in result.rss],
        "scores": json.loads((run / "test" / "scores.json").read_text())["scores"],
    }


def agents_table(figures: Figures) -> str:
    """Return the percent of burned area saved by the agent and each baseline, on the same landscapes."""
    runs = figures["runs"]["default"]
    rows = []
    for policy in runs[0]["scores"]:
        means = [fmean(run["scores"][policy]) for run in runs]
        agent = {"name": "agent", "seconds": median(run["fit_s"] for run in runs)}
        row = agent if policy == "champion" else {"name": policy, "seconds": None}
        rows.append({**row, "mean": fmean(means), "each": spread(means)})
    return table(SCORES, rows)


def against_table(figures: Figures) -> str:
    """Return by how many points the agent saves more than greedy and local search, with an interval over seeds."""
    runs, rows = figures["runs"]["default"], []
    for name in ("adaptive_downstream", "greedy", "local_search"):
        gains = [np.subtract(run["scores"]["champion"], run["scores"][name]) for run in runs]
        mean = interval(np.array([gain.mean() for gain in gains]))
        better = int(sum((gain > 0).sum() for gain in gains))
        rows.append({"name": name, "gain": mean, "better": better, "landscapes": sum(map(len, gains))})
    return table(AGAINST, rows)


def others_table(figures: Figures) -> str:
    """Return what agents save in each case, beside greedy and local search on the same landscapes."""
    default, *changed = figures["runs"].items()
    seeds = {run["seed"] for _, runs in changed for run in runs}
    same = [run for run in default[1] if run["seed"] in seeds]
    rows = []
    for case, runs in (default, ("default, seeds as below", same), *changed):
        names = {"agent": "champion", "greedy": "greedy", "local_search": "local_search", "swapped": "champion_swaps"}
        row = {key: fmean(fmean(run["scores"][name]) for run in runs) for key, name in names.items()}
        share, swapped = (100 * row[key] / row["local_search"] for key in ("agent", "swapped"))
        seconds = median(run["fit_s"] for run in runs)
        row |= {"share": share, "swapped": swapped, "seconds": seconds}
        rows.append({"case": case, "seeds": len(runs), **row})
    return table(OTHERS, rows)


def machine_text(figures: Figures) -> str:
    """Return where the fits ran, and their resident memory."""
    second_half = [run["rss_mb"][len(run["rss_mb"]) // 2 :] for run in figures["runs"]["default"]]
    least, most = min(map(min, second_half)), max(map(max, second_half))
    return f"{where(figures)}. RSS in the second half of the fits was {least:.0f} to {most:.0f} MB."


def validate_table(figures: Figures) -> str:
    """Return the percent of burned area that placements save by each fire model, with the standard error if known."""
    errors = figures.get("standard_error", {})
    rows = []
    for name, saved in figures["reduction"].items():
        error = {by: f" ± {100 * each:.1f}" for by, each in errors.get(name, {}).items() if each is not None}
        rows.append({"name": name, **{by: f"{100 * each:.1f}{error.get(by, '')}" for by, each in saved.items()}})
    return table(VALIDATE, rows)


SETTINGS = {"seeds": 5, "few": 1, "threads": 1, "words": ["--trainer.precision=32-true"]}
TINY = (
    *("trainer.max_epochs=1", "model.validate_every=1", "data.grid_size=12"),
    *("data.replay_capacity=200", "data.replay_min_size=50"),
)
SMALLEST = {"seeds": 1, "few": 1, "words": [f"--{word}" for word in TINY]}


def _tasks(settings: Settings) -> list[Task]:
    """Return the fits: `seeds` of the configuration, and `few` of each change of it."""
    counts = {case: settings["few" if changes else "seeds"] for case, changes in CASES.items()}
    return [Task(case, seed) for case, count in counts.items() for seed in range(1, count + 1)]


BENCHMARKS = {
    "fire": Benchmark(
        measure, _tasks, SETTINGS, SMALLEST, key=lambda task, settings: [CASES[task.case], read_yaml(ROOT / CONFIG)]
    ),
    "fire-optimum": optimum.BENCHMARK,
    "fire-neighbours": neighbours.BENCHMARK,
    "fire-place": place.BENCHMARK,
    "fire-ground": ground.BENCHMARK,
}
PAGE = Page(
    {
        "agents": Block(agents_table, ("fire",)),
        "agents_against": Block(against_table, ("fire",)),
        "agents_others": Block(others_table, ("fire",)),
        "agents_machine": Block(machine_text, ("fire",)),
        "optimum_shares": Block(optimum.share_table, ("fire-optimum",)),
        "optimum_search": Block(optimum.search_table, ("fire-optimum",)),
        "optimum_text": Block(optimum.text, ("fire-optimum",)),
        "ground": Block(ground.ground_table, ("fire-ground",)),
        "ground_machine": Block(partial(machines, ["fits"]), ("fire-ground",)),
        "place": Block(place.place_table, ("fire-place",)),
        "place_machine": Block(partial(machines, ["regions"]), ("fire-place",)),
        "neighbours": Block(lambda figures: table(neighbours.COLUMNS, figures["models"]), ("fire-neighbours",)),
        "neighbours_machine": Block(partial(machines, ["fires"]), ("fire-neighbours",)),
        "fire_validate": Block(validate_table, ("fire-validate",)),
    }
)
