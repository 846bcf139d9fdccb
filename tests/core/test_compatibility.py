"""A run is resumed with its own settings and prices; a setting that may change is logged and takes effect."""

from pathlib import Path

import pytest
import torch

from eigen2.core.compatibility import check_settings, flatten
from eigen2.errors import UserError
from tests.runs import run


def test_differences_are_refused_with_both_values_or_logged_where_allowed(caplog: pytest.LogCaptureFixture) -> None:
    saved = flatten(
        {"model": {"population_size": 4, "gamma": 0.9, "actor_lr": 1e-4}, "data": {"days": (1, 2), "old": 1}}
    )
    assert saved["data.days"] == [1, 2]
    expected = r"other settings: data\.new none, now 2; data\.old 1, now none; model\.population_size 4, now 5; resume"
    with pytest.raises(UserError, match=expected):
        check_settings(
            saved | {"data.new": None}, saved | {"data.new": 2, "data.old": None, "model.population_size": 5}
        )
    check_settings(saved, saved)
    assert not caplog.records
    check_settings(saved, saved | {"model.actor_lr": 1e-3})
    (record,) = caplog.records
    assert record.getMessage() == "resumed with other settings: model.actor_lr 0.0001, now 0.001"


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
