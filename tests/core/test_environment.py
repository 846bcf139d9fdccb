"""Playing windows that end at different times, what of them is stored, and the settings of the data side."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eigen2.core.environment import Environment, Observation, play
from eigen2.core.replay import Field, ReplayBuffer, loaded_action, transition_fields
from eigen2.distributed.communicator import Communicator
from eigen2.errors import UserError
from eigen2.memory.owners import account
from tests.erl.probe import Probe, ProbeRollouts

IDLE = Probe(lambda x, action, step: x)


class UnevenEnvironment:
    """Every agent's episode in every window has a length of its own; what it says after its end is poison.

    Rewards are 1000 x agent + 100 x window + step + 1. `clock` (1, windows) counts steps, the same for all agents;
    `self` (agents, windows) is 10 x agent + window + step / 10.
    """

    credit_steps, action_shape = 0, (1,)

    def __init__(self, lengths: list[list[int]], truncated: list[list[bool]]) -> None:
        self.lengths, self.cut = torch.tensor(lengths), torch.tensor(truncated)
        self.agents, self.windows = self.lengths.shape
        self.observation_fields = {"clock": Field((), torch.int32), "self": Field((1,), torch.float32)}
        self.steps = 0
        self.received: list[Tensor] = []
        self.resets: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Observation, dict[str, Any]]:
        self.resets.append(options)
        self.steps = 0
        return self._observation(), {}

    def _observation(self) -> Observation:
        own = 10.0 * torch.arange(self.agents)[:, None] + torch.arange(self.windows) + self.steps / 10
        own[self.steps > self.lengths] = torch.nan
        return {"clock": torch.full((1, self.windows), self.steps, dtype=torch.int32), "self": own[..., None]}

    def step(self, action: Tensor) -> tuple[Observation, Tensor, Tensor, Tensor, dict[str, Any]]:
        assert self.steps < self.lengths.max(), "stepped after every episode was over"
        self.received.append(action)
        place = 1000.0 * torch.arange(self.agents)[:, None] + 100 * torch.arange(self.windows)
        reward = torch.where(self.steps < self.lengths, place + self.steps + 1, torch.nan)
        self.steps += 1
        # an environment may go on saying that it is over, or not
        over = (self.steps == self.lengths) | (self.steps == self.lengths + 2)
        return self._observation(), reward, over & ~self.cut, over & self.cut, {}

    def native_action(self, unit: Tensor) -> Tensor:
        return 50 + 10 * unit

    def get_episode_summary(self, windows: slice = slice(None)) -> dict[str, Tensor]:
        return {}


def act(observation: Observation) -> Tensor:
    """Another number in [-1, 1] for every agent, window and step."""
    return (torch.nan_to_num(observation["self"]) / 100).sin()


def expected_return(agent: int, window: int, length: int) -> int:
    return length * (1000 * agent + 100 * window) + length * (length + 1) // 2


def uneven_buffer(env: UnevenEnvironment, capacity: int) -> ReplayBuffer:
    return ReplayBuffer(capacity, transition_fields(env.observation_fields, env.action_shape))


@settings(max_examples=30)
@given(st.data(), st.integers(1, 3), st.integers(1, 4))
def test_every_episode_is_stored_up_to_its_end_and_no_further(data: st.DataObject, agents: int, windows: int) -> None:
    def table(values: st.SearchStrategy[Any]) -> list[list[Any]]:
        row = st.lists(values, min_size=windows, max_size=windows)
        return data.draw(st.lists(row, min_size=agents, max_size=agents))

    lengths, cut = table(st.integers(1, 5)), table(st.booleans())
    env = UnevenEnvironment(lengths, cut)
    buffer = uneven_buffer(env, 100)
    returns = play(env, act, {"start": 3}, buffer)
    assert returns.dtype == torch.float64
    assert returns.tolist() == [
        [expected_return(agent, window, length) for window, length in enumerate(row)]
        for agent, row in enumerate(lengths)
    ]
    assert env.resets == [{"start": 3}]
    assert len(buffer) == np.sum(lengths)
    stored = buffer.gather(torch.arange(len(buffer)))
    seen = set()
    for slot in range(len(buffer)):
        reward = int(stored["reward"][slot])
        agent, window, step = reward // 1000, reward % 1000 // 100, reward % 100 - 1
        seen.add((agent, window, step))
        own = 10 * agent + window
        assert int(stored["clock"][slot]) == step
        assert int(stored["next_clock"][slot]) == step + 1
        assert float(stored["self"][slot]) == pytest.approx(own + step / 10)
        assert float(stored["next_self"][slot]) == pytest.approx(own + (step + 1) / 10)
        assert float(loaded_action(stored["action"][slot])) == pytest.approx(np.sin((own + step / 10) / 100), abs=2e-5)
        last = step + 1 == lengths[agent][window]
        assert bool(stored["terminated"][slot]) == (last and not cut[agent][window])
        assert bool(stored["truncated"][slot]) == (last and cut[agent][window])
    assert seen == {(a, w, s) for a in range(agents) for w in range(windows) for s in range(lengths[a][w])}


def test_the_environment_gets_its_own_units_and_nobody_the_networks_graph() -> None:
    env, weight = UnevenEnvironment([[1, 1]], [[False, True]]), torch.ones((), requires_grad=True)
    buffer = uneven_buffer(env, 20)
    returns = play(env, lambda seen: torch.tensor([[[-1.0], [0.5]]]) * weight, {}, buffer)
    assert [each.tolist() for each in env.received] == [[[[40.0], [55.0]]]]
    assert not returns.requires_grad
    assert not any(value.requires_grad for value in buffer.state_dict()["storage"].values())


def built_data() -> ProbeRollouts:
    data = ProbeRollouts(IDLE, replay_capacity=48, replay_min_size=4, batch_size=4)
    data.build(3, torch.device("cpu"))
    data.allocate_replay(torch.device("cpu"), Communicator(3))
    return data


def test_owners_of_memory_are_named_with_their_bytes_and_training_starts_at_the_smallest_size() -> None:
    data = built_data()
    assert isinstance(data.eval_env, Environment)
    for added, ready in ((3, False), (1, True)):
        fields = data.replay_fields.items()
        data.buffer.add({name: torch.zeros((added, *field.shape), dtype=field.dtype) for name, field in fields})
        assert data.ready is ready
    # x and next x, action in 16 bits, reward, two flags
    held = {name: each.total for name, each in account(data.memory_owners()).items()}
    assert data.buffer.nbytes == held["replay"] == 48 * (4 + 4 + 2 + 4 + 2)
    assert held["environments"] == data.eval_env.context.nbytes + data.val_env.context.nbytes


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("windows_per_generation", -1), ("exploration_windows", -1), ("replay_capacity", 0), ("batch_size", 0)),
        *(("replay_min_size", 31), ("replay_min_size", 2049)),
    ],
)
def test_settings_out_of_range_are_named_with_their_value(setting: str, value: int) -> None:
    settings: dict[str, Any] = {setting: value}
    with pytest.raises(UserError, match=rf"^data\.{setting} is {value}.*$"):
        ProbeRollouts(IDLE, **settings)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_what_an_agent_sees_of_a_world_it_broke_is_not_stored(poison: float) -> None:
    """Finite actions and rewards, but an observation that is not: neither what led to it nor what followed it."""
    env = UnevenEnvironment([[3, 3], [3, 3]], [[False, False], [False, False]])
    step = env.step

    def broken(action: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        observation, *rest = step(action)
        if env.steps == 2:
            observation["self"][1, 0] = poison
        return observation, *rest

    buffer = uneven_buffer(env, 20)
    env.step = broken
    play(env, lambda seen: torch.zeros(2, 2, 1), {}, buffer)
    assert len(buffer) == 12 - 2
    assert all(values.isfinite().all() for values in buffer.gather(torch.arange(10)).values())


def test_a_return_is_not_a_number_where_an_action_was_none_whatever_it_earned() -> None:
    env = UnevenEnvironment([[2, 3], [1, 2]], [[False, False], [False, False]])
    plain = play(env, lambda seen: torch.zeros(2, 2, 1), {})

    def act_once_wrongly(seen: dict[str, Tensor]) -> Tensor:
        action = torch.zeros(2, 2, 1)
        action[0, 1] = torch.inf if int(seen["clock"].max()) == 1 else 0.0
        action[1, 0] = torch.nan if int(seen["clock"].max()) > 1 else 0.0  # its episode is over
        return action

    returns = play(env, act_once_wrongly, {})
    assert torch.isnan(returns).tolist() == [[False, True], [False, False]]
    assert torch.equal(returns[~torch.isnan(returns)], plain[~torch.isnan(returns)])


def test_without_fitness_windows_the_noisy_ones_count_and_without_any_it_is_refused() -> None:
    data = ProbeRollouts(IDLE, windows_per_generation=0, exploration_windows=3)
    assert list(range(3))[data.fitness_windows] == [0, 1, 2]
    data = ProbeRollouts(IDLE, windows_per_generation=2, exploration_windows=3)
    assert list(range(5))[data.fitness_windows] == [0, 1]
    with pytest.raises(UserError, match=r"data\.exploration_windows is 0; it must be at least 1"):
        ProbeRollouts(IDLE, windows_per_generation=0, exploration_windows=0)
