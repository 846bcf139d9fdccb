"""Observations in the replay buffer: bit for bit, in few bytes, and what follows is what followed."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

from eigen2.core.replay import ReplayBuffer
from eigen2.dqn import losses as dqn
from eigen2.fire.collector import Collector, draw_slots, replay_fields
from eigen2.fire.datamodule import FuelBreakDataModule
from eigen2.fire.landscapes.landscape import Landscape, flat, synthesize
from eigen2.fire.simulation.environment import BREAKS, BUDGET, RATES, FuelBreakEnv, action_mask
from eigen2.fire.simulation.frames import Frames, allowed_cells

SMALL: dict[str, Any] = {"ignitions": 5, "fire_simulation_max_duration": 60}


def landscapes(count: int = 3, size: int = 8) -> list[Landscape]:
    return [synthesize(size, np.random.default_rng([5, number])) for number in range(count)]


def frames_of(env: FuelBreakEnv, downstream: bool = True) -> Frames:
    return Frames([env.scene(number).planes for number in range(env.num_landscapes)], downstream)


@pytest.mark.parametrize("downstream_plane", [True, False])
def test_what_was_stored_comes_back_bit_for_bit(downstream_plane: bool) -> None:
    env = FuelBreakEnv(landscapes=landscapes(), budget=0.2, downstream_plane=downstream_plane, **SMALL)
    frames, chance = frames_of(env, downstream_plane), np.random.default_rng(0)
    seen, where = [], []
    for seed in range(5):
        observation, info = env.reset(seed=seed)
        over = False
        while not over:
            seen.append(observation)
            where.append(info["landscape"])
            observation, _, over, _, info = env.step(chance.choice(np.flatnonzero(info["action_mask"])))
        seen.append(observation)
        where.append(info["landscape"])
    assert len(set(where)) > 1
    unpacked = frames.unpack(frames.pack(np.stack(seen), np.array(where)))
    assert unpacked.dtype == torch.uint8
    assert np.array_equal(unpacked.numpy(), np.stack(seen))
    masks = np.stack([action_mask(each) for each in seen])
    assert np.array_equal(allowed_cells(unpacked).numpy(), masks)


@given(st.data())
def test_any_planes_come_back_bit_for_bit(data: st.DataObject) -> None:
    downstream, rows, columns = data.draw(st.booleans()), data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    chance = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    count, batch = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    rates = chance.integers(0, 256, (count, 4, rows, columns), dtype=np.uint8)
    observation = chance.integers(0, 256, (batch, 8 if downstream else 7, rows, columns), dtype=np.uint8)
    where = chance.integers(0, count, batch)
    observation[:, RATES] = rates[where]
    observation[:, BREAKS] = chance.choice(np.array([0, 255], np.uint8), (batch, rows, columns))
    observation[:, BUDGET] = observation[:, BUDGET, :1, :1]
    frames = Frames(list(rates), downstream)
    unpacked = frames.unpack(frames.pack(observation, where))
    assert np.array_equal(unpacked.numpy(), observation)
    assert np.array_equal(allowed_cells(unpacked).numpy(), action_mask(observation))


@pytest.mark.parametrize("downstream", [True, False])
def test_a_transition_takes_few_bytes(downstream: bool) -> None:
    """The old system's: two states of twelve float32 planes, 240 kB at 50 x 50."""

    def bytes_each(size: int) -> int:
        fields = replay_fields(Frames([np.zeros((4, size, size), np.uint8)], downstream))
        buffer = ReplayBuffer(3, fields)
        assert buffer.bytes_per_transition == sum(each[0].nbytes for each in buffer._storage.values())
        return buffer.bytes_per_transition

    assert bytes_each(32) <= 7_200
    assert 20_000 * bytes_each(50) <= 350_000_000
    assert bytes_each(32) == (3 if downstream else 2) * 32 * 32 + 1 + 4 + 8 + 4 + 1


class Reference:
    """The same episodes in plain lists: for each environment one entry a step, in the order in which they were made."""

    def __init__(self, environments: int) -> None:
        self.steps: list[list[dict[str, Any]]] = [[] for _ in range(environments)]

    def note(self, observation: np.ndarray, cells: Sequence[int], rewards: np.ndarray, ended: np.ndarray) -> None:
        for number, steps in enumerate(self.steps):
            steps.append(
                {
                    "observation": observation[number].copy(),
                    "action": int(cells[number]),
                    "reward": np.float32(rewards[number]),
                    "terminated": bool(ended[number]),
                }
            )


