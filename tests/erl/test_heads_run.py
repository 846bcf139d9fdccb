"""Fits with a shared representation from the command line: resume, processes, the champion."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from eigen2.core.export import load
from tests.command import ROOT, eigen2, together
from tests.runs import metrics, same, state

OPERATORS = "[" + ", ".join(
    f"{{class_path: eigen2.erl.evolution.{name}}}"
    for name in ("Elitism", "Injection", "TournamentCrossover", "MagnitudeMutation")
)
SHARED = ("--model.representation", "shared", "--model.evolution", f"{OPERATORS}]")
DAY = ("--model.actor", "eigen2.market.networks.columns.DayColumnActor")


def words(*options: object) -> list[object]:
    return ["fit", "--config", ROOT / "tests" / "small.yaml", *SHARED, *options]


@pytest.fixture(
    scope="module", params=[pytest.param((), marks=pytest.mark.slow, id="default"), pytest.param(DAY, id="day")]
)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[str, ...]]:
    folder = tmp_path_factory.mktemp("shared")
    ended = eigen2(*words(*request.param, "--trainer.default_root_dir", folder / "run"))
    assert ended.returncode == 0, ended.stderr
    return folder, request.param


def test_two_processes_compute_the_same_bits_and_resume_each_others_runs(run: tuple[Path, tuple[str, ...]]) -> None:
    folder, actor = run
    right: Any = state(folder / "run")
    assert len(right["weights"]["population.head"]) == 4
    assert len(right["weights"]["population.critic"]) == 1
    two = ["--trainer.default_root_dir", folder / "two", "--ckpt_path", "last"]
    for generations, processes in ((2, 2), (3, 1), (4, 2)):
        command = [*words(*actor), *two, "--trainer.max_epochs", generations, "--trainer.devices", processes]
        for process in together(processes, *command) if processes > 1 else [None]:
            ended = eigen2(*command) if process is None else process.ended()
            assert ended.returncode == 0, ended.stderr
    left: Any = state(folder / "two")
    assert [name for name in right["weights"] if not same(left["weights"][name], right["weights"][name])] == []
    assert [part for part in right if not same(left[part], right[part])] == []
    for one, other in zip(metrics(folder / "run"), metrics(folder / "two"), strict=True):
        kept = {name for name in one if not name.startswith("exchange/")}
        assert kept == {name for name in other if not name.startswith("exchange/")}
        assert [name for name in sorted(kept) if one[name] != other[name]] == []


def test_the_learners_head_is_injected_in_every_generation_that_follows_another(
    run: tuple[Path, tuple[str, ...]],
) -> None:
    logged = pd.read_csv(run[0] / "run" / "metrics.csv")
    assert logged["operators/injected_fitness"].iloc[1:].notna().all()


def test_the_checkpoints_champion_has_the_populations_weights_and_can_be_tested(
    run: tuple[Path, tuple[str, ...]],
) -> None:
    folder, _ = run
    checkpoint = folder / "run" / "checkpoints" / "last.ckpt"
    champion = load(checkpoint)
    weights: Any = state(folder / "run")["weights"]
    row = torch.cat([weight.flatten() for weight in champion.weights.values()])
    assert torch.equal(row, weights["population.champion_actor"][0])
    assert list(champion.actor().state_dict()) == list(champion.weights)
    tested = eigen2(
        "test", *words()[1:], *run[1], "--trainer.default_root_dir", folder / "run", "--ckpt_path", checkpoint
    )
    assert tested.returncode == 0, tested.stderr


def test_a_checkpoint_of_the_other_representation_is_refused(run: tuple[Path, tuple[str, ...]]) -> None:
    folder, actor = run
    own = words(*actor, "--model.representation", "own", "--trainer.default_root_dir", folder / "run")
    ended = eigen2(*own, "--ckpt_path", "last")
    assert ended.returncode == 2
    assert "model.representation shared, now own" in ended.stderr
