"""Fuel breaks over seeds: fits of configs/dqn_fuel_breaks.yaml, tested on landscapes that no fit has seen."""

import json
from pathlib import Path
from statistics import fmean, median

from benchmarks.harness import MB, Benchmark, Figures, Row, Settings, Task
from benchmarks.pages import Block, Page, spread, table, where
from benchmarks.runs import eigen2, fit

CONFIG = "configs/dqn_fuel_breaks.yaml"
SCORES = {"": "{name}", "saved, %": "{mean:.1f}", "each seed": "{each}", "fit, s": "{seconds:.0f}"}
VALIDATE = {
    "placement": "{name}",
    "here, all fires": "{travel_time:.1f}",
    "here, the same 60 fires": "{same_fires:.1f}",
    "pyretechnics, no canopy": "{surface:.1f}",
    "pyretechnics, crown fire": "{crown:.1f}",
}


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Fit and test a seed; return its memory and `scores`: percent of burned area saved, by policy and landscape."""
    run = folder / str(task.seed)
    own = {"seed_everything": task.seed, "data.landscape_seed": task.seed, "trainer.accelerator": "auto"}
    done = fit(run, CONFIG, {**own, "num_threads": settings["threads"]}, settings["words"])
    own |= {"trainer.default_root_dir": run, "num_threads": 1, "ckpt_path": "best"}
    eigen2("test", CONFIG, own, *settings["words"])
    return {
        "fit_s": round(done.seconds, 1),
        "rss_mb": [round(size / MB, 1) for size in done.rss],
        "scores": json.loads((run / "test" / "scores.json").read_text())["scores"],
    }


def agents_table(found: Figures) -> str:
    """Return percent of the burned area saved by the agent and by each baseline on the same landscapes."""
    runs = found["runs"]["default"]
    rows = []
    for policy in runs[0]["scores"]:
        means = [fmean(run["scores"][policy]) for run in runs]
        agent = {"name": "agent", "seconds": median(run["fit_s"] for run in runs)}
        own = agent if policy == "champion" else {"name": policy, "seconds": None}
        rows.append({**own, "mean": fmean(means), "each": spread(means)})
    return table(SCORES, rows)


def machine_text(found: Figures) -> str:
    """Return where the fits ran, and their resident memory."""
    half = [run["rss_mb"][len(run["rss_mb"]) // 2 :] for run in found["runs"]["default"]]
    least, most = min(map(min, half)), max(map(max, half))
    return f"{where(found)}. RSS in the second half of the fits was {least:.0f} to {most:.0f} MB."


def validate_table(found: Figures) -> str:
    """Return what placements save by this fire model and by pyretechnics, in percent."""
    reduction = found["reduction"].items()
    return table(VALIDATE, [{"name": name, **{key: 100 * each[key] for key in each}} for name, each in reduction])


SETTINGS = {"seeds": 5, "threads": 2, "words": []}
TINY = ("trainer.max_epochs=1", "model.validate_every=1", "data.grid_size=12", "data.buffer_size=200", "data.warmup=50")
SMALLEST = {"seeds": 1, "words": [f"--{word}" for word in TINY]}
BENCHMARKS = {
    "fire": Benchmark(
        measure, lambda own: [Task("default", seed) for seed in range(1, own["seeds"] + 1)], SETTINGS, SMALLEST
    )
}
PAGE = Page(
    {
        "agents": Block(agents_table, ("fire",)),
        "agents_machine": Block(machine_text, ("fire",)),
        "fire_validate": Block(validate_table, ("fire-validate",)),
    }
)
