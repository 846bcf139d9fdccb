"""The data module of control tasks: the episodes of a test."""

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import tests.control.tasks  # noqa: F401 - enters them into the registry
from eigen2.control.datamodule import TEST_EPISODES, ControlDataModule
from eigen2.control.environment import ControlEnvironment
from eigen2.core.datamodule import TrainedPolicies
from eigen2.core.environment import Observation, play
from eigen2.core.export import FORMAT, ExportedChampion, call_of


def test_the_champion_is_tested_in_episodes_that_fit_has_not_seen() -> None:
    data = ControlDataModule("tests/Count-v0", windows_per_generation=3, exploration_windows=1)
    data.build(2, torch.device("cpu"))
    seen: list[torch.Tensor] = []

    def champion(observation: Observation) -> torch.Tensor:
        seen.append(observation["state"].clone())
        return torch.zeros(1, TEST_EPISODES, 1)  # 2 in the units of the environment, which truncates after 3 steps

    def other(observation: Observation) -> torch.Tensor:
        raise AssertionError("the champion alone is tested")

    metrics = data.test(TrainedPolicies(champion, [other], generation=3, tried=8, seed=5)).metrics
    starts, task = seen[0][0, :, 0].double(), gymnasium.make("tests/Count-v0")
    options = [data.validation_options(), *(data.training_options(generation, 5) for generation in range(20))]
    fitted = {float(np.float32(task.reset(seed=seed)[0][0])) for each in options for seed in each["seeds"]}
    assert len(set(starts.tolist())) == TEST_EPISODES
    assert not fitted & set(starts.tolist())
    returns = 3 * (2 + starts)
    expected = {"test/return": float(returns.mean()), "test/return_std": float(returns.std())}
    assert metrics == pytest.approx(expected, rel=1e-5)


def test_the_page_tells_how_an_exported_champion_acts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = ControlDataModule("Pendulum-v1")
    data.build(1, torch.device("cpu"))
    actor, sizes = data.make_actor(), {"inputs": {"state": [3]}, "action": [1], "context": 1}
    config = {"format": FORMAT, "actor": call_of(type(actor)), "sizes": sizes, "inference": data.inference_spec()}
    ExportedChampion(config, actor.state_dict()).save(tmp_path / "champion-export")
    page = (Path(__file__).parents[2] / "docs" / "control.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    done: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)
    exec(example, done)
    env = ControlEnvironment("Pendulum-v1", 1, 1)
    returns = play(env, lambda seen: actor({"state": seen["state"][0]})[None], {"seeds": [0]})
    assert done["total"] == pytest.approx(float(returns), rel=1e-4)
