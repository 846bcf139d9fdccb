"""Episodes side by side: what the buffer holds, and what follows is what followed in the same environment."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from eigen2.core.replay import ReplayBuffer
from eigen2.dqn.collector import Collector, Info, draw_batch, draw_slots, replay_fields
from eigen2.fire.landscapes.landscape import Landscape, flat
from eigen2.fire.simulation.environment import BREAKS, BUDGET, FuelBreakEnv
from eigen2.fire.simulation.frames import Frames

SMALL: dict[str, Any] = {"ignitions": 5, "fire_simulation_max_duration": 60}


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


def unchanged(before: Info, after: Info, rewards: np.ndarray) -> np.ndarray:
    return rewards


def learned(before: Info, after: Info, rewards: np.ndarray) -> np.ndarray:
    changed: np.ndarray = rewards + 3 * before["burned"] - after["burned"]
    return changed


def played(
    capacity: int, environments: int, epochs: int, seed: int, budget: float = 0.1, changed: bool = False
) -> tuple[Collector, Reference]:
    """Random episodes, in the way the module plays them, with what the buffer should hold beside it."""
    # of these two the first burns in a few cells alone, so that its episodes are over before those of the other
    islands = np.full((6, 6), 98, np.int16)
    islands[2, 1:4] = 101
    given_ = [Landscape(**{**flat((6, 6)).layers(), "fuel": islands}), flat((6, 6))]
    env = FuelBreakEnv(landscapes=given_, budget=budget, **SMALL)
    vector = SyncVectorEnv(
        [lambda: FuelBreakEnv(landscapes=given_, budget=budget, **SMALL)] * environments,
        autoreset_mode=AutoresetMode.DISABLED,
    )
    frames = Frames([env.scene(number).planes for number in range(2)], downstream=True)
    collector = Collector(
        vector, frames, ReplayBuffer(capacity, replay_fields(frames)), learned if changed else unchanged
    )
    reference, chance = Reference(environments), np.random.default_rng(seed)
    for epoch in range(epochs):
        collector.begin([seed + 100 * epoch + number for number in range(environments)])
        for _ in range(env.budget):
            collector.restart_ended()
            before, allowed = collector.observation.copy(), collector.allowed
            assert np.array_equal(before, np.stack([each.unwrapped._observation() for each in vector.envs]))
            cells = np.array([chance.choice(np.flatnonzero(each)) for each in allowed])
            burned = np.array([each.unwrapped._burned for each in vector.envs])
            rewards = collector.step(cells)
            if changed:
                rewards = rewards + 3 * burned - np.array([each.unwrapped._burned for each in vector.envs])
            reference.note(before, cells.tolist(), rewards, collector._ended)
    return collector, reference


@pytest.mark.parametrize(
    ("environments", "capacity", "steps"),
    [(1, 25, 5), (1, 31, 1), (1, 40, 2), (2, 25, 2), (2, 31, 5), (2, 40, 1), (3, 25, 1), (3, 31, 2), (3, 40, 5)],
)
def test_what_is_drawn_is_what_followed_in_the_same_environment(environments: int, capacity: int, steps: int) -> None:
    collector, reference = played(capacity, environments, epochs=30, seed=1, changed=steps == 2)
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
    seen = [collector.codec.unpack(each).numpy() for each in stored]
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


def test_a_batch_is_what_was_stored_at_its_slots() -> None:
    collector, _ = played(40, 2, epochs=5, seed=1)
    buffer, slots = collector.buffer, torch.tensor([[3, 8], [5, 10], [7, 12]])
    batch = draw_batch(buffer, collector.codec, slots, gamma=0.5, scale=10.0)
    first, last = (collector.codec.unpack(buffer.gather(slots[row])) for row in (0, 2))
    assert torch.equal(batch.observation, first)
    assert torch.equal(batch.next_observation, last)
    assert torch.equal(batch.next_allowed, collector.codec.allowed(last))
    assert torch.equal(batch.action, buffer["action"][slots[0]])
    ended = buffer["terminated"][slots[:2]]
    assert torch.equal(batch.terminated, ended.any(0))
    torch.testing.assert_close(
        batch.reward, 10 * (buffer["reward"][slots[0]] + 0.5 * buffer["reward"][slots[1]] * ~ended[0])
    )
    assert batch.discount.tolist() == [0.25, 0.25]
