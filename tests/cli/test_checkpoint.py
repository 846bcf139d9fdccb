"""`validate` and `test` play the market, windows, rules and population of the checkpoint's fit without being told."""

import errno
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch import Trainer

from eigen2 import DurableCheckpointIO, ERLModule, GenerationCheckpoint, MarketDataModule, RunLogger
from eigen2.cli.checkpoint import _with_settings, given
from eigen2.cli.main import main
from eigen2.core.config import arguments_of, class_config, to_config
from eigen2.erl.learners import TD3
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.synthetic.generator import SyntheticMarket
from eigen2.runtime.checksums import write_checksum
from tests.command import ROOT, eigen2

SMALL = ["--config", f"{ROOT}/tests/small.yaml"]
CHANGED = {
    "trainer.max_epochs": 2,
    "model.population_size": 5,
    "model.learner": "eigen2.TD3",
    "data.rules.cost_bps": 7,
    "data.rules.allow_short": "true",
    "data.holdout_days": 25,
    "data.cache_dir": "elsewhere",
}
FLAGS = [f"--{key}={value}" for key, value in CHANGED.items()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with prices and a run `run` on them, whose settings differ from tests/small.yaml."""
    folder = tmp_path_factory.mktemp("runs")
    SyntheticMarket(days=260, columns=6, seed=3).generate().to_parquet(folder / "prices.parquet")
    prices = ["--data.synthetic=null", "--data.path=prices.parquet"]
    done = eigen2("fit", *SMALL, *FLAGS, *prices, "--trainer.default_root_dir=run", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def copy(folder: Path, other: Path) -> Path:
    """Copy that folder without its cache."""
    return shutil.copytree(folder, other, dirs_exist_ok=True, ignore=shutil.ignore_patterns("elsewhere"))


@pytest.fixture
def copied(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of that folder, and work in it."""
    monkeypatch.chdir(copy(folder, tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def alone(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the results of a test of the run's last checkpoint with no other option."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(copy(folder, tmp_path_factory.mktemp("alone")))
        found = result_of()
        assert not Path("elsewhere").exists()  # where the fit kept its cache
    return found


def result_of(*options: str) -> dict[str, Any]:
    """Test the run's last checkpoint, and return the results."""
    main(["test", "--ckpt_path", "run/checkpoints/last.ckpt", "--report=false", *options])
    return json.loads(Path("run/test/summary.json").read_text())


def test_rasters_replace_all_of_the_fit() -> None:
    region = {"elevation": "a.tif", "fuel": "b.tif", "slope": "c.tif"}
    fit = {"workload": "fire", "model": {}, "data": {"region": region}, "trainer": {"precision": "32-true"}}
    for option, left in (("--data.region.elevation=d.tif", None), ("--data.budget=0.1", region)):
        _, _, config, *_ = _with_settings(["test", option], fit, Path("best.ckpt"))
        assert yaml.safe_load(config)["data"]["region"] == left


def tamper(change: Callable[[dict[str, Any]], object]) -> None:
    """Change the configuration within the run's checkpoint."""
    path = Path("run/checkpoints/last.ckpt")
    checkpoint = torch.load(path, weights_only=True)
    change(checkpoint["eigen2"]["config"])
    torch.save(checkpoint, path)
    write_checksum(path, 1)


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    with pytest.raises(SystemExit) as error:
        main([*args])
    assert error.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_the_checkpoint_alone_tells_how_to_test_it(alone: dict[str, Any], copied: Path) -> None:
    assert alone["settings"]["data.rules.cost_bps"] == 7
    assert (alone["days"]["count"], alone["selection"]["agents"]) == (25, 5)
    told = [*SMALL, *FLAGS, "--data.synthetic=null", "--data.path=prices.parquet", "--trainer.default_root_dir=run"]
    assert result_of(*told) == alone
    main(["validate", "--ckpt_path=run/checkpoints/last.ckpt"])
    assert not (copied / "lightning_logs").exists()


def test_flags_and_prices_given_anew_count(
    alone: dict[str, Any], copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("prices.parquet").rename("moved.parquet")
    capsys.readouterr()
    line = refused(capsys, "test", "--ckpt_path=run/checkpoints/last.ckpt")
    assert line == "error: the fit read prices from prices.parquet, which does not exist here; give --data.path"
    moved = result_of("--data.path", "moved.parquet")
    assert moved["measures"] == alone["measures"]
    made = ["--data.synthetic.days=260", "--data.synthetic.columns=6", "--data.synthetic.seed=3"]
    first = json.loads(Path("run/test/summary.json").read_text())["days"]["first"]
    tamper(lambda config: config["data"].update(holdout_from=first))
    assert result_of("--data.path=moved.parquet", "--data.holdout_days=20")["days"]["count"] == 20
    cheap = result_of(*made, "--data.rules.cost_bps", "0", "--trainer.default_root_dir", "run")
    assert cheap["settings"]["data.rules.cost_bps"] == 0
    assert cheap["measures"] != alone["measures"]


def test_a_checkpoint_runs_no_code_but_eigen2s(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copied / "foreign.py").write_text("raise RuntimeError('imported')\n")
    sys.path.insert(0, str(copied))
    try:
        for value in (
            {"class_path": "foreign.Actor"},
            "foreign.Actor",
            {"class_path": "eigen2.compat.subprocess.Popen"},
            {"class_path": "eigen2.cli.__main__.main"},
            [{"class_path": "eigen2.erl.evolution.Elitism", "init_args": {"share": {"class_path": "foreign.Share"}}}],
        ):
            tamper(lambda config, value=value: config["model"].update(actor=value))
            line = refused(capsys, "test", "--ckpt_path=run/checkpoints/last.ckpt")
            assert "model.actor of the checkpoint's fit is" in line
            assert line.endswith("if you trust that, give --config run/config.yaml")
    finally:
        sys.path.remove(str(copied))
    assert "foreign" not in sys.modules
    tamper(lambda config: config["model"].update(actor="eigen2.market.networks.columns.ColumnActor"))
    result_of("--model.actor=null")  # what the command line names counts alone


def remove_workload(config: dict[str, Any]) -> None:
    del config["workload"]


@pytest.mark.parametrize(
    "change",
    [remove_workload, *(lambda config, name=name: config.update({name: [1]}) for name in ("model", "data", "trainer"))],
)
def test_an_altered_configuration_ends_in_one_line(
    change: Callable[[dict[str, Any]], None], copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tamper(change)
    line = refused(capsys, "test", "--ckpt_path=run/checkpoints/last.ckpt")
    assert line.startswith("error: checkpoint run/checkpoints/last.ckpt holds what eigen2 did not write (")


def test_orders_replace_no_file_that_is_read(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "predict",
        "--ckpt_path=run/checkpoints/last.ckpt",
        "--data.path=prices.parquet",
        "--data.membership=m.csv",
    )
    for key, name in (("path", "prices.parquet"), ("membership", "m.csv")):
        line = refused(capsys, *words, f"--output={name}")
        assert line == f"error: --output {name} is the file of --data.{key}, which would be lost; choose another file"


def test_a_graph_that_cannot_be_written_ends_in_one_line(
    copied: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_onnx(actor: object, sizes: object, file: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    graph = copied / "out" / "actor.onnx"
    graph.parent.mkdir()
    graph.write_text("of another champion")
    monkeypatch.setattr("eigen2.core.onnx.write_onnx", write_onnx)
    line = refused(capsys, "export", "--ckpt_path=run/checkpoints/last.ckpt", "--output=out", "--onnx=true")
    assert line == "error: cannot write to out: No space left on device; choose another --output"
    assert not graph.exists()


def test_a_checkpoint_does_not_say_where_to_write(copied: Path) -> None:
    def aim(config: dict[str, Any]) -> None:
        config["data"]["cache_dir"] = config["trainer"]["default_root_dir"] = str(copied / "aimed")

    tamper(aim)
    result_of()
    assert not (copied / "aimed").exists()


def test_a_checkpoint_without_its_configuration_is_refused(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("run/checkpoints/last.ckpt")
    checkpoint = torch.load(path, weights_only=True)
    del checkpoint["eigen2"]["config"]
    torch.save(checkpoint, path)
    write_checksum(path, 1)
    assert "which did not save its configuration; fit again" in refused(capsys, "test", f"--ckpt_path={path}")


def test_a_script_leaves_the_configuration_that_repeats_it(tmp_path: Path) -> None:
    settings = yaml.safe_load((ROOT / "tests" / "small.yaml").read_text())["data"]
    market, rules = SyntheticMarket(**settings.pop("synthetic")), TradingRules(**settings.pop("rules"), cost_bps=9)
    data = MarketDataModule(synthetic=market, rules=rules, **settings)
    root = str(tmp_path / "script")
    trainer = Trainer(
        **{"max_epochs": 1, "default_root_dir": root, "accelerator": "cpu", "plugins": [DurableCheckpointIO()]},
        **{"logger": RunLogger(root), "callbacks": [GenerationCheckpoint()], "enable_progress_bar": False},
        enable_model_summary=False,
    )
    trainer.fit(ERLModule(population_size=3, gradient_steps=3, learner=TD3(policy_delay=3)), data)
    config = tmp_path / "script" / "config.yaml"
    assert yaml.safe_load(config.read_text())["model"]["learner"]["init_args"]["policy_delay"] == 3
    assert json.loads((tmp_path / "script" / "run.json").read_text())["settings"]["data.rules.cost_bps"] == 9
    again = ["--trainer.default_root_dir", str(tmp_path / "again"), "--report=false"]
    main(["fit", "--config", str(config), *again, "--trainer.accelerator=cpu"])
    first, second = ((tmp_path / name / "metrics.csv").read_text().splitlines() for name in ("script", "again"))
    one, other = (dict(zip(each[0].split(","), each[1].split(","), strict=True)) for each in (first, second))
    same = [name for name in one if not name.startswith(("time/", "memory/"))]
    assert [one[name] for name in same] == [other[name] for name in same]


def test_settings_become_plain_values() -> None:
    assert class_config(TD3(policy_delay=3))["init_args"]["policy_delay"] == 3
    assert arguments_of(MarketDataModule(context_days=9))["context_days"] == 9
    plain = {"rules": arguments_of(TradingRules()), 3: [1, None], "path": "a"}
    assert to_config({"rules": TradingRules(), 3: (1, None), "path": Path("a")}) == plain


def test_the_last_value_counts(tmp_path: Path) -> None:
    config = tmp_path / "a.yaml"
    config.write_text("data:\n  path: a.csv\n")
    file = ["--config", str(config)]
    assert given(["test", *file, "--data.path=b.csv"], "data.path") == "b.csv"
    assert given(["test", "--data.path", "b.csv", *file], "data.path") == "a.csv"
    assert given(["test", *file, "--config={data: {path: c.csv}}"], "data.path") == "c.csv"
    for unreadable in ("missing.yaml", "{data: !!int {path: c.csv}}", "{data"):
        assert given(["test", f"--config={unreadable}"], "data.path") is None
    assert given(["test", *file], "data.path.more") is None
