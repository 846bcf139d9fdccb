"""Observations in the replay buffer: bit for bit, in few bytes, and what follows is what followed."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from eigen2.core.replay import ReplayBuffer
from eigen2.dqn.collector import replay_fields
from eigen2.fire.simulation.environment import BREAKS, BUDGET, RATES, action_mask
from eigen2.fire.simulation.frames import Frames


@given(st.data())
def test_any_planes_come_back_bit_for_bit(data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    chance = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    count, batch = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    rates = chance.integers(0, 256, (count, 4, rows, columns), dtype=np.uint8)
    observation = chance.integers(0, 256, (batch, 8, rows, columns), dtype=np.uint8)
    where = chance.integers(0, count, batch)
    observation[:, RATES] = rates[where]
    observation[:, BREAKS] = chance.choice(np.array([0, 255], np.uint8), (batch, rows, columns))
    observation[:, BUDGET] = observation[:, BUDGET, :1, :1]
    frames = Frames(list(rates))
    unpacked = frames.unpack(frames.pack(observation, {"landscape": where}))
    assert np.array_equal(unpacked.numpy(), observation)
    assert np.array_equal(frames.allowed(unpacked).numpy(), action_mask(observation))


def test_a_transition_takes_few_bytes() -> None:
    """The old system's: two states of twelve float32 planes, 240 kB at 50 x 50."""
    buffer = ReplayBuffer(3, replay_fields(Frames([np.zeros((4, 32, 32), np.uint8)])))
    assert buffer.bytes_per_transition == sum(each[0].nbytes for each in buffer._storage.values())
    assert buffer.bytes_per_transition == 3 * 32 * 32 + 1 + 4 + 8 + 4 + 1
