"""What a run leaves of its champion: placements that others read, scores of a test, a picture."""

import gc
import io
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from eigen2.errors import UserError
from eigen2.files import Folder
from eigen2.fire.datamodule import FuelBreakDataModule
from eigen2.fire.evaluation.placements import PlacementFile, make_test_result, read_placements, write_placements
from eigen2.fire.landscapes.landscape import Terrain, synthesize, synthetic
from eigen2.fire.landscapes.rasters import RegionFiles
from eigen2.fire.pictures import BreaksPlot, draw_placements
from eigen2.fire.simulation.baselines import PLACEMENTS, reduction
from eigen2.fire.simulation.environment import FuelBreakEnv
from eigen2.fire.simulation.spread import FireModel, Weather
from tests.fire.conftest import command
from tests.fire.landscapes.test_rasters import whole as rasters
from tests.runs import metrics

BASELINES = ["random", "domirank", "in_degree", "downstream", "adaptive_downstream"]


def write(path: Path, given: object) -> Path:
    path.write_text(json.dumps(given))
    return path


SPEC = {"grid_size": 8, "seed": 3, "number": 2}
FILES = {"elevation": "dem.tif", "fuel": "fbfm40.tif"}
TILE = {"grid_size": 8, "region": FILES, "split": "test", "number": 2}


def test_a_file_of_placements(tmp_path: Path) -> None:
    path = write(tmp_path / "p.json", {"landscapes": [SPEC], "placements": {"a": [[1]]}, "fire": {"wind_speed": 9}})
    found = read_placements(path)
    np.testing.assert_array_equal(found.landscapes[0].elevation, synthetic(8, 3, 2).elevation)
    of_environment = write(tmp_path / "e.json", {"landscapes": [{**SPEC, "split": "environment"}]})
    scene = FuelBreakEnv(8, num_landscapes=3, seed=3).scenes[2]
    np.testing.assert_array_equal(read_placements(of_environment).landscapes[0].elevation, scene.landscape.elevation)
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


def savings(placed: PlacementFile, name: str) -> list[float]:
    """Percent that a placement of a file saves, landscape by landscape, computed anew."""
    pairs = zip(placed.landscapes, placed.fires, strict=True)
    models = [
        FireModel.of(each, Weather(fire["wind_speed"], fire["wind_from"]), fire["duration"]) for each, fire in pairs
    ]
    return [100 * reduction(*each) for each in zip(models, placed.placements[name], strict=True)]


def test_the_placements_are_those_that_were_scored(whole: Path) -> None:
    placed, last = read_placements(whole / "champion" / "placements.json"), metrics(whole)[-1]
    assert list(placed.placements) == ["champion", *BASELINES]
    assert placed.generation == float(last["champion/generation"])
    data = FuelBreakDataModule(grid_size=12, eval_landscapes=2)
    for made, own in zip(placed.landscapes, data.landscapes("validation"), strict=True):
        np.testing.assert_array_equal(made.elevation, own.elevation)
        np.testing.assert_array_equal(made.fuel, own.fuel)
    names = {"champion": "champion/validation_fitness", **{name: f"baseline/{name}" for name in BASELINES}}
    for name, column in names.items():
        assert all(len(cells) == 7 for cells in placed.placements[name])
        assert np.mean(savings(placed, name)) == pytest.approx(float(last[column])), name


def test_the_test_says_what_each_placement_saves_on_each_landscape(whole: Path) -> None:
    summary = json.loads((whole / "test" / "scores.json").read_text())
    placed = read_placements(whole / "test" / "placements.json")
    assert list(summary["scores"]) == list(placed.placements) == ["champion", *PLACEMENTS, "champion_swaps"]
    assert summary["champion_generation"] == placed.generation
    assert summary["unit"] == "percent of the burned area saved"
    assert summary["settings"]["data.grid_size"] == 12
    for name, scores in summary["scores"].items():
        np.testing.assert_allclose(scores, savings(placed, name), atol=1e-4)
    for improved, start in (("champion_swaps", "champion"), ("local_search", "adaptive_downstream")):
        assert (np.array(summary["scores"][improved]) >= summary["scores"][start]).all()  # it simulates all fires here


