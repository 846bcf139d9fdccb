"""The command line over fuel breaks: a run, its resume, and what a user may get wrong."""

import shutil
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from eigen2.cli.main import main
from eigen2.runtime.checkpoint import DurableCheckpointIO
from tests.command import eigen2
from tests.fire.conftest import ROOT, SMALL, command
from tests.runs import metrics, same, state

DATA = "FuelBreakDataModule"


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["cli.py"])


def everything(root: Path) -> dict[str, Any]:
    """What a run is: weights, moments, replay buffer, steps, champion."""
    checkpoint = torch.load(root / "checkpoints" / "last.ckpt", weights_only=True)
    return {**state(root, DATA), "own": checkpoint["eigen2"]}


def ended(capsys: pytest.CaptureFixture[str], code: int, line: list[str]) -> str:
    """The last line that a command ends with on standard error, where it ends with this code."""
    with pytest.raises(SystemExit) as left:
        main(line)
    assert left.value.code == code
    error = capsys.readouterr().err
    assert "Traceback" not in error
    said = [each for each in error.splitlines() if each and not each.startswith("Seed set")]
    assert code != 2 or len(said) == 1, said
    return said[-1]


def test_a_run_keeps_its_promises(whole: Path) -> None:
    rows, found = metrics(whole), everything(whole)
    assert [row["generation"] for row in rows] == ["0", "1", "2", "3"]
    assert [float(row["replay/added"]) for row in rows] == [14, 28, 42, 56]  # the buffer holds 37: it wraps
    assert [float(row["train/gradient_steps"]) for row in rows] == [3, 7, 7, 7]
    assert found["own"]["environment_steps"] == 56
    assert same(found["data"]["replay"]["position"], 56 % 37)
    assert float(rows[-1]["train/epsilon"]) == pytest.approx(0.05)
    weights = found["weights"]
    assert not torch.equal(weights["online.members.0.stem.weight"], weights["target.members.0.stem.weight"])
    best = torch.load(whole / "checkpoints" / "best.ckpt", weights_only=True)
    assert float(rows[-1]["champion/validation_fitness"]) == max(float(row["validation/mean"]) for row in rows)
    assert best["epoch"] == int(float(rows[-1]["champion/generation"]))
    assert torch.equal(
        best["state_dict"]["online.members.0.stem.weight"], best["state_dict"]["champion.members.0.stem.weight"]
    )
    weights["online.members.0.stem.weight"][0, 0, 0, 0] += 1e-7
    assert not same(found, everything(whole)), "the comparison of the tests below can fail"


