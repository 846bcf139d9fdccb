"""`test --seeds`: trainings with other seeds, made once, and the ensemble that export and predict know."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from eigen2.cli import seeds
from eigen2.core.export import load
from eigen2.errors import UserError
from eigen2.files import Folder
from eigen2.market.data.source import read_prices
from eigen2.market.serving.trader import Trader
from tests.command import eigen2
from tests.market.conftest import Fitted


@pytest.fixture(scope="module")
def run(fitted: Fitted, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of a small run, tested with one other seed."""
    folder = tmp_path_factory.mktemp("seeds") / "run"
    shutil.copytree(fitted.run, folder)
    done = eigen2("test", "--ckpt_path", folder / "checkpoints" / "best.ckpt", "--seeds", 2, "--checks")
    assert done.returncode == 0, done.stderr
    assert f"seed 8       trains 4 generations, see {folder / 'seeds' / '8' / 'output.txt'}" in done.stdout
    assert "2 trainings with different seeds" in " ".join(done.stdout.split())
    assert "future       no decision of the champion" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines() if not line.startswith(("seed", "report"))) <= 80
    return folder


def test_a_training_differs_in_its_seed_alone(run: Path) -> None:
    own, other = (json.loads((folder / "run.json").read_text()) for folder in (run, run / "seeds" / "8"))
    assert (own["seed"], other["seed"]) == (7, 8)
    assert own["settings"] == other["settings"]
    assert (run / "seeds" / "8" / "cache").resolve() == (run / "cache").resolve()
    first, second = (load(folder / "checkpoints" / "best.ckpt").weights for folder in (run, run / "seeds" / "8"))
    assert any(not torch.equal(first[name], second[name]) for name in first)


def test_the_test_tells_of_both_and_is_not_trained_again(run: Path) -> None:
    summary = json.loads((run / "test" / "summary.json").read_text())
    assert len(summary["trainings"]) == 2
    assert {"champion", "ensemble", "1/N"} <= {*summary["measures"]}
    assert {"champion", "ensemble"} <= {*summary["information"]}
    assert {*summary["checks"]["costs"]["ensemble"]} == {"0", "10", "30"}
    page = (run / "report.html").read_text()
    assert 'id="checks"' in page
    written = (run / "seeds" / "8" / "output.txt").stat().st_mtime_ns
    done = eigen2("test", "--ckpt_path", run / "checkpoints" / "best.ckpt", "--seeds", 2, "--report=false")
    assert done.returncode == 0, done.stderr
    assert "trains" not in done.stdout
    assert (run / "seeds" / "8" / "output.txt").stat().st_mtime_ns == written
    assert json.loads((run / "test" / "summary.json").read_text())["trainings"] == summary["trainings"]


