"""A user's own operator and learner, in files of their own and named in a YAML file, get all that eigen2's have."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml

from eigen2.erl.evolution import Elitism, MagnitudeMutation
from eigen2.report.page import write_report
from tests.command import ROOT, eigen2, together
from tests.erl.interrupted import check_resume
from tests.extension.learners import BehaviourCloning
from tests.extension.operators import SignFlip
from tests.runs import state

CONFIG = {
    "learner": {"class_path": "tests.extension.learners.BehaviourCloning", "init_args": {"temperature": 0.5}},
    "evolution": [
        {"class_path": "eigen2.erl.evolution.Elitism", "init_args": {"share": 0.25}},
        {"class_path": "tests.extension.operators.SignFlip"},
        {"class_path": "eigen2.erl.evolution.MagnitudeMutation"},
    ],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run a fit of a file that names them, in one process."""
    folder = tmp_path_factory.mktemp("extension")
    (folder / "own.yaml").write_text(yaml.safe_dump({"model": CONFIG}))
    ended = eigen2(*words(folder), "--trainer.default_root_dir", folder / "run")
    assert ended.returncode == 0, ended.stderr
    return folder


def words(folder: Path) -> list[object]:
    return ["fit", "--config", ROOT / "tests" / "small.yaml", "--config", folder / "own.yaml"]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    saved: Any = state(folder)["weights"]
    return {name: rows for name, rows in saved.items() if name.startswith("population.")}


def test_statistics_curves_and_report_follow_from_the_operators_name(run: Path) -> None:
    metrics = pd.read_csv(run / "run" / "metrics.csv")
    survival = metrics[["operators/elite_survival", "operators/flipped_survival", "operators/mutant_survival"]]
    assert survival.iloc[1:].isin([0.0, 0.5, 1.0]).all(axis=None)
    assert metrics["operators/flipped_parents_fitness"].iloc[1:].tolist() == pytest.approx(
        metrics["fitness/max"].iloc[:-1].tolist()
    )
    assert metrics["train/critic_loss"].iloc[-1] > 0
    assert '"flipped"' in write_report(run / "run").read_text()


def test_two_processes_compute_the_same_bits(run: Path) -> None:
    command = [*words(run), "--trainer.default_root_dir", run / "two", "--trainer.devices", 2]
    for process in together(2, *command):
        ended = process.ended()
        assert ended.returncode == 0, ended.stderr
    left, right = weights(run / "run"), weights(run / "two")
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


def test_a_run_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    operators = [Elitism(0.25), SignFlip(), MagnitudeMutation()]
    check_resume(tmp_path, 3, evolution=operators, learner=BehaviourCloning())


def test_another_setting_of_theirs_is_refused_at_resume(run: Path) -> None:
    changed = ["--model.learner.init_args.temperature", 2, "--ckpt_path", "last"]
    ended = eigen2(*words(run), "--trainer.default_root_dir", run / "run", *changed)
    assert ended.returncode == 2
    assert "model.learner.temperature 0.5, now 2.0" in ended.stderr
