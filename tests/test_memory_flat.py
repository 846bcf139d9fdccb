"""RAM stays where it was: the reason eigen2 exists."""

import csv
import json
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from tests.containers import Census

ROOT = Path(__file__).parent.parent
MB = 10**6
OBJECTS = ("TradingEnvironment", "DDPGAgent", "ReplayBuffer")


def generations_of(root: Path, count: int, *options: str, shows: bool = False) -> list[dict[str, str]]:
    """Memory at the end of each generation of a run in a process of its own, which may show its progress."""
    command = [sys.executable, "-m", "eigen2.cli", "fit", "--config", "tests/small.yaml"]
    folder = ["--trainer.default_root_dir", str(root), "--trainer.max_epochs", str(count)]
    folder += [f"--trainer.enable_progress_bar={str(shows).lower()}"]
    done = subprocess.run([*command, *folder, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (" generations in " in done.stdout) == shows
    return memory_rows(root)


def memory_rows(root: Path) -> list[dict[str, str]]:
    """Memory at the end of each generation so far."""
    with (root / "memory.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["phase"] == "generation"]


def growth_after_the_tenth(rows: list[dict[str, str]]) -> int:
    rss = [int(row["rss_bytes"]) for row in rows]
    return max(rss[10:]) - rss[10]


def test_a_hundred_generations_stay_within_8_mb_of_the_tenth_and_no_container_grows(tmp_path: Path) -> None:
    census = {"callbacks+": "tests.containers.Grown", "callbacks.path": tmp_path / "grown.json"}
    census |= {"callbacks.generations": [50, 53, 57, 62]}
    rows = generations_of(tmp_path, 100, *(f"--trainer.{name}={value}" for name, value in census.items()), shows=True)
    assert len(rows) == 100
    assert growth_after_the_tenth(rows) <= 8 * MB
    for name in OBJECTS:
        assert len({row[f"count_{name}"] for row in rows}) == 1
    assert json.loads((tmp_path / "grown.json").read_text()) == []


@pytest.mark.slow
def test_a_leak_of_a_quarter_mb_a_generation_is_seen(tmp_path: Path) -> None:
    """The test above can fail."""
    leak = ["--trainer.callbacks+=tests.leak.Leak", "--trainer.callbacks.bytes_per_generation=250000"]
    assert growth_after_the_tenth(generations_of(tmp_path, 60, *leak)) > 8 * MB


KEPT: list[Any] = [[], {}, set(), deque()]


def test_the_census_names_each_kind_of_container_that_grows() -> None:
    census, bounded = Census(), deque(range(5), maxlen=5)
    for look in range(4):
        KEPT[0].append(look)
        KEPT[1][f"generation {look}"] = 1.5  # of plain values: not tracked by the collector
        KEPT[2].add(look)
        KEPT[3].append(look)
        bounded.append(look)
        found = census.look()
    mine = [line for line in found if "test_memory_flat" in line]
    assert sorted(mine) == [
        "collections.deque of 4  tests.test_memory_flat.KEPT[3]",
        "dict of 4  tests.test_memory_flat.KEPT[1]",
        "list of 4  tests.test_memory_flat.KEPT[0]",
        "set of 4  tests.test_memory_flat.KEPT[2]",
    ]
