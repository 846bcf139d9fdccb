"""Placements scored by pyretechnics: what goes to its interpreter and back, and what is refused.

A fake interpreter stands in for it; where EIGEN2_PYRETECHNICS_PYTHON names a real one, that is used as well.
"""

import json
import os
import re
import sys
import time
import types
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from eigen2.cli import fire as fire_cli
from eigen2.cli.main import main
from eigen2.errors import UserError
from eigen2.fire.evaluation import pyretechnics_worker as worker
from eigen2.fire.evaluation.validator import (
    NEWEST,
    VARIABLE,
    Conditions,
    ask_pyretechnics,
    estimates,
    request,
    require_pyretechnics,
    validate,
)
from eigen2.fire.landscapes.landscape import Landscape, synthesize, synthetic
from eigen2.fire.simulation.baselines import PLACEMENTS, reduction
from eigen2.fire.simulation.spread import FireModel, Weather
from tests.command import Started
from tests.fire.conftest import flat

REAL = os.environ.get(VARIABLE, "")

FAKE = """#!{python} -S
import json, runpy, shutil, sys
assert sys.argv[1] == "-I" and sys.argv[2].endswith("pyretechnics_worker.py")
if sys.argv[3:] == ["version"]:
    print(json.dumps({version!r}))
    sys.exit()
sys.path += {path!r}
{then}
"""

ANSWER = """
import numpy as np
request, reply = sys.argv[3:]
shutil.copy(request, {seen!r})
with np.load(request, allow_pickle=False) as arrays:
    breaks, fires = int((arrays["fuel"] == 91).sum()), arrays["ignitions"]
    found = {counts}
json.dump({{"surface": found, "crown": found}}, open(reply, "w"))
"""

WORK = """
sys.path.insert(0, {folder!r})
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

STUCK = """
import os, time
from pathlib import Path
class SpreadState:
    def __init__(self, shape): pass
    def ignite_cell(self, cell): return self
def spread_fire_with_phi_field(cubes, *others):
    folder = Path(__file__).parent
    if (cubes["fuel_model"].base == 91).any():
        while not list(folder.glob("*.started")): time.sleep(0.05)
        raise ZeroDivisionError("nothing spreads")
    (folder / f"{os.getpid()}.started").touch()
    time.sleep(60)
    (folder / "late").touch()
