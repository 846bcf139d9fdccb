"""Fuel breaks over seeds: fits of configs/dqn_fuel_breaks.yaml, tested on landscapes not used in any fit."""

import json
from pathlib import Path
from statistics import fmean, median

from benchmarks.harness import MB, Benchmark, Figures, Row, Settings, Task
from benchmarks.learning import fire_optimum
from benchmarks.pages import Block, Page, spread, table, where
from benchmarks.runs import eigen2, fit

CONFIG = "configs/dqn_fuel_breaks.yaml"
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
    run = folder / str(task.seed)
    options = {"seed_everything": task.seed, "data.landscape_seed": task.seed, "trainer.accelerator": "auto"}
    result = fit(run, CONFIG, {**options, "num_threads": settings["threads"]}, settings["words"])
    options |= {"trainer.default_root_dir": run, "num_threads": 1, "ckpt_path": "best"}
    eigen2("test", CONFIG, options, *settings["words"])
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


SETTINGS = {"seeds": 5, "threads": 2, "words": []}
TINY = ("trainer.max_epochs=1", "model.validate_every=1", "data.grid_size=12", "data.buffer_size=200", "data.warmup=50")
SMALLEST = {"seeds": 1, "words": [f"--{word}" for word in TINY]}
BENCHMARKS = {
    "fire": Benchmark(
        measure, lambda options: [Task("default", seed) for seed in range(1, options["seeds"] + 1)], SETTINGS, SMALLEST
    ),
    "fire-optimum": fire_optimum.BENCHMARK,
}
PAGE = Page(
    {
        "agents": Block(agents_table, ("fire",)),
        "agents_machine": Block(machine_text, ("fire",)),
        "optimum_shares": Block(fire_optimum.share_table, ("fire-optimum",)),
        "optimum_search": Block(fire_optimum.search_table, ("fire-optimum",)),
        "optimum_text": Block(fire_optimum.text, ("fire-optimum",)),
        "fire_validate": Block(validate_table, ("fire-validate",)),
    }
)
