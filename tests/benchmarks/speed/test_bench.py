"""Every comparison at tiny size."""

import math
from pathlib import Path

import pytest

from benchmarks.harness import Task
from benchmarks.speed import bench
from benchmarks.speed.comparison import PERCENT, SECONDS, Comparison, at_most
from benchmarks.speed.tables import bench_table

SETTINGS = {**bench.SETTINGS, **bench.SMALLEST, "threads": 1}


def test_every_part_is_measured(tmp_path: Path) -> None:
    assert [task.case for task in bench.tasks(SETTINGS)] == list(bench.PARTS)
    measured = {task: bench.measure(task, SETTINGS, tmp_path) for task in bench.tasks(SETTINGS)}
    found = bench.figures(measured)
    keys = ["evaluation", "training_step", "batch_assembly", "replay_bytes", "environment_256", "environment_16"]
    keys += ["overhead", "profiler", "checkpoint_save", "checkpoint_load", "panel_build", "panel_load"]
    assert [row["key"] for row in found["rows"]] == keys
    for row in found["rows"]:
        assert set(row) == {"key", "what", "ours", "reference", "ratio", "bound", "unit", "kept"}
        for name in ("ours", "reference", "ratio", "bound"):
            assert math.isfinite(row[name]), f"{name} of {row['key']}"
            assert row[name] > 0, f"{name} of {row['key']}"
    lines = bench_table({**found, "machine": {"threads": 1}}).splitlines()
    assert lines[0] == "| what | eigen2, 1 thread | reference or bound | ratio, 1 thread | to keep |"
    for line, row in zip(lines[2:], found["rows"], strict=True):
        assert line.startswith(f"| {row['what']} | ")


def test_a_gpu_measures_what_runs_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.torch.cuda, "is_available", lambda: True)
    asked = bench.tasks({**SETTINGS, "device": "cuda"})
    assert asked == [Task("evaluation"), Task("training"), Task("assembly")]


@pytest.mark.parametrize(
    ("row", "kept"),
    [
        (Comparison("k", "w", 1.0, 50.0, 50.0, bound=50.0), True),
        (Comparison("k", "w", 1.0, 49.0, 49.0, bound=50.0), False),
        (Comparison("k", "w", math.nan, 1.0, math.nan, bound=50.0), False),
        (at_most("k", "w", 5.0, 5.0, PERCENT), True),
        (at_most("k", "w", 5.1, 5.0, PERCENT), False),
        (at_most("k", "w", math.nan, 1.0, SECONDS), False),
    ],
)
def test_bounds(row: Comparison, kept: bool) -> None:
    assert row.kept == kept
    assert row.json()["kept"] == kept
