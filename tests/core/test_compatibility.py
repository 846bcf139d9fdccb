"""A run is resumed with its own settings and prices; a setting that may change is logged and takes effect."""

from pathlib import Path

import pytest
import torch

from eigen2.core.compatibility import check_settings, flatten
from eigen2.errors import UserError
from tests.runs import run


def test_settings_are_flattened_to_full_keys() -> None:
    assert flatten({"data": {"rules": {"fee": 1}, "days": (1, 2)}, "threads": 2}) == {
        "data.rules.fee": 1,
        "data.days": [1, 2],
        "threads": 2,
    }


def test_every_difference_is_refused_with_both_values() -> None:
    saved = {"model.population_size": 4, "data.context_days": 20, "model.gamma": 0.9, "data.old": 1}
    mine = {"model.population_size": 5, "data.context_days": 25, "model.gamma": 0.9, "data.new": None}
    expected = (
        r"other settings: data\.context_days 20, now 25; data\.old 1, now none; model\.population_size 4, now 5; res"
    )
    with pytest.raises(UserError, match=expected):
        check_settings(saved, mine)


def test_a_setting_that_may_change_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    check_settings({"model.actor_lr": 1e-4, "a": 1}, {"model.actor_lr": 1e-3, "a": 1})
    assert [record.getMessage() for record in caplog.records] == [
        "resumed with other settings: model.actor_lr 0.0001, now 0.001"
    ]
    check_settings({"a": 1}, {"a": 1})
    assert len(caplog.records) == 1


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("begun")
    assert run(root, "--trainer.max_epochs=2").returncode == 0
    return root


def test_another_market_or_population_is_refused_and_nothing_is_lost(begun: Path) -> None:
    before = {path: path.read_bytes() for path in begun.rglob("*.c*") if path.is_file()}
    done = run(begun, "--data.synthetic.seed=9", "--model.population_size=5", "--data.context_days=19")
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "data.context_days 20, now 19; data.prices " in line
    assert "; model.population_size 4, now 5; resume with" in line
    assert {path: path.read_bytes() for path in before} == before


def test_another_learning_rate_and_length_are_accepted(begun: Path) -> None:
    done = run(begun, "--trainer.max_epochs=3", "--model.actor_lr=0.01")
    assert done.returncode == 0, done.stderr
    assert "resumed with other settings: model.actor_lr 0.001, now 0.01" in done.stderr
    checkpoint = torch.load(begun / "checkpoints" / "last.ckpt", weights_only=True)
    assert [group["lr"] for group in checkpoint["optimizer_states"][0]["param_groups"]] == [0.01, 0.001]
    assert checkpoint["epoch"] == 2
