"""Benchmarks of memory: what they read of a process, and how they judge it."""

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


def test_memory_is_what_the_system_says_and_mapped_pages_count_once_they_were_read(tmp_path: Path) -> None:
    path = tmp_path / "features.npy"
    path.write_bytes(os.urandom(8_000_000))
    mapped = torch.from_file(str(path), size=8_000_000, dtype=torch.uint8)
    int(mapped[:4096].sum())  # loads code
    before = memory_mb()
    int(mapped.sum())
    found = memory_mb()
    assert found["rss"] == pytest.approx(psutil.Process().memory_info().rss / 1e6, rel=0.05)
    assert found["file"] - before["file"] == pytest.approx(8, abs=3)
    assert found["rss"] - found["anon"] - found["file"] == pytest.approx(0, abs=20)  # shared memory
    assert found["rss"] <= found["peak"]


def judged(rss: list[float], printed: str = "verdict: healthy\n", grown: tuple[str, ...] = ()) -> dict[str, Any]:
    """Judge a run whose RSS is this; its first generation counts another object if the first size is 0."""
    rows = [{"heap_bytes": str(10**8), "count_Agent": "6" if size == 0 else "5"} for size in rss]
    return soak.judge(rows, [int(size) for size in rss], [10**8] * len(rss), printed, grown)


def test_the_soak_is_judged_by_slope_counts_containers_and_verdict() -> None:
    noise = [3e6 * (n % 3) for n in range(300)]
    start = [1e6 * min(n, 40) for n in range(300)]  # warms up within the first 50
    flat = [5e8 + a + b for a, b in zip(noise, start, strict=True)]
    found = judged(flat)
    assert found["kept"]
    assert found["rss_slope"]["median"] == pytest.approx(0, abs=1)
    assert found["rss_mb"] == {"50": 546.0, "150": 540.0, "299": 546.0}
    risen = judged([each + 2000 * n for n, each in enumerate(flat)])
    assert risen["rss_slope"]["median"] == pytest.approx(2000, rel=0.05)
    assert not risen["kept"]
    assert not judged([0, *flat])["kept"]
    assert not judged(flat, "memory  leak in train: something kept\n")["kept"]
    assert not judged(flat, grown=("list of 300  module.kept",))["kept"]
    assert soak_text(found).startswith("Over 300 generations RSS was 546.0 MB after generation 50, ")


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in estimate.CASES if case != estimate.RESUMED])
def test_the_estimate_holds_for_each_case_of_the_page(tmp_path: Path, case: str) -> None:
    found = estimate.measure(Task(case), {"generations": 5}, tmp_path)
    assert found["ratio"] == pytest.approx(1, abs=0.15), found
