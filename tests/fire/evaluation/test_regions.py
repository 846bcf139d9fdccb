"""Breaks in a whole region: budget, costs, no-go areas and edges of tiles; the command and its files."""

import json
import re
import sys
import tracemalloc
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor, nn

from eigen2.cli.main import main
from eigen2.errors import UserError
from eigen2.fire.evaluation import regions
from eigen2.fire.evaluation.regions import Plan, Wind, judge, needed_bytes, place, shares_of, tail_mean, write_breaks
from eigen2.fire.landscapes.fuels import NON_BURNABLE, WATER
from eigen2.fire.landscapes.landscape import Landscape, synthesize
from eigen2.fire.landscapes.rasters import Region
from eigen2.fire.networks import downstream_share
from eigen2.fire.simulation.baselines import adaptive_downstream, reduction
from eigen2.fire.simulation.environment import DOWNSTREAM, observe, rate_planes
from eigen2.fire.simulation.spread import FireModel
from eigen2.memory import estimate
from eigen2.runtime.checkpoint import DurableCheckpointIO
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


class Through(nn.Module):
    """Values cells by how near what burns through them is to a value of the observation."""

    def __init__(self, value: int) -> None:
        super().__init__()
        self.value = value

    def forward(self, planes: UInt8[Tensor, "batch planes height width"]) -> Float[Tensor, "batch cells"]:
        return -(planes[:, DOWNSTREAM].float() - self.value).abs().flatten(1)


def test_a_tile_gets_the_breaks_of_the_network_or_of_the_baseline_whichever_save_more() -> None:
    small, plan = synthesize(12, np.random.default_rng(11)), Plan(0.009, fires=1000, tile=12)
    model = FireModel.of(small)
    fires = model.start(model.draw(plan.fires, np.random.default_rng(plan.seed)), trees=True)
    saved = {cell: fires.saved(cell) for cell in np.flatnonzero(model.burnable).tolist()}
    best, usual = max(saved, key=lambda cell: saved[cell]), int(fires.downstream.argmax())
    assert saved[best] > saved[usual]
    seen = observe(rate_planes([model]), 1.0, [fires])[DOWNSTREAM].reshape(-1)
    assert (seen == seen[best]).sum() == 1
    for value, expected in ((seen[best], best), (1, usual)):
        assert np.flatnonzero(place(region(small), Through(int(value)), plan)).tolist() == [expected]


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


@given(
    st.floats(0, 1e6),
    st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 1e3)), min_size=1, max_size=8),
)
def test_tiles_share_what_there_is_by_their_parts_up_to_their_room(
    budget: float, tiles: list[tuple[float, float]]
) -> None:
    parts, room = np.array(tiles).T
    shares = shares_of(budget, parts, room)
    assert (shares <= room + 1e-9).all()
    assert (shares[parts == 0] == 0).all()
    assert shares.sum() == pytest.approx(min(budget, room[parts > 0].sum()), rel=1e-6, abs=1e-6)
    free = (shares < room * (1 - 1e-9)) & (parts > 1e-3)
    if free.any():  # those with room left have equal shares of their parts, and no other has more
        rate = (shares[free] / parts[free]).max()
        np.testing.assert_allclose(shares[free], rate * parts[free], rtol=1e-6, atol=1e-6)
        assert (shares <= rate * parts * (1 + 1e-6) + 1e-6).all()


def test_cells_that_are_barred_leave_their_part_to_others_wherever_they_lie() -> None:
    barred = np.zeros(HILLS.shape, bool)
    barred[20:] = True
    barred[20, :2] = False
    plan = Plan(0.05, fires=40, tile=20, margin=4)
    counts = {int(place(region(), Downstream(), plan, barred=each).sum()) for each in (barred, barred[::-1])}
    budget = int(0.05 * (~np.isin(HILLS.fuel, NON_BURNABLE)).sum() + 1e-9)
    assert counts == {budget}


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


def corridor(length: int = 24) -> Region:
    """The first row burns; the rest is water."""
    fuel = np.full((4, length), WATER)
    fuel[0] = 101
    return region(flat((4, length), fuel))


