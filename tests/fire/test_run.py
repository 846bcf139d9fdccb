"""The command line over fuel breaks: a run, its resume, and what a user may get wrong."""

import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from eigen2.cli.main import main
from tests.command import Started, eigen2
from tests.runs import metrics, same, state

ROOT = Path(__file__).parents[2]
SMALL = ["--config", "tests/fire/small.yaml"]
DATA = "FuelBreakDataModule"
EPOCHS = 4


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["cli.py"])
    torch.set_num_threads(1)


def words(root: Path, *more: str) -> list[str]:
    return ["fit", *SMALL, "--trainer.default_root_dir", str(root), *more]


def fit(root: Path, *more: str) -> None:
    main(words(root, *more))


def everything(root: Path) -> dict[str, Any]:
    """What a run is: weights, moments, replay buffer, steps, champion, histories."""
    checkpoint = torch.load(root / "checkpoints" / "last.ckpt", weights_only=True)
    histories = {name: kept for name, kept in checkpoint["callbacks"].items() if "MemoryHygiene" in name}
    assert histories
    return {**state(root, DATA), "own": checkpoint["eigen2"], "histories": histories}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupts; nobody may write to it."""
    root = tmp_path_factory.mktemp("whole")
    done = eigen2(*words(root))
    assert done.returncode == 0, done.stderr
    return root


def refusal(capsys: pytest.CaptureFixture[str], line: list[str]) -> str:
    """The one line that a command is refused with."""
    with pytest.raises(SystemExit) as left:
        main(line)
    assert left.value.code == 2
    (said,) = [each for each in capsys.readouterr().err.splitlines() if each and not each.startswith("Seed set")]
    return said


def test_a_run_keeps_its_promises(whole: Path) -> None:
    rows, found = metrics(whole), everything(whole)
    assert [row["generation"] for row in rows] == [str(n) for n in range(EPOCHS)]
    assert [float(row["replay/added"]) for row in rows] == [14, 28, 42, 56]  # the buffer holds 37: it wraps
    assert [float(row["train/gradient_steps"]) for row in rows] == [3, 7, 7, 7]
    assert found["own"]["environment_steps"] == 56
    assert same(found["data"]["replay"]["position"], 56 % 37)
    assert float(rows[-1]["train/epsilon"]) == pytest.approx(0.05)
    weights = found["weights"]
    assert not torch.equal(weights["online.stem.weight"], weights["target.stem.weight"])
    best = torch.load(whole / "checkpoints" / "best.ckpt", weights_only=True)
    assert float(rows[-1]["champion/validation_fitness"]) == max(float(row["validation/mean"]) for row in rows)
    assert best["epoch"] == int(float(rows[-1]["champion/generation"]))
    assert torch.equal(best["state_dict"]["online.stem.weight"], best["state_dict"]["champion.stem.weight"])


@pytest.mark.parametrize(
    "kills",
    [
        [("training", 0), ("train", 1), ("training", 2), ("checkpoint", 3)],
        pytest.param([("write", 1)], marks=pytest.mark.slow),
        pytest.param([("validate", 2)], marks=pytest.mark.slow),
        pytest.param([("training", 3)], marks=pytest.mark.slow),
    ],
)
def test_killed_and_resumed_equals_uninterrupted(kills: list[tuple[str, int]], whole: Path, tmp_path: Path) -> None:
    for place, epoch in kills:
        killer = ["--trainer.callbacks+=tests.kill.KillAt", f"--trainer.callbacks.place={place}"]
        done = eigen2(*words(tmp_path, "--ckpt_path", "last", *killer, f"--trainer.callbacks.generation={epoch}"))
        assert done.returncode == -signal.SIGKILL, done.stderr
    done = eigen2(*words(tmp_path, "--ckpt_path", "last"))
    assert done.returncode == 0, done.stderr
    assert same(everything(tmp_path), everything(whole))
    assert metrics(tmp_path) == metrics(whole)


@pytest.mark.parametrize(
    "settings",
    [
        ["--data.prefill", "domirank", "--data.prefill_episodes", "1", "--model.n_steps", "3"],
        pytest.param(["--model.validate_every", "2", "--data.parallel_method", "async"], marks=pytest.mark.slow),
        pytest.param(
            ["--model.dueling", "false", "--model.prior", "false", "--data.downstream_plane", "false"],
            marks=pytest.mark.slow,
        ),
        pytest.param(["--trainer.precision", "bf16-mixed"], marks=pytest.mark.slow),
    ],
)
def test_stopped_and_resumed_equals_uninterrupted(settings: list[str], tmp_path: Path) -> None:
    for length in ("1", "3", "4"):
        fit(tmp_path / "stopped", "--trainer.max_epochs", length, "--ckpt_path", "last", *settings)
    fit(tmp_path / "whole", *settings)
    assert same(everything(tmp_path / "stopped"), everything(tmp_path / "whole"))
    assert metrics(tmp_path / "stopped") == metrics(tmp_path / "whole")


def test_comparison_sees_a_difference(whole: Path, tmp_path: Path) -> None:
    """The oracle of this file can fail."""
    fit(tmp_path, "--seed_everything", "8")
    assert not same(state(tmp_path, DATA)["weights"], state(whole, DATA)["weights"])
    assert metrics(tmp_path) != metrics(whole)


def test_environments_in_processes_of_their_own_change_no_bit_and_are_gone(whole: Path, tmp_path: Path) -> None:
    fit(tmp_path, "--data.parallel_method", "async", "--trainer.max_epochs", "2")
    assert metrics(tmp_path) == metrics(whole)[:2]
    fit(tmp_path, "--ckpt_path", "last")  # in this process again: it is no setting
    assert same(state(tmp_path, DATA), state(whole, DATA))
    assert metrics(tmp_path) == metrics(whole)
    children = subprocess.run(["ps", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True)
    assert "FuelBreak" not in children.stdout
    assert "async" not in children.stdout


@pytest.mark.parametrize(
    ("names", "method", "code", "said"),
    [
        (["SIGTERM"], "sync", 143, "stopped by SIGTERM after generation 2, which is saved"),
        pytest.param(
            *(["SIGINT", "SIGINT"], "async", 130, "stopped by SIGINT within generation 2, which is repeated"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_run_ends_in_order_and_resumes_exactly(
    names: list[str], method: str, code: int, said: str, whole: Path, tmp_path: Path
) -> None:
    sender = ["--trainer.callbacks+=tests.signals.SignalAt", f"--trainer.callbacks.names={names}"]
    sender += ["--trainer.callbacks.generation=2", f"--data.parallel_method={method}"]
    done = eigen2(*words(tmp_path, "--ckpt_path", "last", *sender))
    assert done.returncode == code, done.stderr
    assert done.stderr.splitlines()[-1].startswith(said)
    assert "Traceback" not in done.stderr
    done = eigen2(*words(tmp_path, "--ckpt_path", "last"))
    assert done.returncode == 0, done.stderr
    assert same(everything(tmp_path), everything(whole))


@pytest.mark.slow
def test_a_run_that_is_short_of_memory_ends_in_order(tmp_path: Path) -> None:
    leak = ["--trainer.callbacks+=tests.leak.Leak", "--trainer.callbacks.bytes_per_generation=200_000_000"]
    more = ["--trainer.max_epochs=50", "--budget.memory_budget_gb=1.2", "--ckpt_path=last"]
    done = eigen2(*words(tmp_path, *leak, *more))
    assert done.returncode == 3, done.stderr
    assert "of the memory budget used; resume from the last checkpoint" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    done = eigen2(*words(tmp_path, f"--trainer.max_epochs={len(metrics(tmp_path)) + 1}", "--ckpt_path=last"))
    assert done.returncode == 0, done.stderr


def test_a_run_whose_numbers_go_wrong_ends_with_a_checkpoint_from_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(tmp_path, "--trainer.max_epochs", "1")
    with pytest.raises(SystemExit) as left:
        fit(tmp_path, "--ckpt_path", "last", "--model.learning_rate", "1e30")
    assert left.value.code == 4
    assert "the loss is not finite in epoch 1" in capsys.readouterr().err.splitlines()[-1]
    fit(tmp_path, "--ckpt_path", "last")
    assert len(metrics(tmp_path)) == EPOCHS
    assert all(tensor.isfinite().all() for tensor in state(tmp_path, DATA)["weights"].values())  # type: ignore[attr-defined]


def test_validation_now_and_then(tmp_path: Path) -> None:
    fit(tmp_path, "--model.validate_every", "3", "--data.prefill", "downstream", "--data.prefill_episodes", "2")
    rows = metrics(tmp_path)
    assert [row["validation/mean"] in ("", "nan") for row in rows] == [True, True, False, True]
    assert [row["champion/generation"] for row in rows[:2]] in (["", ""], ["nan", "nan"])
    assert [float(row["champion/generation"]) for row in rows[2:]] == [2, 2]
    assert [float(row["replay/added"]) for row in rows] == [28 + 14 * epoch for epoch in (1, 2, 3, 4)]
    best = torch.load(tmp_path / "checkpoints" / "best.ckpt", weights_only=True)
    assert best["epoch"] == 2


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_the_champion_is_validated_and_tested_to_its_fitness(
    precision: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--trainer.default_root_dir", str(tmp_path), "--trainer.precision", precision]
    main(["fit", *SMALL, *more, "--trainer.max_epochs", "2"])
    saved = torch.load(tmp_path / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
    assert saved["online.stem.weight"].dtype == torch.float32
    capsys.readouterr()
    main(["validate", *SMALL, *more, "--ckpt_path", "best"])
    assert f"{float(saved['champion_fitness']):.4f}"[:6] in capsys.readouterr().out
    main(["test", *SMALL, *more, "--ckpt_path", "best"])
    told = capsys.readouterr().out
    assert "on 3 landscapes that fit has not seen" in told
    assert {line.split()[0] for line in told.splitlines() if line} >= {"champion", "random", "domirank", "greedy"}


def test_a_look_at_one_batch_leaves_nothing(tmp_path: Path) -> None:
    fit(tmp_path, "--trainer.fast_dev_run", "true")
    assert list(tmp_path.rglob("*.ckpt")) == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--trainer.devices", "2"], "trainer.devices and trainer.num_nodes make 2 processes, but 1 is the most"),
        (["--trainer.accumulate_grad_batches", "2"], "trainer.accumulate_grad_batches is 2; use"),
        (["--trainer.gradient_clip_val", "1"], "trainer.gradient_clip_val is 1; use model.max_grad_norm"),
        (["--trainer.max_steps", "5"], "trainer.max_steps is 5"),
        (["--trainer.limit_train_batches", "3"], "trainer.limit_train_batches is 3"),
        (["--trainer.limit_train_batches", "0.5"], "trainer.limit_train_batches is 0.5"),
        (["--trainer.overfit_batches", "2"], "trainer.overfit_batches"),
        (["--trainer.check_val_every_n_epoch", "2"], "trainer.check_val_every_n_epoch is 2"),
        (["--trainer.precision", "16-mixed"], "trainer.precision 16-mixed"),
        (["--model.n_steps", "6"], "model.n_steps is 6, but of data.warmup 10 transitions none"),
        (["--model.width", "20000"], "model.width is 20000; it must be at least 1 and at most 16384"),
        (["--model.width", "16384"], "model.width"),  # tens of gigabytes
        (["--model.baselines", "[luck]"], "model.baselines names luck; choose among random, domirank"),
        (["--model.accumulate", "2"], "unknown key model.accumulate"),
        (["--data.grid_size", "3"], "data.grid_size is 3; it must be at least 4"),
        (["--data.grid_size", "100000"], "data.grid_size"),  # fires of petabytes
        (["--data.num_landscapes", "1000000000000"], "data.num_landscapes"),
        (["--data.budget", "1"], "data.budget is 1.0, which is 144 breaks, but only"),
        (["--data.budget", "1.5"], "data.budget is 1.5; it must be above 0 and at most 1"),
        (["--data.warmup", "3"], "data.batch_size is 4, more than data.warmup 3: training would never start"),
        (["--data.warmup", "38"], "data.warmup is 38, more than data.buffer_size 37: training would never start"),
        (["--data.buffer_size", "15"], "data.buffer_size is 15; an episode in each of 2 environments has 16"),
        (["--data.prefill", "expert"], "data.prefill is expert; it must be"),
        (["--data.prefill=domirank", "--data.prefill_episodes=3"], "data.prefill_episodes is 3, which are 42"),
        (["--data.parallel_method", "threads"], "data.parallel_method is threads; it must be"),
        (["--data.env_id", "Pendulum-v1"], "unknown key data.env_id"),
    ],
)
def test_mistakes_are_one_line(more: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in refusal(capsys, words(tmp_path, *more))
    assert not (tmp_path / "config.yaml").exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["fit", *SMALL, "--data.wind_speed", "16"], "data.wind_speed 15.0, now 16.0"),
        (["fit", *SMALL, "--model.gamma", "0.5"], "model.gamma 0.9, now 0.5"),
        (["fit", *SMALL, "--data.buffer_size", "40"], "data.buffer_size 37, now 40"),
        (["fit", *SMALL, "--model.width", "5"], "model.width 4, now 5"),
        (["validate", *SMALL, "--model.width", "5"], "model.width is 5, but the checkpoint's network has 4"),
        (
            ["test", *SMALL, "--model.prior", "false", "--data.downstream_plane", "false"],
            "model.prior is False, but the checkpoint's network has True",
        ),
        (["test", *SMALL, "--model.prior", "false"], "model.prior is False, but the checkpoint's network has True"),
        (["test", *SMALL, "--model.dueling", "false"], "model.dueling is False, but the checkpoint's network has True"),
        (["test", *SMALL, "--data.landscape_seed", "1"], "data.landscape_seed is not the fit's, 0"),
        (["fit", "--config", "tests/small.yaml"], "the checkpoint is of"),
        (["test", "--config", "tests/small.yaml"], "the checkpoint is of the workload fire, not market"),
        (["fit", "--config", "tests/control/small.yaml"], "the checkpoint is of"),
        (["predict", "--data.path", "none.csv"], "workload fire"),
        (["export", "--output", "none"], "workload fire"),
    ],
)
def test_what_a_checkpoint_does_not_suit_is_one_line(
    line: list[str], said: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--ckpt_path", str(whole / "checkpoints" / "last.ckpt"), "--trainer.default_root_dir", str(tmp_path)]
    answer = refusal(capsys, [*line, *given])
    assert said in answer
    assert len(answer) < 500
    assert not (tmp_path / "config.yaml").exists()


@pytest.mark.parametrize("command", ["fit", "validate"])
def test_a_checkpoint_of_traders_is_one_line(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traders = ["--config", "tests/small.yaml", "--trainer.default_root_dir", str(tmp_path / "traders")]
    main(["fit", *traders, "--trainer.max_epochs", "1"])
    capsys.readouterr()
    given = ["--ckpt_path", str(tmp_path / "traders" / "checkpoints" / "last.ckpt")]
    said = refusal(capsys, [command, *SMALL, "--trainer.default_root_dir", str(tmp_path / "own"), *given])
    assert "the checkpoint is of the workload market, not fire" in said


def test_without_a_champion_there_is_nothing_to_validate_or_test(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(tmp_path, "--trainer.max_epochs", "1", "--model.validate_every", "2")
    for command in ("validate", "test"):
        line = [command, *SMALL, "--trainer.default_root_dir", str(tmp_path), "--ckpt_path", "last"]
        assert "the checkpoint has no champion" in refusal(capsys, line)


def test_other_maps_may_be_played_and_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, whole: Path
) -> None:
    line = ["test", *SMALL, "--trainer.default_root_dir", str(tmp_path), "--data.grid_size", "16"]
    main([*line, "--ckpt_path", str(whole / "checkpoints" / "last.ckpt")])
    assert "champion" in capsys.readouterr().out
    assert "data.grid_size 12, now 16" in caplog.text


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import_module("eigen2.cli.training")  # torchmetrics looks for it too
    for name in [each for each in sys.modules if each.startswith("eigen2.fire.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "scipy", None)
    said = refusal(capsys, words(ROOT / "nowhere"))
    assert said == "error: workload fire needs scipy: pip install 'eigen2[fire]'"


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_no_environment_behind(tmp_path: Path) -> None:
    killer = ["--trainer.callbacks+=tests.kill.KillAt", "--trainer.callbacks.place=training"]
    run = Started(words(tmp_path, "--data.parallel_method=async", *killer, "--trainer.callbacks.generation=1"))
    number = run.process.pid
    assert run.ended(60).returncode == -signal.SIGKILL
    assert number is not None
    left = subprocess.run(["ps", "-A", "-o", "args="], capture_output=True, text=True)
    assert str(tmp_path) not in left.stdout
