"""Copies of a Gymnasium environment: each is stepped as it would be alone, up to its end and no further."""

import re

import gymnasium
import numpy as np
import pytest
import torch

import tests.control.tasks  # noqa: F401 - enters them into the registry
from eigen2.control.environment import ControlEnvironment
from eigen2.core.environment import Environment, play
from eigen2.core.replay import ReplayBuffer, transition_fields
from eigen2.errors import UserError

SEEDS = {"seeds": [5, 6, 7]}


def made(agents: int = 2, windows: int = 3, env_id: str = "tests/Count-v0", **options: object) -> ControlEnvironment:
    return ControlEnvironment(env_id, agents, windows, **options)


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "MountainCarContinuous-v0"])
def test_every_copy_does_what_the_environment_alone_does(env_id: str) -> None:
    env, chance = made(env_id=env_id), np.random.default_rng(0)
    assert isinstance(env, Environment)
    observation, _ = env.reset(options=SEEDS)
    first, kept = observation["state"], observation["state"].clone()
    alone = [gymnasium.make(env_id) for _ in range(6)]
    for i, each in enumerate(alone):
        expected, _ = each.reset(seed=SEEDS["seeds"][i % 3])
        assert observation["state"][i // 3, i % 3].tolist() == expected.astype(np.float32).tolist()
    for _ in range(20):
        unit = torch.from_numpy(chance.uniform(-1, 1, (2, 3, 1)).astype(np.float32))
        native = env.native_action(unit)
        observation, reward, terminated, truncated, _ = env.step(native)
        for i, each in enumerate(alone):
            state, pay, *ends, _ = each.step(native[i // 3, i % 3].numpy())
            at = i // 3, i % 3
            assert observation["state"][at].tolist() == state.astype(np.float32).tolist()
            assert float(reward[at]) == np.float32(pay)
            assert [bool(terminated[at]), bool(truncated[at])] == ends
    assert torch.equal(first, kept), "what was returned does not change later"


def test_actions_reach_from_the_lowest_to_the_highest() -> None:
    unit = torch.tensor([-1.0, -0.5, 0.0, 1.0, -7.0, 7.0])[:, None]
    assert made().native_action(unit)[:, 0].tolist() == [-2.0, 0.0, 2.0, 6.0, -2.0, 6.0]


@pytest.mark.parametrize(("high", "dtype"), [(0.3, np.float64), (0.7, np.float32), (1.9, np.float32)])
def test_actions_stay_within_the_space(high: float, dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, low + (high - low) may be more than high, and 0.3 more than that of float64."""
    env, given = made(1, 1), []
    env.action_space = space = gymnasium.spaces.Box(-high / 3, high, (1,), dtype)
    low, top = (torch.from_numpy(bound.astype(np.float32)) for bound in (space.low, space.high))
    env._low, env._span = low, top - low
    monkeypatch.setattr(env.copies[0], "step", lambda action: given.append(action) or (0.0, 0.0, False, False, {}))
    env.reset(options={"seeds": [0]})
    for unit in (-1.0, 1.0):
        env.step(env.native_action(torch.full((1, 1, 1), unit)))
    assert all(space.contains(action) for action in given)
    assert len(given) == 2


def test_a_copy_that_ended_rests_and_nothing_resets_by_itself() -> None:
    """Count objects to a step after its end; of three steps, an action of 5 counts for two."""
    env = made(agents=2, windows=1, settings={"ends": 3}, max_episode_steps=10)
    resets = [copy.unwrapped.resets for copy in env.copies]
    env.reset(seed=0)
    fast_and_slow = torch.tensor([5.0, 0.0]).reshape(2, 1, 1)
    ends = []
    for _ in range(4):
        observation, reward, terminated, truncated, _ = env.step(fast_and_slow)
        ends.append(terminated[:, 0].tolist())
    assert ends == [[False, False], [True, False], [True, True], [True, True]]
    assert observation["state"][:, 0, 1].tolist() == [4.0, 3.0]
    assert reward.tolist() == [[0.0], [0.0]]
    assert not truncated.any()
    assert [copy.unwrapped.resets for copy in env.copies] == [before + 1 for before in resets]
    assert env.get_episode_summary()["steps"].tolist() == [2, 3]


def test_what_a_play_stores_is_each_step_of_each_episode_once() -> None:
    env = made(agents=2, windows=2)
    fields = transition_fields(env.observation_fields, env.action_shape)
    buffer = ReplayBuffer(100, fields)
    action = torch.tensor([[1.0, 0.0], [0.0, 1.0]])[..., None]  # 6 and 2 in its units: two steps and three
    returns = play(env, lambda seen: action, {"seeds": [1, 2]}, buffer)
    assert len(buffer) == 2 + 3 + 3 + 2
    # truncated after three steps, terminated at four counts: the six counts two each
    assert buffer["terminated"].sum() == 2
    assert buffer["truncated"].sum() == 2
    same_episode = buffer["state"][:, 0] == buffer["next_state"][:, 0]
    assert same_episode.all(), "a transition leads from one episode to another"
    drawn = [gymnasium.make("tests/Count-v0").reset(seed=seed)[0][0] for seed in (1, 2)]
    expected = [[2 * (6 + drawn[0]), 3 * (2 + drawn[1])], [3 * (2 + drawn[0]), 2 * (6 + drawn[1])]]
    torch.testing.assert_close(returns, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=0)


def test_who_does_not_play_is_neither_stepped_nor_stored() -> None:
    env = made(agents=2, windows=2)
    buffer = ReplayBuffer(100, transition_fields(env.observation_fields, env.action_shape))
    playing = torch.tensor([[True, True], [True, False]])
    returns = play(env, lambda seen: torch.zeros(2, 2, 1), {"seeds": [1, 2], "playing": playing}, buffer)
    assert len(buffer) == 3 * 3
    assert returns[1, 1] == 0
    assert (returns.flatten()[:3] > 0).all()
    assert env.get_episode_summary()["steps"].tolist() == [6, 3]


def test_dictionaries_become_vectors() -> None:
    observation, _ = made(env_id="tests/Pictures-v0").reset(options=SEEDS)
    assert observation["state"][0, 0].tolist() == [0.5] * 6 + [0, 0, 1, 0]


@pytest.mark.parametrize(
    ("env_id", "said"),
    [
        ("CartPole-v1", r"has actions Discrete\(2\); agents give continuous ones"),
        ("tests/Unbounded-v0", "has unbounded actions"),
        ("tests/Huge-v0", "has unbounded actions"),
        ("tests/Huge64-v0", "has unbounded actions"),
        ("tests/Inert-v0", r"has actions Box\(.*\), of no numbers"),
        ("tests/Endless-v0", "has episodes without end; set data.max_episode_steps"),
        ("tests/Sequences-v0", "which no vector of numbers can hold"),
        ("Pendulm-v1", "Pendulm"),
        ("no_such_module:Thing-v0", "no_such_module"),
    ],
)
def test_what_is_no_such_environment_is_refused_by_name(env_id: str, said: str) -> None:
    with pytest.raises(UserError, match=rf"data\.env_id {env_id}.*{said}"):
        made(env_id=env_id)


def test_settings_of_the_environment_reach_it_and_wrong_ones_are_refused() -> None:
    env = made(env_id="tests/Endless-v0", max_episode_steps=2, settings={"ends": 100, "pays": 3.0})
    returns = play(env, lambda seen: torch.zeros(2, 3, 1), SEEDS)
    assert env.get_episode_summary()["steps"].tolist() == [6, 6]
    assert (returns > 2 * 3 * 2).all()
    with pytest.raises(UserError, match="unexpected keyword argument 'pay'"):
        made(settings={"pay": 3.0})
    with pytest.raises(UserError, match=r"has max_episode_steps; give it as data\.max_episode_steps$"):
        made(settings={"max_episode_steps": 3})


def test_a_reward_may_be_an_array_of_one_number() -> None:
    returns = [play(made(settings={"pays": pays}), lambda seen: torch.zeros(2, 3, 1), SEEDS) for pays in (2.0, [2.0])]
    assert torch.equal(*returns)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"pays": [1.0, 2.0]}, "a reward of .* where one number is due"),
        ({"pays": None}, "a reward of None, where one number is due"),
        ({"shows": 3}, r"observations of shape \(3,\), where its observation space has \(2,\)"),
    ],
)
def test_what_cannot_be_held_is_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(
        UserError, match=rf"data\.env_id tests/Count-v0 with data\.env_settings {re.escape(str(settings))}: {said}"
    ):
        made(settings=settings)


@pytest.mark.parametrize(
    ("env_id", "settings", "said"),
    [
        ("tests/Count-v0", {"fails": "init"}, "no such file"),
        ("tests/Count-v0", {"fails": "reset"}, "no such file"),
        ("tests/Count-v0", {"fails": "step"}, "no such file"),
        ("Pendulum-v1", {"g": "abc"}, "unsupported operand"),
    ],
)
def test_settings_that_fail_only_when_used_are_refused(env_id: str, settings: dict[str, str], said: str) -> None:
    with pytest.raises(
        UserError, match=rf"data\.env_id {env_id} with data\.env_settings {re.escape(str(settings))}: .*{said}"
    ):
        made(env_id=env_id, settings=settings)


@pytest.mark.parametrize("fails", ["reset later", "step later"])
def test_an_environment_that_fails_later_is_named(fails: str) -> None:
    env = made(settings={"fails": fails})
    env.reset(seed=0)
    with pytest.raises(UserError, match=rf"^data\.env_id tests/Count-v0 .*'{fails}'}}: no such file$"):
        play(env, lambda seen: torch.zeros(2, 3, 1), SEEDS)


def test_an_agent_whose_actions_are_not_finite_harms_no_other() -> None:
    """The environment asserts that actions are in its space; a return is NaN where one was not finite."""

    def policy(seen: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.stack([torch.zeros(3, 1), torch.tensor([[torch.nan], [torch.inf], [0.0]])])

    returns = play(made(), policy, SEEDS)
    assert returns.isfinite().tolist() == [[True] * 3, [False, False, True]]
    assert torch.equal(returns[0], play(made(), lambda seen: torch.zeros(2, 3, 1), SEEDS)[0])


def test_lack_of_memory_is_not_called_a_mistake() -> None:
    with pytest.raises(MemoryError):
        made(settings={"fails": "memory"})
