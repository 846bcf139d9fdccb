"""The data module of fuel breaks: splits, prefill, rewards to learn from, settings."""

from typing import Any

import numpy as np
import torch

from eigen2.fire.datamodule import FuelBreakDataModule
from eigen2.fire.simulation.baselines import PLACEMENTS


def built(**settings: Any) -> FuelBreakDataModule:
    data = FuelBreakDataModule(
        **{"batch_size": 2, "warmup": 2, "num_parallel_envs": 2, "eval_landscapes": 1, **settings}
    )
    data.build("fit", torch.device("cpu"))
    data.allocate_replay(torch.device("cpu"))
    return data


def test_the_expert_fills_the_buffer_before_anything_is_learned() -> None:
    data = built(grid_size=8, ignitions=9, num_landscapes=3, prefill="downstream", prefill_episodes=3, buffer_size=50)
    data.prefill(seed=4)
    buffer, steps = data.buffer, data.env.budget
    assert len(buffer) == 3 * 2 * steps
    rows = buffer.gather(torch.arange(len(buffer)))
    where = rows["landscape"].reshape(3, steps, 2)
    assert len(where.unique()) > 1
    for episode in range(3):
        for number in range(2):
            (landscape,) = where[episode, :, number].unique().tolist()
            model = data.env.scene(landscape).model
            expected = PLACEMENTS["downstream"](model, steps, np.random.default_rng(0))
            assert rows["action"].reshape(3, steps, 2)[episode, :, number].tolist() == expected
    assert rows["terminated"].reshape(3, steps, 2)[:, -1].all()
    assert not rows["terminated"].reshape(3, steps, 2)[:, :-1].any()
    data.teardown("fit")


def test_no_landscape_is_in_two_splits() -> None:
    data = FuelBreakDataModule(grid_size=8, num_landscapes=20, eval_landscapes=20, test_landscapes=20)
    splits = {split: data.landscapes(split) for split in ("train", "validation", "test")}
    prints = {each.elevation.tobytes() for made in splits.values() for each in made}
    assert len(prints) == 60
    again = FuelBreakDataModule(grid_size=8, num_landscapes=5, eval_landscapes=20, test_landscapes=20)
    for mine, theirs in zip(again.landscapes("test"), splits["test"], strict=True):
        assert mine.elevation.tobytes() == theirs.elevation.tobytes()  # whatever number is trained on
    other = FuelBreakDataModule(grid_size=8, landscape_seed=1).landscapes("train")
    assert not {each.elevation.tobytes() for each in other} & prints


def test_how_environments_are_played_is_no_setting() -> None:
    settings = [FuelBreakDataModule(parallel_method=method).settings() for method in ("sync", "async")]
    assert settings[0] == settings[1]
    assert "num_parallel_envs" in settings[0]


def test_relative_rewards_are_of_what_still_burned() -> None:
    data, chance = built(grid_size=10, num_landscapes=1, budget=0.08, ignitions=30), np.random.default_rng(0)
    collector, steps = data.collector, data.episode_steps
    collector.begin([1, 2])
    start = collector.info["burned"]
    for _ in range(steps):
        collector.step(np.array([chance.choice(np.flatnonzero(allowed)) for allowed in collector.allowed]))
    sums = data.buffer["reward"][: 2 * steps].reshape(steps, 2).sum(0)
    np.testing.assert_allclose(sums, 30 * np.log(start / collector.info["burned"]), rtol=1e-5)
    assert (sums > 0).all()
    data.teardown("fit")
