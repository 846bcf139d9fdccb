"""The references do what eigen2 does, so that a ratio compares two ways to one result."""

from itertools import accumulate

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.harness import Stopwatch
from benchmarks.speed import overhead, storage
from benchmarks.speed.evaluation import DenseAgent
from benchmarks.speed.full_scale import FullScale
from benchmarks.speed.overhead import Marks, Share
from benchmarks.speed.training import PlainAgent, looped_step, population_step
from eigen2.distributed.communicator import Communicator
from eigen2.erl.row_adam import RowAdam
from eigen2.runtime.checkpoint import DurableCheckpointIO

HALF = 3e-3
"""How far half precision may take an input within [-5, 5], and more."""


def test_dense_agents_play_as_the_population(small: FullScale, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agent by agent the same actions and rewards; first weights say too little, so they are made larger."""
    data, population = small.data, small.population()
    data.allocate_replay(small.device, Communicator(small.module.population_size))
    monkeypatch.setattr(data.eval_env, "credit_steps", 0)  # stored as the environment pays
    population.actor.data.mul_(3)
    small.play(population, generation=2)
    days = data.window_days - 1
    stored = {
        name: data.buffer[name].reshape(days, population.size, data.eval_env.windows, -1)
        for name in ("day", "action", "reward")
    }
    for row in range(population.size):
        steps = DenseAgent(small, population, row).play(generation=2, days=days)
        days_seen, actions, rewards = (stored[name][:, row, 0] for name in ("day", "action", "reward"))
        assert days_seen.flatten().tolist() == [step.window.day for step in steps]
        assert [step.next_window.day for step in steps] == [step.window.day + 1 for step in steps]
        expected = torch.stack([step.action for step in steps]).flatten(1)
        torch.testing.assert_close(actions.float(), expected, atol=2 * HALF, rtol=0)
        assert expected.std(0).max() > 20 * HALF  # days differ by more than the tolerance
        # the same positions, in sizes that differ as the actions do: another position would be worth about 1
        expected_rewards = torch.tensor([step.reward for step in steps])
        torch.testing.assert_close(rewards.flatten(), expected_rewards, atol=HALF, rtol=HALF)
    assert stored["reward"].unique().numel() > days


def test_dense_inputs_are_the_encoders(small: FullScale) -> None:
    env = small.environment(agents=1)
    agent = DenseAgent(small, small.population(), row=0)
    observation, _ = env.reset(options={"start_idx": 40, "end_idx": 60})
    for _ in range(19):
        ours = small.data.network_inputs(observation)
        dense = agent.inputs(agent.market.window(int(observation["day"])), observation)
        assert ours.keys() == dense.keys()
        for name, value in dense.items():
            torch.testing.assert_close(ours[name][0].float(), value, atol=HALF, rtol=0)
        observation, *_ = env.step(env.native_action(torch.ones(1, 1, *env.action_shape)))


def test_a_window_is_a_normalised_copy(small: FullScale) -> None:
    agent = DenseAgent(small, small.population(), row=0)
    panel, context = small.data.panel, small.data.context_days
    window = agent.market.window(100)
    raw = panel.features[101 - context : 101]
    assert window.values.shape == raw.shape
    assert not np.shares_memory(window.values, panel.features)
    np.testing.assert_allclose(window.values * window.deviation + window.mean, raw, atol=1e-5)
    varies = raw.std(axis=0) > 1e-3
    assert varies.any()
    np.testing.assert_allclose(window.values.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(window.values.std(axis=0)[varies], 1, atol=1e-4)


def test_separate_modules_learn_as_the_population(small: FullScale) -> None:
    """Two steps, as the first alone would not tell a gradient's size: Adam divides by it."""
    population = small.population()
    agents = [PlainAgent(small, population, row) for row in range(population.size)]
    before = population.actor.detach().clone()
    batches = [small.batch(slots) for slots in small.slots()]
    ours, loop = population_step(small, population, batches), looped_step(small, agents, batches)
    assert isinstance(small.optimizer(population), RowAdam)  # what ships is what is timed
    for _ in range(2):
        ours()
        loop()
    assert (population.actor.detach() - before).abs().amax(1).min() > 1e-4
    for name, rows in (
        ("actor", population.actor),
        ("critic", population.critic),
        ("slow_actor", population.actor_target),
        ("slow_critic", population.critic_target),
    ):
        expected = torch.stack([nn.utils.parameters_to_vector(getattr(agent, name).parameters()) for agent in agents])
        away = (rows.detach() - expected.detach()).abs()
        # a gradient that is noise around 0 moves a weight either way by the learning rate
        assert (away > 2e-5).float().mean() < 1e-3, name


def test_slots_are_of_a_full_buffer(small: FullScale) -> None:
    module, data = small.module, small.data
    slots = small.slots()
    assert slots.shape == (module.hparams["accumulate"], module.population_size, data.batch_size)
    assert len(data.buffer) == data.replay_capacity
    assert small.batch(slots[0]).reward.shape == slots[0].shape


def test_dense_bytes_of_the_full_scale() -> None:
    assert storage.dense_bytes(investable=108, days=504, columns=669, features=9) == 24_277_542


def test_checkpoint_is_whole(small: FullScale) -> None:
    """A full replay buffer and both of Adam's moments of actors and critics."""
    path = small.folder / "whole.ckpt"
    storage.write_checkpoint(small, path)
    state = DurableCheckpointIO().load_checkpoint(path)
    replay_state = next(part["replay"] for part in state.values() if isinstance(part, dict) and "replay" in part)
    assert replay_state["size"] == len(replay_state["storage"]["reward"]) == small.data.replay_capacity
    moments = state["optimizer_states"][0]["state"]
    assert {name for rows in moments.values() for name in rows} >= {"exp_avg", "exp_avg_sq"}
    assert all(rows["exp_avg"].abs().sum() > 0 for rows in moments.values())


def test_share_of_a_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two generations of 10 s with 6 s and 8 s of own work and 2 s of writing, by a clock of our own."""
    ticks = accumulate([0, 0, 6, 1, 2, 1, 0, 8, 0, 2, 0])
    monkeypatch.setattr(overhead.time, "perf_counter", lambda: float(next(ticks)))

    class Work:
        def learn(self) -> str:
            return "learned"

        def write(self) -> None:
            raise OSError("full")

    work, own, writes = Work(), Stopwatch(), Stopwatch()
    own.wrap(work, "learn")
    writes.wrap(work, "write")
    marks = Marks(2, own, writes)
    for _ in range(2):
        marks.read()
        assert work.learn() == "learned"
        with pytest.raises(OSError, match="full"):
            work.write()
    marks.read()
    generation, own_seconds, checkpoints = marks.means()
    assert (generation, own_seconds, checkpoints) == (10, 7, 2)
    assert Share(generation - checkpoints, own_seconds).percent == pytest.approx(12.5)
