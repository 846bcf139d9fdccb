"""Breaks in a whole region: budget, costs, no-go areas and edges of tiles; the command and its files."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from eigen2.cli.main import main
from eigen2.errors import UserError
from eigen2.fire.evaluation.regions import Plan, place
from eigen2.fire.landscapes.fuels import NON_BURNABLE, WATER
from eigen2.fire.landscapes.landscape import Landscape, synthesize
from eigen2.fire.landscapes.rasters import Region
from eigen2.fire.networks import downstream_share
from eigen2.fire.simulation.baselines import adaptive_downstream, reduction
from eigen2.fire.simulation.spread import FireModel
from tests.fire.conftest import flat
from tests.fire.landscapes.test_rasters import whole as rasters
from tests.fire.landscapes.test_rasters import write
from tests.fire.test_run import ended

rasterio = pytest.importorskip("rasterio")
HILLS = synthesize(40, np.random.default_rng(3))


class Downstream(nn.Module):
    """Values a cell by what burns through it, as `adaptive_downstream` does."""

    def forward(self, planes: UInt8[Tensor, "batch planes height width"]) -> Float[Tensor, "batch cells"]:
        return downstream_share(planes).flatten(1)


def region(landscape: Landscape = HILLS) -> Region:
    return Region(landscape, np.zeros(landscape.shape, bool))


def test_one_tile_is_placed_as_by_the_policy_itself() -> None:
    """The observation is rounded, so that later breaks may differ."""
    small = synthesize(12, np.random.default_rng(1))
    model = FireModel.of(small)
    found = place(region(small), Downstream(), Plan(0.05, fires=1000, tile=12))
    expected = adaptive_downstream(model, int(0.05 * model.burnable.sum()), np.random.default_rng(0))
    assert found.sum() == len(expected)
    assert found.reshape(-1)[expected[0]]
    assert reduction(model, np.flatnonzero(found).tolist()) > 0.9 * reduction(model, expected)


def test_the_budget_is_kept_in_every_tile_and_in_all() -> None:
    shares: list[float] = []
    plan = Plan(0.06, fires=40, tile=12, margin=4)
    breaks = place(region(), Downstream(), plan, progress=shares.append)
    burns = ~np.isin(HILLS.fuel, NON_BURNABLE)
    assert not breaks[~burns].any()
    assert 0.06 * burns.sum() - 1 < breaks.sum() <= 0.06 * burns.sum()
    assert len(shares) == 16
    assert shares[-1] == 1
    for row in range(0, 36, 12):
        tile = np.s_[row : row + 12, row : row + 12]
        assert abs(breaks[tile].sum() - 0.06 * burns[tile].sum()) < 2
    np.testing.assert_array_equal(breaks, place(region(), Downstream(), plan))


def test_no_break_where_none_may_be_and_cheap_cells_first() -> None:
    half = np.zeros(HILLS.shape, bool)
    half[:, :20] = True
    plan = Plan(0.05, fires=40, tile=20, margin=4)
    assert not place(region(), Downstream(), plan, barred=half)[:, :20].any()
    costs = np.where(np.arange(40)[:, None] % 2 == 0, 1.0, 50.0) * np.ones(HILLS.shape)
    sparing = Plan(0.005, fires=40, tile=20, margin=4)
    breaks = place(region(), Downstream(), sparing, costs)
    assert breaks[::2].sum() > 20 * breaks[1::2].sum()
    burns = ~np.isin(HILLS.fuel, NON_BURNABLE)
    assert 0.0045 < costs[breaks].sum() / costs[burns].sum() <= 0.005
    costs[:, 30:] = np.nan
    assert not place(region(), Downstream(), plan, costs)[:, 30:].any()


def test_fires_from_beyond_a_tile_count() -> None:
    """Only fires from the west cross the gap in the lake at the tile's western edge."""
    fuel = np.full((12, 24), 101)
    fuel[:, 11] = WATER
    fuel[6, 11] = 101
    ground = region(flat((12, 24), fuel))
    allowed = np.zeros((12, 24), bool)
    allowed[:, 12:] = True
    breaks = place(ground, Downstream(), Plan(0.0045, fires=1000, tile=12, margin=12, duration=1e5), barred=~allowed)
    assert np.argwhere(breaks).tolist() == [[6, 12]]


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(UserError, match="budget is 0"):
        Plan(0.0)


def test_the_command_writes_breaks_for_a_gis(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["cli.py"])
    torch.set_num_threads(1)
    barred = np.zeros((24, 24))
    barred[:12] = 1
    files = {
        "no_go": write(tmp_path / "no_go.tif", barred),
        "cost": write(tmp_path / "cost.tif", np.full((24, 24), 3.0)),
    }
    given = {f"landscape.{name}": path for name, path in rasters(tmp_path).items()} | files
    line = [
        "fire",
        "place",
        "--ckpt_path=best",
        f"--trainer.default_root_dir={whole}",
        f"--output={tmp_path / 'b.tif'}",
    ]
    line += [f"--{name}={path}" for name, path in given.items()]
    main(line)
    with rasterio.open(tmp_path / "b.tif") as file, rasterio.open(given["landscape.elevation"]) as elevation:
        assert (file.crs, file.transform) == (elevation.crs, elevation.transform)
        placed = file.read(1)
    assert 20 < placed.sum() <= 0.05 * 24 * 24
    assert not placed[:12].any()
    outlines = json.loads((tmp_path / "b.geojson").read_text())
    assert outlines["crs"]["properties"]["name"] == "urn:ogc:def:crs:EPSG::32611"
    again = rasterio.features.rasterize(
        [each["geometry"] for each in outlines["features"]], placed.shape, transform=elevation.transform
    )
    np.testing.assert_array_equal(again, placed)
    assert f"{placed.sum()} breaks" in capsys.readouterr().out
    assert "give --overwrite" in ended(capsys, 2, line)
    free = write(tmp_path / "free.tif", np.zeros((24, 24)))
    assert "free.tif holds 0" in ended(capsys, 2, [*line, f"--cost={free}", "--overwrite"])
    other = write(tmp_path / "other.tif", np.zeros((24, 23)))
    assert "other.tif has another grid" in ended(capsys, 2, [*line, f"--no_go={other}", "--overwrite"])
