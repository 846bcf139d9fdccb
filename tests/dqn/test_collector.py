"""Episodes side by side: what the buffer holds, and what follows is what followed in the same environment."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from eigen2.core.replay import ReplayBuffer
from eigen2.dqn.collector import Collector, Info, draw_batch, draw_slots, replay_fields
from eigen2.fire.simulation.environment import FuelBreakEnv, action_mask
from eigen2.fire.simulation.frames import Frames
from tests.fire.conftest import flat


def learned(before: Info, after: Info, rewards: np.ndarray) -> np.ndarray:
    return rewards + 3 * before["burned"] - after["burned"]


Step = dict[str, Any]


def played(capacity: int, environments: int, epochs: int, seed: int) -> tuple[Collector, list[list[Step]]]:
    """Random episodes, in the way the module plays them, and in plain lists each step of each environment."""
    given = [flat((6, 6), [[101, 101, 98, 101, 101, 101]]), flat((6, 6))]
    made = {"landscapes": given, "budget": 0.1, "ignitions": 5, "fire_simulation_max_duration": 60}
    envs = [partial(FuelBreakEnv, **made)] * environments
    vector = SyncVectorEnv(envs, autoreset_mode=AutoresetMode.DISABLED)
    frames = Frames([scene.planes for scene in envs[0]().scenes])
    collector = Collector(vector, frames, ReplayBuffer(capacity, replay_fields(frames)), learned)
    steps: list[list[Step]] = [[] for _ in range(environments)]
    chance = np.random.default_rng(seed)
    for _ in range(epochs):
        collector.begin(chance)
        for left in range(2, -1, -1):  # the budget is three
            before, burned = collector.observation.copy(), [each.unwrapped._burned for each in vector.envs]
            assert np.array_equal(
                before, np.stack([each.unwrapped._observation(each.unwrapped.fires) for each in vector.envs])
            )
            cells = np.array([chance.choice(np.flatnonzero(each)) for each in action_mask(before)])
            rewards = collector.step(cells)
            for i, env in enumerate(vector.envs):
                step = {"observation": before[i], "action": cells[i], "terminated": left == 0}
                steps[i].append({**step, "reward": np.float32(rewards[i] + 3 * burned[i] - env.unwrapped._burned)})
    return collector, steps


def test_truncated_episodes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The observation after them is that of the next episode."""
    collector, _ = played(31, 2, epochs=1, seed=1)
    collector.begin(np.random.default_rng(0))
    step = collector.environments.step

    def cut(actions: Any) -> Any:
        observation, rewards, terminated, truncated, info = step(actions)
        return observation, rewards, terminated, ~truncated, info

    monkeypatch.setattr(collector.environments, "step", cut)
    with pytest.raises(ValueError, match="an episode was truncated"):
        collector.step(np.array([np.flatnonzero(each)[0] for each in action_mask(collector.observation)]))


@pytest.mark.parametrize(("environments", "capacity"), [(1, 31), (2, 40), (3, 31)])
def test_what_is_drawn_is_what_followed_in_the_same_environment(environments: int, capacity: int) -> None:
    collector, reference = played(capacity, environments, epochs=30, seed=1)
    buffer = collector.buffer
    assert buffer.added == sum(map(len, reference)) > 2 * capacity
    slots = draw_slots(buffer, environments, 200, np.random.default_rng(2))
    assert slots.shape == (2, 200)
    # slot of the newest transition, and from there backwards: which step of which environment lies in it
    lies = {}
    for age in range(len(buffer)):
        number = buffer.added - 1 - age
        lies[(buffer.position - 1 - age) % capacity] = (number % environments, number // environments)
    stored = [buffer.gather(row) for row in slots]
    seen = [collector.codec.unpack(each).numpy() for each in stored]
    for draw in range(200):
        environment, first = lies[int(slots[0, draw])]
        for later in (0, 1):
            step = reference[environment][first + later]  # raises beyond the newest
            assert lies[int(slots[later, draw])] == (environment, first + later)
            assert np.array_equal(seen[later][draw], step["observation"])
            for name in ("action", "reward", "terminated"):
                assert stored[later][name][draw].item() == step[name]
    drawn = {lies[slot] for slot in slots[0].tolist()}
    assert len(drawn) > 0.8 * (capacity - environments), "all that may be drawn is drawn sometimes"


def test_a_batch_is_what_was_stored_at_its_slots() -> None:
    collector, _ = played(40, 2, epochs=5, seed=1)
    buffer, slots = collector.buffer, torch.tensor([[3, 8], [5, 10]])
    batch = draw_batch(buffer, collector.codec, slots)
    first, last = (collector.codec.unpack(buffer.gather(slots[row])) for row in (0, 1))
    assert torch.equal(batch.observation, first)
    assert torch.equal(batch.next_observation, last)
    assert torch.equal(batch.next_allowed, collector.codec.allowed(last))
    assert torch.equal(batch.action, buffer["action"][slots[0]])
    assert torch.equal(batch.terminated, buffer["terminated"][slots[0]])
    assert torch.equal(batch.reward, buffer["reward"][slots[0]])
