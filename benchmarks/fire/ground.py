"""Champions of synthetic landscapes on the tiles of a real region that no fit has seen."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.harness import Benchmark, Figures, Row, Settings, Task
from benchmarks.pages import interval, table
from benchmarks.runs import eigen2, fit
from eigen2.errors import UserError

CONFIG = "configs/dqn_fuel_breaks.yaml"
VARIABLE = "EIGEN2_GROUND"  # names the folder of the region's rasters
LAYERS = {"elevation": "elevation.asc", "fuel": "fuels.asc"}
WIND = {"wind_speed": 15, "wind_from": 270}
TINY = ("trainer.max_epochs=1", "model.validate_every=1", "data.grid_size=8", "data.buffer_size=200", "data.warmup=50")
OTHERS = "adaptive_downstream", "greedy", "local_search"
COLUMNS = {
    "minutes": "{minutes}",
    "seeds": "{seeds}",
    "tiles": "{tiles}",
    "cells a fire burns": "{burned:.0f}",
    "champion": "{champion:.1f}",
    **{name: f"{{{name}:.1f}}" for name in OTHERS},
    **{f"champion less {name}": f"{{less_{name}}}" for name in OTHERS[:2]},
}


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Fit a seed on synthetic landscapes; return percent saved on the region's tiles, by minutes and policy."""
    run, tiny = folder / str(task.seed), [f"--{word}" for word in settings["words"]]
    seeds = {"seed_everything": task.seed, "data.landscape_seed": task.seed}
    fit(run, CONFIG, seeds, ["--trainer.precision=32-true", *tiny])
    region = {f"data.region.{layer}": _ground() / file for layer, file in LAYERS.items()}
    region |= {f"data.{name}": value for name, value in WIND.items()}
    scores: dict[str, Mapping[str, list[float]]] = {}
    burned = {}
    for minutes in settings["minutes"]:
        options = {**seeds, **region, "data.fire_simulation_max_duration": minutes, "ckpt_path": "best"}
        options |= {"trainer.default_root_dir": run, "trainer.accelerator": "cpu", "num_threads": 1}
        printed = eigen2("test", CONFIG, options, *tiny)
        scores[str(minutes)] = json.loads((run / "test" / "scores.json").read_text())["scores"]
        burned[str(minutes)] = int(printed.split("a fire burns ")[1].split(" cells")[0].replace(",", ""))
    return {"scores": scores, "burned": burned}


def _ground() -> Path:
    """Return the folder of the rasters; raise UserError if it is not named, or lacks one."""
    folder = Path(os.environ.get(VARIABLE, ""))
    for file in LAYERS.values():
        if not os.environ.get(VARIABLE) or not (folder / file).is_file():
            files = " and ".join(LAYERS.values())
            raise UserError(f"set {VARIABLE} to the folder of {files} of a region, see docs/fire.md; it lacks {file}")
    return folder


def tasks(settings: Settings) -> list[Task]:
    """Return a task for each seed; raise UserError without rasters."""
    _ground()
    return [Task("ground", seed) for seed in range(1, settings["seeds"] + 1)]


def ground_table(figures: Figures) -> str:
    """Return what champions and baselines save on the tiles, and the differences with intervals over tiles."""
    runs, lines = figures["runs"]["ground"], []
    for minutes in runs[0]["scores"]:
        scores = [run["scores"][minutes] for run in runs]
        # one number for each tile: champions of all seeds play the same ones
        means = {name: np.mean([each[name] for each in scores], axis=0) for name in ("champion", *OTHERS)}
        less = {f"less_{name}": interval(means["champion"] - means[name]) for name in OTHERS[:2]}
        line = {"minutes": minutes, "seeds": len(runs), "tiles": len(means["champion"]), **less}
        lines.append(
            {**line, "burned": runs[0]["burned"][minutes], **{name: each.mean() for name, each in means.items()}}
        )
    return table(COLUMNS, lines)


BENCHMARK = Benchmark(
    measure,
    tasks,
    {"seeds": 2, "minutes": [240, 960], "words": []},
    {"seeds": 1, "minutes": [60], "words": [*TINY]},
)
