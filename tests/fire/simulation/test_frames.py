"""Observations in the replay buffer: bit for bit, in few bytes, and what follows is what followed."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eigen2.core.replay import ReplayBuffer
from eigen2.dqn.collector import replay_fields
from eigen2.fire.landscapes.landscape import Landscape, synthesize
from eigen2.fire.simulation.environment import BREAKS, BUDGET, RATES, FuelBreakEnv, action_mask
from eigen2.fire.simulation.frames import Frames

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
    unpacked = frames.unpack(frames.pack(np.stack(seen), {"landscape": np.array(where)}))
    assert unpacked.dtype == torch.uint8
    assert np.array_equal(unpacked.numpy(), np.stack(seen))
    masks = np.stack([action_mask(each) for each in seen])
    assert np.array_equal(frames.allowed(unpacked).numpy(), masks)


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
    unpacked = frames.unpack(frames.pack(observation, {"landscape": where}))
    assert np.array_equal(unpacked.numpy(), observation)
    assert np.array_equal(frames.allowed(unpacked).numpy(), action_mask(observation))


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
