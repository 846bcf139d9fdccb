"""Figures of processes from rows as the harness keeps them."""

import json
from pathlib import Path

from benchmarks.harness import Rows, Task
from benchmarks.scale import processes


def test_medians_are_of_what_was_measured(tmp_path: Path) -> None:
    machine = {"commit": "c", "dirty": False, "machine": "Xeon", "threads": 1}
    rows = Rows(tmp_path, processes.BENCHMARKS["processes"], {}, machine)
    tasks = [Task("16 agents, 2 processes", number) for number in (0, 1)]
    for task, seconds in zip(tasks, ([1.0, 3.0], [2.0, 9.0]), strict=True):
        rows.write(task, {"generation": seconds})
    assert json.loads(rows.path(tasks[0]).read_text()).keys() > {"processor", "threads"}
    measured = [row for task in tasks if (row := rows.read(task))]
    assert processes.medians(measured) == {"generation": 2.5}
