import json
import math
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from benchmarks.scale import scaling
from benchmarks.scale.scaling import CURVES, Sizes
from benchmarks.scale.scaling_plot import PHASES, UNITS, digest, draw, exponent, fill_in, tables, upper

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "scaling.md"
MEASURED = ROOT / "docs" / "figures" / "scaling.json"
SIZES = [4, 8, 16, 32, 64, 128, 256]
TINY = Sizes(agents=2, columns=12, investable=6, days=1000, context=32, replay=2000, filled=True)


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
    found = tables({"agents": made_up(lambda agents: agents**0.5, lambda agents: 7.0 * agents)})
    row = found["exponents"].splitlines()[-1]
    assert row.split(" | ")[1:] == ["0.50 / 0.50"] * 4 + [""] + ["1.00 / 1.00"] * 2 + ["1.00 / 1.00 |"]
    assert found["agents"].splitlines()[2].split(" | ")[1:3] == ["2.00", "2.00"]
    assert found["agents"].splitlines()[2].split(" | ")[-1] == "128 |"


@pytest.mark.parametrize(("power", "verdict"), [(1.05, "nothing grows faster"), (1.2, "this grows faster")])
def test_more_than_linear_growth_is_told(power: float, verdict: str) -> None:
    told = tables({"agents": made_up(lambda agents: agents**power)})["verdict"]
    assert f"{power:.2f}, of evaluate over agents: {verdict}" in told


def test_texts_take_their_places_and_leave_the_rest() -> None:
    page = "a\n<!-- measured: one -->\nold\nolder\n<!-- end -->\nb\n<!-- measured: two -->\n<!-- end -->\n"
    filled = fill_in(page, {"one": "new"})
    assert filled == "a\n<!-- measured: one -->\nnew\n<!-- end -->\nb\n<!-- measured: two -->\n<!-- end -->\n"
    assert fill_in(filled, {"one": "new", "two": "x"}).count("\n") == page.count("\n")


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


@pytest.mark.slow  # takes half a minute
def test_a_point_runs_end_to_end(tmp_path: Path) -> None:
    """In processes of its own; its buffer is full, and the run adds nothing to the cache that was built for it."""
    work = tmp_path / "work"
    work.mkdir()
    curve = scaling.Sweep(work, threads=1).curve([TINY])
    (point,) = curve["points"]
    assert asdict(TINY).items() <= point.items()
    phases = [point["seconds"][phase] for phase in PHASES]
    assert 0 < min(phases) < max(phases) < point["seconds"]["generation"]
    memory = point["memory_mb"]
    assert curve["imports_mb"]["rss"] < memory["rss"] <= memory["peak"]
    # the rest is shared memory; each of the three is rounded to 0.1
    assert -0.2 < memory["rss"] - memory["anon"] - memory["file"] < 20
    assert point["owners_mb"]["replay"] == pytest.approx(TINY.replay * (18 + 14 * TINY.investable) / 1e6)
    assert point["build"]["peak_mb"] > 0
    assert 0 < point["processor_share"] < 2  # one thread computes, others write logs
    assert point["draw_ms"] > 0
    scaling.build([TINY], tmp_path / "panels")
    left, built = ([path.relative_to(folder) for path in folder.rglob("*")] for folder in (work, tmp_path))
    assert sorted(left) == sorted(path for path in built if path.parts[0] == "panels")


def test_measured_curves_take_the_place_of_earlier_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "scaling.json"
    kept, fresh = made_up(lambda agents: agents), made_up(lambda agents: 2.0 * agents)
    out.write_text(json.dumps({"agents": kept, "days": kept}))
    results = {len(CURVES["agents"]): fresh}
    monkeypatch.setattr(scaling.Sweep, "curve", lambda sweep, points: results.pop(len(points)))
    scaling.main(["--curve", "agents", "--out", str(out)])
    assert json.loads(out.read_text()) == {"agents": fresh, "days": kept}


def test_pictures_and_page_are_drawn_from_the_file(tmp_path: Path) -> None:
    measured, docs = tmp_path / "scaling.json", tmp_path / "docs"
    docs.mkdir()
    (docs / "scaling.md").write_text("<!-- measured: agents -->\n<!-- end -->\n")
    measured.write_text(json.dumps({"agents": made_up(lambda agents: agents)}))
    assert "| 256 | 256 |" in draw(measured, docs)
    assert "| 256 | 256 |" in (docs / "scaling.md").read_text()
    for name in ("time", "memory"):
        with Image.open(docs / "images" / f"scaling-{name}.png") as picture:
            assert picture.info["Source"] == digest(measured)


class TestPage:
    """docs/scaling.md says what was measured."""

    @pytest.fixture(scope="class")
    def curves(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(MEASURED.read_text())
        return found

    def test_every_curve_was_measured_at_its_sizes(self, curves: dict[str, Any]) -> None:
        assert curves.keys() == CURVES.keys()
        for name, points in CURVES.items():
            measured = [{key: point[key] for key in asdict(Sizes())} for point in curves[name]["points"]]
            assert measured == [asdict(sizes) for sizes in points]

    def test_every_figure_in_its_place_is_the_measured_one(self, curves: dict[str, Any]) -> None:
        places = re.findall(r"<!-- measured: (\w+) -->\n(.*?)\n<!-- end -->", PAGE.read_text(), re.DOTALL)
        assert dict(places) == tables(curves)

    def test_no_table_has_other_figures(self, curves: dict[str, Any]) -> None:
        measured = {line for text in tables(curves).values() for line in text.splitlines()}
        assert [line for line in PAGE.read_text().splitlines() if line.startswith("|") and line not in measured] == []

    @pytest.mark.parametrize("name", ["time", "memory"])
    def test_pictures_are_drawn_of_the_same_figures(self, name: str) -> None:
        with Image.open(ROOT / "docs" / "images" / f"scaling-{name}.png") as picture:
            assert picture.info["Source"] == digest(MEASURED)
