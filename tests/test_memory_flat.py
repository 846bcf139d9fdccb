"""RAM stays where it was: the reason eigen2 exists."""

import csv
import gc
import json
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from tests.containers import Census, tracked_objects

ROOT = Path(__file__).parent.parent
MB = 10**6
GENERATIONS, FULL = 22, 9  # of a run, and the first after which no history grows


def generations_of(root: Path, *options: str) -> tuple[list[dict[str, str]], str]:
    """Memory at the end of each of GENERATIONS of a run in a process of its own, and what it prints."""
    config, text = root / "small.yaml", (ROOT / "tests" / "small.yaml").read_text()
    config.write_text(text.replace("max_history: 40", "max_history: 8"))  # full before the first look
    command = [sys.executable, "-m", "eigen2.cli", "fit", "--config", str(config)]
    command += [f"--trainer.max_epochs={GENERATIONS}"]
    command += ["--trainer.default_root_dir", str(root), "--trainer.enable_progress_bar=true", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with (root / "memory.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["phase"] == "generation"], done.stdout


def live_growth(rows: list[dict[str, str]]) -> float:
    """Bytes that the last generation uses more than the first after all histories are full."""
    live = [int(row["heap_bytes"]) + int(row["python_bytes"]) for row in rows]
    return live[-1] - live[FULL]


def test_memory_stays_flat_no_container_grows_and_no_leak_is_reported(tmp_path: Path) -> None:
    census = {"callbacks+": "tests.containers.Grown", "callbacks.path": tmp_path / "grown.json"}
    census |= {"callbacks.generations": [FULL + 1, FULL + 4, FULL + 9]}
    rows, printed = generations_of(tmp_path, *(f"--trainer.{name}={value}" for name, value in census.items()))
    assert len(rows) == GENERATIONS
    rss = [int(row["rss_bytes"]) for row in rows]
    assert max(rss[FULL:]) - rss[FULL] <= 8 * MB
    assert live_growth(rows) <= 0.3 * MB
    assert json.loads((tmp_path / "grown.json").read_text()) == []
    assert " generations in " in printed
    assert printed.count("verdict: healthy") == 1
    assert "leak in" not in printed


@pytest.mark.slow
def test_a_leak_of_40_kb_a_generation_is_seen(tmp_path: Path) -> None:
    """The test above can fail."""
    leak = ["--trainer.callbacks+=tests.leak.Leak", "--trainer.callbacks.bytes_per_generation=40000"]
    assert live_growth(generations_of(tmp_path, *leak)[0]) > 0.3 * MB


KEPT: list[Any] = [[], {}, set(), deque()]


@pytest.mark.usefixtures("thawed")
def test_the_census_names_each_kind_of_container_that_grows() -> None:
    census, bounded = Census(), deque(range(5), maxlen=5)
    for look in range(4):
        KEPT[0].append(look)
        KEPT[1][f"generation {look}"] = 1.5  # of plain values: not tracked by the collector
        KEPT[2].add(look)
        KEPT[3].append(look)
        bounded.append(look)
        found = census.look()
    expected = ["deque of 4, first 0", "dict of 4, first 'generation 0'", "list of 4, first 0", "set of 4, first 0"]
    assert set(expected) <= set(found)
    assert not [line for line in found if "of 5" in line]


class Plain:
    def __init__(self) -> None:
        self.itself: Any = None


@pytest.mark.usefixtures("thawed")
@pytest.mark.parametrize("frozen", [False, True])
def test_all_objects_are_listed_and_garbage_is_not_frozen_for_good(frozen: bool) -> None:
    kept, circle = Plain(), Plain()
    circle.itself = circle
    gc.collect()
    if frozen:
        gc.freeze()
    try:
        with tracked_objects() as objects:
            assert sum(type(each) is Plain for each in objects) == 2
            del circle
        gc.collect()
        with tracked_objects() as objects:
            assert [each for each in objects if type(each) is Plain] == [kept]
        assert (gc.get_freeze_count() > 0) == frozen
    finally:
        gc.unfreeze()
