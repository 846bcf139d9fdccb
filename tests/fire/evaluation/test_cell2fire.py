"""Instance folders of Cell2Fire: exactly what is written, in its units and numbers, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from eigen2.cli.main import main
from eigen2.errors import UserError
from eigen2.fire.evaluation.cell2fire import instance_files
from eigen2.fire.evaluation.validator import Conditions
from eigen2.fire.landscapes.fuels import FUEL_MODELS
from eigen2.fire.landscapes.landscape import Landscape
from eigen2.fire.simulation.spread import Weather
from tests.fire.conftest import flat
from tests.fire.landscapes.test_rasters import whole as rasters

HEAD = "ncols 4\nnrows 3\nxllcorner 0\nyllcorner 0\ncellsize 20\nNODATA_value -9999\n"
ROWS = {
    "fuels": "98 101 102 103\n104 105 106 107\n108 109 165 204\n",
    "elevation": "500 501.5 503 504.5\n506 507.5 509 510.5\n512 513.5 515 516.5\n",
    "slope": "0 12.5 25 37.5\n50 62.5 75 87.5\n100 112.5 125 137.5\n",  # percent
    "saz": "180 210 240 270\n300 330 0 30\n60 90 120 150\n",  # uphill
    "ccf": "0 0 0 0\n0 0 0 0\n0 0 0.5 0\n",
    "hm": "0 0 0 0\n0 0 0 0\n0 0 18 0\n",
    "cbh": "0 0 0 0\n0 0 0 0\n0 0 3.25 0\n",
    "cbd": "0 0 0 0\n0 0 0 0\n0 0 0.125 0\n",
}


def hand_made(cell_size: float = 20.0) -> Landscape:
    """Three rows and four columns, with water in the north-west and trees in one cell of the south."""
    count, trees = np.arange(12.0).reshape(3, 4), np.zeros((3, 4))
    trees[2, 2] = 1
    return Landscape(
        elevation=500 + 1.5 * count,
        slope=count / 8,
        aspect=30 * count,
        fuel=np.array([[98, 101, 102, 103], [104, 105, 106, 107], [108, 109, 165, 204]]),
        canopy_cover=0.5 * trees,
        canopy_height=18 * trees,
        canopy_base_height=3.25 * trees,
        canopy_bulk_density=0.125 * trees,
        cell_size=cell_size,
    )


def test_the_files_of_a_landscape_made_by_hand() -> None:
    breaks = [1 * 4 + 2, 2 * 4 + 3]  # the third cell of the second row is the seventh, the last is the twelfth
    found = instance_files(hand_made(), breaks, Conditions(Weather(12.5, 359.6), 61.0))
    table = found.pop("spain_lookup_table.csv").splitlines()
    assert found == {
        **{f"{name}.asc": HEAD + rows for name, rows in ROWS.items()},
        "Weather.csv": (
            "Scenario,datetime,WS,WD,FireScenario\n1,2000-01-01T00:00:00,12.5,0,2\n1,2000-01-01T01:00:00,12.5,0,2\n"
        ),
        "breaks.csv": "Year,Ncell\n1,7,12\n",
    }
    assert table[0] == "grid_value,export_value,descriptive_name,fuel_type,r,g,b,h,s,l"
    assert [row.split(",")[0] for row in table[1:]] == [str(number) for number in FUEL_MODELS]
    assert all(row.split(",")[4:7] == ["0", "0", "0"] for row in table[1:])


def test_no_breaks_and_cells_that_cell2fire_would_cut() -> None:
    found = instance_files(flat((3, 3)), [], Conditions(Weather(), 60.0))
    assert found["breaks.csv"] == "Year,Ncell\n1\n"
    assert found["Weather.csv"].count("\n") == 2
    with pytest.raises(UserError, match=r"cells are 28\.5 m wide"):
        instance_files(hand_made(28.5), [], Conditions(Weather()))


@pytest.fixture
def placements(tmp_path: Path) -> list[str]:
    """Options of a file of two placements on two landscapes of 8 x 8 cells, and of a folder to write."""
    specs = [{"grid_size": 8, "seed": 3, "number": number} for number in (0, 1)]
    given = {"champion": [[9], [10, 11]], "bad": [[9], [64]]}
    fire = {"duration": 90, "wind_speed": 7, "wind_from": 45}
    (tmp_path / "p.json").write_text(json.dumps({"landscapes": specs, "placements": given, "fire": fire}))
    return [f"--placements={tmp_path / 'p.json'}", f"--output={tmp_path / 'instance'}"]


def test_the_command_writes_the_landscape_and_breaks_asked_for(
    placements: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["fire", "export", *placements])
    assert (tmp_path / "instance" / "breaks.csv").read_text() == "Year,Ncell\n1,10\n"
    assert (tmp_path / "instance" / "Weather.csv").read_text().splitlines()[1:] == [
        "1,2000-01-01T00:00:00,7,45,2",
        "1,2000-01-01T01:00:00,7,45,2",
    ]
    assert "--max-fire-periods 90" in capsys.readouterr().out
    first = (tmp_path / "instance" / "elevation.asc").read_text()
    main(["fire", "export", *placements, "--number=1", "--overwrite"])
    assert (tmp_path / "instance" / "breaks.csv").read_text() == "Year,Ncell\n1,11,12\n"
    assert (tmp_path / "instance" / "elevation.asc").read_text() != first


def test_the_rasters_of_the_region_are_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rasterio")
    files = rasters(tmp_path, flat((8, 8)), suffix=".asc")
    spec = {"grid_size": 8, "number": 0, "region": {name: str(files[name]) for name in ("elevation", "fuel")}}
    (tmp_path / "p.json").write_text(json.dumps({"landscapes": [spec], "placements": {"champion": [[9]]}}))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(SystemExit) as left:
        main(["fire", "export", f"--placements={tmp_path / 'p.json'}", f"--output={tmp_path}", "--overwrite"])
    assert left.value.code == 2
    assert "elevation.asc', which is read; name another file" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--placement=greedy"], "has no --placement greedy; its placements: champion, bad"),
        (["--number=2"], "--number is 2; it must be"),
        (["--number=-1"], "--number is -1; it must be"),
        (["--placement=bad"], r"placements.bad[1] does not fit landscape 1: cell 64"),
        (["--output=/dev/null/x"], "cannot write --output /dev/null/x: "),
        (["--output=."], "'.' exists: name another --output, or give --overwrite"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_one_line(
    words: list[str], text: str, placements: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["fire", "export", *placements, *words])
    error = capsys.readouterr().err
    assert left.value.code == 2
    assert error.startswith("error: ")
    assert text in error
    assert error.count("\n") == 1
    assert not (tmp_path / "instance").exists()
