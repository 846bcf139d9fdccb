"""The data module of fuel breaks: splits, rewards to learn from, settings."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from eigen2.core.config import from_settings
from eigen2.core.saved_run import flatten
from eigen2.errors import UserError
from eigen2.fire.datamodule import FuelBreakDataModule, check_settings
from eigen2.fire.landscapes.landscape import Terrain
from eigen2.fire.landscapes.rasters import READ_BYTES, RegionFiles
from eigen2.fire.simulation.environment import FuelBreakEnv, action_mask
from eigen2.fire.simulation.spread import Weather, spread_rates


def test_batches_may_be_larger_than_the_transitions_at_the_start() -> None:
    """They are drawn with replacement."""
    assert FuelBreakDataModule(replay_min_size=32, batch_size=64).batch_size == 64


def test_no_landscape_is_in_two_splits() -> None:
    data = FuelBreakDataModule(grid_size=8, num_landscapes=20, eval_landscapes=20, test_landscapes=20)
    splits = {split: data.landscapes(split) for split in ("train", "validation", "test")}
    prints = {each.elevation.tobytes() for made in splits.values() for each in made}
    assert len(prints) == 60
    again = FuelBreakDataModule(grid_size=8, num_landscapes=5, eval_landscapes=20, test_landscapes=20)
    for mine, theirs in zip(again.landscapes("test"), splits["test"], strict=True):
        assert mine.elevation.tobytes() == theirs.elevation.tobytes()  # whatever number is trained on
    other = FuelBreakDataModule(grid_size=8, landscape_seed=1).landscapes("train")
    assert not {each.elevation.tobytes() for each in other} & prints
    of_environment = [scene.landscape for scene in FuelBreakEnv(grid_size=8).scenes]
    assert not {each.elevation.tobytes() for each in of_environment} & prints  # an agent of its may be tested here


def test_a_region_is_in_the_estimate_and_tested_in_the_tiles_of_its_fit(tmp_path: Path) -> None:
    pytest.importorskip("rasterio")
    from tests.fire.landscapes.test_rasters import HILLS, write

    files = RegionFiles(write(tmp_path / "e.tif", HILLS.elevation), write(tmp_path / "f.tif", HILLS.fuel))
    data = FuelBreakDataModule(grid_size=8, region=files)
    assert data.needed_bytes("fit")["region"] == 24 * 24 * READ_BYTES
    data.settings()  # reads it
    assert data.needed_bytes("fit")["region"] == 0
    assert FuelBreakDataModule(grid_size=8).needed_bytes("fit")["region"] == 0
    of_fit = {**data.inference_spec(), "burned_cells": [1.0]}
    with pytest.raises(UserError, match=r"data\.grid_size is not the fit's, 8, so that test tiles may lie on those"):
        FuelBreakDataModule(grid_size=9, region=files).apply_inference_spec(of_fit)
    FuelBreakDataModule(grid_size=9).apply_inference_spec({**of_fit, "region": False})
    placeless = FuelBreakDataModule(grid_size=4, region=files)
    placeless.build("test", torch.device("cpu"))
    assert placeless._region is not None
    placeless._region = placeless._region._replace(crs=None)  # as ESRI ASCII grids may be
    assert placeless.inference_spec()["extent"] == of_fit["extent"]
    placeless.apply_inference_spec({**of_fit, **placeless.inference_spec()})
    west, north, *_, cell = of_fit["extent"]
    for crs in ("None", of_fit["crs"]):  # without projections coordinates decide
        cut = {**of_fit, "grid_size": 4, "extent": [west - 30, north, west + 9, north - 9, 30.0], "crs": crs}
        with pytest.raises(UserError, match="begins at"):
            placeless.apply_inference_spec(cut)
    assert cell == 30
    for extent, refused in (
        ([west, north, west + 9, north - 9, 30.0], False),
        ([west - 30, north, west + 9, north - 9, 30.0], True),
        ([west, north, west + 9, north - 9, 10.0], True),
        ([west - 60, north, west, north - 9, 30.0], False),  # beside it
    ):
        played = FuelBreakDataModule(grid_size=4, region=files)
        played.build("test", torch.device("cpu"))
        message = "so that test tiles may lie on those of its training; give the fit's rasters" if refused else None
        with nullcontext() if message is None else pytest.raises(UserError, match=message):
            played.apply_inference_spec({**of_fit, "grid_size": 4, "extent": extent})
    # of a region elsewhere all tiles are new, whatever their size
    beside = FuelBreakDataModule(grid_size=9, region=files)
    beside.build("test", torch.device("cpu"))
    tiles = len(beside.env.scenes)
    beside.apply_inference_spec({**of_fit, "extent": [west - 60, north, west, north - 9, 30.0]})
    assert len(beside.env.scenes) == tiles
    other = {"extent": [west - 30, north, west + 9, north - 9, 30.0], "crs": "EPSG:32612"}
    with pytest.raises(UserError, match=r"projection EPSG:32611, that of the fit EPSG:32612, .* warp it"):
        played.apply_inference_spec({**of_fit, "grid_size": 4, **other})


def test_a_fit_after_a_test_leaves_it_only_the_test_tiles(tmp_path: Path) -> None:
    pytest.importorskip("rasterio")
    from tests.fire.landscapes.test_rasters import HILLS, write

    files = RegionFiles(write(tmp_path / "e.tif", HILLS.elevation), write(tmp_path / "f.tif", HILLS.fuel))
    data = FuelBreakDataModule(grid_size=4, region=files)
    tiles = []
    for stage in ("test", "fit", "test"):
        data.build(stage, torch.device("cpu"))
        tiles.append(len(data.baseline("random", "test")[0]))
    data.teardown("test")
    assert tiles[0] > tiles[1] == tiles[2] > 0
    with pytest.raises(UserError, match=r"data\.terrain is of synthetic landscapes"):
        FuelBreakDataModule(grid_size=4, region=files, terrain=Terrain()).build("fit", torch.device("cpu"))


def test_baselines_are_those_of_the_tiles_played(tmp_path: Path) -> None:
    pytest.importorskip("rasterio")
    from tests.fire.landscapes.test_rasters import HILLS, write

    files = RegionFiles(write(tmp_path / "e.tif", HILLS.elevation), write(tmp_path / "f.tif", HILLS.fuel))
    data = FuelBreakDataModule(grid_size=4, region=files, fire_simulation_max_duration=30.0)
    data.build("test", torch.device("cpu"))
    of_fit = {**data.inference_spec(), "burned_cells": [1.0]}
    counts = []
    for in_fit in (False, True):
        data.apply_inference_spec({**of_fit, "region": in_fit})
        counts.append(len(data.baseline("random", "test")[1]))
    assert counts[0] > counts[1] > 0


def test_a_wind_may_turn_through_north() -> None:
    data = FuelBreakDataModule(grid_size=8, num_landscapes=200, wind_from=(315.0, 45.0))
    winds = np.array([fire["wind_from"] for fire in data.fires("train")])
    assert ((winds >= 315) | (winds <= 45)).all()
    assert np.mean(winds <= 45) == pytest.approx(0.5, abs=0.1)
    assert winds.max() < 360


def test_each_landscape_has_a_fire_of_its_own_from_the_ranges() -> None:
    spans = {"fire_simulation_max_duration": (120.0, 960.0), "wind_speed": (5.0, 40.0), "wind_from": (0.0, 360.0)}
    data = FuelBreakDataModule(grid_size=8, num_landscapes=400, eval_landscapes=2, **spans)
    fires = data.fires("train")
    for name, (low, high) in spans.items():
        values = np.array([fire[name] for fire in fires])
        assert low <= values.min()
        assert values.max() <= high
        assert len({*values}) == 400
        middle = np.sqrt(low * high) if name == "fire_simulation_max_duration" else (low + high) / 2
        assert np.mean(values < middle) == pytest.approx(0.5, abs=0.1)
    assert FuelBreakDataModule(grid_size=8, num_landscapes=3, **spans).fires("train") == fires[:3]
    own = data.fires("validation")
    assert [env.scenes[0].model.duration for env in data.held_out("validation")] == [
        fire["fire_simulation_max_duration"] for fire in own
    ]
    for env, fire, spec in zip(data.held_out("validation"), own, data.specs("validation"), strict=True):
        weather = Weather(fire["wind_speed"], fire["wind_from"])
        assert (env.scenes[0].model.rates == spread_rates(env.scenes[0].landscape, weather)).all()
        assert [*spec["fire"].values()] == [*fire.values()]
    data.build("fit", torch.device("cpu"))
    assert [scene.model.duration for scene in data.env.scenes] == [
        fire["fire_simulation_max_duration"] for fire in fires
    ]
    data.teardown("fit")
    plain = {"fire_simulation_max_duration": 240.0, "wind_speed": 15.0, "wind_from": 270.0}
    assert FuelBreakDataModule(grid_size=8, num_landscapes=2).fires("train") == [plain, plain]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"wind_speed": (40.0, 5.0)}, "data.wind_speed is 40 to 5; give the lower number first"),
        ({"wind_from": (0.0, 361.0)}, "data.wind_from is 361"),
        ({"fire_simulation_max_duration": (0.0, 9.0)}, "data.fire_simulation_max_duration is 0"),
        ({"wind_speed": (1.0, 2.0, 3.0)}, r"data.wind_speed is \(1.0, 2.0, 3.0\); give a number, or the two ends"),
        ({"wind_speed": None}, "data.wind_speed is None; it must be a number"),
        ({"wind_speed": "15"}, "data.wind_speed is '15'; it must be a number"),
        ({"grid_size": 8.5}, "data.grid_size is 8.5; it must be a whole number"),
        ({"ignitions": 2.5}, "data.ignitions is 2.5; it must be a whole number"),
    ],
)
def test_wrong_settings_are_refused(settings: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_settings({**FuelBreakDataModule()._settings, **settings})


def test_a_saved_configuration_makes_the_same_data_again() -> None:
    data = FuelBreakDataModule(grid_size=8, terrain=Terrain({101: 0.7, 165: 0.3}, slope=0.1))
    saved = yaml.safe_load(yaml.safe_dump(data.config()))
    saved["terrain"] = from_settings(Terrain, "data.terrain", saved["terrain"])  # as the data module does
    again = FuelBreakDataModule(**saved)
    assert flatten(again.settings()) == flatten(data.settings())
    assert flatten(data.settings())["terrain.fuel.101"] == 0.7
    for mine, theirs in zip(again.landscapes("test"), data.landscapes("test"), strict=True):
        assert (mine.fuel == theirs.fuel).all()


def test_relative_rewards_are_of_what_still_burned() -> None:
    sizes = {"num_landscapes": 1, "eval_landscapes": 1, "num_parallel_envs": 2, "batch_size": 2, "replay_min_size": 3}
    data, chance = FuelBreakDataModule(grid_size=10, budget=0.08, ignitions=30, **sizes), np.random.default_rng(0)
    data.build("fit", torch.device("cpu"))
    data.allocate_replay(torch.device("cpu"))
    collector, steps = data.collector, data.episode_steps
    collector.begin(np.random.default_rng(1))
    start = collector.info["burned"]
    for _ in range(steps):
        collector.step(
            np.array([chance.choice(np.flatnonzero(allowed)) for allowed in action_mask(collector.observation)])
        )
    sums = data.buffer["reward"][: 2 * steps].reshape(steps, 2).sum(0)
    np.testing.assert_allclose(sums, 30 * np.log(start / collector.info["burned"]), rtol=1e-5)
    assert (sums > 0).all()
    data.teardown("fit")