"""


def fake(folder: Path, version: str | None = NEWEST, counts: str = "[100 - breaks] * len(fires)") -> str:
    """An interpreter in which every fire burns 100 cells less one for each break, or other `counts`.

    It copies its requests to `seen/0.npz` and so on.
    """
    (folder / "seen").mkdir(exist_ok=True)
    return script(folder, version, ANSWER.format(seen=str(folder / "seen"), counts=counts))


def script(folder: Path, version: str | None, then: str) -> str:
    """An interpreter that has a version of pyretechnics, and runs some code in place of the worker."""
    path = folder / "python"
    path.write_text(FAKE.format(python=sys.executable, path=sys.path, version=version, then=then))
    path.chmod(0o755)
    return str(path)


def stuck(folder: Path) -> tuple[str, Path]:
    """An interpreter whose fires take a minute without breaks, and fail with them once one takes it, and its notes."""
    package = folder / "pyretechnics"
    package.mkdir()
    cube = "class SpaceTimeCube:\n    def __init__(self, shape, base): self.base = base\n    get = lambda *cell: 101\n"
    for name, text in {"__init__": "", "space_time_cube": cube, "eulerian_level_set": STUCK}.items():
        (package / f"{name}.py").write_text(text)
    return script(folder, NEWEST, WORK.format(folder=str(folder))), package


def burns(landscape: Landscape, count: int) -> list[int]:
    return np.flatnonzero(FireModel.of(landscape).burnable)[:count].tolist()


def test_what_is_asked_and_what_is_made_of_the_reply(tmp_path: Path) -> None:
    landscapes = [synthesize(12, np.random.default_rng(0)), synthesize(10, np.random.default_rng(1))]
    ten, five = [burns(each, 10) for each in landscapes], [burns(each, 5) for each in landscapes]
    conditions = [Conditions(Weather(20.0, 90.0), 120.0, fires=7), Conditions(Weather(5.0, 0.0), 30.0, fires=7)]
    found = validate(landscapes, {"ten": ten, "five": five}, conditions, fake(tmp_path))
    for name, count in {"ten": 10, "five": 5}.items():
        models = [own.model(landscape) for own, landscape in zip(conditions, landscapes, strict=True)]
        cells = {"ten": ten, "five": five}[name]
        saved = [reduction(model, each) for model, each in zip(models, cells, strict=True)]
        assert found[name].travel_time.mean == pytest.approx(np.mean(saved))
        assert found[name].breaks == count
        assert found[name].surface == found[name].crown == pytest.approx((count / 100, 0))
        assert 0 < found[name].travel_time.mean < 1
        assert 0 < found[name].travel_time.error < 1
    asked = [(i, breaks) for i in range(2) for breaks in ([], ten[i], five[i])]
    for number, (i, breaks) in enumerate(asked):
        with np.load(tmp_path / "seen" / f"{number}.npz", allow_pickle=False) as seen:
            weather = seen["wind_speed"], seen["wind_from"], seen["duration"], seen["cell_size"]
            assert weather == ((20, 90, 120, 30), (5, 0, 30, 30))[i]
            np.testing.assert_allclose(seen["moisture"], [0.05, 0.1, 0.25, 0.9, 0.6, 0.9])
            for name in ("slope", "aspect", "canopy_cover", "canopy_height", "canopy_base_height"):
                np.testing.assert_array_equal(seen[name], getattr(landscapes[i], name))
            fuel = landscapes[i].fuel.copy()
            fuel.reshape(-1)[breaks] = 91
            np.testing.assert_array_equal(seen["fuel"], fuel)
            assert seen["ignitions"].shape == (7,)
            assert FireModel.of(landscapes[i]).burnable[seen["ignitions"]].all()


def test_savings_here_are_those_of_the_model_here(tmp_path: Path) -> None:
    landscape = synthesize(12, np.random.default_rng(0))
    model, cells = FireModel.of(landscape), burns(landscape, 8)
    everywhere = Conditions(Weather(), fires=int(model.burnable.sum()))
    score = validate([landscape], {"a": [cells]}, [everywhere], fake(tmp_path))["a"]
    expected = 1 - model.start(breaks=cells).burned / model.start().burned
    assert score.travel_time == score.same_fires == pytest.approx((expected, 0))  # every cell is ignited


def test_scores_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    landscapes = [synthesize(size, np.random.default_rng(size)) for size in (8, 10, 12)]
    placements = {"a": [burns(each, 10) for each in landscapes], "b": [burns(each, 3) for each in landscapes]}
    python = fake(tmp_path, counts="[int(100 + fire % 7 - breaks * (fire % 3)) for fire in fires]")
    shown: list[float] = []
    scores = [
        validate(
            landscapes, placements, [Conditions(Weather(), fires=9)] * len(landscapes), python, processes, shown.append
        )
        for processes in (1, 4)
    ]
    assert scores[0] == scores[1]
    assert scores[0]["a"].surface.error > 0
    assert shown == pytest.approx([k / 9 for k in range(1, 10)] * 2)


def test_the_error_of_several_landscapes_is_that_of_their_mean() -> None:
    burned = [np.array([[10, 30], [9, 27]]), np.array([[20, 20], [16, 16]]), np.array([[50, 10], [40, 2]])]
    (found,) = estimates([each.astype(float) for each in burned], [99, 99, 99])
    assert found == pytest.approx((0.2, 0.1 / np.sqrt(3)))  # 0.1, 0.2 and 0.3 saved


def test_the_error_of_one_landscape_is_exact_if_all_fires_burn_alike_without_breaks() -> None:
    """Over all samples of 4 in 7 fires, the squared error is on average the variance of what they estimate."""
    after = np.array([2.0, 3.0, 3.0, 5.0, 8.0, 8.0, 9.0])
    samples = [after[list(chosen)] for chosen in combinations(range(7), 4)]
    found = [estimates([np.stack([np.full(4, 10.0), sample])], [7])[0] for sample in samples]
    assert np.mean([each.error**2 for each in found]) == pytest.approx(np.var([each.mean for each in found]))


def test_the_error_of_one_landscape_is_the_spread_of_repetitions() -> None:
    """Fires burn more with breaks where they burn more without; a tenth of all is drawn, 60 at a time."""
    rng = np.random.default_rng(0)
    before = rng.integers(1, 500, 600).astype(float)
    after = np.rint(before * rng.uniform(0.1, 1, 600))
    found = []
    for _ in range(2000):
        chosen = rng.choice(600, 60, replace=False)
        found.append(estimates([np.stack([before[chosen], after[chosen]])], [600])[0])
    spread = np.std([each.mean for each in found])
    assert np.mean([each.error for each in found]) == pytest.approx(spread, rel=0.04)
    independent = np.hypot(after.std() / before.mean(), after.mean() * before.std() / before.mean() ** 2) / np.sqrt(60)
    assert spread < 0.6 * independent  # so pairs matter
    assert estimates([np.stack([before, after])], [600])[0].error == 0
    assert np.isnan(estimates([np.ones((2, 1))], [600])[0].error)


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
        validate([flat((10, 10), lake), flat((10, 10))], {"a": placed}, [Conditions(Weather())] * 2, "python")


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


def test_a_worker_that_fails_ends_the_others(tmp_path: Path) -> None:
    python, notes = stuck(tmp_path)
    with pytest.raises(UserError, match=r"failed .*ZeroDivisionError"):
        validate([flat((6, 6))], {"a": [[3]]}, [Conditions(Weather())], python, processes=2)
    (started,) = notes.glob("*.started")
    assert not psutil.pid_exists(int(started.stem))
    assert not (notes / "late").exists()


def test_a_killed_command_leaves_no_worker(tmp_path: Path) -> None:
    python, notes = stuck(tmp_path)
    given = write(tmp_path / "p.json", {"landscapes": [SPEC], "placements": {"a": [[]]}})
    words = ["fire", "validate", f"--placements={given}", f"--python={python}", "--processes=1"]
    command = Started(words)
    try:
        begun = time.monotonic()
        while not (started := list(notes.glob("*.started"))):
            assert command.process.is_alive(), "the command has ended"
            assert time.monotonic() - begun < 300, "no worker has started"
            time.sleep(0.1)
        worker_process = psutil.Process(int(started[0].stem))
    finally:
        command.process.kill()
        command.process.join()
    _, alive = psutil.wait_procs([worker_process], timeout=50)
    assert not alive
    assert not (notes / "late").exists()


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
    cube.SpaceTimeCube = Cube
    level.SpreadState, level.spread_fire_with_phi_field = State, spread
    package.eulerian_level_set = level
    for module in (package, cube, level):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return calls


def asked(landscape: Landscape, ignitions: list[int], breaks: list[int], weather: Weather) -> dict[str, Any]:
    found = request(landscape, np.array(ignitions), breaks, Conditions(weather, 120.0))
    return {name: np.asarray(value) for name, value in found.items()}


def test_rows_of_pyretechnics_begin_in_the_south(northward: list[Any]) -> None:
    landscape = synthesize(8, np.random.default_rng(2))
    fires, weather = [2 * 8 + 3, 6 * 8 + 5], Weather(10.0, 200.0)
    assert worker.burn(asked(landscape, fires, [], weather)) == {"surface": [3, 7], "crown": [3, 7]}  # rows 2, 1 and 0
    cubes, resolution, start, duration = northward[0]
    assert (resolution, start, duration) == ((120, 30, 30), 0, 120)
    np.testing.assert_array_equal(cubes["fuel_model"].base, landscape.fuel[::-1])
    np.testing.assert_array_equal(cubes["slope"].base, landscape.slope[::-1])
    assert not cubes["canopy_height"].base.any()
    assert (cubes["wind_speed_10m"].base, cubes["upwind_direction"].base) == (10, 200)
    assert (cubes["fuel_moisture_dead_10hr"].base, cubes["foliar_moisture"].base) == (0.1, 0.9)
    np.testing.assert_array_equal(northward[-1][0]["canopy_height"].base, landscape.canopy_height[::-1])
    assert worker.burn(asked(landscape, fires, [6 * 8 + 5], weather)) == {"surface": [3, 0], "crown": [3, 0]}
    assert northward[-1][0]["fuel_model"].base[8 - 1 - 6, 5] == 91


def write(path: Path, given: object) -> str:
    path.write_text(json.dumps(given))
    return str(path)


SPEC = {"grid_size": 8, "seed": 3, "number": 2}


def run(*words: str) -> None:
    """Run `fire validate` where its errors can be caught."""
    fire_cli.run("fire", fire_cli.make_parser().parse_args(["validate", *words]))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, fake(tmp_path))
    words = ["--landscapes=2", "--grid_size=10", "--fires=5", f"--output={tmp_path / 'figures.json'}"]
    run(*words)
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert list(figures["reduction"]) == list(PLACEMENTS)
    assert all(score["surface"] == 0.05 for score in figures["reduction"].values())
    errors = figures["standard_error"]["random"]
    assert list(errors) == ["travel_time", "same_fires", "surface", "crown"]
    assert errors["surface"] == 0 < errors["travel_time"]
    printed, progress = capsys.readouterr()
    (row,) = re.findall(r"^random +5\.0 (.*)$", printed, re.MULTILINE)
    random = figures["reduction"]["random"]
    expected = [100 * part for by in errors for part in (random[by], errors[by])]
    assert [float(part) for part in row.replace("±", "").split()] == pytest.approx(expected, abs=0.06)
    assert "adaptive_downstream" in printed
    assert progress.endswith("\r100%\r")
    assert f"by pyretechnics {NEWEST}" in printed
    assert figures["settings"]["duration"] == 240
    with pytest.raises(UserError, match="exists: name another --output, or give --overwrite"):
        run(*words)


def test_a_file_and_baselines_beside_it(tmp_path: Path) -> None:
    given = {"landscapes": [SPEC], "placements": {"mine": [burns(synthetic(8, 3, 2), 3)]}, "fire": {"duration": 60}}
    out = tmp_path / "out.json"
    own = [f"--placements={write(tmp_path / 'p.json', given)}", f"--python={fake(tmp_path)}", f"--output={out}"]
    run(*own, "--baselines=[random]", "--wind_speed=30")
    figures = json.loads(out.read_text())
    assert list(figures["reduction"]) == ["mine", "random"]
    assert [each["breaks"] for each in figures["reduction"].values()] == [3, 3]
    settings = figures["settings"]
    assert (settings["duration"], settings["wind_speed"], settings["wind_from"]) == (60, 30, 270)
    given["landscapes"] = [{**SPEC, "fire": {"duration": 90}}] * 2
    given["placements"] = {"mine": given["placements"]["mine"] * 2}
    two = [f"--placements={write(tmp_path / 'two.json', given)}", f"--python={fake(tmp_path)}", f"--output={out}"]
    run(*two, "--overwrite")
    assert json.loads(out.read_text())["settings"]["duration"] == 90
    given["landscapes"][1] = SPEC  # of 60 minutes
    two[0] = f"--placements={write(tmp_path / 'three.json', given)}"
    run(*two, "--overwrite")
    assert json.loads(out.read_text())["settings"]["duration"] == [90, 60]
    run(*two, "--overwrite", "--duration=30")
    given["placements"] = {"mine": given["placements"]["mine"][:1]}
    two[0] = f"--placements={write(tmp_path / 'short.json', given)}"
    with pytest.raises(UserError, match="mine"):
        run(*two, "--overwrite", "--baselines=[random]")
    with pytest.raises(UserError, match="--baselines mine is unknown; use any of random"):
        run(*own, "--baselines=[mine]", "--overwrite")
    run(*own, "--fires=1", "--overwrite", "--processes=1")
    figures = json.loads(out.read_text())
    assert figures["standard_error"]["mine"]["crown"] is None
    assert "processes" not in figures["settings"]
    empty = write(tmp_path / "e.json", {"landscapes": [SPEC]})
    with pytest.raises(UserError, match="no placement to score"):
        run(f"--placements={empty}", f"--python={fake(tmp_path)}")


def test_the_champion_of_a_test_is_scored_as_the_test_scored_it(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    run(f"--placements={whole / 'test' / 'placements.json'}", f"--python={fake(tmp_path)}", f"--output={out}")
    figures = json.loads(out.read_text())["reduction"]
    scores = json.loads((whole / "test" / "scores.json").read_text())["scores"]
    assert list(figures) == list(scores)
    assert figures["champion"]["surface"] == figures["champion"]["breaks"] / 100
    for name, saved in scores.items():
        assert figures[name]["travel_time"] == pytest.approx(np.mean(saved) / 100, abs=1e-4)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["validate"], "error: fire validate needs pyretechnics"),
        (["validate", "--fires", "many"], "error: "),
        (["validate", "--budget", "2"], "error: --budget is 2.0; it must be"),
        (["validate", "--processes", "0"], "error: --processes is 0; it must be"),
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
    lines: list[list[int]] = [
        [],
        list(range(9 * 21, 10 * 21)),
        list(range(11 * 21, 12 * 21)),
    ]  # none, north and south of the fire
    cells = {}
    for wind_from in (180.0, 0.0):
        questions = [asked(flat((21, 21)), [10 * 21 + 10], line, Weather(20.0, wind_from)) for line in lines]
        cells[wind_from] = [reply["surface"][0] for reply in ask_pyretechnics(REAL, questions, processes=3)]
    free, north, south = cells[180.0]
    assert north < south <= free
    free, north, south = cells[0.0]
    assert south < north <= free
    landscape = synthesize(24, np.random.default_rng(0))
    score = validate([landscape], {"some": [burns(landscape, 200)[::7]]}, [Conditions(Weather(), fires=30)], REAL)[
        "some"
    ]
    assert score.surface.mean == pytest.approx(score.same_fires.mean, abs=0.15)
    assert 0 < score.surface.error < 0.1
