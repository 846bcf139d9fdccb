"""Placements scored by pyretechnics: what goes to its interpreter and back, and what is refused.

A fake interpreter stands in for it; where EIGEN2_PYRETECHNICS_PYTHON names a real one, that is used as well.
"""

import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eigen2.cli import fire as fire_cli
from eigen2.cli.main import main
from eigen2.errors import UserError
from eigen2.fire.evaluation import pyretechnics_worker as worker
from eigen2.fire.evaluation.placements import read_placements
from eigen2.fire.evaluation.validator import (
    NEWEST,
    VARIABLE,
    Conditions,
    _pyretechnics,
    require_pyretechnics,
    validate,
)
from eigen2.fire.landscapes.landscape import Landscape, flat, synthesize
from eigen2.fire.simulation.environment import FuelBreakEnv
from eigen2.fire.simulation.spread import FireModel, Weather


def run(words: list[str]) -> None:
    """Run `fire` where its errors can be caught."""
    fire_cli.run("fire", fire_cli.make_parser().parse_args(words))


REAL = os.environ.get(VARIABLE)
real = pytest.mark.skipif(not REAL, reason=f"{VARIABLE} names no interpreter")

FAKE = """#!{python}
import json, shutil, sys
version = {version!r}
assert sys.argv[1] == "-I" and sys.argv[2].endswith("pyretechnics_worker.py")
if sys.argv[3:] == ["version"]:
    print(json.dumps({{"python": "3.11.7", "pyretechnics": version}}))
    sys.exit()
import numpy as np
request, reply = sys.argv[3:]
shutil.copy(request, {seen!r})
with np.load(request, allow_pickle=False) as arrays:
    found = []
    for i in range(int(arrays["landscapes"])):
        breaks, fires = arrays[f"{{i}}/breaks"], arrays[f"{{i}}/ignitions"]
        found.append([[100 - int(row.sum())] * len(fires) for row in breaks])
json.dump({{"surface": found, "crown": {crown}}}, open(reply, "w"))
"""


def fake(folder: Path, version: str | None = NEWEST, crown: str = "found") -> str:
    """An interpreter in which every fire burns 100 cells less one for each break."""
    path = folder / "python"
    path.write_text(FAKE.format(python=sys.executable, version=version, seen=str(folder / "seen.npz"), crown=crown))
    path.chmod(0o755)
    return str(path)


def burns(landscape: Landscape, count: int) -> list[int]:
    cells: list[int] = np.flatnonzero(FireModel.of(landscape).burnable)[:count].tolist()
    return cells


def test_what_is_asked_and_what_is_made_of_the_reply(tmp_path: Path) -> None:
    landscapes = [synthesize(12, np.random.default_rng(0)), synthesize(10, np.random.default_rng(1))]
    ten, five = [burns(each, 10) for each in landscapes], [burns(each, 5) for each in landscapes]
    conditions = Conditions(Weather(20.0, 90.0), 120.0, fires=7)
    found = validate(landscapes, {"ten": ten, "five": five}, conditions, fake(tmp_path))
    assert found.pyretechnics == NEWEST
    for name, count in {"ten": 10, "five": 5}.items():
        score = found.scores[name]
        assert score.breaks == count
        assert score.surface == score.crown == pytest.approx(count / 100)
        assert 0 < score.travel_time < 1
    assert found.order("surface") == ["five", "ten"]
    assert found.cells["crown"] == 100
    assert np.isnan(found.fires_agree)
    json.dumps(found.as_dict(), allow_nan=False)

    with np.load(tmp_path / "seen.npz", allow_pickle=False) as seen:
        assert (seen["landscapes"], seen["wind_speed"], seen["wind_from"], seen["duration"]) == (2, 20, 90, 120)
        np.testing.assert_allclose(seen["moisture"], [0.05, 0.1, 0.25, 0.9, 0.6, 0.9])
        for i, landscape in enumerate(landscapes):
            for name in ("slope", "aspect", "fuel", "canopy_cover", "canopy_height", "canopy_base_height"):
                np.testing.assert_array_equal(seen[f"{i}/{name}"], getattr(landscape, name))
            assert seen[f"{i}/cell_size"] == 30
            assert seen[f"{i}/ignitions"].shape == (7,)
            assert FireModel.of(landscape).burnable[seen[f"{i}/ignitions"]].all()
            assert seen[f"{i}/breaks"].dtype == bool
            assert [np.flatnonzero(row).tolist() for row in seen[f"{i}/breaks"]] == [[], ten[i], five[i]]


