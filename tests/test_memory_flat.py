"""RAM stays where it was: the reason eigen2 exists."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GENERATIONS = 60
MB = 10**6


def rss_by_generation(root: Path, *options: str) -> list[int]:
    """RSS at the end of each generation of a run in a process of its own, in bytes."""
    command = [sys.executable, "-m", "eigen2.cli", "fit", "--config", "tests/small.yaml"]
    folder = ["--trainer.default_root_dir", str(root), "--trainer.max_epochs", str(GENERATIONS)]
    done = subprocess.run([*command, *folder, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with (root / "memory.csv").open() as file:
        return [int(row["rss_bytes"]) for row in csv.DictReader(file) if row["phase"] == "generation"]


def test_sixty_generations_stay_within_8_mb_of_the_tenth(tmp_path: Path) -> None:
    rss = rss_by_generation(tmp_path)
    assert len(rss) == GENERATIONS
    assert max(rss[10:]) - rss[10] <= 8 * MB


@pytest.mark.slow
def test_a_leak_of_a_quarter_mb_a_generation_is_seen(tmp_path: Path) -> None:
    """The test above can fail."""
    leak = ["--trainer.callbacks+=tests.leak.Leak", "--trainer.callbacks.bytes_per_generation=250000"]
    rss = rss_by_generation(tmp_path, *leak)
    assert max(rss[10:]) - rss[10] > 8 * MB
