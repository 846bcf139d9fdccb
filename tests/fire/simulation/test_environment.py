"""The environment: Gymnasium's own checks, its arithmetic, and that no episode leaves a trace in the next."""

import itertools
import math
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from eigen2.errors import UserError
from eigen2.fire.landscapes.fuels import FUEL_MODELS
from eigen2.fire.landscapes.landscape import synthesize
from eigen2.fire.simulation.environment import (
    BREAKS,
    BUDGET,
    BURNS,
    DOWNSTREAM,
    RATES,
    FuelBreakEnv,
    action_mask,
    relative_reward,
)
from eigen2.fire.simulation.spread import Fires
from eigen2.registration import FIRE_ID
from tests.fire.conftest import flat

SMALL: dict[str, Any] = {"grid_size": 12, "ignitions": 30, "num_landscapes": 3, "fire_simulation_max_duration": 120}


def fires_of(env: FuelBreakEnv) -> Fires:
    assert env.fires is not None
    return env.fires


def episode(env: FuelBreakEnv, rng: np.random.Generator, **reset: Any) -> list[tuple[Any, float, dict[str, Any]]]:
    observation, info = env.reset(**reset)
    seen = [(observation, 0.0, info)]
    over = False
    while not over:
        observation, reward, over, truncated, info = env.step(rng.choice(np.flatnonzero(info["action_mask"])))
        assert not truncated
        seen.append((observation, reward, info))
    return seen


def test_gymnasiums_checks_pass() -> None:
    """On ground that burns all over, as they draw actions without the mask."""
    env = gymnasium.make(FIRE_ID, ignitions=20, landscapes=[flat((12, 12))] * 2).unwrapped
    assert isinstance(env, FuelBreakEnv)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*not within the recommended|.*different from the unwrapped")
        check_env(env, skip_render_check=True)


def test_rewards_sum_to_what_is_saved() -> None:
    env = FuelBreakEnv(**SMALL)
    for seed in range(3):
        seen = episode(env, np.random.default_rng(seed), seed=seed)
        burned = [info["burned"] for _, _, info in seen]
        assert len(seen) == 1 + env.budget == 1 + int(0.05 * 144)
        assert sum(reward for _, reward, _ in seen) == pytest.approx(100 * (burned[0] - burned[-1]))
        assert all(reward >= 0 for _, reward, _ in seen)
        assert seen[0][2]["reduction"] == 0
        assert seen[-1][2]["reduction"] == pytest.approx(1 - burned[-1] / burned[0])
        fires = fires_of(env)
        anew = fires.model.start(fires.ignitions, np.flatnonzero(fires.breaks).tolist())
        assert fires.burned == anew.burned == burned[-1]
        assert np.flatnonzero(fires.breaks).tolist() == sorted(env.placed)


def test_what_is_observed() -> None:
    env = FuelBreakEnv(**SMALL)
    seen = episode(env, np.random.default_rng(0), seed=1)
    fires, (observation, _, info) = fires_of(env), seen[-1]
    model = fires.model
    assert (observation[BREAKS] == 255 * fires.breaks.reshape(12, 12)).all()
    crossed = np.log1p(model.rates * 120 / 30)
    assert observation[RATES] / 255 * 9 == pytest.approx(crossed, abs=9 / 255)
    assert (observation[BURNS] / 255) ** 2 == pytest.approx(fires.frequency.reshape(12, 12), abs=2 / 255)
    cells = np.expm1(observation[DOWNSTREAM] / 255 * np.log1p(256 * 144)) / 256
    assert cells == pytest.approx(fires.downstream.reshape(12, 12) / 30, rel=0.03, abs=0.001)
    assert [int(each[BUDGET, 0, 0]) for each, _, _ in seen] == [round(255 * left / 7) for left in range(7, -1, -1)]
    assert (observation[BUDGET] == 0).all()
    assert info["landscape"] in range(3)


def test_the_mask_is_in_the_observation() -> None:
    """Exactly: fuels that hardly burn too, and lakes and breaks not."""
    fuel = np.array([*FUEL_MODELS, 91, 92, 93, 98, 99, 101, 101, 101, 101]).reshape(7, 7)
    patchwork = flat((7, 7), fuel)
    for env in (FuelBreakEnv(**SMALL), FuelBreakEnv(landscapes=[patchwork], wind_speed=60, budget=0.5)):
        seen = episode(env, np.random.default_rng(0), seed=0)
        for observation, _, info in seen:
            assert (action_mask(observation) == info["action_mask"]).all()
            assert (info["action_mask"] == ((observation[3] > 0) & (observation[BREAKS] == 0)).reshape(-1)).all()
        stacked = np.stack([observation for observation, _, _ in seen])
        assert (action_mask(stacked) == np.stack([info["action_mask"] for _, _, info in seen])).all()
    assert info["action_mask"].sum() + env.budget == 44