def test_the_same_value_everywhere_is_no_value_and_more_draws_breaks() -> None:
    plan = Plan(0.04, fires=200, tile=40)
    plain = place(region(), Downstream(), plan)
    np.testing.assert_array_equal(place(region(), Downstream(), plan, values=np.full(HILLS.shape, 0.37)), plain)
    values, corner, drawn = np.ones(HILLS.shape), np.s_[20:, 20:], [plain]
    for value in (2, 20):
        values[corner] = value
        drawn.append(place(region(), Downstream(), plan, values=values))
        assert drawn[-1].sum() == plain.sum()
        assert drawn[-1][corner].sum() > drawn[-2][corner].sum()
    before, after, weights, _ = judge(region(), plain, plan, values)
    assert weights @ judge(region(), drawn[-1], plan, values).after < weights @ after < weights @ before


def test_a_value_that_cannot_burn_does_not_coarsen_the_others() -> None:
    fuel, values = np.full((12, 12), 101), np.random.default_rng(0).uniform(1, 2, (12, 12))
    fuel[3, 4] = 91
    place_with = partial(place, region(flat((12, 12), fuel)), Downstream(), Plan(0.1, fires=200, tile=12))
    plain = place_with(values=np.where(fuel == 91, 0, values))
    values[3, 4] = 1e6
    np.testing.assert_array_equal(place_with(values=values), plain)


