"""Figures of processes from rows as the harness keeps them."""

import json
from pathlib import Path

import pytest

from benchmarks.harness import Rows, Task
from benchmarks.scale import processes


def test_medians_are_of_what_was_measured(tmp_path: Path) -> None:
    machine = {"commit": "c", "dirty": False, "machine": "Xeon", "threads": 1}
    rows, task = Rows(tmp_path, processes.BENCHMARKS["processes"], {}, machine), Task("alone 0")
    rows.write(task, {"generation": [1.0, 3.0, 2.0], "deviations": [0.0, 0.1, 0.2, 0.3]})
    row = rows.read(task)
    assert row is not None
    assert json.loads(rows.path(task).read_text()).keys() > {"processor", "threads"}
    medians = processes.summary([row, row])
    assert medians.keys() == {"generation", "deviation"}
    assert medians["generation"] == pytest.approx(2)
