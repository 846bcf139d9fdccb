"""A run is resumed with its own settings and prices; a setting that may change is logged and takes effect."""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from eigen2.core.saved_run import flatten, require_same_settings
from eigen2.errors import UserError
from tests.runs import run


def test_differences_are_refused_with_both_values_or_logged_where_allowed(caplog: pytest.LogCaptureFixture) -> None:
    saved = flatten(
        {"model": {"population_size": 4, "gamma": 0.9, "actor_lr": 1e-4}, "data": {"days": (1, 2), "old": 1}}
    )
    assert saved["data.days"] == [1, 2]
    expected = (
        r"other settings: data\.new not set, now 2; data\.old 1, now null; model\.population_size 4, now 5; resume"
    )
    with pytest.raises(UserError, match=expected):
        require_same_settings(saved, {**saved, "data.new": 2, "model.population_size": 5, "data.old": None})
    require_same_settings(saved, saved)
    assert not caplog.records
    require_same_settings(saved, saved | {"model.actor_lr": 1e-3})
    (record,) = caplog.records
    assert record.getMessage() == "resumed with other settings: model.actor_lr 0.0001, now 0.001"


SAVED = {
    "num_threads": 1,
    "matmul_precision": "highest",
    "trainer": {"precision": "32-true"},
    "model": {"actor_lr": 1e-4, "actor_lr_decay": 1, "critic_lr": 1e-4, "learning_rate": 1e-3, "tau": 0.1},
    "data": {"account": {"unit_share": 0.1}, "context_days": 20},
}


@pytest.mark.parametrize(
    ("key", "may_change"),
    [
        *((name, True) for name in ("num_threads", "matmul_precision", "trainer.precision")),
        *((f"model.{name}", True) for name in ("actor_lr", "critic_lr", "learning_rate")),
        *((name, False) for name in ("model.actor_lr_decay", "model.tau", "data.context_days")),
        ("data.account.unit_share", False),
    ],
)
def test_what_may_change_when_a_run_is_resumed(key: str, may_change: bool, caplog: pytest.LogCaptureFixture) -> None:
    saved = flatten(SAVED)
    with nullcontext() if may_change else pytest.raises(UserError, match=re.escape(key)):
        require_same_settings(saved, {**saved, key: 7})
    assert [key in message for message in caplog.messages] == [True] * may_change


def test_another_market_is_refused_and_nothing_is_lost_but_a_learning_rate_and_length_are_accepted(
    tmp_path: Path,
) -> None:
    assert run(tmp_path, "--trainer.max_epochs=1").returncode == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.c*") if path.is_file()}
    done = run(tmp_path, "--data.synthetic.seed=9", "--model.population_size=5", "--data.context_days=19")
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "data.context_days 20, now 19; data.prices " in line
    assert "; model.population_size 4, now 5; resume with" in line
    assert {path: path.read_bytes() for path in before} == before
    done = run(tmp_path, "--trainer.max_epochs=2", "--model.actor_lr=0.01", "--matmul_precision=medium")
    assert done.returncode == 0, done.stderr
    said = "resumed with other settings: matmul_precision highest, now medium; model.actor_lr 0.0003, now 0.01"
    assert said in done.stderr
    checkpoint = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert [group["lr"] for group in checkpoint["optimizer_states"][0]["param_groups"]] == [0.01, 0.0003]
    assert checkpoint["eigen2"]["config"]["matmul_precision"] == "medium"  # as torch said
    assert checkpoint["epoch"] == 1