def test_refused_actions_change_nothing() -> None:
    env = FuelBreakEnv(**SMALL)
    _, info = env.reset(seed=0)
    good = int(np.flatnonzero(info["action_mask"])[0])
    after = env.step(good)[-1]["burned"]
    for action in (good, int(np.flatnonzero(~fires_of(env).model.burnable)[0]), -1, 144):
        with pytest.raises(ValueError, match=f"cell {action} cannot become a break"):
            env.step(action)
    assert fires_of(env).burned == after
    assert fires_of(env).breaks.sum() == 1
    seen = episode(env, np.random.default_rng(0), seed=0)
    with pytest.raises(ValueError, match="reset first"):
        env.step(np.flatnonzero(seen[-1][2]["action_mask"])[0])


def test_an_episode_ends_when_all_that_burns_is_a_break() -> None:
    fuel = np.full((4, 4), 98)
    fuel[0, :2] = 101
    env = FuelBreakEnv(landscapes=[flat((4, 4), fuel)], budget=0.5)
    seen = episode(env, np.random.default_rng(0), seed=0)
    assert len(seen) == 3
    assert seen[-1][2]["reduction"] == 1


def test_episodes_leave_landscapes_as_they_were() -> None:
    given = [synthesize(12, np.random.default_rng(seed)) for seed in range(2)]

    def raw() -> list[bytes]:
        return [layer.tobytes() for each in given for layer in each.layers().values()]

    before, env = raw(), FuelBreakEnv(**SMALL, landscapes=given)
    first = episode(env, np.random.default_rng(0), seed=0)
    for seed in range(3):
        episode(env, np.random.default_rng(seed), seed=seed)
    assert raw() == before
    for other in (env, FuelBreakEnv(**SMALL, landscapes=given)):  # the seed alone decides
        again = episode(other, np.random.default_rng(0), seed=0)
        assert [each.tobytes() for each, _, _ in again] == [each.tobytes() for each, _, _ in first]
    assert env.reset(seed=6)[0].tobytes() != first[0][0].tobytes()


def test_options_choose() -> None:
    env = FuelBreakEnv(**SMALL)
    for number in (2, 0):
        _, info = env.reset(seed=0, options={"landscape": number, "ignitions": None})
        assert info["landscape"] == number
        assert fires_of(env).ignitions.size == env.scenes[number].model.burnable.sum()
    env.reset(options={"ignitions": 7})
    assert len(set(fires_of(env).ignitions.tolist())) == fires_of(env).ignitions.size == 7
    env.reset()
    assert fires_of(env).ignitions.size == 30


def test_landscapes_follow_the_seed_and_their_number_alone() -> None:
    def heights(number: int, **more: int) -> bytes:
        return FuelBreakEnv(**{**SMALL, **more}).scenes[number].landscape.elevation.tobytes()

    assert heights(2) == heights(2, num_landscapes=9)
    assert len({heights(2), heights(1), heights(2, seed=1)}) == 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"budget": 0.0}, "budget is 0.0"),
        ({"budget": 5}, "budget is 5"),
        ({"grid_size": 3}, "grid_size is 3"),
        ({"ignitions": 0}, "ignitions is 0"),
        ({"num_landscapes": 0}, "num_landscapes is 0"),
        ({"wind_speed": -5}, "wind_speed is -5"),
        (
            {"wind_speed": [5, 9], "num_landscapes": 3},
            "has 2 values for 3 landscapes; give one number, or one for each",
        ),
        ({"landscapes": []}, "one or more"),
        ({"landscapes": [flat((4, 4)), flat((4, 5))]}, r"shapes \[\(4, 4\), \(4, 5\)\]"),
        ({"landscapes": [flat((4, 4), 98)]}, "nothing burns in landscape 0"),
        ({"fire_simulation_max_duration": 0}, "fire_simulation_max_duration is 0"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        FuelBreakEnv(**settings)


def test_wrong_options_are_refused() -> None:
    for options, words in (
        ({"landscape": 3}, "landscape is 3"),
        ({"landscape": "x"}, "landscape is 'x'; it must be a number"),
        ({"ignitions": 0}, "ignitions"),
        ({"ignitions": 2.5}, "ignitions is 2.5; it must be a whole number"),
        ({"fire": 1}, "fire"),
    ):
        with pytest.raises(UserError, match=words):
            FuelBreakEnv(**SMALL).reset(seed=0, options=options)


def test_relative_rewards_depend_on_the_first_and_last_share_alone() -> None:
    assert relative_reward(0.5, 0.25, 100) == pytest.approx(30 * math.log(2))
    shares = [0.4, 0.3, 0.3, 0.02, 0.0]
    rewards = [relative_reward(before, after, 25) for before, after in itertools.pairwise(shares)]
    assert rewards[1] == rewards[3] == 0
    assert sum(rewards) == pytest.approx(30 * math.log(0.4 / 0.04))  # less than one cell of 25 counts as one
    assert relative_reward(0.0, 0.0, 25) == 0
