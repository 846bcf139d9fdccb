"""The market under Gymnasium: its checkers, and the environment driven by hand."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import jaxtyping
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env, data_equivalence

from eigen2 import registration
from eigen2.errors import UserError
from eigen2.market.data.panel import build_panel
from eigen2.market.features.encoding import AverageEncoder
from eigen2.market.serving.gym import TradingEnv
from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.base import EpisodeSettings
from eigen2.market.simulation.environment import TradingEnvironment
from eigen2.market.simulation.rules import TradingRules
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


def trading(**changes: Any) -> TradingEnv:
    return TradingEnv(**{**SMALL, **changes})


def draws(steps: int, columns: int = COLUMNS, seed: int = 0) -> np.ndarray:
    """Draw actions, a fifth of them beyond the space."""
    return np.random.default_rng(seed).uniform(-1.25, 1.25, (steps, 2 * columns)).astype(np.float32)


# Registration and checkers


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


def test_registering_again_says_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(gymnasium.registry, ENV_ID)
    for _ in range(2):
        registration.register()
    assert [id_ for id_ in gymnasium.registry if "Trading" in id_] == [ENV_ID] == ["eigen2/Trading-v0"]
    assert gymnasium.spec(ENV_ID).max_episode_steps is None


def test_gymnasiums_checkers_find_nothing_and_its_vectors_do_the_same() -> None:
    check_env(gymnasium.make(ENV_ID, split="validation", **SMALL).unwrapped)
    env, envs = gymnasium.make(ENV_ID, **SMALL), gymnasium.make_vec(ENV_ID, num_envs=2, **SMALL)
    assert "PassiveEnvChecker" in str(env)
    seen, batch = env.reset(seed=4)[0], envs.reset(seed=3)[0]
    for action in draws(19):
        np.testing.assert_array_equal(batch[1], seen)
        batch, seen = envs.step(np.stack([action, action]))[0], env.step(action)[0]
    envs.close()


# The environment driven by hand


@pytest.mark.parametrize(
    ("rules", "own", "start"),
    [(RULES, [0, 1, 2], 19), (replace(RULES, allow_short=True, execution="close"), [1, 2], 100)],
    ids=["long", "short"],
)
def test_it_is_the_environment_driven_by_hand(rules: TradingRules, own: list[int], start: int) -> None:
    env = trading(rules=rules, investable={"tickers": [f"S{column:04d}" for column in reversed(own)]})
    encoder = AverageEncoder(PANEL, own, 20, EpisodeSettings(rules, AccountRules(), 15, 5))
    reference = TradingEnvironment(PANEL.prices[:, own], rules, agents=1)
    expected, _ = reference.reset(options=window_options([start], 15, 20))
    observation, info = env.reset(options={"start_idx": start})
    assert info == {"day": start, "date": str(PANEL.dates[start])}
    actions = draws(19, len(own))
    for step, action in enumerate(actions, start=1):
        inputs = encoder(expected)
        for name, part in env.layout.items():
            np.testing.assert_array_equal(observation[part], inputs[name].numpy().ravel())
        unit = torch.from_numpy(action).reshape(1, 1, -1, 2)
        expected, reward, terminated, _, _ = reference.step(reference.native_action(unit))
        observation, seen_reward, over, truncated, info = env.step(action)
        assert (seen_reward, over, truncated) == (reward.item(), terminated.item(), False)
        assert (over, info["day"], "summary" in info) == (step == 19, start + step, step == 19)
    assert info["summary"] == {name: value.item() for name, value in reference.get_episode_summary().items()}
    assert info["summary"]["trades"] > 0
    with pytest.raises(RuntimeError, match=r"reset\(\)"):
        env.step(actions[0])


def test_it_does_not_look_ahead() -> None:
    """What comes after a day changes nothing that was seen or earned up to it."""
    start, today = 130, 140
    prices, features = PANEL.prices.copy(), PANEL.features.copy()
    prices[today + 1 :] *= 3
    features[today + 1 :] = -features[today + 1 :]
    results = []
    for panel in (PANEL, replace(PANEL, prices=prices, features=features)):
        env = trading(panel=panel, split="validation")
        results.append([env.reset(options={"start_idx": start})[:1], *map(env.step, draws(today + 1 - start))])
    before, after = results
    assert data_equivalence(before[:-1], after[:-1], exact=True)
    assert not data_equivalence(before[-1], after[-1], exact=True)
    assert any(result[1] for result in before[1:-1])


def test_no_price_of_the_holdout_tells_what_a_halted_column_is_worth() -> None:
    """Rewards are those of `fit`: a halt that reaches into the holdout ends, for validation, at the last close."""
    prices = PANEL.prices.copy()
    prices[163:172, 1] = np.nan
    later = prices.copy()
    later[170:] *= 3
    rewards = []
    for table in (prices, later):
        env = trading(panel=replace(PANEL, prices=table), split="validation")
        env.reset(options={"start_idx": 150})
        rewards.append([env.step(np.array([-1, -1, 1, 1, -1, -1]))[1] for _ in range(19)])
    assert rewards[0] == rewards[1]
    assert rewards[0][-1]


# Windows


@pytest.mark.parametrize(
    ("split", "days", "starts"),
    # a window of 20 days starts when the 20 days of context have passed and ends with its split at the latest
    [
        ("train", range(120), range(19, 101)),
        ("validation", range(120, 170), range(120, 151)),
        ("holdout", range(170, 200), range(170, 181)),
    ],
)
def test_windows_reach_every_day_of_their_split_and_no_other(split: str, days: range, starts: range) -> None:
    env = trading(split=split)
    drawn = [env.reset(seed=seed)[1]["day"] for seed in (0, *[None] * 700)]
    assert set(drawn) == set(starts)
    env.reset(options={"start_idx": starts[-1]})
    assert [env.step(action)[4]["day"] for action in draws(19)][-1] == days[-1]


def test_seeds_reproduce_and_a_fixed_start_draws_nothing() -> None:
    def days(env: TradingEnv, seed: int | None) -> list[int]:
        return [env.reset(seed=s)[1]["day"] for s in (seed, None, None)]

    env = trading()
    assert days(env, 7) == days(env, 7) == days(trading(), 7)
    env.reset(seed=7)
    env.reset(options={"start_idx": 33})
    assert days(env, None)[:2] == days(trading(), 7)[1:]
    assert len({str(days(env, seed)) for seed in range(8)}) == 8
    assert len({str(days(trading(), None)) for _ in range(3)}) == 3


# Where the market comes from, and what is refused


def test_all_ways_to_name_a_market_give_the_same(tmp_path: Path) -> None:
    file = tmp_path / "prices.parquet"
    MARKET.generate().to_parquet(file)
    changes = {"max_holding_days": 5, "max_opens_per_day": 2, "inaction_penalty": 0.5}
    ways: list[dict[str, Any]] = [
        {**DAYS, "synthetic": MARKET, "rules": RULES},
        {**DAYS, "synthetic": {"days": 200, "columns": COLUMNS, "missing": 0.05, "volatility": 0.06}, "rules": changes},
        {"panel": PANEL, "rules": RULES},
        {**DAYS, "path": str(file), "rules": changes},
        {**DAYS, "path": file, "rules": RULES, "cache_dir": tmp_path / "cache"},
    ]
    played = []
    for way in ways:
        env = TradingEnv(**WINDOW, **way)
        played.append([env.reset(seed=5), *(env.step(action) for action in draws(19))])
    assert all(data_equivalence(played[0], other, exact=True) for other in played[1:])
    assert {path.name for path in tmp_path.iterdir()} == {"prices.parquet", "cache"}
    sample = TradingEnv(split="holdout")
    assert sample.action_space.shape == (40,)
    assert len(sample.starts) == 252 - 145 + 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"path": "prices.parquet"}, "more than one of path, synthetic and panel"),
        ({"panel": None, "path": "nowhere.parquet"}, "nowhere.parquet"),
        ({"split": "test"}, "split is 'test'; set it to one of train, validation, holdout"),
        ({"context_days": 0}, "context_days is 0; it must be at least 1"),
        ({**DRAWN, "holdout_days": -1}, "holdout_days is -1"),
        ({**DRAWN, "split": "holdout", "holdout_days": 0}, "split 'holdout' has 0 of 200 days"),
        ({"context_days": 102}, "split 'train' has 120 of 200 days"),
        ({"split": "validation", "trading_days": 46}, "split 'validation' has 50 of 200 days"),
        ({"rules": {"leverage": 2}}, "rules has no setting leverage; see TradingRules"),
        ({"rules": {"cost_bps": -1}}, "cost_bps is -1"),
        ({**DRAWN, "synthetic": {"day": 9}}, "synthetic has no setting day: did you mean days?"),
        ({"investable": {"tickers": ["X"]}}, "X"),
        ({"holdout_days": 60}, "holdout_days is given, but the panel was built with its own"),
        ({"membership": "members.csv"}, "membership is given, but the panel was built with its own"),
        ({"indicators": "S0001"}, "indicators is 'S0001'; give a list of names"),
        ({"features": "volume"}, "features is 'volume'; give a list of names"),
    ],
)
def test_bad_settings_are_refused_in_one_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as refused:
        trading(**changes)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", [*WINDOW, *DAYS])
def test_days_are_whole_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # which would refuse them first
    with pytest.raises(UserError, match=rf"^{name} is 20\.5; it must be a whole number$"):
        trading(**DRAWN | {name: 20.5})
    with pytest.raises(UserError, match=r"^settlement_days is None; it must be a number$"):
        trading(settlement_days=None)


@pytest.mark.parametrize(
    "options",
    [{"start_idx": value} for value in (18, 101, 40.5, "40", np.array([40, 41]))] + [{"reset_mask": True}, [1]],
)
def test_bad_options_are_refused(options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # which would refuse a list first
    with pytest.raises(UserError, match="the only one is start_idx, a day index from 19 to 100"):
        trading().reset(options=options)


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (np.zeros(5), r"shape \(5,\)"),
        (np.full(6, np.nan), "them finite"),
        ("abc", r"no array \(could not convert"),
        ([[1, 2], [3]], "no array"),
    ],
)
def test_bad_actions_are_refused(action: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # which would refuse what is no array first
    env = trading()
    with pytest.raises(RuntimeError, match=r"reset\(\)"):
        env.step(np.zeros(6))
    env.reset(seed=0)
    with pytest.raises(UserError, match=words):
        env.step(action)


def test_a_panel_is_shared_by_the_spec_of_an_environment() -> None:
    env = gymnasium.make(ENV_ID, **SMALL, render_mode=None)
    assert env.spec is not None
    assert env.spec.kwargs["panel"] is PANEL
    with pytest.raises(UserError, match="render_mode is 'human'"):
        trading(render_mode="human")
