"""The command line over the control workload: a run, its resume, and what a user may get wrong."""

import re
import sys
from pathlib import Path

import pytest
import torch

from eigen2.cli.main import main
from tests.runs import metrics, same, state

ROOT = Path(__file__).parents[2]
SMALL = ["--config", "tests/control/small.yaml"]


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["cli.py"])
    torch.set_num_threads(1)


def fit(root: Path, *words: str) -> None:
    main(["fit", *SMALL, "--trainer.default_root_dir", str(root), *words])


@pytest.mark.parametrize("td3", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_run_that_was_stopped_and_resumed_is_the_one_that_was_not(
    td3: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its champion is validated again to its fitness, and it is not resumed with another environment."""
    words = [] if td3 else ["--model.learner=eigen2.erl.learners.DDPG", "--model.learners=null"]
    for length in ("1", "3", "4"):
        fit(tmp_path / "stopped", "--trainer.max_epochs", length, "--ckpt_path", "last", *words)
    fit(tmp_path / "whole", *words)
    stopped, whole = state(tmp_path / "stopped", "ControlDataModule"), state(tmp_path / "whole", "ControlDataModule")
    assert same(stopped, whole)
    assert metrics(tmp_path / "stopped") == metrics(tmp_path / "whole")
    rows = metrics(tmp_path / "whole")
    assert [row["control/episode_steps"] for row in rows] == ["20.0"] * 4
    assert rows[0]["champion/generation"] == rows[0]["champion/validation_fitness"] == ""  # none was validated yet
    steps = 20 * (4 + 1) if td3 else 20 * 4 * 2
    assert [float(row["replay/added"]) for row in rows] == [steps * (generation + 1) for generation in range(4)]
    if td3:
        best = torch.load(tmp_path / "whole" / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
        capsys.readouterr()
        main(["validate", *SMALL, "--trainer.default_root_dir", str(tmp_path / "whole"), "--ckpt_path", "best"])
        assert f"{float(best['population.champion_fitness']):.4f}"[:7] in capsys.readouterr().out
        with pytest.raises(SystemExit) as left:
            fit(tmp_path / "whole", "--ckpt_path", "last", "--data.max_episode_steps", "30")
        assert left.value.code == 2
        assert "data.max_episode_steps 20, now 30" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--workload", "chess"], "workload is chess; it must be market or control"),
        (["--data.env_id", "Pendulm-v1"], "data.env_id Pendulm-v1"),
        (["--data.env_id", "CartPole-v1"], "has actions Discrete(2)"),
        (["--data.env_settings", '{"gravity": 9}'], "unexpected keyword argument 'gravity'"),
        (["--data.max_episode_steps", "0"], "data.max_episode_steps is 0; it must be at least 1"),
        (["--data.validation_windows", "0"], "data.validation_windows is 0; it must be at least 1"),
        (["--data.path", "prices.parquet"], "unknown key data.path"),
        (
            ["--model.learner", "{class_path: eigen2.TD3, init_args: {policy_delay: 0}}"],
            "policy_delay is 0; it must be",
        ),
        (["--model.learners", "9"], "model.learners is 9; set 1 if one agent learns alone, or null for all"),
        (
            ["--model.gradient_steps", "1"],
            "TD3 would never train an actor in the 1 gradient steps of a generation; raise model.gradient_steps",
        ),
        (["--model.validate_every", "0"], "model.validate_every is 0; it must be at least 1"),
    ],
)
def test_mistakes_are_one_line(words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        fit(tmp_path, *words)
    assert left.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line and not line.startswith("Seed set")]
    assert said in line
    assert not (tmp_path / "config.yaml").exists()


@pytest.mark.parametrize("value", ["[market]", "null", "{a: 1}"])
def test_a_workload_that_is_none_is_one_line(value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text(f"workload: {value}\n")
    with pytest.raises(SystemExit) as left:
        main(["fit", "--config", str(tmp_path / "mine.yaml")])
    assert left.value.code == 2
    assert re.match(r"error: (\S+mine\.yaml: )?workload is .*\n$", capsys.readouterr().err)


def test_a_config_of_one_workload_is_not_read_as_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        fit(tmp_path, "--workload", "market")
    assert "unknown key data.env_id" in capsys.readouterr().err


def test_without_a_champion_the_run_says_so_and_none_is_validated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = "--trainer.callbacks+=eigen2.runtime.console.GenerationReport"
    fit(tmp_path, "--trainer.max_epochs=1", "--trainer.enable_progress_bar=true", report)
    assert re.search(r"champion +none yet: nothing was validated", capsys.readouterr().out)
    with pytest.raises(SystemExit) as left:
        main(["validate", "--trainer.default_root_dir", str(tmp_path), "--ckpt_path", "last"])
    assert left.value.code == 2
    assert "error: the checkpoint has no champion: none was validated" in capsys.readouterr().err
