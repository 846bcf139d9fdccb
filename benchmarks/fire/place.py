"""Seconds and memory of placing breaks in a whole region, and what they save."""

import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.fire.ground import CONFIG
from benchmarks.harness import MB, ROOT, Benchmark, Figures, Row, Settings, Task
from benchmarks.pages import table
from benchmarks.runs import memory_mb, require_linux
from eigen2.cli.fire import WORST
from eigen2.core.networks import Ensemble
from eigen2.errors import UserError
from eigen2.fire.evaluation.regions import Plan, judge, needed_bytes, place, tail_mean
from eigen2.fire.landscapes.landscape import synthetic
from eigen2.fire.landscapes.rasters import Region
from eigen2.fire.networks import QMap
from eigen2.runtime.yaml_files import read_yaml

COLUMNS = {
    "cells": "{size:,} x {size:,}",
    "breaks": "{breaks:,}",
    "placed in s": "{place_s:,.0f}",
    "judged in s": "{judge_s:,.0f}",
    "memory MB": "{peak_mb:,.0f}",
    "estimated MB": "{estimate_mb:,.0f}",
    "saved, %": "{saved:.1f}",
    "saved of the worst 5 %, %": "{saved_worst:.1f}",
}


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Place breaks in a synthetic region and judge them, by networks that did not train."""
    size, plan = int(task.case), Plan(settings["budget"])
    imported = memory_mb()["rss"]
    landscape = synthetic(size, 0, 0)
    region = Region(landscape, np.zeros(landscape.shape, bool))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        networks = read_yaml(ROOT / CONFIG)["model"]["networks"]
        network = Ensemble(QMap(prior=True) for _ in range(networks)).eval()
    start = time.process_time()
    breaks = place(region, network, plan)
    placed = time.process_time()
    losses = judge(region, breaks, plan)
    judged = time.process_time()
    saved = {
        name: 100
        * (1 - tail_mean(losses.after, losses.weights, share) / tail_mean(losses.before, losses.weights, share))
        for name, share in (("saved", 1.0), ("saved_worst", WORST))
    }
    return {
        "size": size,
        "breaks": int(breaks.sum()),
        "place_s": round(placed - start, 2),
        "judge_s": round(judged - placed, 2),
        "peak_mb": round(memory_mb()["peak"] - imported, 1),
        "estimate_mb": round(sum(needed_bytes(size * size, plan).values()) / MB, 1),
        **{name: round(value, 2) for name, value in saved.items()},
    }


def place_table(figures: Figures) -> str:
    """Return a row for each size."""
    return table(COLUMNS, [row for rows in figures["runs"].values() for row in rows])


def tasks(settings: Settings) -> list[Task]:
    """Return a task for each size; raise UserError for one that is no number."""
    require_linux()
    for size in settings["sizes"]:
        if not str(size).isdecimal():
            raise UserError(f"--sizes {size} is no number of cells along an edge; give some, such as 250 500")
    return [Task(str(size)) for size in settings["sizes"]]


BENCHMARK = Benchmark(
    measure, tasks, {"sizes": [250, 500, 1000], "budget": 0.01}, {"sizes": [64], "budget": 0.01}, fresh=True
)