def test_a_training_that_did_not_save_its_last_generation_goes_on(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, trained = tmp_path / "run", list[str]()
    shutil.copytree(run, copied, symlinks=True)
    monkeypatch.setattr(seeds, "_train", lambda folder, *_: trained.append(folder.name))
    assert len(seeds.train_seeds(copied / "checkpoints" / "best.ckpt", 2, {})) == 1
    assert trained == []
    checkpoints = copied / "seeds" / "8" / "checkpoints"
    shutil.copy(min(checkpoints.glob("generation-*.ckpt")), checkpoints / "last.ckpt")
    with pytest.raises(UserError, match=r"seeds/8 has not reached the run's 4 generations: repeat test --seeds, or"):
        seeds.ensemble(copied / "checkpoints" / "best.ckpt")
    seeds.train_seeds(copied / "checkpoints" / "best.ckpt", 2, {})
    assert trained == ["8"]
    (checkpoints / "last.ckpt").unlink()  # as of a training that was copied here without it
    seeds.train_seeds(copied / "checkpoints" / "best.ckpt", 2, {})
    assert trained == ["8"]


def test_a_training_takes_the_resources_of_the_test(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied, given = tmp_path / "run", list[str]()

    def start(folder: Folder, args: list[str], running: object) -> SimpleNamespace:
        given.extend(args)
        return SimpleNamespace(poll=lambda: 0, returncode=0)

    shutil.copytree(run, copied, symlinks=True)
    (copied / "seeds" / "8" / "checkpoints" / "last.ckpt").unlink()
    (copied / "seeds" / "8" / "metrics.csv").unlink()
    monkeypatch.setattr(seeds, "start", start)
    own = {"trainer": {"accelerator": "cpu", "devices": [1]}, "budget": {"memory_budget_gb": 8.0}}
    own["data"] = {"path": "moved.parquet"}
    seeds.train_seeds(copied / "checkpoints" / "best.ckpt", 2, own)
    settings = yaml.safe_load(given[-1])
    assert settings["budget"] == own["budget"]
    assert settings["trainer"].items() >= {**own["trainer"], "max_epochs": 4}.items()
    assert Path(settings["data"]["path"]).exists(), "the fit's"
    settings["data"]["path"] = "gone.parquet"
    config = {**settings, "workload": "market", "seed_everything": 7}
    monkeypatch.setattr(seeds, "saved_run", lambda checkpoint: {"config": config})
    seeds.train_seeds(copied / "checkpoints" / "best.ckpt", 2, own)
    assert yaml.safe_load(given[-1])["data"]["path"] == "moved.parquet"


def test_the_ensemble_is_exported_and_predicts(run: Path, fitted: Fitted, tmp_path: Path) -> None:
    champion = ("--ckpt_path", run / "checkpoints" / "best.ckpt", "--ensemble", "true")
    done = eigen2("export", *champion, "--output", tmp_path / "export")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "export" / "champion.json").read_text())["members"] == 2
    prices = read_prices(fitted.longer)
    orders = Trader.load(tmp_path / "export").orders(prices)
    alone = Trader.load(run / "checkpoints" / "best.ckpt").orders(prices)
    assert not orders["size"].equals(alone["size"])
    for words in (champion, ("--ckpt_path", tmp_path / "export")):
        output = tmp_path / "orders.csv"
        done = eigen2("predict", *words, "--data.path", fitted.longer, "--output", output)
        assert done.returncode == 0, done.stderr
        written = pd.read_csv(output)
        assert written["reason"].tolist() == orders["reason"].tolist()
        np.testing.assert_allclose(written["size"], orders["size"], rtol=1e-5)
    done = eigen2("predict", "--ckpt_path", tmp_path / "export", "--ensemble", "true", "--data.path", fitted.longer)
    assert done.returncode == 2
    assert "--ensemble takes the trainings of a run, but" in done.stderr


def test_what_cannot_be_trained_or_combined_is_refused_in_one_line(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = run / "checkpoints" / "best.ckpt"
    done = eigen2("test", "--ckpt_path", checkpoint, "--seeds", 0)
    assert (done.returncode, done.stderr) == (2, "error: --seeds is 0; it must be at least 1 and at most 1000\n")
    copied = tmp_path / "run" / "checkpoints" / "best.ckpt"
    copied.parent.mkdir(parents=True)
    shutil.copy(checkpoint, copied)
    with pytest.raises(UserError, match=r"no trainings with other seeds in .*seeds: test --seeds 5 makes them"):
        seeds.ensemble(copied)
    with pytest.raises(UserError, match=r"best\.ckpt is in no run's folder, where the other seeds are: give best"):
        seeds.train_seeds(copied, 2, {})
    (tmp_path / "run" / "metrics.csv").write_text("generation\n0\n")
    config = {"model": {"actor": "mine.Tiny"}, "data": {}, "seed_everything": 7, "trainer": {"max_epochs": 4}}
    monkeypatch.setattr(seeds, "read_checkpoint", lambda file: {"eigen2": {"config": config}})
    with pytest.raises(UserError, match=r"the fit used mine\.Tiny, which is not eigen2's own, .* --seed_everything 8 "):
        seeds.train_seeds(copied, 2, {})
