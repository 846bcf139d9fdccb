"""Fuel breaks over seeds: fits of configs/dqn_fuel_breaks.yaml, tested on landscapes that no fit has seen."""

import json
from pathlib import Path
from typing import Any

import yaml

from benchmarks.harness import MB, ROOT, Benchmark, Row, Settings, Task, python
from benchmarks.runs import command_line, fit

CONFIG = "configs/dqn_fuel_breaks.yaml"
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "three times as long": {"trainer.max_epochs": 3},
    "no prior": {"model.prior": "false"},
    "no prior, no downstream plane": {"model.prior": "false", "data.downstream_plane": "false"},
}
"""Settings beside the configuration's; of `trainer.max_epochs`, how many times as many."""
EPOCHS = int(yaml.safe_load((ROOT / CONFIG).read_text())["trainer"]["max_epochs"])


def tasks(settings: Settings) -> list[Task]:
    """Return every variant with each seed."""
    return [Task(variant, seed) for variant in VARIANTS for seed in range(1, settings["seeds"] + 1)]


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Fit and test a variant; return its curves and `scores`: percent of burned area saved, by policy and landscape."""
    run = folder / f"{task.case.replace(' ', '-')}-{task.seed}"
    own = {"seed_everything": task.seed, "data.landscape_seed": task.seed, "trainer.accelerator": "auto"}
    own |= VARIANTS[task.case]
    own["trainer.max_epochs"] = settings["epochs"] * own.get("trainer.max_epochs", 1)
    done = fit(run, CONFIG, {**own, "num_threads": settings["threads"]}, settings["words"])
    own |= {"trainer.default_root_dir": run, "num_threads": 1, "ckpt_path": "best"}
    python(*command_line("test", CONFIG, own, *settings["words"]))
    champion = [row["champion/validation_fitness"] for row in done.metrics]
    return {
        "fit_s": round(done.seconds, 1),
        "validation": [None if value in ("", "nan") else round(float(value), 2) for value in champion],
        "rss_mb": [round(size / MB, 1) for size in done.rss],
        "steps": int(float(done.metrics[-1]["replay/added"])),
        "gradient_steps": sum(int(float(row["train/gradient_steps"])) for row in done.metrics),
        "scores": json.loads((run / "test" / "scores.json").read_text())["scores"],
    }


SETTINGS = {"seeds": 5, "epochs": EPOCHS, "threads": 2, "words": []}
SMALLEST = {"seeds": 1, "epochs": 1, "words": ["--data.grid_size=12", "--data.buffer_size=200"]}
BENCHMARKS = {"fire": Benchmark(measure, tasks, SETTINGS, SMALLEST)}
