"""Observations in the replay buffer: bit for bit, in few bytes, and what follows is what followed."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from eigen2.core.replay import ReplayBuffer
from eigen2.dqn import losses
from eigen2.dqn.collector import replay_fields
from eigen2.fire.networks import QMap
from eigen2.fire.simulation.environment import BREAKS, BUDGET, BURNS, PLANES, RATES, action_mask, observe, rate_planes
from eigen2.fire.simulation.frames import Frames, symmetric_values, turn, turn_observation
from eigen2.fire.simulation.spread import FireModel


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


@given(st.integers(0, 2**32), st.integers(0, 3), st.booleans())
def test_a_turned_landscape_burns_as_the_landscape(seed: int, quarters: int, mirrored: bool) -> None:
    """What is observed of fires on turned rates of spread is the turned observation."""
    chance, size = np.random.default_rng(seed), 6
    rates = chance.gamma(1.0, 2.0, (4, size, size)).astype(np.float32) * (chance.random((size, size)) < 0.8)
    rates[:, 0, 0] = 1.0
    # towards where on the turned map each rate leads: the unit vectors of north, east, south and west, turned
    steps = np.array([(0, 1), (1, 0), (0, -1), (-1, 0)])  # (east, north)
    rotation = np.array(
        [(np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)) for angle in [np.pi / 2 * quarters]]
    )
    leads = np.rint(steps @ rotation.reshape(2, 2).T) * ((-1 if mirrored else 1), 1)
    turned = np.empty_like(rates)
    for rate, lead in zip(rates, leads, strict=True):
        turned[np.flatnonzero((steps == lead).all(1))[0]] = turn(
            torch.from_numpy(rate.copy()), quarters, mirrored
        ).numpy()
    model, other = FireModel(rates, 30.0, 40.0), FireModel(turned, 30.0, 40.0)
    cells = turn(torch.arange(size**2).view(size, size), quarters, mirrored).flatten().numpy()  # former number of each
    burnable = np.flatnonzero(model.burnable)
    breaks = chance.choice(burnable, min(3, burnable.size - 1), replace=False)
    now = {old: new for new, old in enumerate(cells.tolist())}
    seen = [
        observe(rate_planes([each]), 0.5, [each.start(breaks=placed, trees=True)])[None]
        for each, placed in ((model, breaks.tolist()), (other, [now[cell] for cell in breaks.tolist()]))
    ]
    mine = turn_observation(torch.from_numpy(seen[0]), quarters, mirrored).numpy()
    # ties between paths of the same length may put what burns through a cell elsewhere, but there are none here
    np.testing.assert_array_equal(mine, seen[1])


@given(st.integers(0, 2**32), st.sampled_from([(4, 4), (3, 5)]), st.integers(0, 3), st.booleans())
def test_symmetric_values_turn_with_the_map(seed: int, shape: tuple[int, int], quarters: int, mirrored: bool) -> None:
    """They do although the network's own do not."""
    chance = torch.Generator().manual_seed(seed)
    seen = torch.randint(256, (2, PLANES, *shape), generator=chance, dtype=torch.uint8)
    network = QMap(8)
    values, other = symmetric_values(network, seen).view(2, *shape), turn_observation(seen, quarters, mirrored)
    turned = symmetric_values(network, other).view(2, *other.shape[2:])
    torch.testing.assert_close(turn(values, quarters, mirrored), turned, rtol=1e-4, atol=1e-5)


def test_symmetric_values_of_a_symmetric_network_are_its_own() -> None:
    """Each of the eight is turned back to where it belongs."""
    seen = torch.randint(256, (2, PLANES, 3, 5), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    own = seen[:, BURNS].float().flatten(1)
    torch.testing.assert_close(symmetric_values(lambda planes: planes[:, BURNS].float().flatten(1), seen), own)


@given(st.integers(0, 2**32), st.sampled_from([(4, 4), (3, 5)]))
def test_augmented_actions_and_masks_belong_to_the_augmented_maps(seed: int, shape: tuple[int, int]) -> None:
    """The chosen cell is marked on the observation; all that is allowed next, on the next one."""
    rows, columns = shape
    chance = np.random.default_rng(seed)
    frames = Frames([np.zeros((4, rows, columns), np.uint8)])
    first, second = (chance.integers(0, 256, (5, 8, rows, columns), dtype=np.uint8) for _ in range(2))
    action = chance.integers(0, rows * columns, 5)
    first[:, BREAKS] = 0
    first[np.arange(5), BREAKS, action // columns, action % columns] = 255
    second[:, BREAKS] = chance.choice(np.array([0, 255], np.uint8), (5, rows, columns))
    observation, following = torch.from_numpy(first), torch.from_numpy(second)
    numbers = torch.arange(5)
    batch = losses.Batch(
        *(observation, torch.from_numpy(action), numbers.float(), following, frames.allowed(following)),
        numbers > 2,
    )
    seen = set()
    for draw in range(40):
        turned = frames.augment(batch, np.random.default_rng(draw))
        assert torch.equal(turned.observation[:, BREAKS].flatten(1).argmax(1), turned.action)
        assert torch.equal(turned.next_allowed, frames.allowed(turned.next_observation))
        assert torch.equal(turned.reward, batch.reward)
        assert torch.equal(turned.terminated, batch.terminated)
        seen.add(turned.observation.numpy().tobytes())
    assert len(seen) == (8 if rows == columns else 4)
