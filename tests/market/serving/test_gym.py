"""The market under Gymnasium: its checkers, its vector environment, and the environment driven by hand."""

import gc
import re
import subprocess
import sys
import warnings
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs import registration as gymnasium_registry
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from eigen2 import registration
from eigen2.errors import UserError
from eigen2.market.data.panel import build_panel
from eigen2.market.features.encoding import AverageEncoder
from eigen2.market.serving.gym import TradingEnv, TradingVectorEnv
from eigen2.market.simulation.environment import TradingEnvironment, TradingRules
from eigen2.market.simulation.windows import window_options
from eigen2.market.synthetic.generator import SyntheticMarket
from eigen2.registration import ENV_ID

pytestmark = pytest.mark.filterwarnings("error")

COLUMNS = 3
# 200 days: 120 to train on, 50 for validation, 30 held out
MARKET = SyntheticMarket(days=200, columns=COLUMNS, missing=0.05, volatility=0.06)
RULES = TradingRules(max_holding_days=5, max_opens_per_day=2, inaction_penalty=0.5)
DAYS = {"validation_days": 50, "holdout_days": 30}
WINDOW = {"context_days": 20, "trading_days": 15, "settlement_days": 5}
PANEL = build_panel(MARKET.generate(), **DAYS)
SMALL: dict[str, Any] = {"panel": PANEL, "rules": RULES, **WINDOW}
DRAWN: dict[str, Any] = {"synthetic": MARKET, "panel": None, **DAYS}
"""Changes for a market that is drawn anew."""
SPLITS = {"train": range(120), "validation": range(120, 170), "holdout": range(170, 200)}
# a window of 20 days starts when the 20 days of context have passed and ends with its split at the latest
STARTS = {"train": (19, 100), "validation": (120, 150), "holdout": (170, 180)}


def single(**changes: Any) -> TradingEnv:
    return TradingEnv(**{**SMALL, **changes})


def vector(num_envs: int, **changes: Any) -> TradingVectorEnv:
    return TradingVectorEnv(num_envs, **{**SMALL, **changes})


def draws(shape: tuple[int, ...], steps: int, seed: int = 0) -> np.ndarray:
    """Draw actions, a fifth of them beyond the space."""
    return np.random.default_rng(seed).uniform(-1.25, 1.25, (steps, *shape)).astype(np.float32)


# Registration