@pytest.mark.parametrize(
    ("crs", "name"),
    [
        ("EPSG:32611", "urn:ogc:def:crs:EPSG::32611"),
        ("ESRI:102039", "urn:ogc:def:crs:ESRI::102039"),
        ("+proj=aea +lat_1=30 +lat_2=45 +lat_0=20 +lon_0=-90", None),
    ],
)
def test_outlines_name_their_projection(
    crs: str, name: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    placed = region()._replace(crs=rasterio.CRS.from_user_input(crs), transform=rasterio.Affine(30, 0, 0, 0, -30, 0))
    write_breaks(tmp_path / "b.tif", placed, np.eye(40, dtype=bool))
    found = json.loads((tmp_path / "b.geojson").read_text()).get("crs")
    assert (found and found["properties"]["name"]) == name
    assert ("names no projection" in caplog.text) == (name is None)


def test_breaks_guard_what_has_value_and_the_rest_is_not_spent() -> None:
    values = np.zeros((4, 24))
    values[0, 23] = 5.0
    plan = Plan(0.2, fires=100, tile=24, duration=1e5)
    assert np.argwhere(place(corridor(), Downstream(), plan, values=values)).tolist() == [[0, 23]]
    barred = values > 0
    breaks = place(corridor(), Downstream(), plan, barred=barred, values=values)
    assert breaks[0, 22]
    assert not breaks[0, 23]
    unused = place(corridor(), Downstream(), Plan(0.2, fires=100, tile=12, margin=0, duration=1e5), values=values)
    assert np.argwhere(unused).tolist() == [[0, 23]]  # nothing of value burns in the western tile


@pytest.mark.parametrize("turned", [False, True])
def test_the_budget_goes_where_fires_burn_value_wherever_that_lies(turned: bool) -> None:
    """Houses in a corner get the same breaks whether their tile is the first or the last."""
    values, plan = np.zeros(HILLS.shape), Plan(0.02, fires=1600, tile=20, margin=4)
    values[:8, :8] = 1.0
    way = -1 if turned else 1
    fuel = np.full(HILLS.shape, 101)
    breaks = place(region(flat(HILLS.shape, fuel)), Downstream(), plan, values=values[::way, ::way])[::way, ::way]
    assert breaks.sum() == 32
    assert breaks[:20, :20].sum() > 20
    plain = place(region(flat(HILLS.shape, fuel)), Downstream(), plan)
    before, after, weights, _ = judge(region(flat(HILLS.shape, fuel)), breaks[::way, ::way], plan, values[::way, ::way])
    spread_out = judge(region(flat(HILLS.shape, fuel)), plain, plan, values[::way, ::way])
    assert weights @ after < 0.8 * (weights @ spread_out.after) < weights @ before


def test_winds_count_by_their_weights() -> None:
    plan = Plan(0.03, fires=60, tile=40)
    plain = place(region(), Downstream(), plan)
    for winds in ((Wind(15, 270, 7),), (Wind(15, 270, 0.25), Wind(15, 270, 0.75))):
        np.testing.assert_array_equal(place(region(), Downstream(), replace(plan, winds=winds)), plain)
    west, east = Wind(60, 270), Wind(60, 90)
    of_west, of_east = (place(region(), Downstream(), replace(plan, winds=(wind,))) for wind in (west, east))

    def mixed(weight: float) -> NDArray[np.bool_]:
        return place(region(), Downstream(), replace(plan, winds=(replace(west, weight=weight), east)))

    assert (mixed(1e6) & of_west).sum() > 0.9 * of_west.sum() > 1.2 * (of_west & of_east).sum()
    assert (mixed(1e-6) & of_east).sum() > 0.9 * of_east.sum()


@pytest.mark.parametrize("at_once", [10**9, 1])
def test_the_judge_counts_what_burns(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "CELLS_AT_ONCE", at_once)
    small = synthesize(12, np.random.default_rng(1))
    breaks, values = np.zeros((12, 12), bool), np.random.default_rng(2).random((12, 12))
    breaks.reshape(-1)[adaptive_downstream(FireModel.of(small), 5, np.random.default_rng(0))] = True
    cells, winds = np.flatnonzero(breaks).tolist(), (Wind(15, 270, 1), Wind(40, 0, 3))
    found = judge(region(small), breaks, Plan(0.1, winds=winds, fires=1000), values)
    expected = []
    for wind in winds:
        model = FireModel.of(small, wind.weather())
        fires = [model.start(), model.start(breaks=cells)]
        expected.append([(each.frequency @ values.reshape(-1)) for each in fires])
    assert found.weights.sum() == pytest.approx(1)
    shares = (found.burned.reshape(2, -1) @ values.reshape(-1)).tolist()
    assert shares == pytest.approx([found.weights @ found.before, found.weights @ found.after], rel=1e-5)
    assert found.weights @ found.before == pytest.approx((expected[0][0] + 3 * expected[1][0]) / 4)
    assert found.weights @ found.after == pytest.approx((expected[0][1] + 3 * expected[1][1]) / 4)
    one = judge(region(small), breaks, Plan(0.1, fires=1000))
    assert 1 - one.after.sum() / one.before.sum() == pytest.approx(reduction(FireModel.of(small), cells))


def test_the_mean_of_the_worst_is_known() -> None:
    losses, even = np.array([2.0, 4, 1, 3]), np.full(4, 0.25)
    assert [tail_mean(losses, even, share) for share in (0.1, 0.25, 0.5, 1)] == pytest.approx([4, 4, 3.5, 2.5])
    rare = np.array([0.02, 0.98])
    assert tail_mean(np.array([10.0, 1]), rare, 0.05) == pytest.approx((0.02 * 10 + 0.03 * 1) / 0.05)


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(UserError, match="budget is 0"):
        Plan(0.0)
    with pytest.raises(UserError, match="weight is 0"):
        Wind(15, 270, 0)
    with pytest.raises(UserError, match="wind_from is 361"):
        Wind(15, 361)


@pytest.mark.parametrize(
    ("fuel", "budget", "cost", "barred", "words"),
    [
        (WATER, 0.1, 1.0, False, "nothing burns in the region"),
        (102, 0.1, np.nan, False, "no cell that burns may become a break"),
        (102, 0.1, 1.0, True, "no cell that burns may become a break"),
        (102, 0.06, 2.0, False, "budget is 0.06, which pays for no break; it must be at least 0.06253"),
    ],
)
def test_a_region_in_which_no_break_can_be_placed_is_refused(
    fuel: int, budget: float, cost: float, barred: bool, words: str
) -> None:
    costs, no_go = np.full((4, 4), cost), np.full((4, 4), barred)
    with pytest.raises(UserError, match=words):
        place(region(flat((4, 4), fuel)), Downstream(), Plan(budget), costs, no_go)


def test_the_estimate_covers_what_a_region_takes() -> None:
    """Of what NumPy and Python allocate, where every fire burns all; the search of shortest paths takes more, in C."""
    large, plan = region(synthesize(200, np.random.default_rng(3))), Plan(2e-4, duration=1e5, fires=50)
    barred = np.ones((200, 200), bool)
    barred[80:100, 80:100] = False  # windows in the middle are the largest
    peaks = []
    tracemalloc.start()
    try:
        breaks = place(large, Downstream(), plan, barred=barred)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.reset_peak()
        judge(large, breaks, plan)
        peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert breaks.any()
    assert max(peaks) < sum(needed_bytes(breaks.size, plan).values()) < 2 * min(peaks)


def test_a_region_that_memory_cannot_hold_is_refused_before_it_is_read(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"landscape.{name}": path for name, path in rasters(tmp_path).items()}
    output = tmp_path / "b.tif"
    line = ["fire", "place", f"--trainer.default_root_dir={whole}", f"--output={output}"]
    line += [f"--{name}={path}" for name, path in files.items()]
    monkeypatch.setattr(estimate, "available_bytes", lambda budget, processes: 50_000_000)
    monkeypatch.setattr("eigen2.cli.fire.read_region", lambda files: pytest.fail("it is read"))
    said = ended(capsys, 2, line)
    assert re.search(r"needs .*fires .* \+ region 0\.2 .* MB of RAM .*, with 0\.05 GB available; cut a smaller", said)
    assert not output.exists()


def test_an_output_that_cannot_be_written_or_is_read_is_refused_at_once(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [f"--landscape.{name}={path}" for name, path in rasters(tmp_path).items()]
    monkeypatch.setattr("eigen2.cli.fire.read_region", lambda files: pytest.fail("it is read"))
    height = next(word.split("=")[1] for word in files if "elevation" in word)
    for output, said in ((tmp_path, "cannot be written; name a file"), (height, "which is read; name another file")):
        for command in (["place", f"--trainer.default_root_dir={whole}"], ["terrain"]):
            assert said in ended(capsys, 2, ["fire", *command, f"--output={output}", "--overwrite", *files])


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
    said = capsys.readouterr().out
    assert f"{placed.sum()} breaks" in said
    assert "ha burned without breaks" in said
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")
    for name in ("b.tif", "b.geojson"):
        (tmp_path / name).unlink()  # the map alone is there
    assert "give --overwrite" in ended(capsys, 2, line)
    assert "name a GeoTIFF" in ended(capsys, 2, [*line, "--overwrite", f"--output={tmp_path / 'b.png'}"])
    assert "there is no folder" in ended(capsys, 2, [*line, f"--output={tmp_path / 'none' / 'b.tif'}"])
    assert "--output is '.'; name a file" in ended(capsys, 2, [*line, "--output="])
    line.append("--overwrite")
    values = write(tmp_path / "value.tif", np.eye(24))
    winds = "[{wind_speed: 30, wind_from: 0, weight: 2}, {wind_speed: 9, wind_from: 90}]"
    main([*line, f"--value={values}", f"--winds={winds}"])
    said = capsys.readouterr().out
    assert said.count("of the value burned without breaks") == 2
    assert "the worst 5% of fires: " in said
    assert "give one or the other" in ended(capsys, 2, [*line, f"--winds={winds}", "--wind_speed=9"])
    assert "weight is 0" in ended(capsys, 2, [*line, "--winds=[{wind_speed: 9, wind_from: 0, weight: 0}]"])
    assert "speed" in ended(capsys, 2, [*line, "--winds=[{speed: 9}]"])
    none = write(tmp_path / "none.tif", np.zeros((24, 24)))
    assert "none.tif holds no value above 0" in ended(capsys, 2, [*line, f"--value={none}"])
    for value in (-1.0, np.inf, -np.inf):
        debt = write(tmp_path / "debt.tif", np.full((24, 24), value))
        assert f"debt.tif holds {value:g}" in ended(capsys, 2, [*line, f"--value={debt}"])
    free = write(tmp_path / "free.tif", np.zeros((24, 24)))
    assert "free.tif holds 0" in ended(capsys, 2, [*line, f"--cost={free}"])
    other = write(tmp_path / "other.tif", np.zeros((24, 23)))
    assert "other.tif has another grid" in ended(capsys, 2, [*line, f"--no_go={other}"])


def test_a_fit_with_ranges_of_fires_needs_those_of_the_region(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["cli.py"])
    torch.set_num_threads(1)
    checkpoint = torch.load(whole / "checkpoints" / "best.ckpt", weights_only=True)
    ranges = {"fire_simulation_max_duration": [60.0, 120.0], "wind_speed": [5.0, 40.0], "wind_from": [0.0, 360.0]}
    checkpoint["eigen2"]["settings"] |= {f"data.{name}": span for name, span in ranges.items()}
    DurableCheckpointIO().save_checkpoint(checkpoint, tmp_path / "ranges.ckpt")
    line = ["fire", "place", f"--ckpt_path={tmp_path / 'ranges.ckpt'}", f"--output={tmp_path / 'b.tif'}"]
    line += [f"--landscape.{name}={path}" for name, path in rasters(tmp_path).items()]
    assert "the fit had duration from 60 to 120; give --duration" in ended(capsys, 2, line)
    assert "give --wind_speed" in ended(capsys, 2, [*line, "--duration=90"])
    main([*line, "--duration=90", "--winds=[{wind_speed: 9, wind_from: 0}]"])
    assert (tmp_path / "b.tif").exists()
