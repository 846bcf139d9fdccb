"""Benchmarks of memory: measurements of a process, and the checks of the soak."""

import os
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from benchmarks.harness import Task
from benchmarks.memory import estimate, soak
from benchmarks.memory.tables import soak_text
from benchmarks.runs import memory_mb


def test_memory_agrees_with_psutil_and_counts_mapped_pages_once_read(tmp_path: Path) -> None:
    path = tmp_path / "features.npy"
    path.write_bytes(os.urandom(8_000_000))
    mapped = torch.from_file(str(path), size=8_000_000, dtype=torch.uint8)
    int(mapped[:4096].sum())  # load the code first
    before = memory_mb()
    int(mapped.sum())
    after = memory_mb()
    assert after["rss"] == pytest.approx(psutil.Process().memory_info().rss / 1e6, rel=0.05)
    assert after["file"] - before["file"] == pytest.approx(8, abs=3)
    assert after["rss"] - after["anon"] - after["file"] == pytest.approx(0, abs=20)  # shared memory
    assert after["rss"] <= after["peak"]


def soak_row(rss: list[float], stdout: str = "verdict: healthy\n", grown: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the row of a run with this RSS."""
    return soak.check_memory([int(size) for size in rss], [10**8] * len(rss), stdout, grown)


def test_the_soak_checks_slope_containers_and_verdict() -> None:
    noise = [3e6 * (n % 3) for n in range(300)]
    start = [1e6 * min(n, 40) for n in range(300)]  # warm-up within the first 50 generations
    flat = [5e8 + a + b for a, b in zip(noise, start, strict=True)]
    row = soak_row(flat)
    assert row["kept"]
    assert row["rss_slope"]["median"] == pytest.approx(0, abs=1)
    assert row["rss_mb"] == {"50": 546.0, "150": 540.0, "299": 546.0}
    rising = soak_row([size + 2000 * n for n, size in enumerate(flat)])
    assert rising["rss_slope"]["median"] == pytest.approx(2000, rel=0.05)
    assert not rising["kept"]
    assert not soak_row(flat, "memory  leak in train: something kept\n")["kept"]
    assert not soak_row(flat, grown=("list of 300  module.kept",))["kept"]
    assert soak_text(row).startswith("Over 300 generations RSS was 546.0 MB after generation 50, ")


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in estimate.CASES if case != estimate.RESUMED])
def test_the_estimate_holds_for_each_case_of_the_page(tmp_path: Path, case: str) -> None:
    row = estimate.measure(Task(case), {"generations": 5}, tmp_path)
    assert row["ratio"] == pytest.approx(1, abs=0.15), row
