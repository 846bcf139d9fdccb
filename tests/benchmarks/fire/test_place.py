"""The benchmark of placing breaks in a region, at a size of seconds."""

from pathlib import Path

from benchmarks.fire.place import BENCHMARK, measure, place_table
from benchmarks.harness import Task


def test_a_small_region_is_measured_and_shown(tmp_path: Path) -> None:
    row = measure(Task("40"), {**BENCHMARK.smallest, "budget": 0.05}, tmp_path)
    assert 0.04 * 40 * 40 < row["breaks"] <= 0.05 * 40 * 40
    assert 0 < row["saved"] < 100
    text = place_table({"runs": {"40": [{**row, "place_s": 1234.4, "saved_worst": 7.25}]}})
    assert f"| 40 x 40 | {row['breaks']} | 1,234 |" in text
    assert text.endswith(f"| {row['saved']:.1f} | 7.2 |")