def test_savings_here_are_those_of_the_model_here(tmp_path: Path) -> None:
    landscape = synthesize(12, np.random.default_rng(0))
    model = FireModel.of(landscape)
    cells = burns(landscape, 8)
    everything = Conditions(Weather(), fires=int(model.burnable.sum()))
    score = validate([landscape], {"a": [cells]}, everything, fake(tmp_path)).scores["a"]
    expected = 1 - model.start(breaks=cells).burned / model.start().burned
    assert score.travel_time == pytest.approx(expected)
    assert score.same_fires == pytest.approx(expected)


@pytest.mark.parametrize(
    ("placed", "words"),
    [
        ([[1]], r"placements\.a has breaks for 1 landscapes.* each of the 2"),
        ([[1], [100]], r"placements\.a\[1\] holds cell 100; landscape 1 has cells 0 to 99"),
        ([[-1], []], r"placements\.a\[0\] holds cell -1"),
        ([[1, 2, 1], []], r"placements\.a\[0\] holds cell 1 twice"),
        ([[7], []], r"placements\.a\[0\] holds cell 7, which does not burn"),
    ],
)
def test_placements_that_do_not_fit_are_refused(tmp_path: Path, placed: list[list[int]], words: str) -> None:
    lake = np.full((10, 10), 101, np.int16)
    lake[0, 7] = 98
    layers = flat((10, 10)).layers() | {"fuel": lake}
    with pytest.raises(UserError, match=words):
        validate([Landscape(**layers), flat((10, 10))], {"a": placed}, Conditions(Weather()), fake(tmp_path))


def test_interpreters_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"pip install 'pyretechnics=={NEWEST}'.*--python.*{VARIABLE}"):
        require_pyretechnics(None)
    with pytest.raises(UserError, match=r"no-python cannot be run \(No such file"):
        require_pyretechnics(str(tmp_path / "no-python"))
    with pytest.raises(UserError, match=r"has no pyretechnics: python3\.11 -m venv"):
        require_pyretechnics(fake(tmp_path, None))
    with pytest.raises(UserError, match=r"pyretechnics 2026\.10\.20, whose licence forbids .*for-profit.*EPL-2\.0"):
        require_pyretechnics(fake(tmp_path, "2026.10.20"))
    for version in (NEWEST, "2026.5.15", "2025.6.13"):
        assert require_pyretechnics(fake(tmp_path, version)) == version
    with pytest.raises(UserError, match=r"did not run as Python 3\.11 does"):
        require_pyretechnics("/bin/false")
    with pytest.raises(UserError, match=r"did not run as Python 3\.11 does"):
        require_pyretechnics("/bin/echo")


def test_this_interpreter_has_no_pyretechnics() -> None:
    with pytest.raises(UserError, match="has no pyretechnics"):
        require_pyretechnics(sys.executable)


def test_replies_that_cannot_be_used(tmp_path: Path) -> None:
    landscape = flat((6, 6))
    for crown, words in (("[]", "arrays of another shape"), ("1 / 0", "pyretechnics failed .*ZeroDivisionError")):
        with pytest.raises(UserError, match=words):
            validate([landscape], {"a": [[3]]}, Conditions(Weather()), fake(tmp_path, crown=crown))


