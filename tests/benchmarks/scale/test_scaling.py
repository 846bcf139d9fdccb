"""Curves of time and memory by size: fits of known exponents, points, and the figures of the page."""

import json
import math
from dataclasses import asdict
from typing import Any

import pytest

from benchmarks.harness import FIGURES
from benchmarks.scale import scaling
from benchmarks.scale.scaling import CURVES, Sizes
from benchmarks.scale.scaling_tables import PHASES, UNITS, curve_table, exponent, exponents_table, upper, verdict

SIZES = [4, 8, 16, 32, 64, 128, 256]


def made_up(seconds: Any, megabytes: Any = lambda agents: 1.0) -> dict[str, Any]:
    """A curve over agents whose phases all take `seconds` of the size, and memory 100 MB + `megabytes`."""
    points = [
        {
            **asdict(Sizes(agents=agents)),
            "seconds": dict.fromkeys((*PHASES, "generation"), seconds(agents)),
            "start_s": 9.0,
            "memory_mb": dict.fromkeys(("rss", "anon", "file", "peak"), 100 + megabytes(agents)),
            "build": {"seconds": 1.0, "peak_mb": 300.0},
        }
        for agents in SIZES
    ]
    return {"imports_mb": dict.fromkeys(("rss", "anon", "file", "peak"), 100.0), "points": points}


@pytest.mark.parametrize("power", [-0.5, 0.0, 0.7, 1.0, 2.0])
def test_the_fit_recovers_a_known_exponent(power: float) -> None:
    assert exponent(SIZES, [3.5 * size**power for size in SIZES]) == pytest.approx(power, abs=1e-12)
    assert exponent([1, 2, 4, 8], [-1.0, 0.0, 4.0, 8.0]) == pytest.approx(1)  # without those that have no logarithm
    assert math.isnan(exponent([1, 2, 4], [0.0, -1.0, 5.0]))
    assert upper(SIZES) == [32, 64, 128, 256]


def test_time_is_fitted_as_it_is_and_memory_above_the_imports() -> None:
    found = {"agents": made_up(lambda agents: agents**0.5, lambda agents: 7.0 * agents)}
    row = exponents_table(found).splitlines()[-1]
    assert row == "| agents | " + " | ".join(["0.50 / 0.50"] * 4 + ["1.00 / 1.00"] * 3) + " |"
    assert curve_table("agents", found).splitlines()[2].split(" | ")[1:3] == ["2.00", "2.00"]
    assert curve_table("agents", found).splitlines()[2].split(" | ")[-1] == "128 |"


@pytest.mark.parametrize(("power", "growth"), [(1.05, "nothing grows faster"), (1.2, "this grows faster")])
def test_more_than_linear_growth_is_told(power: float, growth: str) -> None:
    text = verdict({"agents": made_up(lambda agents: agents**power)})
    assert f"{power:.2f}, of evaluate over agents: {growth}" in text


@pytest.mark.parametrize("name", UNITS)
def test_a_curve_varies_its_own_size_alone_and_was_measured_at_its_sizes(name: str) -> None:
    points = [asdict(sizes) for sizes in CURVES[name]]
    assert [point[name] for point in points] == sorted({point[name] for point in points})
    varied = {key for key in points[-1] if len({point[key] for point in points}) > 1}
    assert varied == ({"columns", "investable"} if name == "columns" else {name})
    measured = json.loads((FIGURES / "scaling.json").read_text())[name]["points"]
    assert [{key: point[key] for key in asdict(Sizes())} for point in measured] == points


def test_a_point_of_several_curves_is_measured_once() -> None:
    tasks = scaling.tasks({"tiny": False})
    assert len(set(tasks)) == len(tasks) == len({sizes for curve in CURVES.values() for sizes in curve})
    found = scaling.figures({task: {"imports_mb": {}, "case": task.case} for task in tasks})
    assert found.keys() == CURVES.keys() == UNITS.keys()
    for name, curve in CURVES.items():
        assert [point["case"] for point in found[name]["points"]] == [sizes.case for sizes in curve]
