"""Synthetic landscapes like a region: the terrain that made some is found again from them."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from eigen2.cli.main import main
from eigen2.errors import UserError
from eigen2.fire.evaluation.placements import read_placements
from eigen2.fire.evaluation.terrain import fit_terrain
from eigen2.fire.landscapes.landscape import Landscape, Terrain, synthesize
from eigen2.fire.simulation.spread import Weather
from tests.fire.conftest import SMALL, flat
from tests.fire.landscapes.test_rasters import whole as rasters
from tests.fire.test_run import ended

TRUTH = Terrain({91: 0.1, 93: 0.1, 101: 0.3, 122: 0.2, 165: 0.2, 183: 0.1}, water=0.02, slope=0.12, patchiness=1.5)


def landscapes(terrain: Terrain, count: int = 12) -> list[Landscape]:
    return [synthesize(24, np.random.default_rng([9, number]), terrain) for number in range(count)]


def test_the_terrain_of_landscapes_is_found_again() -> None:
    fit = fit_terrain(landscapes(TRUTH), Weather(), 600.0)
    found = fit.terrain
    assert found.patchiness == pytest.approx(1.5, abs=0.5)
    assert found.slope == pytest.approx(0.12, rel=0.01)
    assert found.water == pytest.approx(0.02, abs=0.003)
    assert [*found.fuel] == [*TRUTH.fuel]
    for model, share in TRUTH.fuel.items():
        assert found.fuel[model] == pytest.approx(0.98 * share, abs=0.01)  # lakes cover the rest
    assert fit.synthetic == pytest.approx(fit.region, rel=0.1)
    usual = fit_terrain(landscapes(Terrain()), Weather(), 600.0)
    assert usual.region > 1.5 * fit.region
    assert fit_terrain(landscapes(TRUTH), Weather(), 600.0) == fit  # it repeats


def test_ground_that_does_not_burn_is_refused() -> None:
    with pytest.raises(UserError, match="nothing burns in the region's tiles"):
        fit_terrain([flat((8, 8), 93)], Weather(), 240.0)


def test_the_command_writes_terrain_that_a_fit_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rasterio")
    monkeypatch.setattr(sys, "argv", ["cli.py"])
    torch.set_num_threads(1)
    files = rasters(tmp_path, synthesize(80, np.random.default_rng(5), TRUTH))
    output = tmp_path / "terrain.yaml"
    line = ["fire", "terrain", f"--output={output}", "--grid_size=12"]
    line += [f"--landscape.{name}={files[name]}" for name in ("elevation", "fuel")]
    main(line)
    assert "of a tile of the region" in capsys.readouterr().out
    assert "give --overwrite" in ended(capsys, 2, line)
    assert "--duration is 0" in ended(capsys, 2, [*line, "--duration=0"])
    root = tmp_path / "run"
    main(["fit", *SMALL, f"--trainer.default_root_dir={root}", f"--data.terrain={output}", "--trainer.max_epochs=1"])
    placed = read_placements(root / "champion" / "placements.json")
    assert placed.specs[0]["terrain"]["patchiness"] in np.arange(0, 5.1, 0.5)
    found = {int(model) for landscape in placed.landscapes for model in np.unique(landscape.fuel)}
    assert found <= {*TRUTH.fuel, 98}
    assert 93 in found


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--data.terrain.fuel={14: 1}", "fuel model 14 is not known"),
        ("--data.terrain.fuel={93: 1}", "terrain.fuel has no model that burns"),
        ("--data.terrain.slope=0", "terrain.slope is 0"),
        ("--data.terrain=nope.yaml", "data.terrain is nope.yaml, which is no file; name a YAML file"),
        ("--data.terrain=/nowhere/nope.yaml", "data.terrain is /nowhere/nope.yaml, which is no file"),
        ("--data.terrain.patches=1", "unknown key patches: did you mean patchiness?"),
    ],
)
def test_wrong_terrain_is_one_line(
    words: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["cli.py"])
    assert said in ended(capsys, 2, ["fit", *SMALL, f"--trainer.default_root_dir={tmp_path}", words])
