"""What a run leaves of its champion: placements that others read, scores of a test, pictures."""

import gc
import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

from eigen2.errors import UserError
from eigen2.fire.datamodule import FuelBreakDataModule
from eigen2.fire.evaluation.placements import PlacementFile, read_placements, write_placements
from eigen2.fire.landscapes.landscape import Landscape, flat, synthesize, synthetic
from eigen2.fire.landscapes.rasters import RegionFiles
from eigen2.fire.pictures import NONE, BreaksPlot, draw_placements, ground, side_by_side
from eigen2.fire.simulation.baselines import PLACEMENTS, reduction
from eigen2.fire.simulation.spread import FireModel
from tests.command import eigen2
from tests.fire.landscapes.test_rasters import whole

BASELINES = ["random", "domirank", "in_degree", "downstream", "adaptive_downstream"]
SMALL = {
    **{"data.grid_size": 10, "data.num_landscapes": 2, "data.eval_landscapes": 2, "data.test_landscapes": 3},
    **{"data.ignitions": 16, "data.warmup": 8, "data.batch_size": 8, "model.width": 4, "model.validate_every": 2},
    **{"report": "false", "trainer.accelerator": "cpu"},
}


def words(root: Path, **more: object) -> list[str]:
    settings = {**SMALL, "trainer.max_epochs": 4, "trainer.default_root_dir": root, **more}
    return ["--config", "configs/dqn_fuel_breaks.yaml", *(f"--{key}={value}" for key, value in settings.items())]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five epochs, the last of which has a picture due and is of a second process; then a test."""
    root = tmp_path_factory.mktemp("run")
    for epochs in (4, 5):
        done = eigen2("fit", *words(root, **{"trainer.max_epochs": epochs}), "--ckpt_path", "last")
        assert done.returncode == 0, done.stderr
    done = eigen2("test", *words(root), "--ckpt_path", "best")
    assert done.returncode == 0, done.stderr
    return root


def last(run: Path, name: str) -> float:
    head, *rows = (run / "metrics.csv").read_text().splitlines()
    return float(rows[-1].split(",")[head.split(",").index(name)])


def test_the_placements_are_those_that_were_scored(run: Path) -> None:
    placed = read_placements(run / "champion" / "placements.json")
    assert list(placed.placements) == ["champion", *BASELINES]
    assert placed.generation == last(run, "champion/generation")
    data = FuelBreakDataModule(grid_size=10, eval_landscapes=2)
    for made, own in zip(placed.landscapes, data.landscapes("validation"), strict=True):
        np.testing.assert_array_equal(made.elevation, own.elevation)
        np.testing.assert_array_equal(made.fuel, own.fuel)
    models = [FireModel.of(landscape, duration=placed.fire["duration"]) for landscape in placed.landscapes]
    names = {"champion": "champion/validation_fitness", **{name: f"baseline/{name}" for name in BASELINES}}
    for name, column in names.items():
        assert all(len(cells) == 5 for cells in placed.placements[name])
        saved = [100 * reduction(*each) for each in zip(models, placed.placements[name], strict=True)]
        assert np.mean(saved) == pytest.approx(last(run, column)), name


def test_the_test_says_what_each_placement_saves_on_each_landscape(run: Path) -> None:
    summary = json.loads((run / "test" / "scores.json").read_text())
    placed = read_placements(run / "test" / "placements.json")
    assert list(summary["scores"]) == list(placed.placements) == ["champion", *PLACEMENTS]
    assert summary["champion_generation"] == placed.generation
    assert summary["unit"] == "percent of the burned area saved"
    assert summary["settings"]["data.grid_size"] == 10
    models = [FireModel.of(landscape, duration=placed.fire["duration"]) for landscape in placed.landscapes]
    for name, scores in summary["scores"].items():
        saved = [100 * reduction(*each) for each in zip(models, placed.placements[name], strict=True)]
        np.testing.assert_allclose(scores, saved, atol=1e-4)


def test_another_test_does_not_overwrite_the_first(run: Path) -> None:
    first = (run / "test" / "scores.json").read_text()
    assert eigen2("test", *words(run), "--ckpt_path", "best").returncode == 0
    assert not (run / "test-1").exists()
    assert eigen2("test", *words(run, **{"data.test_landscapes": 1}), "--ckpt_path", "best").returncode == 0
    assert (run / "test-1" / "scores.json").read_text() == first
    assert len(json.loads((run / "test" / "scores.json").read_text())["scores"]["champion"]) == 1
    (run / "test" / "scores.json").unlink()
    (run / "test" / "placements.json").unlink()
    (run / "test").rmdir()
    (run / "test-1").rename(run / "test")


def test_before_a_champion_nothing_claims_to_be_one(run: Path) -> None:
    head, row, *_ = (run / "metrics.csv").read_text().splitlines()
    cells = dict(zip(head.split(","), row.split(","), strict=True))
    assert (cells["champion/validation_fitness"], cells["champion/generation"]) == ("", "")


def test_pictures_are_drawn_when_due_and_when_the_champion_is_new(run: Path) -> None:
    files = sorted((run / "champion").glob("*"))
    names = [f"breaks-{number}-{name}.png" for number, name in enumerate(["no-breaks", "champion", *BASELINES])]
    assert [path.name for path in files] == [*names, "placements.json"]
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"images": 0}).Reload()
    (image,) = events.Images("champion/breaks")
    assert image.step == 4
    whole = np.asarray(Image.open(io.BytesIO(image.encoded_image_string)))
    assert whole.shape == (4 * 400, 2 * 720, 3)
    for number, name in enumerate(names):
        top, left = 400 * (number // 2), 720 * (number % 2)
        drawn = np.rint(255 * imread(run / "champion" / name)[..., :3]).astype(np.uint8)
        np.testing.assert_array_equal(drawn, whole[top : top + 400, left : left + 720])


def test_a_callback_that_cannot_draw_warns_and_one_that_never_could_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="every_n_epochs of BreaksPlot is 0"):
        BreaksPlot(0)
    plot = "--trainer.callbacks+=eigen2.fire.pictures.BreaksPlot"
    done = eigen2("fit", *words(tmp_path), plot, "--trainer.callbacks.landscape=2")
    assert done.returncode == 2
    assert re.fullmatch(r"error: landscape of BreaksPlot is 2; it must be .*\n", done.stderr)


def test_a_picture_shows_its_breaks_and_leaves_nothing() -> None:
    landscape = synthetic(12, 0, 0)
    model = FireModel.of(landscape)
    burnable = np.flatnonzero(model.burnable)
    some = {"one": burnable[:3].tolist(), "other": burnable[-3:].tolist(), "first": burnable[:1].tolist()}
    pictures = draw_placements(landscape, model, some, {"one": "my own"})
    assert list(pictures) == [NONE, *some]
    for picture in pictures.values():
        assert (picture.shape, picture.dtype) == ((400, 720, 3), np.uint8)
    assert (pictures["one"] != pictures["other"]).any()
    again = draw_placements(landscape, model, some, {"one": "my own"})
    np.testing.assert_array_equal(pictures["one"], again["one"])
    assert side_by_side([*pictures.values()][:3]).shape == (800, 1440, 3)
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, Figure)]
    if "matplotlib.pyplot" in sys.modules:
        assert sys.modules["matplotlib.pyplot"].get_fignums() == []


def test_pictures_that_cannot_be_drawn_are_refused() -> None:
    landscape = synthetic(12, 0, 0)
    model = FireModel.of(landscape)
    with pytest.raises(UserError, match="placement lake does not fit"):
        draw_placements(landscape, model, {"lake": [int(np.flatnonzero(~model.burnable)[0])]}, {})
    rock = flat((6, 6), 99)
    with pytest.raises(UserError, match="nothing burns"):
        draw_placements(rock, FireModel.of(rock), {}, {})


def test_terrain_is_lit_from_the_north_west() -> None:
    level = flat((2, 2), 101)

    def light(slope: float, aspect: float) -> float:
        turned = {"slope": np.full((2, 2), slope), "aspect": np.full((2, 2), aspect)}
        return float(ground(Landscape(**{**level.layers(), **turned})).mean())

    assert light(0.3, 315) > light(0, 0) > light(0.3, 135)


def test_tiles_of_a_region_are_found_again(tmp_path: Path) -> None:
    files = RegionFiles(**whole(tmp_path, synthesize(80, np.random.default_rng(5))))
    data = FuelBreakDataModule(grid_size=8, eval_landscapes=2, region=files)
    write_placements(tmp_path / "p.json", PlacementFile(data.specs("validation"), {}, {}))
    found = read_placements(tmp_path / "p.json").landscapes
    for made, own in zip(found, data.landscapes("validation"), strict=True):
        np.testing.assert_array_equal(made.elevation, own.elevation)
    with pytest.raises(UserError, match=r"the region has [0-9]+ validation tiles of 8 x 8, no number 99"):
        _ = PlacementFile([{**data.specs("validation")[0], "number": 99}], {}, {}).landscapes