def test_stopped_and_resumed_equals_uninterrupted(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a generation, and within one."""

    def line(*names: str) -> list[str]:
        sender = ["--trainer.callbacks+=tests.signals.SignalAt", f"--trainer.callbacks.names=[{','.join(names)}]"]
        sender += [f"--trainer.callbacks.generation={len(names)}"]
        return ["fit", *SMALL, f"--trainer.default_root_dir={tmp_path}", "--ckpt_path=last", *sender]

    command("fit", tmp_path, "--trainer.max_epochs=1")
    said = ended(capsys, 143, line("SIGTERM"))
    assert said.startswith("stopped by SIGTERM after generation 1, which is saved")
    said = ended(capsys, 130, line("SIGINT", "SIGINT"))
    assert said.startswith("stopped by SIGINT within generation 2, which is repeated")
    command("fit", tmp_path, "--ckpt_path=last")
    assert same(everything(tmp_path), everything(whole))
    assert metrics(tmp_path) == metrics(whole)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [[], ["--model.prior=false", "--trainer.precision=bf16-mixed"]])
def test_killed_and_resumed_equals_uninterrupted(settings: list[str], tmp_path: Path) -> None:
    def run(root: Path, *more: str) -> int:
        return eigen2(
            "fit", *SMALL, f"--trainer.default_root_dir={root}", "--ckpt_path=last", *settings, *more
        ).returncode

    for place, epoch in (("training", 0), ("write", 1), ("validate", 2), ("training", 3), ("checkpoint", 3)):
        killer = ["--trainer.callbacks+=tests.kill.KillAt", f"--trainer.callbacks.place={place}"]
        assert run(tmp_path / "killed", *killer, f"--trainer.callbacks.generation={epoch}") == -signal.SIGKILL
    assert run(tmp_path / "killed") == run(tmp_path / "whole") == 0
    assert same(everything(tmp_path / "killed"), everything(tmp_path / "whole"))
    assert metrics(tmp_path / "killed") == metrics(tmp_path / "whole")


def test_a_run_whose_numbers_go_wrong_ends_with_the_checkpoint_from_before(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(whole, tmp_path / "run")
    line = ["fit", *SMALL, f"--trainer.default_root_dir={tmp_path / 'run'}", "--ckpt_path=last"]
    said = ended(capsys, 4, [*line, "--trainer.max_epochs=5", "--model.learning_rate=1e30"])
    assert "the loss or a weight is not finite in epoch 4" in said
    assert same(everything(tmp_path / "run"), everything(whole))


def test_the_champion_is_validated_to_its_fitness(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command("validate", tmp_path, f"--ckpt_path={whole / 'checkpoints' / 'best.ckpt'}")
    assert metrics(whole)[-1]["champion/validation_fitness"][:6] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--trainer.devices=2", "trainer.devices x num_nodes is 2; it must be at most 1, the number of agents"),
        ("--trainer.gradient_clip_val=1", "trainer.gradient_clip_val is 1; use model.max_grad_norm"),
        ("--trainer.limit_train_batches=3", "trainer.limit_train_batches is 3"),
        ("--trainer.overfit_batches=2", "trainer.overfit_batches"),
        ("--data.num_parallel_envs=10", "data.replay_min_size is 10, with data.num_parallel_envs 10: no transition"),
        ("--model.width=20000", "model.width is 20000; it must be at least 1 and at most 16384"),
        ("--model.width=16384", "model.width"),  # tens of gigabytes
        ("--model.baselines=[luck]", "model.baselines names luck; choose among random, domirank"),
        ("--data.grid_size=101", "data.grid_size is 101; it must be at least 4 and at most 100"),
        ("--data.num_landscapes=1000000000000", "data.num_landscapes"),
        ("--data.budget=1", "data.budget is 1.0, which is 144 breaks, but only"),
        ("--data.replay_min_size=38", "data.replay_min_size is 38, more than data.replay_capacity 37: training would"),
        ("--data.replay_capacity=15", "data.replay_capacity is 15; an episode in each of 2 environments has 16"),
    ],
)
def test_mistakes_are_one_line(more: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in ended(capsys, 2, ["fit", *SMALL, f"--trainer.default_root_dir={tmp_path}", more])
    assert not (tmp_path / "config.yaml").exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["fit", *SMALL, "--data.wind_speed=16"], "data.wind_speed 15.0, now 16.0"),
        (["fit", *SMALL, "--data.replay_capacity=40"], "data.replay_capacity 37, now 40"),
        (["validate", *SMALL, "--model.width=5"], "model.width is 5, but it was 4 in the checkpoint's fit"),
        (["test", *SMALL, "--model.prior=false"], "model.prior is False, but it was True in the checkpoint's fit"),
        (["test", *SMALL, "--model.networks=3"], "model.networks is 3, but it was 2 in the checkpoint's fit"),
        (["test", *SMALL, "--data.landscape_seed=1"], "data.landscape_seed is not the fit's, 0"),
    ],
)
def test_what_a_checkpoint_does_not_suit_is_one_line(
    line: list[str], said: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--ckpt_path", str(whole / "checkpoints" / "last.ckpt"), "--trainer.default_root_dir", str(tmp_path)]
    answer = ended(capsys, 2, [*line, *given])
    assert said in answer
    assert len(answer) < 500
    assert not (tmp_path / "config.yaml").exists()


def test_a_checkpoint_of_another_workload_is_one_line(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = torch.load(whole / "checkpoints" / "last.ckpt", weights_only=True)
    checkpoint["eigen2"]["inference"]["workload"] = "market"
    DurableCheckpointIO().save_checkpoint(checkpoint, tmp_path / "market.ckpt")
    line = ["fit", *SMALL, f"--trainer.default_root_dir={tmp_path}", f"--ckpt_path={tmp_path / 'market.ckpt'}"]
    assert "the checkpoint is of the workload market, not fire" in ended(capsys, 2, line)


@pytest.mark.parametrize(("name", "moment"), [("exp_avg", torch.zeros(3)), ("step", None)])
def test_altered_moments_are_one_line(
    name: str, moment: object, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = torch.load(whole / "checkpoints" / "last.ckpt", weights_only=True)
    checkpoint["optimizer_states"][0]["state"][0][name] = moment
    DurableCheckpointIO().save_checkpoint(checkpoint, tmp_path / "altered.ckpt")
    line = ["fit", *SMALL, f"--trainer.default_root_dir={tmp_path}", f"--ckpt_path={tmp_path / 'altered.ckpt'}"]
    assert "what eigen2 did not write" in ended(capsys, 2, line)


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import_module("eigen2.cli.training")  # torchmetrics looks for it too
    for name in [each for each in sys.modules if each.startswith("eigen2.fire.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "scipy", None)
    said = ended(capsys, 2, ["fit", *SMALL, "--trainer.default_root_dir=nowhere"])
    remedy = "pip install -c constraints.txt -e '.[fire]' in the folder of eigen2"
    assert said == f"error: workload fire needs scipy: {remedy}"