def played(
    capacity: int, environments: int, epochs: int, seed: int, budget: float = 0.1, relative: bool = False
) -> tuple[Collector, Reference]:
    """Random episodes, in the way the module plays them, with what the buffer should hold beside it."""
    # of these two the first burns in a few cells alone, so that its episodes are over before those of the other
    islands = np.full((6, 6), 98, np.int16)
    islands[2, 1:4] = 101
    level: dict[str, Any] = {name: np.zeros((6, 6)) for name in Landscape.layers()}
    given_ = [Landscape(**{**level, "fuel": islands}), flat((6, 6))]
    env = FuelBreakEnv(landscapes=given_, budget=budget, **SMALL)
    vector = SyncVectorEnv(
        [lambda: FuelBreakEnv(landscapes=given_, budget=budget, **SMALL)] * environments,
        autoreset_mode=AutoresetMode.DISABLED,
    )
    frames = frames_of(env)
    collector = Collector(vector, frames, ReplayBuffer(capacity, replay_fields(frames)), relative)
    reference, chance = Reference(environments), np.random.default_rng(seed)
    for epoch in range(epochs):
        collector.begin([seed + 100 * epoch + number for number in range(environments)])
        for _ in range(env.budget):
            collector.go_on()
            before, allowed = collector.observation.copy(), collector.allowed
            assert np.array_equal(before, np.stack([each.unwrapped._observation() for each in vector.envs]))
            cells = np.array([chance.choice(np.flatnonzero(each)) for each in allowed])
            burned = [each.unwrapped._burned for each in vector.envs]
            rewards = collector.step(cells)
            if relative:
                pairs = zip(burned, vector.envs, strict=True)
                rewards = np.array([dqn.relative_reward(had, each.unwrapped._burned, 36) for had, each in pairs])
            reference.note(before, cells.tolist(), rewards, collector._ended)
    return collector, reference


@pytest.mark.parametrize("environments", [1, 2, 3])
@pytest.mark.parametrize("capacity", [25, 31, 40])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_what_is_drawn_is_what_followed_in_the_same_environment(environments: int, capacity: int, steps: int) -> None:
    collector, reference = played(capacity, environments, epochs=30, seed=1, relative=steps == 2)
    buffer = collector.buffer
    assert buffer.added == sum(map(len, reference.steps)) > 2 * capacity
    slots = draw_slots(buffer, environments, steps, 400, np.random.default_rng(2))
    assert slots.shape == (steps + 1, 400)
    # slot of the newest transition, and from there backwards: which step of which environment lies in it
    lies = {}
    for age in range(len(buffer)):
        number = buffer.added - 1 - age
        lies[(buffer.position - 1 - age) % capacity] = (number % environments, number // environments)
    stored = [buffer.gather(row) for row in slots]
    seen = [collector.frames.unpack(each).numpy() for each in stored]
    for draw in range(400):
        environment, first = lies[int(slots[0, draw])]
        for later in range(steps + 1):
            step = reference.steps[environment][first + later]  # raises beyond the newest
            assert lies[int(slots[later, draw])] == (environment, first + later)
            assert np.array_equal(seen[later][draw], step["observation"])
            for name in ("action", "reward", "terminated"):
                assert stored[later][name][draw].item() == step[name]
    drawn = {lies[slot] for slot in slots[0].tolist()}
    assert len(drawn) > 0.8 * (capacity - environments * steps), "all that may be drawn is drawn sometimes"
    assert any(step["terminated"] for steps_ in reference.steps for step in steps_)


def test_an_episode_that_ends_early_is_followed_by_another_one_while_others_go_on() -> None:
    collector, reference = played(400, 2, epochs=12, seed=3, budget=0.2)
    lengths = set()
    for steps in reference.steps:
        ends = [number for number, step in enumerate(steps) if step["terminated"]]
        lengths |= set(np.diff([-1, *ends]).tolist())
        for end in ends[:-1]:
            fresh = steps[end + 1]["observation"]
            assert (fresh[BREAKS] == 0).all()
            assert (fresh[BUDGET] == 255).all()
    assert {3, 7} <= lengths  # the island has three cells; the budget is seven
    assert len(collector.buffer) == 2 * 7 * 12


def test_the_expert_fills_the_buffer_before_anything_is_learned() -> None:
    data = FuelBreakDataModule(
        grid_size=8, ignitions=9, num_landscapes=3, num_parallel_envs=2, prefill="downstream", prefill_episodes=3,
        buffer_size=50, warmup=2, batch_size=2,
    )  # fmt: skip
    data.build(torch.device("cpu"))
    data.allocate_replay(torch.device("cpu"))
    data.play_prefill(seed=4)
    buffer, steps = data.buffer, data.env.budget
    assert len(buffer) == 3 * 2 * steps
    rows = buffer.gather(torch.arange(len(buffer)))
    from eigen2.fire.simulation.baselines import PLACEMENTS

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
    data.close()


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
    env = FuelBreakEnv(grid_size=10, num_landscapes=1, budget=0.08, ignitions=30)
    vector = SyncVectorEnv([env.twin] * 2, autoreset_mode=AutoresetMode.DISABLED)
    frames = Frames([env.scene(0).planes], downstream=True)
    collector = Collector(vector, frames, ReplayBuffer(50, replay_fields(frames)))
    collector.begin([1, 2])
    start, chance = collector.burned, np.random.default_rng(0)
    for _ in range(env.budget):
        collector.step(np.array([chance.choice(np.flatnonzero(allowed)) for allowed in collector.allowed]))
    sums = collector.buffer["reward"].reshape(env.budget, 2).sum(0)
    np.testing.assert_allclose(sums, 30 * np.log(start / collector.burned), rtol=1e-5)
    assert (sums > 0).all()