@pytest.fixture
def northward(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A pyretechnics in which fire burns all higher rows of its column, which are those to the north."""
    calls: list[Any] = []

    class Cube:
        def __init__(self, shape: tuple[int, ...], base: Any) -> None:
            self.shape, self.base = shape, base

        def get(self, band: int, row: int, column: int) -> float:
            return float(self.base[row, column])

    class State:
        def __init__(self, shape: tuple[int, ...]) -> None:
            self.arrival = np.full(shape[1:], np.nan)

        def ignite_cell(self, cell: tuple[int, int]) -> "State":
            self.arrival[cell[0] :, cell[1]] = 0
            return self

        def get_full_matrices(self, names: list[str]) -> dict[str, Any]:
            return {"time_of_arrival": self.arrival}

    def spread(cubes: Any, state: State, *others: Any) -> dict[str, State]:
        calls.append((cubes, *others))
        return {"spread_state": state}

    package = types.ModuleType("pyretechnics")
    cube, level = types.ModuleType("pyretechnics.space_time_cube"), types.ModuleType("pyretechnics.eulerian_level_set")
    cube.SpaceTimeCube = Cube  # type: ignore[attr-defined]
    level.SpreadState, level.spread_fire_with_phi_field = State, spread  # type: ignore[attr-defined]
    package.eulerian_level_set = level  # type: ignore[attr-defined]
    for module in (package, cube, level):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return calls


def request(landscape: Landscape, ignitions: list[int], breaks: list[list[int]], weather: Weather) -> dict[str, Any]:
    placed = np.zeros((len(breaks), landscape.fuel.size), bool)
    for row, cells in zip(placed, breaks, strict=True):
        row[cells] = True
    given = {f"0/{name}": layer for name, layer in landscape.layers().items()}
    given |= {"0/cell_size": 30.0, "0/ignitions": ignitions, "0/breaks": placed, "landscapes": 1, "duration": 120.0}
    given |= {
        "wind_speed": weather.wind_speed,
        "wind_from": weather.wind_from,
        "moisture": [0.05, 0.1, 0.2, 0.9, 0.6, 1],
    }
    return {name: np.asarray(value) for name, value in given.items()}


def test_rows_of_pyretechnics_begin_in_the_south(northward: list[Any]) -> None:
    landscape = synthesize(8, np.random.default_rng(2))
    reply = worker.burn(request(landscape, [2 * 8 + 3, 6 * 8 + 5], [[], [6 * 8 + 5]], Weather(10.0, 200.0)))
    # from row 2, fire burns rows 2, 1 and 0
    assert reply["surface"] == reply["crown"] == [[[3, 7], [3, 0]]]
    cubes, resolution, start, duration = northward[0]
    assert (resolution, start, duration) == ((120, 30, 30), 0, 120)
    np.testing.assert_array_equal(cubes["fuel_model"].base, landscape.fuel[::-1])
    np.testing.assert_array_equal(cubes["slope"].base, landscape.slope[::-1])
    assert not cubes["canopy_height"].base.any()
    assert (cubes["wind_speed_10m"].base, cubes["upwind_direction"].base) == (10, 200)
    assert (cubes["fuel_moisture_dead_10hr"].base, cubes["foliar_moisture"].base) == (0.1, 1)
    np.testing.assert_array_equal(northward[-1][0]["canopy_height"].base, landscape.canopy_height[::-1])
    assert northward[-1][0]["fuel_model"].base[8 - 1 - 6, 5] == 91


def write(path: Path, given: object) -> str:
    path.write_text(json.dumps(given))
    return str(path)


SPEC = {"grid_size": 8, "seed": 3, "number": 2}
FILES = {"elevation": "dem.tif", "fuel": "fbfm40.tif"}
TILE = {"grid_size": 8, "region": FILES, "split": "test", "number": 2}


def test_a_file_of_placements(tmp_path: Path) -> None:
    path = write(tmp_path / "p.json", {"landscapes": [SPEC], "placements": {"a": [[1]]}, "fire": {"wind_speed": 9}})
    found = read_placements(path)
    own = FuelBreakEnv(grid_size=8, seed=3, num_landscapes=5).landscape(2)
    np.testing.assert_array_equal(found.landscapes[0].elevation, own.elevation)
    assert (found.placements, found.fire) == ({"a": [[1]]}, {"wind_speed": 9})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "must be an object with the keys"),
        ({"landscape": [SPEC]}, "must be an object with the keys"),
        ({"landscapes": []}, "landscapes of .* must be a list of one or more"),
        ({"landscapes": [{}]}, r"landscapes\[0\] of .* is \{\}; it must be an object with the keys grid_size, seed"),
        ({"landscapes": [{**SPEC, "seed": 1.5}]}, r"landscapes\[0\] of .* has seed 1.5"),
        ({"landscapes": [{**SPEC, "grid_size": 3}]}, "grid_size is 3; it must be at least 4"),
        ({"landscapes": [{**SPEC, "split": "new"}]}, "has split new; it must be one of train, validation, test"),
        ({"landscapes": [{**SPEC, "region": {}}]}, "must be an object with the keys grid_size, region, split, number"),
        (
            {"landscapes": [{**TILE, "region": {"fuel": "f.tif"}}]},
            r"region of .* keys of data.region",
        ),
        ({"landscapes": [{**TILE, "region": {**FILES, "units": 3}}]}, r"region of .* must be an object of texts"),
        ({"landscapes": [SPEC], "generation": "first"}, "generation of .* must be a whole number"),
        ({"landscapes": [SPEC], "placements": []}, "placements of .* must be an object"),
        ({"landscapes": [SPEC], "placements": {"a": [1]}}, "placements.a of .* must be a list of lists"),
        ({"landscapes": [SPEC], "placements": {"a": [[True]]}}, "placements.a of .* must be a list of lists"),
        ({"landscapes": [SPEC], "fire": {"wind": 1}}, "fire of .* must be an object with the keys"),
        ({"landscapes": [SPEC], "fire": {"duration": "long"}}, 'fire.duration of .* is "long"; it must be a number'),
    ],
)
def test_files_of_placements_that_are_refused(tmp_path: Path, given: object, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read_placements(write(tmp_path / "p.json", given))


def test_files_that_are_no_json(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_placements(tmp_path / "none.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(UserError, match="is no JSON"):
        read_placements(tmp_path / "broken.json")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, fake(tmp_path))
    out = tmp_path / "new" / "figures.json"
    words = ["validate", "--landscapes", "2", "--grid_size", "10", "--fires", "5", "--out", str(out)]
    run(words)
    printed = capsys.readouterr().out
    figures = json.loads(out.read_text())
    assert list(figures["reduction"]) == [
        "random",
        "domirank",
        "in_degree",
        "downstream",
        "adaptive_downstream",
        "greedy",
    ]
    assert all(score["surface"] == 0.05 for score in figures["reduction"].values())
    assert "adaptive_downstream" in printed
    assert f"by pyretechnics {NEWEST}" in printed
    assert figures["settings"]["duration"] == 240
    with pytest.raises(UserError, match="exists: name another file, or give --overwrite"):
        run(words)


def test_a_file_and_baselines_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = burns(FuelBreakEnv(grid_size=8, seed=3, num_landscapes=5).landscape(2), 3)
    given = {"landscapes": [SPEC], "placements": {"mine": [cells]}, "fire": {"duration": 60}}
    path, out = write(tmp_path / "p.json", given), tmp_path / "out.json"
    own = ["validate", "--placements", path, "--python", fake(tmp_path), "--out", str(out)]
    run([*own, "--baselines", "[random]", "--wind_speed", "30"])
    figures = json.loads(out.read_text())
    assert list(figures["reduction"]) == ["mine", "random"]
    settings = figures["settings"]
    assert (settings["duration"], settings["wind_speed"], settings["wind_from"]) == (60, 30, 270)
    with pytest.raises(UserError, match="--baselines mine is unknown; use any of random"):
        run([*own, "--baselines", "[mine]", "--overwrite"])
    empty = write(tmp_path / "e.json", {"landscapes": [SPEC]})
    with pytest.raises(UserError, match="no placement to score"):
        run(["validate", "--placements", empty, "--python", fake(tmp_path)])


def test_the_command_line_refuses_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    for words, text in (
        (["fire", "validate"], "error: fire validate needs pyretechnics"),
        (["fire", "validate", "--fires", "many"], "error: "),
        (["fire", "validate", "--budget", "2"], "error: --budget is 2.0; it must be"),
        (["fire", "burn"], "error: "),
    ):
        with pytest.raises(SystemExit) as left:
            main(words)
        error = capsys.readouterr().err
        assert left.value.code == 2
        assert error.startswith(text)
        assert error.count("\n") == 1


@real
def test_wind_drives_real_fires_where_it_blows() -> None:
    landscape = flat((21, 21))
    lines = [[], list(range(9 * 21, 10 * 21)), list(range(11 * 21, 12 * 21))]  # none, north and south of the fire
    cells = {}
    for wind_from in (180.0, 0.0):
        asked = request(landscape, [10 * 21 + 10], lines, Weather(20.0, wind_from))
        cells[wind_from] = [fires[0] for fires in _pyretechnics(str(REAL), asked, quiet=True)["surface"][0]]
    free, north, south = cells[180.0]
    assert north < south <= free
    free, north, south = cells[0.0]
    assert south < north <= free


@real
def test_real_fires_agree_with_those_here() -> None:
    landscapes = [synthesize(24, np.random.default_rng([0, number])) for number in range(2)]
    conditions = Conditions(Weather(), 240.0, fires=30)
    cells = [burns(each, 200)[::7] for each in landscapes]
    found = validate(landscapes, {"some": cells}, conditions, REAL)
    assert found.fires_agree > 0.8
    assert found.cells["surface"] == pytest.approx(found.cells["same_fires"], rel=0.5)
    assert found.scores["some"].surface == pytest.approx(found.scores["some"].same_fires, abs=0.15)
