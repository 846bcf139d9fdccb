"""The data module of fuel breaks: splits, rewards to learn from, settings."""

import numpy as np
import torch

from eigen2.fire.datamodule import FuelBreakDataModule
from eigen2.fire.simulation.environment import action_mask


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
    one, other = FuelBreakDataModule(parallel_method="sync"), FuelBreakDataModule(parallel_method="async")
    assert one.settings() == other.settings()
    assert "num_parallel_envs" in one.settings()


def test_relative_rewards_are_of_what_still_burned() -> None:
    sizes = {"num_landscapes": 1, "eval_landscapes": 1, "num_parallel_envs": 2, "batch_size": 2, "warmup": 2}
    data, chance = FuelBreakDataModule(grid_size=10, budget=0.08, ignitions=30, **sizes), np.random.default_rng(0)
    data.build("fit", torch.device("cpu"))
    data.allocate_replay(torch.device("cpu"))
    collector, steps = data.collector, data.episode_steps
    collector.begin(np.random.default_rng(1))
    start = collector.info["burned"]
    for _ in range(steps):
        collector.step(
            np.array([chance.choice(np.flatnonzero(allowed)) for allowed in action_mask(collector.observation)])
        )
    sums = data.buffer["reward"][: 2 * steps].reshape(steps, 2).sum(0)
    np.testing.assert_allclose(sums, 30 * np.log(start / collector.info["burned"]), rtol=1e-5)
    assert (sums > 0).all()
    data.teardown("fit")
