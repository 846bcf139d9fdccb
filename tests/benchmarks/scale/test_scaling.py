"""Curves of time and memory by size: fits of known exponents, points, and the figures of the page."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.harness import FIGURES, ROOT, Task
from benchmarks.scale import scaling
from benchmarks.scale.scaling import CURVES, TINY, Sizes
from benchmarks.scale.scaling_tables import PHASES, UNITS, curve_table, exponent, exponents_table, upper, verdict

SIZES = [4, 8, 16, 32, 64, 128, 256]


def made_up(seconds: Any, megabytes: Any = lambda agents: 1.0) -> dict[str, Any]:
    """A curve over agents whose phases all take `seconds` of the size, and memory 100 MB + `megabytes`."""
    points = [
        {
            **asdict(Sizes(agents=agents)),
            "seconds": dict.fromkeys((*PHASES, "generation"), seconds(agents)),
            "start_s": 9.0,
            "processor_share": 0.9,
            "draw_ms": 1.0,
            "memory_mb": dict.fromkeys(("rss", "anon", "file", "peak"), 100 + megabytes(agents)),
            "owners_mb": {"panel": 3.0, "replay": 2.0},
            "build": {"seconds": 1.0, "peak_mb": 300.0},
        }
        for agents in SIZES
    ]
    machine = {"machine": "made up", "cores": 2, "threads": 1, "torch": "2", "commit": "0" * 40, "dirty": False}
    imports = dict.fromkeys(("rss", "anon", "file", "peak"), 100.0)
    return {"machine": machine, "imports_mb": imports, "points": points}


@pytest.mark.parametrize("power", [-0.5, 0.0, 0.7, 1.0, 2.0])
def test_the_fit_recovers_a_known_exponent(power: float) -> None:
    assert exponent(SIZES, [3.5 * size**power for size in SIZES]) == pytest.approx(power, abs=1e-12)


def test_a_constant_part_flattens_the_lower_half() -> None:
    values = [50.0 + size for size in SIZES]
    assert upper(SIZES) == [32, 64, 128, 256]
    assert exponent(SIZES, values) < exponent(upper(SIZES), upper(values)) < 1


def test_values_without_a_logarithm_are_left_out() -> None:
    assert exponent([1, 2, 4, 8], [-1.0, 0.0, 4.0, 8.0]) == pytest.approx(1)
    assert math.isnan(exponent([1, 2, 4], [0.0, -1.0, 5.0]))


def test_time_is_fitted_as_it_is_and_memory_above_the_imports() -> None:
    found = {"agents": made_up(lambda agents: agents**0.5, lambda agents: 7.0 * agents)}
    row = exponents_table(found).splitlines()[-1]
    assert row.split(" | ")[1:] == ["0.50 / 0.50"] * 4 + [""] + ["1.00 / 1.00"] * 2 + ["1.00 / 1.00 |"]
    assert curve_table("agents", found).splitlines()[2].split(" | ")[1:3] == ["2.00", "2.00"]
    assert curve_table("agents", found).splitlines()[2].split(" | ")[-1] == "128 |"


@pytest.mark.parametrize(("power", "growth"), [(1.05, "nothing grows faster"), (1.2, "this grows faster")])
def test_more_than_linear_growth_is_told(power: float, growth: str) -> None:
    text = verdict({"agents": made_up(lambda agents: agents**power)})
    assert f"{power:.2f}, of evaluate over agents: {growth}" in text


def test_defaults_are_the_full_scale_run() -> None:
    settings = yaml.safe_load((ROOT / "configs" / "full_scale.yaml").read_text())
    data = settings["data"]
    assert Sizes() == Sizes(
        agents=settings["model"]["population_size"],
        columns=data["synthetic"]["columns"],
        investable=data["investable"]["top"],
        days=data["synthetic"]["days"],
        context=data["context_days"],
        replay=data["replay_capacity"],
    )
    assert data["trading_days"] + data["settlement_days"] == scaling.WINDOW_DAYS
    assert (data["validation_days"], data["holdout_days"]) == (scaling.VALIDATION_DAYS, scaling.HOLDOUT_DAYS)
    assert Sizes().holdout == data["holdout_days"]


@pytest.mark.parametrize("name", UNITS)
def test_a_curve_varies_its_own_size_alone(name: str) -> None:
    points = [asdict(sizes) for sizes in CURVES[name]]
    assert [point[name] for point in points] == sorted({point[name] for point in points})
    varied = {key for key in points[-1] if len({point[key] for point in points}) > 1}
    assert varied == ({"columns", "investable"} if name == "columns" else {name})


def test_a_point_of_several_curves_is_measured_once() -> None:
    tasks = scaling.tasks({"tiny": False})
    assert len(set(tasks)) == len(tasks) == len({sizes for curve in CURVES.values() for sizes in curve})
    found = scaling.figures({task: {"imports_mb": {}, "case": task.case} for task in tasks})
    assert found.keys() == CURVES.keys()
    for name, curve in CURVES.items():
        assert [point["case"] for point in found[name]["points"]] == [sizes.case for sizes in curve]


def test_every_curve_of_the_page_was_measured_at_its_sizes() -> None:
    curves = json.loads((FIGURES / "scaling.json").read_text())
    assert curves.keys() == CURVES.keys()
    for name, points in CURVES.items():
        measured = [{key: point[key] for key in asdict(Sizes())} for point in curves[name]["points"]]
        assert measured == [asdict(sizes) for sizes in points]


@pytest.mark.slow
def test_a_point_runs_end_to_end(tmp_path: Path) -> None:
    """Its buffer is full, and the run adds nothing to the cache that was built for it."""
    point = scaling.measure(Task(TINY.case), {"tiny": True, "threads": 1}, tmp_path)
    assert asdict(TINY).items() <= point.items()
    phases = [point["seconds"][phase] for phase in PHASES]
    assert 0 < min(phases) < max(phases) < point["seconds"]["generation"]
    memory = point["memory_mb"]
    assert point["imports_mb"]["rss"] < memory["rss"] <= memory["peak"]
    # the rest is shared memory; each of the three is rounded to 0.1
    assert -0.2 < memory["rss"] - memory["anon"] - memory["file"] < 20
    assert point["owners_mb"]["replay"] == pytest.approx(TINY.replay * (18 + 14 * TINY.investable) / 1e6)
    assert point["build"]["peak_mb"] > 0
    assert 0 < point["processor_share"] < 2  # one thread computes, others write logs
    assert point["draw_ms"] > 0
    scaling.build(TINY, tmp_path / "again")
    left, built = (tmp_path / name for name in ("panels", "again"))
    assert sorted(path.name for path in left.rglob("*")) == sorted(path.name for path in built.rglob("*"))
