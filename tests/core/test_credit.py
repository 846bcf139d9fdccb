"""Rewards that come later than the step that earned them."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eigen2.core.credit import Credit
from eigen2.core.environment import Observation, play
from eigen2.core.replay import Field, ReplayBuffer, transition_fields
from eigen2.distributed.communicator import Communicator
from eigen2.errors import UserError
from tests.erl.probe import Probe, ProbeEnvironment, ProbeRollouts

AGENTS, WINDOWS, STEPS = 2, 3, 7


class LatePayer:
    """Pays part `late` of what a step earns that many steps later; what would be due after the end is never earned.

    Earnings (agents, windows, steps, late) are drawn by the seed; with `told` it says which step earned what, and the
    observation `misplayed` (agent, window, step) is not finite.
    """

    agents, windows = AGENTS, WINDOWS
    action_shape = (1,)

    def __init__(self, seed: int, latest: int, told: bool, misplayed: tuple[int, int, int] | None = None) -> None:
        self.observation_fields = {"who": Field((3,), torch.float32)}
        self.credit_steps = latest if told else 0
        due = np.arange(STEPS)[:, None] + np.arange(latest + 1)
        drawn = np.random.default_rng(seed).integers(1, 9, (AGENTS, WINDOWS, STEPS, latest + 1))
        self.earned = np.where(due < STEPS, drawn, 0).astype(float)
        self.due, self.latest, self.misplayed = due, latest, misplayed
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Observation, dict[str, Any]]:
        self.steps = 0
        return self._observation(), {}

    def _observation(self) -> Observation:
        place = np.indices((AGENTS, WINDOWS)).transpose(1, 2, 0)
        who = np.concatenate([place, np.full((AGENTS, WINDOWS, 1), self.steps)], 2).astype(np.float32)
        if self.misplayed is not None and self.misplayed[2] == self.steps:
            who[self.misplayed[:2]] = np.nan
        return {"who": torch.from_numpy(who)}

    def step(self, action: Tensor) -> tuple[Observation, Tensor, Tensor, Tensor, dict[str, Any]]:
        paid = [(late, self.earned[:, :, self.steps - late, late]) for late in range(min(self.latest, self.steps) + 1)]
        reward = torch.from_numpy(sum(amount for _, amount in paid)).float()
        account, late = np.meshgrid(np.arange(AGENTS * WINDOWS), [late for late, _ in paid])
        credit = Credit(account.flatten(), late.flatten(), np.concatenate([amount.flatten() for _, amount in paid]))
        self.steps += 1
        over = torch.full((AGENTS, WINDOWS), self.steps == STEPS)
        return self._observation(), reward, over, torch.zeros_like(over), {"credit": credit}

    def native_action(self, unit: Tensor) -> Tensor:
        return unit

    def get_episode_summary(self, windows: slice = slice(None)) -> dict[str, Tensor]:
        return {}


def stored(env: LatePayer, episodes: int = 1, capacity: int = 1000) -> tuple[Tensor, dict[tuple[int, ...], float]]:
    """Returns of the last episode, and what the buffer holds, by agent, window and step."""
    buffer = ReplayBuffer(capacity, transition_fields(env.observation_fields, env.action_shape))
    for _ in range(episodes):
        returns = play(env, lambda seen: torch.zeros(AGENTS, WINDOWS, 1), {}, buffer)
    places = [tuple(int(part) for part in who) for who in buffer["who"].tolist()]
    return returns, dict(zip(places, buffer["reward"].tolist(), strict=True))


@settings(max_examples=20)
@given(st.integers(0, 1000), st.integers(0, 5))
def test_what_a_step_earns_stands_beside_it(seed: int, latest: int) -> None:
    env = LatePayer(seed, latest, told=True)
    returns, found = stored(env)
    assert returns.tolist() == env.earned.sum((2, 3)).tolist(), "the return does not change"
    everywhere = np.ndindex(AGENTS, WINDOWS, STEPS)
    assert found == {place: pytest.approx(env.earned[place].sum()) for place in everywhere}


def test_an_environment_that_tells_nothing_is_stored_as_it_pays() -> None:
    env = LatePayer(3, 2, told=False)
    _, found = stored(env)
    late = sum(env.earned[0, 0, 4 - late, late] for late in range(3))
    assert found[0, 0, 4] == pytest.approx(late) != pytest.approx(env.earned[0, 0, 4].sum())


@given(st.integers(0, 100), st.integers(0, AGENTS * WINDOWS - 1))
def test_a_ring_that_is_full_keeps_the_credit_of_what_it_keeps(seed: int, more: int) -> None:
    latest = 2
    capacity = AGENTS * WINDOWS * (latest + 1) + more  # the least there may be, and some that wrap elsewhere
    env = LatePayer(seed, latest, told=True)
    _, found = stored(env, episodes=3, capacity=capacity)
    assert len(found) == capacity
    assert found == {place: pytest.approx(env.earned[place].sum()) for place in found}


def test_what_a_step_earned_that_is_not_stored_stays_where_it_was_paid() -> None:
    env = LatePayer(5, 1, told=True, misplayed=(1, 0, 3))
    _, found = stored(env)
    # neither the step that sees it nor the one that leads there
    assert not {(1, 0, 2), (1, 0, 3)} & found.keys()
    assert len(found) == AGENTS * WINDOWS * STEPS - 2
    # step 3's second half is paid in step 4, which is stored
    assert found[1, 0, 4] == pytest.approx(env.earned[1, 0, 4].sum() + env.earned[1, 0, 3, 1])
    assert found[1, 0, 1] == pytest.approx(env.earned[1, 0, 1].sum())
    assert found[0, 0, 3] == pytest.approx(env.earned[0, 0, 3].sum())


def test_a_buffer_too_small_for_the_credit_is_refused() -> None:
    data = ProbeRollouts(Probe(lambda x, action, step: x), replay_capacity=64)
    data.eval_env = ProbeEnvironment(data.probe, agents=4, windows=4)
    data.eval_env.credit_steps = 4
    with pytest.raises(UserError, match=r"replay_capacity is 64.* 4 steps back; raise it to at least 80"):
        data.allocate_replay(torch.device("cpu"), Communicator(4))