def test_an_id_with_its_module_registers_and_makes() -> None:
    """Registering costs neither torch nor Lightning; making the environment does without Lightning too."""
    code = f"""
import sys, warnings
warnings.simplefilter("error")
import gymnasium, eigen2.registration
heavy = [name for name in ("torch", "lightning", "pandas", "eigen2.market.serving.gym") if name in sys.modules]
assert not heavy, heavy
del gymnasium.registry["eigen2/Trading-v0"], sys.modules["eigen2.registration"]
warnings.resetwarnings()
market = {{"days": 200, "columns": 2}}
env = gymnasium.make("eigen2.registration:eigen2/Trading-v0", synthetic=market, **{DAYS | WINDOW})
assert env.action_space.shape == (4,) and "lightning" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[3], timeout=120, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("namespace", ["eigen2", None])
def test_registering_again_says_and_changes_nothing(monkeypatch: pytest.MonkeyPatch, namespace: str | None) -> None:
    """By hand, and as by a loader of plugins, which enters a namespace of its own."""
    monkeypatch.delitem(gymnasium.registry, ENV_ID)
    for _ in range(2):
        monkeypatch.setattr(gymnasium_registry, "current_namespace", namespace)
        registration.register()
    assert [id_ for id_ in gymnasium.registry if "Trading" in id_] == [ENV_ID] == ["eigen2/Trading-v0"]
    spec = gymnasium.spec(ENV_ID)
    assert (spec.namespace, spec.name, spec.version, spec.max_episode_steps) == ("eigen2", "Trading", 0, None)


# Checkers


def test_gymnasiums_checker_finds_nothing() -> None:
    """It makes the environment again from its spec, also to render."""
    check_env(gymnasium.make(ENV_ID, split="validation", **SMALL).unwrapped)


def test_the_passive_checker_finds_nothing_in_two_episodes() -> None:
    env = gymnasium.make(ENV_ID, **SMALL)
    assert "PassiveEnvChecker" in str(env)
    env.action_space.seed(0)
    for _ in range(2):
        observation, _ = env.reset()
        over = False
        while not over:
            assert env.observation_space.contains(observation)
            observation, _, over, truncated, _ = env.step(env.action_space.sample())
            assert not truncated
    env.close()


def test_observations_stay_in_bounds_when_prices_are_wild() -> None:
    wild = SyntheticMarket(days=200, columns=2, volatility=0.5, missing=0.5)
    env = single(**{**DRAWN, "synthetic": wild})
    assert np.isfinite(env.observation_space.low).all()
    assert np.isfinite(env.observation_space.high).all()
    for seed in range(4):
        observation, _ = env.reset(seed=seed)
        for action in draws(env.action_space.shape, 19, seed):
            assert env.observation_space.contains(observation)
            observation, reward, _, _, _ = env.step(action)
            assert np.isfinite(reward)


# The environment driven by hand


@pytest.mark.parametrize("rules", [RULES, replace(RULES, allow_short=True, execution="close")], ids=["long", "short"])
@pytest.mark.parametrize("start", [19, 100])
def test_it_is_the_environment_driven_by_hand(rules: TradingRules, start: int) -> None:
    env = single(rules=rules)
    encoder = AverageEncoder(PANEL, [0, 1, 2], 20, rules, window_days=20)
    reference = TradingEnvironment(PANEL.prices, rules, agents=1)
    expected, _ = reference.reset(options=window_options([start], 15, 20))

    def encoded() -> np.ndarray:
        inputs = encoder(expected)
        return np.concatenate([inputs[name].numpy().ravel() for name in ("market", "columns", "portfolio")])

    observation, info = env.reset(options={"start_idx": start})
    np.testing.assert_array_equal(observation, encoded())
    assert info == {"day": start, "date": str(PANEL.dates[start])}
    for step, action in enumerate(draws((2 * COLUMNS,), 19), start=1):
        unit = torch.from_numpy(action).reshape(1, 1, COLUMNS, 2)
        expected, reward, terminated, _, _ = reference.step(reference.native_action(unit))
        observation, seen_reward, over, truncated, info = env.step(action)
        np.testing.assert_array_equal(observation, encoded())
        assert (seen_reward, over, truncated) == (reward.item(), terminated.item(), False)
        assert (over, info["day"], "summary" in info) == (step == 19, start + step, step == 19)
    summary = {name: value.item() for name, value in reference.get_episode_summary().items()}
    assert info["summary"] == summary
    assert summary["trades"] > 0


def test_where_in_vectors_a_column_lies() -> None:
    """An order for the second of three columns, worked out by hand."""
    env = single(rules=TradingRules(max_coefficient=5, min_target=10, max_target=50, max_holding_days=20))
    env.reset(options={"start_idx": 40})
    assert np.isfinite(env.market.panel.prices[40:42]).all()  # all of them trade
    action = np.full(6, -1, np.float32)
    # target 10 + (0.2 + 1) / 2 x 40 = 34 percent, 34 / 50 x 255 = 173.4
    action[2:4] = 1, 0.2
    observation, *_ = env.step(action)
    # spans 1, 2, 4, 8, 16, 20 of 10 numbers each; 18 of 20 days left
    assert env.market.layout == {"market": slice(0, 61), "columns": slice(61, 241), "portfolio": slice(241, 256)}
    assert observation.shape == (256,)
    assert observation[60] == np.float32(18 / 20)
    portfolio = observation[241:].reshape(3, 5)
    assert not portfolio[[0, 2]].any()
    held, days, gain, target, coefficient = portfolio[1]
    assert (held, days, target, coefficient) == (1, np.float32(1 / 20), np.float32(173 / 255), 1)
    open_, close = env.market.panel.prices[41, 1, [0, 3]]
    assert gain == pytest.approx(10 * (close / open_ - 1), abs=5e-3)


def test_actions_beyond_the_space_are_clipped() -> None:
    clipped, beyond = single(), single()
    for env in (clipped, beyond):
        env.reset(seed=1)
    actions = 3 * draws((2 * COLUMNS,), 19)
    for action in actions:
        one, other = clipped.step(action.clip(-1, 1)), beyond.step(action)
        assert data_equivalence(one, other, exact=True)


def test_only_investable_columns_have_actions_and_descriptions() -> None:
    env = single(investable={"tickers": ["S0002", "S0001"]}, render_mode="ansi")
    assert env.action_space.shape == (4,)
    encoder = AverageEncoder(PANEL, [1, 2], 20, RULES, window_days=20)
    reference = TradingEnvironment(PANEL.prices[:, [1, 2]], RULES, agents=1)
    expected, _ = reference.reset(options=window_options([50], 15, 20))
    observation, _ = env.reset(options={"start_idx": 50})
    earned = []
    for action in draws((4,), 19):
        inputs = encoder(expected)
        for name, part in env.market.layout.items():
            np.testing.assert_array_equal(observation[part], inputs[name].numpy().ravel())
        held = [ticker for ticker, days in zip(("S0001", "S0002"), expected["held_days"][0, 0], strict=True) if days]
        assert re.findall(r"S\d+", str(env.render())) == held
        expected, reward, *_ = reference.step(
            reference.native_action(torch.from_numpy(action).reshape(1, 1, 2, 2)),
        )
        observation, seen_reward, *_ = env.step(action)
        assert seen_reward == reward.item()
        earned.append(seen_reward)
    assert sum(reward > 0 for reward in earned) > 1


def test_it_does_not_look_ahead() -> None:
    """What comes after a day changes nothing that was seen or earned up to it."""
    start, today = 130, 140
    prices, features = PANEL.prices.copy(), PANEL.features.copy()
    prices[today + 1 :] *= 3
    features[today + 1 :] = -features[today + 1 :]
    envs = [single(panel=p, split="validation") for p in (PANEL, replace(PANEL, prices=prices, features=features))]
    seen = [[env.reset(options={"start_idx": start})[0]] for env in envs]
    earned: list[list[float]] = [[], []]
    for action in draws((2 * COLUMNS,), today + 1 - start):
        for env, observations, rewards in zip(envs, seen, earned, strict=True):
            observation, reward, *_ = env.step(action)
            observations.append(observation)
            rewards.append(reward)
    np.testing.assert_array_equal(seen[0][:-1], seen[1][:-1])
    assert earned[0][:-1] == earned[1][:-1]
    assert any(earned[0][:-1])
    assert (seen[0][-1] != seen[1][-1]).any()


# Windows


@pytest.mark.parametrize("split", SPLITS)
def test_windows_reach_every_day_of_their_split_and_no_other(split: str) -> None:
    first, last = STARTS[split]
    batch = vector(500, split=split)
    for seed in (0, None):
        drawn = [batch.reset(seed=seed)[1]["day"] for _ in range(3)]
        assert set(np.concatenate(drawn).tolist()) == set(range(first, last + 1))
    env = single(split=split)
    lived = []
    for start in (first, last):
        lived.append(env.reset(options={"start_idx": start})[1]["day"])
        lived += [env.step(action)[4]["day"] for action in draws((2 * COLUMNS,), 19)]
    assert set(lived) <= set(SPLITS[split])
    assert max(lived) == SPLITS[split][-1]


def test_seeds_reproduce_and_differ() -> None:
    def days(env: TradingEnv | TradingVectorEnv, seed: Any) -> list[Any]:
        return [np.asarray(env.reset(seed=s)[1]["day"]).tolist() for s in (seed, None, None)]

    env, batch = single(), vector(4)
    assert days(env, 7) == days(env, 7) == days(single(), 7)
    assert len({str(days(env, seed)) for seed in range(8)}) == 8
    assert days(batch, 7) == days(batch, 7) == days(vector(4), 7)
    assert len(set(days(batch, 7)[0])) > 1
    # without a seed, each has its own
    assert len({str([env.reset()[1]["day"] for _ in range(5)]) for env in (single(), single(), single())}) == 3


def test_nothing_global_is_drawn() -> None:
    def states() -> tuple[Any, ...]:
        name, keys, *rest = np.random.get_state()  # noqa: NPY002 - to see that nobody touches it
        return name, keys.tolist(), rest, torch.get_rng_state().tolist(), torch.get_num_threads()

    before = states()
    env = vector(2)
    env.reset(seed=1)
    for action in draws((2, 2 * COLUMNS), 20):
        env.step(action)
    assert states() == before


def test_a_window_ends_once() -> None:
    for env, shape in ((single(), (6,)), (vector(2), (2, 6))):
        with pytest.raises(RuntimeError, match=r"reset\(\)"):
            env.step(np.zeros(shape, np.float32))
    env = single()
    env.reset(seed=0)
    ends = [env.step(action)[2] for action in draws((6,), 19)]
    assert ends == [False] * 18 + [True]
    with pytest.raises(RuntimeError, match=r"reset\(\)"):
        env.step(np.zeros(6, np.float32))
    env.reset()
    assert env.step(np.zeros(6, np.float32))[2] is False


def test_closing_releases_the_market() -> None:
    for env in (single(**DRAWN), vector(2, **DRAWN)):
        env.reset(seed=0)
        market = weakref.ref(env.market)
        held = [weakref.ref(part) for part in (env.market.panel, env.market._env, env.market._encoder)]
        env.close()
        env.close()
        gc.collect()
        assert market() is None
        assert [part() for part in held] == [None] * 3
        with pytest.raises(RuntimeError, match="closed"):
            env.reset()


def test_a_line_of_text_tells_the_state() -> None:
    env = single(render_mode="ansi")
    env.reset(options={"start_idx": 40})
    assert env.render() == "2000-02-28, 19 days left: nothing held"
    action = np.full(6, -1, np.float32)
    action[2] = 1
    env.step(action)
    open_, close = env.market.panel.prices[41, 1, [0, 3]]
    assert env.render() == f"2000-02-29, 18 days left: S0001 {close / open_ - 1:+.1%} in 1 days"
    assert single().render() is None


# The vector environment


def synchronous(num_envs: int, **changes: Any) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: single(**changes)] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)


def test_gymnasium_makes_it() -> None:
    env = gymnasium.make_vec(ENV_ID, num_envs=4, vectorization_mode="vector_entry_point", **SMALL)
    assert isinstance(env.unwrapped, TradingVectorEnv)
    reference = gymnasium.make_vec(ENV_ID, num_envs=4, vectorization_mode="sync", **SMALL)
    assert env.metadata["autoreset_mode"] == reference.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    for name in ("num_envs", "single_observation_space", "single_action_space", "observation_space", "action_space"):
        assert getattr(env, name) == getattr(reference, name)
    env.reset(seed=0)
    assert env.observation_space.contains(env.step(env.action_space.sample())[0])


def step_both(one: TradingVectorEnv, other: SyncVectorEnv, steps: int, seed: int) -> list[np.ndarray]:
    """Step both by the same actions, demand the same results, return the terminations."""
    ends = []
    for action in draws((one.num_envs, 2 * COLUMNS), steps, seed):
        result = one.step(action)
        assert data_equivalence(result, other.step(action), exact=True)
        ends.append(result[2])
    return ends


@pytest.mark.parametrize("num_envs", [1, 5])
def test_it_does_what_as_many_single_environments_do(num_envs: int) -> None:
    one, other = vector(num_envs), synchronous(num_envs)
    assert data_equivalence(one.reset(seed=3), other.reset(seed=3), exact=True)
    assert one.np_random_seed == other.np_random_seed == tuple(range(3, 3 + num_envs))
    ends = step_both(one, other, 50, seed=1)
    # 19 steps an episode and one that resets, whose actions count for nothing
    assert [step for step, end in enumerate(ends) if end.all()] == [18, 38]
    assert sum(end.any() for end in ends) == 2
    # in the middle of the third episode; the generators go on where they are
    assert data_equivalence(one.reset(), other.reset(), exact=True)
    step_both(one, other, 19, seed=2)
    # a fixed start draws nothing, and right after the end it is an ordinary reset
    fixed = {"start_idx": 33}
    assert data_equivalence(one.reset(options=fixed), other.reset(options=dict(fixed)), exact=True)
    step_both(one, other, 25, seed=3)
    for a, b in zip(one.np_random, other.np_random, strict=True):
        assert a.bit_generator.state == b.bit_generator.state


def test_seeds_one_by_one() -> None:
    one, other = vector(3), synchronous(3)
    for env in (one, other):
        env.reset(seed=10)
    seeds = [None, 4, None]
    assert data_equivalence(one.reset(seed=list(seeds)), other.reset(seed=list(seeds)), exact=True)
    assert one.np_random_seed == other.np_random_seed == (10, 4, 12)
    with pytest.raises(UserError, match="2 seeds given for 3 windows"):
        one.reset(seed=[1, 2])


def test_each_window_may_have_its_own_start() -> None:
    observations, infos = vector(3).reset(options={"start_idx": [20, 100, 19]})
    assert infos["day"].tolist() == [20, 100, 19]
    for i, start in enumerate((20, 100, 19)):
        np.testing.assert_array_equal(observations[i], single().reset(options={"start_idx": start})[0])


def test_what_was_returned_stays_as_it_was() -> None:
    env = vector(2)
    returned = [env.reset(seed=0)]
    returned += [env.step(action) for action in draws((2, 6), 21)]
    kept = [[np.copy(part) if isinstance(part, np.ndarray) else dict(part) for part in result] for result in returned]
    for action in draws((2, 6), 21):
        env.step(action)
    assert data_equivalence([list(result) for result in returned], kept, exact=True)


# Where the market comes from


def test_all_ways_to_name_a_market_give_the_same(tmp_path: Path) -> None:
    file = tmp_path / "prices.parquet"
    MARKET.generate().to_parquet(file)
    settings = {**DAYS, **WINDOW}
    changes = {"max_holding_days": 5, "max_opens_per_day": 2, "inaction_penalty": 0.5}
    ways: list[dict[str, Any]] = [
        {"synthetic": MARKET, "rules": RULES},
        {"synthetic": {"days": 200, "columns": COLUMNS, "missing": 0.05, "volatility": 0.06}, "rules": changes},
        {"panel": PANEL, "rules": RULES},
        {"path": str(file), "rules": changes},
        {"path": file, "rules": RULES, "cache_dir": str(tmp_path / "cache")},
        {"path": file, "rules": RULES, "cache_dir": tmp_path / "cache"},
    ]
    played = []
    for way in ways:
        env = TradingEnv(**settings, **way)
        played.append([env.reset(seed=5), *(env.step(action) for action in draws((6,), 19))])
    assert all(data_equivalence(played[0], other, exact=True) for other in played[1:])
    assert {path.name for path in tmp_path.iterdir()} == {"prices.parquet", "cache"}


def test_without_a_market_it_is_the_sample() -> None:
    env = TradingEnv(split="holdout")
    assert env.market.panel.num_columns == 5
    assert env.action_space.shape == (10,)
    assert len(env.market.starts) == 252 - 145 + 1


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "two markets": ({"path": "prices.parquet"}, "path and panel are given"),
    "no such file": ({"panel": None, "path": "nowhere.parquet"}, "nowhere.parquet"),
    "unknown split": ({"split": "test"}, "split is 'test'; set it to one of train, validation, holdout"),
    "no context": ({"context_days": 0}, "context_days is 0; it must be at least 1"),
    "no trading": ({"trading_days": 0}, "trading_days is 0"),
    "no settlement": ({"settlement_days": 0}, "settlement_days is 0"),
    "negative days": ({**DRAWN, "holdout_days": -1}, "holdout_days -1"),
    "no day of the split": ({**DRAWN, "split": "holdout", "holdout_days": 0}, "split 'holdout' has 0 of 200 days"),
    "no room in training": ({"context_days": 102}, "split 'train' has 120 of 200 days"),
    "no room in validation": ({"split": "validation", "trading_days": 46}, "split 'validation' has 50 of 200 days"),
    "unknown rule": ({"rules": {"leverage": 2}}, "rules is .*leverage.* give settings of TradingRules"),
    "rule out of range": ({"rules": {"cost_bps": -1}}, "cost_bps is -1"),
    "unknown setting of the market": (
        {**DRAWN, "synthetic": {"day": 9}},
        "synthetic is .*give settings of SyntheticMarket",
    ),
    "market out of range": (
        {**DRAWN, "synthetic": {"days": 1}},
        "days of the synthetic market is 1; it must be",
    ),
    "unknown ticker": ({"investable": {"tickers": ["X"]}}, "X"),
    "unknown render mode": ({"render_mode": "human"}, "render_mode is 'human'; set it to None or one of"),
}


@pytest.mark.parametrize(("changes", "words"), REFUSED.values(), ids=REFUSED)
def test_bad_settings_are_refused_in_one_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as refused:
        single(**changes)
    assert "\n" not in str(refused.value)


def test_a_window_that_just_fits_is_taken() -> None:
    assert single(context_days=101).market.starts == range(100, 101)
    assert single(split="validation", trading_days=45).market.starts == range(120, 121)


@pytest.mark.parametrize("start", [18, 101, -1, 40.5, "40", [30, 40]])
def test_starts_outside_the_split_are_refused(start: Any) -> None:
    for env in (single(), vector(3)):
        with pytest.raises(UserError, match="a window of split 'train' starts on day 19 to 100"):
            env.reset(options={"start_idx": start})


def test_unknown_options_and_no_windows_are_refused() -> None:
    with pytest.raises(UserError, match=r"unknown reset options \['reset_mask'\]; the only one is start_idx"):
        vector(2).reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(UserError, match="num_envs is 0"):
        vector(0)


@pytest.mark.parametrize(
    ("action", "words"),
    [(np.zeros(5), r"shape \(1, 5\)"), (np.zeros((3, 2)), r"shape \(1, 3, 2\)"), (np.full(6, np.nan), "not finite")],
)
def test_bad_actions_are_refused(action: np.ndarray, words: str) -> None:
    env = single()
    env.reset(seed=0)
    with pytest.raises(UserError, match=words):
        env.step(action)


def test_read_only_and_double_actions_are_taken() -> None:
    env = single()
    env.reset(seed=0)
    action = np.zeros(6, np.float32)
    action.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = env.step(action)[0]
        second = env.step(np.zeros(6))[0]
    env.reset(seed=0)
    for seen in (first, second):
        np.testing.assert_array_equal(seen, env.step(np.zeros(6, np.float32))[0])
