"""Curves of time and memory by size: exponents, tables, and the points that are measured."""

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


def synthetic_curve(seconds: Any, megabytes: Any = lambda agents: 1.0) -> dict[str, Any]:
    """Return a curve over agents with `seconds(agents)` for each phase and 100 MB + `megabytes(agents)` of memory."""
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
    assert exponent([1, 2, 4, 8], [-1.0, 0.0, 4.0, 8.0]) == pytest.approx(1)  # values without a logarithm are skipped
    assert math.isnan(exponent([1, 2, 4], [0.0, -1.0, 5.0]))
    assert upper(SIZES) == [32, 64, 128, 256]


def test_exponents_are_of_seconds_and_of_memory_above_the_imports() -> None:
    figures = {"agents": synthetic_curve(lambda agents: agents**0.5, lambda agents: 7.0 * agents)}
    row = exponents_table(figures).splitlines()[-1]
    assert row == "| agents | " + " | ".join(["0.50 / 0.50"] * 4 + ["1.00 / 1.00"] * 3) + " |"
    assert curve_table("agents", figures).splitlines()[2].split(" | ")[1:3] == ["2.00", "2.00"]
    assert curve_table("agents", figures).splitlines()[2].split(" | ")[-1] == "128 |"


@pytest.mark.parametrize(("power", "growth"), [(1.05, "nothing grows faster"), (1.2, "this grows faster")])
def test_the_verdict_names_more_than_linear_growth(power: float, growth: str) -> None:
    text = verdict({"agents": synthetic_curve(lambda agents: agents**power)})
    assert f"{power:.2f}, of evaluate over agents: {growth}" in text


@pytest.mark.parametrize("name", UNITS)
def test_a_curve_varies_one_size_and_was_measured_at_its_points(name: str) -> None:
    points = [asdict(sizes) for sizes in CURVES[name]]
    assert [point[name] for point in points] == sorted({point[name] for point in points})
    varied = {key for key in points[-1] if len({point[key] for point in points}) > 1}
    assert varied == ({"columns", "investable"} if name == "columns" else {name})
    measured = json.loads((FIGURES / "scaling.json").read_text())[name]["points"]
    assert [{key: point[key] for key in asdict(Sizes())} for point in measured] == points


def test_a_point_of_several_curves_is_measured_once() -> None:
    tasks = scaling.tasks({"tiny": False})
    assert len(set(tasks)) == len(tasks) == len({sizes for curve in CURVES.values() for sizes in curve})
    figures = scaling.figures({task: {"imports_mb": {}, "case": task.case} for task in tasks})
    assert figures.keys() == CURVES.keys() == UNITS.keys()
    for name, curve in CURVES.items():
        assert [point["case"] for point in figures[name]["points"]] == [sizes.case for sizes in curve]