def test_ground_unlike_that_of_the_fit_is_warned_of(
    whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The fit trained on three landscapes on which a fire burns most of the 144 cells."""
    best = f"--ckpt_path={whole / 'checkpoints' / 'best.ckpt'}"
    fitted = torch.load(whole / "checkpoints" / "best.ckpt", weights_only=True)["eigen2"]["inference"]["data"]
    data = FuelBreakDataModule(grid_size=12, num_landscapes=3)
    burned = [144 * FireModel.of(landscape).start().burned for landscape in data.landscapes("train")]
    np.testing.assert_allclose(fitted["burned_cells"], burned, rtol=0.15)  # of 64 fires
    command("test", tmp_path / "same", best, "--data.test_landscapes=1")
    assert "may be far" not in caplog.text
    command("test", tmp_path / "short", best, "--data.test_landscapes=1", "--data.fire_simulation_max_duration=9")
    assert "in the fit: the champion may be far from its best" in caplog.text


def test_the_gap_is_that_to_local_search() -> None:
    saved = {"champion": np.array([0.3, 0.5]), "greedy": np.array([0.6, 0.6]), "local_search": np.array([0.4, 0.6])}
    text = make_test_result(saved, np.array([20.0, 1000.0]), 3).text
    assert "a fire burns 510 cells without breaks (20 to 1,000)" in text
    gaps = {line.split()[0]: line.split()[-1] for line in text.splitlines()[3:]}
    assert gaps == {"champion": "20.0", "greedy": "-20.0", "local_search": "0.0"}


def test_another_test_does_not_overwrite_the_first(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    root, best = tmp_path / "run", f"--ckpt_path={whole / 'checkpoints' / 'best.ckpt'}"
    shutil.copytree(whole / "test", root / "test")
    first = (root / "test" / "scores.json").read_text()
    command("test", root, best)
    assert not (root / "test-1").exists()
    assert (root / "test" / "scores.json").read_text() == first
    said = capsys.readouterr().out
    assert "on 3 landscapes that fit has not seen" in said
    assert {line.split()[0] for line in said.splitlines() if line} >= {"champion", *PLACEMENTS}
    command("test", root, best, "--data.test_landscapes=1", "--data.grid_size=10")  # other maps may be played
    assert "data.grid_size 12, now 10" in caplog.text
    assert (root / "test-1" / "scores.json").read_text() == first
    assert len(json.loads((root / "test" / "scores.json").read_text())["scores"]["champion"]) == 1


def test_a_picture_is_drawn_when_due_and_when_the_champion_is_new(whole: Path) -> None:
    assert {path.name for path in (whole / "champion").glob("*")} == {"breaks.png", "placements.json"}
    events = EventAccumulator(str(whole / "tensorboard"), size_guidance={"images": 0}).Reload()
    (image,) = events.Images("champion/breaks")
    assert image.step == 3
    shown = np.asarray(Image.open(io.BytesIO(image.encoded_image_string)))
    assert shown.shape == (4 * 400, 2 * 720, 3)
    np.testing.assert_array_equal(np.rint(255 * imread(whole / "champion" / "breaks.png")[..., :3]), shown)


def test_a_picture_shows_its_breaks_and_leaves_nothing() -> None:
    scene = FuelBreakEnv(grid_size=12, num_landscapes=1).scenes[0]
    burnable = np.flatnonzero(scene.model.burnable).tolist()
    some = draw_placements(scene, {"one": burnable[:3], "other": burnable[-3:]})
    assert (some.shape, some.dtype) == ((800, 1440, 3), np.uint8)
    assert (some[400:, :720] == 255).mean() < 0.9
    assert (some[400:, 720:] == 255).all(), "there are three placements"
    np.testing.assert_array_equal(some, draw_placements(scene, {"one": burnable[:3], "other": burnable[-3:]}))
    assert (some != draw_placements(scene, {"one": burnable[:3], "other": burnable[-4:-1]})).any()
    gc.collect()
    assert not [each for each in gc.get_objects() if type(each) is Figure]
    if "matplotlib.pyplot" in sys.modules:
        assert sys.modules["matplotlib.pyplot"].get_fignums() == []
    with pytest.raises(UserError, match="every_n_epochs of BreaksPlot is 0"):
        BreaksPlot(0)
    with pytest.raises(UserError, match="placement lake does not fit"):
        draw_placements(scene, {"lake": [int(np.flatnonzero(~scene.model.burnable)[0])]})


def test_tiles_of_a_region_are_found_again(tmp_path: Path) -> None:
    files = RegionFiles(**rasters(tmp_path, synthesize(80, np.random.default_rng(5))))
    data = FuelBreakDataModule(grid_size=8, eval_landscapes=2, region=files)
    write_placements(Folder(tmp_path), PlacementFile(data.specs("validation"), {}, {}))
    found = read_placements(tmp_path / "placements.json").landscapes
    for made, own in zip(found, data.landscapes("validation"), strict=True):
        np.testing.assert_array_equal(made.elevation, own.elevation)
    with pytest.raises(UserError, match=r"the region has [0-9]+ validation tiles of 8 x 8, no number 99"):
        _ = PlacementFile([{**data.specs("validation")[0], "number": 99}], {}, {}).landscapes


def test_a_champion_of_synthetic_landscapes_is_tested_on_all_tiles(tmp_path: Path) -> None:
    files = RegionFiles(**rasters(tmp_path, synthesize(80, np.random.default_rng(5))))
    data = FuelBreakDataModule(grid_size=8, test_landscapes=1000, region=files)
    data.build("test", torch.device("cpu"))
    every = {each.elevation.tobytes() for each in data.landscapes("test")}
    splits = [data.landscapes("train"), data.landscapes("validation")]
    assert len(every) == len(data.held_out("test"))
    for split in splits:
        assert {each.elevation.tobytes() for each in split} < every
    write_placements(Folder(tmp_path), PlacementFile(data.specs("test"), {}, {}))
    found = read_placements(tmp_path / "placements.json").landscapes
    assert [each.elevation.tobytes() for each in found] == [
        each.elevation.tobytes() for each in data.landscapes("test")
    ]
    with pytest.raises(UserError, match=r"the region has [0-9]+ tiles of 8 x 8, no number 999"):
        _ = PlacementFile([{**data.specs("test")[0], "number": 999}], {}, {}).landscapes
    spec = {"landscape_seed": 0, "burned_cells": []}
    data.apply_inference_spec({**spec, "region": False})
    assert len(data.held_out("test")) == len(every)
    data.apply_inference_spec({**spec, "region": True})
    tested = {each.elevation.tobytes() for each in data.landscapes("test")}
    assert len(tested) == len(data.held_out("test"))
    assert not tested & {each.elevation.tobytes() for split in splits for each in split}


def test_a_test_says_that_terrain_may_be_of_its_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = RegionFiles(**rasters(tmp_path, synthesize(16, np.random.default_rng(5))))
    scores = dict.fromkeys(PLACEMENTS, ([[]], np.full(1, 0.5)))
    for terrain in (None, Terrain()):
        fitted = FuelBreakDataModule(grid_size=8, terrain=terrain).inference_spec()
        for region in (None, files):
            data = FuelBreakDataModule(grid_size=8, test_landscapes=1, region=region)
            data.apply_inference_spec({**fitted, "burned_cells": [1.0]})
            monkeypatch.setattr(data, "play", lambda *_: np.full(1, 0.5))
            monkeypatch.setattr(data, "baseline", lambda name, _: scores[name])
            monkeypatch.setattr(data, "_score", lambda *_: ([[]], np.full(1, 0.5)))
            said = data.test(lambda _: np.zeros(1, int), 3).text
            assert ("data.terrain may have been fitted" in said) == (terrain is not None and region is not None)
            assert ("has not seen" in said) == (terrain is None or region is None)


def test_a_region_too_small_to_train_on_is_tested_on(tmp_path: Path) -> None:
    files = RegionFiles(**rasters(tmp_path, synthesize(16, np.random.default_rng(5))))
    data = FuelBreakDataModule(grid_size=8, region=files)
    data.build("test", torch.device("cpu"))
    assert len(data.landscapes("test")) == 4
    assert len(str(data.settings()["region"])) == 64
    with pytest.raises(UserError, match="no clean validation tile of 8 x 8"):
        data.build("fit", torch.device("cpu"))
