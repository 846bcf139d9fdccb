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
    _request,
    ask_pyretechnics,
    require_pyretechnics,
    validate,
)
from eigen2.fire.landscapes.landscape import Landscape, synthesize, synthetic
from eigen2.fire.simulation.baselines import PLACEMENTS
from eigen2.fire.simulation.spread import FireModel, Weather
from tests.fire.conftest import flat

REAL = os.environ.get(VARIABLE, "")

FAKE = """#!{python} -S
import json, shutil, sys
version = {version!r}
assert sys.argv[1] == "-I" and sys.argv[2].endswith("pyretechnics_worker.py")
if sys.argv[3:] == ["version"]:
    print(json.dumps(version))
    sys.exit()
sys.path += {path!r}
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
    path, given = folder / "python", {"version": version, "crown": crown, "seen": str(folder / "seen.npz")}
    path.write_text(FAKE.format(python=sys.executable, path=sys.path, **given))
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
    for name, count in {"ten": 10, "five": 5}.items():
        assert found[name].breaks == count
        assert found[name].surface == found[name].crown == pytest.approx(count / 100)
        assert 0 < found[name].travel_time < 1
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
    model, cells = FireModel.of(landscape), burns(landscape, 8)
    everywhere = Conditions(Weather(), fires=int(model.burnable.sum()))
    score = validate([landscape], {"a": [cells]}, everywhere, fake(tmp_path))["a"]
    expected = 1 - model.start(breaks=cells).burned / model.start().burned
    assert (score.travel_time, score.same_fires) == pytest.approx((expected, expected))


@pytest.mark.parametrize(
    ("placed", "words"),
    [
        ([[1]], r"placements\.a has breaks for 1 landscapes.* each of the 2"),
        ([[1], [100]], r"placements\.a\[1\] does not fit landscape 1: cell 100"),
        ([[-1], []], r"placements\.a\[0\].*cell -1"),
        ([[1, 2, 1], []], r"placements\.a\[0\].*cell 1 cannot become a break"),
        ([[7], []], r"placements\.a\[0\].*cell 7"),
    ],
)
def test_placements_that_do_not_fit_are_refused(placed: list[list[int]], words: str) -> None:
    lake = np.full((10, 10), 101)
    lake[0, 7] = 98
    with pytest.raises(UserError, match=words):
        validate([flat((10, 10), lake), flat((10, 10))], {"a": placed}, Conditions(Weather()), "python")


def test_interpreters_that_cannot_be_used(tmp_path: Path) -> None:
    for python, words in (
        ("", rf"pip install 'pyretechnics=={NEWEST}'.*--python.*{VARIABLE}"),
        (str(tmp_path / "no-python"), r"no-python cannot be run \(No such file"),
        ("/bin/false", r"failed \(exit code 1\); it must be Python 3\.11"),
        ("/bin/echo", r"did not run as Python 3\.11 does"),
        (sys.executable, r"has no pyretechnics: python3\.11 -m venv"),
    ):
        with pytest.raises(UserError, match=words):
            require_pyretechnics(python)
    with pytest.raises(UserError, match=r"pyretechnics 2026\.10\.20, whose licence forbids .*for-profit.*EPL-2\.0"):
        require_pyretechnics(fake(tmp_path, "2026.10.20"))
    for version in (NEWEST, "2025.12.13"):
        assert require_pyretechnics(fake(tmp_path, version)) == version
    with pytest.raises(UserError, match=r"failed .*ZeroDivisionError"):
        validate([flat((6, 6))], {"a": [[3]]}, Conditions(Weather()), fake(tmp_path, crown="1 / 0"))


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

    names = ("pyretechnics", "pyretechnics.space_time_cube", "pyretechnics.eulerian_level_set")
    package, cube, level = (types.ModuleType(name) for name in names)
    cube.SpaceTimeCube = Cube  # type: ignore[attr-defined]
    level.SpreadState, level.spread_fire_with_phi_field = State, spread  # type: ignore[attr-defined]
    package.eulerian_level_set = level  # type: ignore[attr-defined]
    for module in (package, cube, level):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return calls


def asked(landscape: Landscape, ignitions: list[int], breaks: list[list[int]], weather: Weather) -> dict[str, Any]:
    placed = [[cells] for cells in breaks]
    found = _request([landscape], [np.array(ignitions)], placed, Conditions(weather, 120.0))
    return {name: np.asarray(value) for name, value in found.items()}


def test_rows_of_pyretechnics_begin_in_the_south(northward: list[Any]) -> None:
    landscape = synthesize(8, np.random.default_rng(2))
    reply = worker.burn(asked(landscape, [2 * 8 + 3, 6 * 8 + 5], [[], [6 * 8 + 5]], Weather(10.0, 200.0)))
    # from row 2, fire burns rows 2, 1 and 0
    assert reply["surface"] == reply["crown"] == [[[3, 7], [3, 0]]]
    cubes, resolution, start, duration = northward[0]
    assert (resolution, start, duration) == ((120, 30, 30), 0, 120)
    np.testing.assert_array_equal(cubes["fuel_model"].base, landscape.fuel[::-1])
    np.testing.assert_array_equal(cubes["slope"].base, landscape.slope[::-1])
    assert not cubes["canopy_height"].base.any()
    assert (cubes["wind_speed_10m"].base, cubes["upwind_direction"].base) == (10, 200)
    assert (cubes["fuel_moisture_dead_10hr"].base, cubes["foliar_moisture"].base) == (0.1, 0.9)
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
    np.testing.assert_array_equal(found.landscapes[0].elevation, synthetic(8, 3, 2).elevation)
    assert (found.placements, found.fire, found.generation) == ({"a": [[1]]}, {"wind_speed": 9}, -1)
    assert read_placements(write(tmp_path / "tile.json", {"landscapes": [TILE]})).specs == [TILE]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "in it, .* is not of type 'object'"),
        ({"landscape": [SPEC]}, "'landscapes' is a required property"),
        ({"landscapes": [{}]}, r"in landscapes\[0\], 'grid_size' is a required property"),
        ({"landscapes": [{**SPEC, "seed": 1.0}]}, r"in landscapes\[0\]\.seed, 1\.0 is not of type 'integer'"),
        ({"landscapes": [{**SPEC, "grid_size": 3}]}, "grid_size, 3 is less than the minimum of 4"),
        ({"landscapes": [{**TILE, "region": {"fuel": "f.tif"}}]}, r"region, 'elevation' is a required"),
        ({"landscapes": [{**TILE, "region": {**FILES, "units": "si"}}]}, r"region, .*'units' was unexpected"),
        ({"landscapes": [SPEC], "placements": {"a": [[True]]}}, r"in placements\.a\[0\]\[0\], True is not of type"),
        ({"landscapes": [SPEC], "fire": {"duration": "long"}}, r"in fire\.duration, 'long' is not of type 'number'"),
    ],
)
def test_files_of_placements_that_are_refused(tmp_path: Path, given: object, words: str) -> None:
    with pytest.raises(UserError, match=r"p\.json is not a file of placements: .*" + words):
        read_placements(write(tmp_path / "p.json", given))
    with pytest.raises(UserError, match="cannot be read"):
        read_placements(tmp_path / "none.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        read_placements(tmp_path / "broken.json")


def run(*words: str) -> None:
    """Run `fire validate` where its errors can be caught."""
    fire_cli.run("fire", fire_cli.make_parser().parse_args(["validate", *words]))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, fake(tmp_path))
    words = ["--landscapes=2", "--grid_size=10", "--fires=5", f"--out={tmp_path / 'new' / 'figures.json'}"]
    run(*words)
    figures = json.loads((tmp_path / "new" / "figures.json").read_text())
    assert list(figures["reduction"]) == list(PLACEMENTS)
    assert all(score["surface"] == 0.05 for score in figures["reduction"].values())
    printed = capsys.readouterr().out
    assert "adaptive_downstream" in printed
    assert f"by pyretechnics {NEWEST}" in printed
    assert figures["settings"]["duration"] == 240
    with pytest.raises(UserError, match="exists: name another file, or give --overwrite"):
        run(*words)


def test_a_file_and_baselines_beside_it(tmp_path: Path) -> None:
    given = {"landscapes": [SPEC], "placements": {"mine": [burns(synthetic(8, 3, 2), 3)]}, "fire": {"duration": 60}}
    out = tmp_path / "out.json"
    own = [f"--placements={write(tmp_path / 'p.json', given)}", f"--python={fake(tmp_path)}", f"--out={out}"]
    run(*own, "--baselines=[random]", "--wind_speed=30")
    figures = json.loads(out.read_text())
    assert list(figures["reduction"]) == ["mine", "random"]
    settings = figures["settings"]
    assert (settings["duration"], settings["wind_speed"], settings["wind_from"]) == (60, 30, 270)
    given["landscapes"] = [{**SPEC, "fire": {"duration": 90}}] * 2
    given["placements"] = {"mine": given["placements"]["mine"] * 2}
    two = [f"--placements={write(tmp_path / 'two.json', given)}", f"--python={fake(tmp_path)}", f"--out={out}"]
    run(*two, "--overwrite")
    assert json.loads(out.read_text())["settings"]["duration"] == 90
    given["landscapes"][1] = SPEC  # of 60 minutes
    two[0] = f"--placements={write(tmp_path / 'three.json', given)}"
    with pytest.raises(UserError, match="has duration by landscape; give one --duration for all"):
        run(*two, "--overwrite")
    run(*two, "--overwrite", "--duration=30")
    with pytest.raises(UserError, match="--baselines mine is unknown; use any of random"):
        run(*own, "--baselines=[mine]", "--overwrite")
    empty = write(tmp_path / "e.json", {"landscapes": [SPEC]})
    with pytest.raises(UserError, match="no placement to score"):
        run(f"--placements={empty}", f"--python={fake(tmp_path)}")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["validate"], "error: fire validate needs pyretechnics"),
        (["validate", "--fires", "many"], "error: "),
        (["validate", "--budget", "2"], "error: --budget is 2.0; it must be"),
        (["burn"], "error: "),
    ],
)
def test_the_command_line_refuses_in_one_line(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(SystemExit) as left:
        main(["fire", *words])
    error = capsys.readouterr().err
    assert left.value.code == 2
    assert error.startswith(text)
    assert error.count("\n") == 1


@pytest.mark.skipif(not REAL, reason=f"{VARIABLE} names no interpreter")
def test_wind_drives_real_fires_where_it_blows_and_they_agree_with_those_here() -> None:
    lines = [[], list(range(9 * 21, 10 * 21)), list(range(11 * 21, 12 * 21))]  # none, north and south of the fire
    cells = {}
    for wind_from in (180.0, 0.0):
        question = asked(flat((21, 21)), [10 * 21 + 10], lines, Weather(20.0, wind_from))
        cells[wind_from] = [fires[0] for fires in ask_pyretechnics(REAL, question)["surface"][0]]
    free, north, south = cells[180.0]
    assert north < south <= free
    free, north, south = cells[0.0]
    assert south < north <= free
    landscape = synthesize(24, np.random.default_rng(0))
    score = validate([landscape], {"some": [burns(landscape, 200)[::7]]}, Conditions(Weather(), fires=30), REAL)["some"]
    assert score.surface == pytest.approx(score.same_fires, abs=0.15)
