"""The trading data module: which days an epoch may touch, and what is refused."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eigen2.core.environment import play
from eigen2.core.replay import transition_fields
from eigen2.distributed.communicator import Communicator
from eigen2.errors import UserError
from eigen2.market import datamodule as rollouts
from eigen2.market.data.panel import MarketPanel
from eigen2.market.data.splits import Splits
from eigen2.market.data.universe import Universe
from eigen2.market.datamodule import MarketDataModule
from eigen2.market.networks.columns import TradeModel
from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.portfolio import make_environment
from eigen2.market.simulation.rules import CLOSE_REASONS, TradingRules
from eigen2.market.simulation.windows import window_options, window_starts
from eigen2.market.synthetic.generator import SyntheticMarket
from eigen2.memory.owners import account
from tests.market.panels import plain_scale

AGENTS = 3
SMALL: dict[str, Any] = {
    **{"context_days": 20, "trading_days": 15, "settlement_days": 5, "validation_days": 50, "holdout_days": 30},
    **{"windows_per_generation": 3, "exploration_windows": 2, "validation_windows": 1},
    **{"replay_capacity": 400, "replay_min_size": 10, "batch_size": 2},
}


def small(**changes: Any) -> MarketDataModule:
    """200 days of three columns: 120 to train on, 50 for validation, 30 held out."""
    market = SyntheticMarket(days=200, columns=3, missing=0.05, volatility=0.06)
    rules = TradingRules(max_holding_days=5, max_opens_per_day=2)
    return MarketDataModule(**{"synthetic": market, "rules": rules, **SMALL, **changes})


def built(panel: MarketPanel | None = None, **changes: Any) -> MarketDataModule:
    data = small(**changes)
    data.setup("fit")
    data.panel = panel or data.panel
    data.build(AGENTS, torch.device("cpu"))
    return data


def empty_panel(train: int, validation: int, holdout: int, validation_spans: int = 1) -> MarketPanel:
    """Days and nothing else."""
    days = train + validation * validation_spans + holdout
    return MarketPanel(
        dates=np.datetime64("2000-01-03") + np.arange(days),
        scale=plain_scale(("A",)),
        features=np.zeros((days, 1, 9), np.float32),
        valid=np.ones((days, 1, 9), np.bool_),
        prices=np.ones((days, 1, 4), np.float32),
        traded_value=np.ones(1),
        splits=Splits.from_days(days, validation, holdout, validation_spans),
    )


def with_panel(panel: MarketPanel, **changes: Any) -> MarketDataModule:
    data = small(**changes)
    data.panel = panel
    return data


# Training windows


def assert_inside_training(data: MarketDataModule, options: dict[str, Any]) -> None:
    """Full context before the first day's close, and the last day still a training day."""
    (train,), starts = data.panel.splits.train, options["starts"]
    assert min(starts) - (data.context_days - 1) >= train.start
    assert max(starts) + options["window_days"] <= train.stop
    assert options == window_options(starts, data.trading_days, data.trading_days + data.settlement_days)
    assert len(starts) == data.windows_per_generation + data.exploration_windows


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    context=st.integers(1, 20),
    trading=st.integers(1, 10),
    settlement=st.integers(1, 6),
    slack=st.integers(0, 30),
    fitness=st.integers(1, 6),
    exploration=st.integers(0, 3),
    seed=st.integers(0, 2**32),
    generation=st.integers(0, 1000),
)
def test_training_windows_lie_in_the_training_days(
    context: int, trading: int, settlement: int, slack: int, fitness: int, exploration: int, seed: int, generation: int
) -> None:
    data = with_panel(
        empty_panel(context + trading + settlement + slack, 20, 10),
        context_days=context,
        trading_days=trading,
        settlement_days=settlement,
        windows_per_generation=fitness,
        exploration_windows=exploration,
    )
    options = data.training_options(generation, seed)
    assert_inside_training(data, options)
    assert options == data.training_options(generation, seed)
    for starts in (options["starts"][:fitness], options["starts"][fitness:]):
        assert starts == sorted(starts), "one from each part of the days, in their order"


@pytest.mark.parametrize("fitness", [1, 3, 7])
@pytest.mark.parametrize("value", [0.0, float(np.nextafter(1, 0))])
def test_the_outermost_draws_lie_in_the_training_days(
    value: float, fitness: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Drawn(np.random.Generator):
        def random(self) -> float:
            return value

    monkeypatch.setattr(rollouts, "generator", lambda *_: Drawn(np.random.PCG64(0)))
    data = with_panel(empty_panel(150, 50, 30), windows_per_generation=fitness)
    options = data.training_options(0, 0)
    assert_inside_training(data, options)
    if value == 0:
        assert options["starts"][0] == 19
    else:
        assert options["starts"][fitness - 1] == 130


def test_every_era_every_generation_and_in_time_every_day() -> None:
    # 120 training days, context 20, window 20: starts 19 to 100, 82 of them
    data = with_panel(empty_panel(120, 50, 30), windows_per_generation=2, exploration_windows=2)
    drawn = np.array([data.training_options(generation, 5)["starts"] for generation in range(1000)])
    for part in (drawn[:, :2], drawn[:, 2:]):
        assert part[:, 0].max() < 60 <= part[:, 1].min(), "41 starts in each half"
        counts = np.bincount(part.flatten() - 19, minlength=82)
        # 2,000 draws over 82 starts, 24.4 each: 5 deviations of 4.9
        assert len(counts) == 82
        assert 0 < counts.min() <= counts.max() < 24.4 + 5 * 4.9
    # addressed by seed and generation
    assert len({tuple(data.training_options(g, seed)["starts"]) for g in range(4) for seed in range(4)}) == 16


def test_windows_are_the_same_for_every_agent() -> None:
    data, chance = built(), torch.Generator().manual_seed(0)

    def act(_: dict[str, Tensor]) -> Tensor:
        return torch.rand(1, 5, 3, 2, generator=chance).expand(AGENTS, -1, -1, -1) * 2 - 1

    returns = play(data.eval_env, act, data.training_options(3, 7))
    assert torch.equal(returns, returns[:1].expand(AGENTS, 5))
    assert len(set(returns[0].tolist())) == 5, "windows differ"


# Validation windows


@pytest.mark.parametrize("asked", [1, 6, 40])
@pytest.mark.parametrize(("trading", "settlement"), [(1, 1), (4, 3)])
def test_validation_windows_cover_all_validation_days_and_nothing_else(
    asked: int, trading: int, settlement: int
) -> None:
    window = trading + settlement
    lengths = {"trading_days": trading, "settlement_days": settlement, "validation_windows": asked}
    for days in range(window, 5 * window + 2):
        data = with_panel(empty_panel(40, days, 10), **lengths, validation_days=days, holdout_days=10)
        options = data.validation_options()
        starts = options["starts"]
        touched = {day for start in starts for day in range(start, start + window)}
        assert touched == set(data.panel.splits.validation[0]), (window, days)
        # as many as asked for or as cover all days, whichever is more, and no two the same
        assert len(set(starts)) == len(starts) == min(max(asked, -(-days // window)), days - window + 1)
        assert options == window_options(sorted(starts), trading, window)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.integers(1, 5), st.integers(2, 9), st.integers(0, 12), st.integers(1, 9), st.integers(60, 120), st.integers(0, 9)
)
def test_no_training_day_lies_in_a_validation_span(
    spans: int, window: int, longer: int, asked: int, train: int, seed: int
) -> None:
    lengths = {"trading_days": window - 1, "settlement_days": 1, "context_days": 5, "validation_windows": asked}
    panel = empty_panel(train, window + longer, 10, spans)
    data = with_panel(panel, **lengths, validation_days=window + longer, validation_spans=spans, exploration_windows=40)
    validated, holdout = [set(days) for days in panel.splits.validation], set(panel.splits.holdout)

    def played(options: dict[str, Any]) -> set[int]:
        return {day for start in options["starts"] for day in range(start, start + options["window_days"])}

    trained = played(data.training_options(0, seed))
    assert played(data.validation_options()) == set().union(*validated)
    assert not trained & (set().union(*validated) | holdout)
    # all spans have as many windows, and agents train in every gap that has room for one
    starts = data.validation_starts()
    assert {sum(start in days for start in starts) for days in validated} == {len(starts) // spans}
    assert len(starts) >= min(asked, longer + 1)
    gaps = window_starts(panel.splits.train, window, 4)
    assert all(trained & set(gap) for gap in gaps if len(gap) >= 2 + sum(map(len, gaps)) / 20)


# What is touched, as seen from what comes out


def episode(data: MarketDataModule, validation: bool) -> list[dict[str, Tensor]]:
    """Network inputs, rewards and days of an episode of random actions."""
    env = data.val_env if validation else data.eval_env
    options = data.validation_options() if validation else data.training_options(generation=2, seed=1)
    chance = torch.Generator().manual_seed(0)
    observation, _ = env.reset(options=options)
    seen: list[dict[str, Tensor]] = [{**data.network_inputs(observation), "day": observation["day"]}]
    terminated = torch.zeros(1)
    while not terminated.all():
        unit = torch.rand(env.agents, env.windows, *env.action_shape, generator=chance) * 2 - 1
        observation, reward, terminated, _, info = env.step(env.native_action(unit))
        seen.append({**data.network_inputs(observation), "day": observation["day"], "reward": reward})
        if "credit" in info:  # what the replay buffer learns from
            seen[-1]["credited"] = torch.from_numpy(np.array(info["credit"].amount))
    return seen


def changed_after(panel: MarketPanel, day: int) -> MarketPanel:
    features, valid, prices = panel.features.copy(), panel.valid.copy(), panel.prices.copy()
    features[day:] = 9
    valid[day:] = ~valid[day:]
    prices[day:] *= 3
    return replace(panel, features=features, valid=valid, prices=prices)


@pytest.mark.parametrize("validation", [False, True])
def test_an_episode_touches_its_own_days_only(validation: bool) -> None:
    data = built()
    splits = data.panel.splits
    (own,) = splits.validation if validation else splits.train
    ours = episode(data, validation)
    days = {int(day) for part in ours for day in part["day"].flatten()}
    assert days <= set(own)
    assert (days == set(own)) is validation
    theirs = episode(built(changed_after(data.panel, own.stop)), validation)
    for step, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        for name in a:
            assert torch.equal(a[name], b[name]), (step, name)
    rewards = torch.stack([part["reward"] for part in ours[1:]])
    assert rewards.ne(0).sum() > 50
    other = episode(built(changed_after(data.panel, own.stop - 10)), validation=True)
    assert not torch.equal(other[-1]["columns"], episode(data, validation=True)[-1]["columns"])


@pytest.mark.parametrize("mode", ["orders", "weights"])
def test_no_price_after_the_training_days_tells_what_a_halted_column_is_worth(mode: Any) -> None:
    """One column halts for the last days, another for so many that it counts as delisted, though it trades again."""
    changes: dict[str, Any] = {"rules": TradingRules(mode, max_holding_days=5), "trading_days": 25}
    panel = built(**changes).panel
    prices, end = panel.prices.copy(), panel.splits.train[-1].stop
    prices[end - 3 : end, 1] = prices[end - 21 : end, 2] = np.nan
    # the only window there is ends on the last day of training
    panel = replace(panel, prices=prices, splits=replace(panel.splits, train=(range(end - 30, end),)))
    gone = prices.copy()
    gone[end:] = np.nan
    ours = built(panel, **changes)
    for later in (changed_after(panel, end), replace(panel, prices=gone)):
        theirs = built(later, **changes)
        rewards = [torch.stack([part["reward"] for part in episode(data, False)[1:]]) for data in (ours, theirs)]
        assert torch.equal(*rewards)
        assert rewards[0].any()
        if mode == "orders":
            credited = [torch.cat([part["credited"] for part in episode(data, False)[1:]]) for data in (ours, theirs)]
            assert torch.equal(*credited)
        known = [data._outcomes[end - 30 : end - 5].nan_to_num() for data in (ours, theirs)]
        assert torch.equal(*known)


def test_a_generation_fills_the_buffer_with_its_transitions() -> None:
    data = built()
    data.allocate_replay(torch.device("cpu"), Communicator(AGENTS))
    chance = torch.Generator().manual_seed(0)
    shape = (AGENTS, 5, 3, 2)
    options = data.training_options(0, 0)
    ready = [data.ready]
    play(data.eval_env, lambda _: torch.rand(shape, generator=chance) * 2 - 1, options, data.buffer)
    # 19 steps of 20 days, of 3 agents in 5 windows
    assert len(data.buffer) == 285 == 19 * AGENTS * 5
    assert [*ready, data.ready] == [False, True]
    stored = {name: data.buffer[name] for name in data.replay_fields}
    assert torch.equal(stored["next_day"], stored["day"] + 1)
    assert torch.equal(stored["next_days_left"], stored["days_left"] - 1)
    assert torch.equal(stored["terminated"], stored["next_days_left"] == 0)
    assert stored["terminated"].sum() == AGENTS * 5
    assert not stored["truncated"].any()
    (train,) = data.panel.splits.train
    assert stored["day"].min() >= train.start + 19
    assert stored["next_day"].max() < train.stop
    # a transition's next portfolio is the portfolio of the next one of the same agent and window
    steps = {name: value.reshape(19, AGENTS * 5, *value.shape[1:]) for name, value in stored.items()}
    for name in ("held_days", "gain", "target", "coefficient"):
        assert torch.equal(steps[f"next_{name}"][:-1], steps[name][1:])
        assert steps[name].any()
    inputs = data.network_inputs({name: stored[name][None] for name in data.eval_env.observation_fields})
    assert inputs["columns"].shape[:2] == inputs["portfolio"].shape[:2] == (1, 285)


def test_a_transition_takes_at_most_1700_bytes_at_108_columns() -> None:
    data = built(synthetic=SyntheticMarket(days=200, columns=108))
    fields = transition_fields(data.eval_env.observation_fields, data.eval_env.action_shape)
    assert fields == data.replay_fields
    # twice: day 4, days left, cash and room 2 each, and for each column days held 1, gain 2, target and coefficient 1;
    # once: for each column two actions of 2, and reward 4, two flags
    total = sum(field.nbytes for field in fields.values())
    assert total == 2 * (4 + 3 * 2 + 108 * 5) + 108 * 4 + 4 + 2 == 1538 <= 1700


@pytest.mark.parametrize("mode", ["orders", "weights"])
@pytest.mark.parametrize("execution", ["next_open", "close"])
def test_outcomes_are_what_the_environment_pays_for_each_column_beside_the_others(mode: Any, execution: Any) -> None:
    columns, day, held = 4, 40, 3
    rules = TradingRules(mode, held, 100.0, max_holding_days=held, max_target=1000, cost_bps=0, slippage_bps=0)
    rules.execution = execution
    money = AccountRules(unit_share=0.1, max_leverage=0.9)
    data = built(synthetic=SyntheticMarket(days=200, columns=columns), rules=rules, account=money)
    env = make_environment(data.panel.prices, rules, columns, 1, account=money, credit_orders=True)
    env.reset(options=window_options([day], 1, held + 1))
    # agent i orders column i alone, or gives it all the weight
    choice = -torch.ones(columns, 1, *env.action_shape)
    choice[torch.arange(columns), :, torch.arange(columns)] = 1
    reward = torch.zeros(columns, 1)
    for _ in range(held if mode == "orders" else 1):
        reward += env.step(env.native_action(choice))[1]
    percent = TradeModel(rules, money).reward_per_percent(columns)
    earned = 100 * torch.log1p(reward[:, 0] / percent / 100)
    if mode == "weights":  # the reward is the log return of the equity, of which 0.9 are invested
        earned = 100 * torch.log1p(torch.expm1(reward[:, 0] / 1e4) / 0.9)
    observation = {"day": torch.tensor([[day, day]]), "days_left": torch.tensor([[held, held - 1]])}
    outcomes = data.outcomes(observation)
    torch.testing.assert_close(outcomes[0, 0] / percent, earned - earned.mean(), rtol=2e-3, atol=2e-3)
    assert outcomes[0, 1].isnan().all()  # the window ends before


def test_outcomes_fit_into_half_precision() -> None:
    """Whole accounts in columns that move by half a day after day: an infinite outcome would break a critic's loss."""
    wild = SyntheticMarket(days=200, columns=3, volatility=0.5)
    rules = TradingRules(max_opens_per_day=5, max_coefficient=1000.0)
    data = built(synthetic=wild, rules=rules, account=AccountRules(unit_share=1.0, max_leverage=100.0))
    assert not data._outcomes.isinf().any()
    assert float(data._outcomes.nan_to_num().abs().max()) == 65_504


def test_owners_say_what_they_hold() -> None:
    data = built()
    data.allocate_replay(torch.device("cpu"), Communicator(AGENTS))
    held = {name: each.total for name, each in account(data.memory_owners()).items()}
    # the small arrays of settings besides
    held["environments"] -= 2 * 56
    assert held == {
        "replay": data.buffer.nbytes,
        "environments": data.eval_env.nbytes + data.val_env.nbytes,
        "panel": data.panel.nbytes,
        "encoder": data.encoder.nbytes,
        "outcomes": 2 * data.panel.splits.holdout.start * len(data.investable_columns),
    }


def test_metrics_known_answers() -> None:
    data = small()  # 3 fitness windows
    counts = {"trades": [6, 0], "wins": [3, 0], "losses": [1, 0], "unfunded": [1, 1], "log_return_pct": [2.0, -1.0]}
    days = {"days_with_position": [30, 0], "days_without_position": [15, 45]}
    summary = {name: torch.tensor(value) for name, value in {**counts, **days}.items()}
    metrics = data.episode_metrics(summary, torch.tensor([0.5, 0.1]))
    # 6 trades of 2 agents in 3 windows; 3 of 4 closed won; 30 of 90 days; 6 of 8 orders were paid for
    expected = {"trades": 1, "win_rate": 0.75, "exposure": 1 / 3, "funded_share": 0.75}
    correlated = {"fitness/money_correlation": pytest.approx(1, abs=1e-4)}
    assert metrics == pytest.approx({f"trading/{name}": value for name, value in expected.items()} | correlated)
    metrics = data.episode_metrics(summary, torch.tensor([0.5, torch.nan]))  # one agent alone has no ranks
    assert math.isnan(metrics["fitness/money_correlation"])


def test_description() -> None:
    data = small(holdout_days=0)
    data.setup("fit")
    described = data.describe()
    assert described["prices"] == "synthetic market"
    assert described["panel"] == "200 days x 3 columns x 9 features"
    assert described["columns"] == "3 investable of 3 columns, every ticker; indicators: none"
    assert "(150 days)" in described["training"]
    assert "(50 days), 3 windows" in described["validation"]
    assert described["holdout"].startswith("none")


def test_groups_of_settings_may_be_dictionaries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # which would refuse them first
    groups = {"synthetic": {"days": 200}, "rules": {"cost_bps": 1.0}, "account": {"unit_share": 0.5}}
    data = small(**groups, investable={"top": 2})
    assert data.synthetic == SyntheticMarket(days=200)
    assert (data.rules, data.account) == (TradingRules(cost_bps=1.0), AccountRules(unit_share=0.5))
    assert data.investable == Universe(top=2)
    assert small(synthetic={}).synthetic == SyntheticMarket()
    with pytest.raises(UserError, match=r"investable is \['S0001'\]; give Universe or a dictionary of its settings"):
        small(investable=["S0001"])
    with pytest.raises(UserError, match="features is 'volume'; give a list of names"):
        small(features="volume")


# Columns agents may buy, and columns that come and go


def ragged() -> pd.DataFrame:
    """200 days of five tickers and two indicators: 120 days to train on, 50 for validation, 30 held out.

    S0000 trades every day, S0001 lists on validation day 10, S0002 delists on training day 60, S0003 halts on training
    days 40 to 69, S0004 trades on the first day only.
    """
    prices = SyntheticMarket(days=200, columns=5, volatility=0.02, seed=3).generate()
    ticker, day = prices["ticker"], prices["date"].rank(method="dense").astype(int) - 1
    absent = (
        (ticker.eq("S0001") & (day < 130))
        | (ticker.eq("S0002") & (day >= 60))
        | (ticker.eq("S0003") & day.between(40, 69))
        | (ticker.eq("S0004") & (day > 0))
    )
    rng = np.random.default_rng(0)
    dates = np.sort(prices["date"].unique())
    empty = dict.fromkeys(("open", "high", "low", "volume"), np.nan)
    series = [
        pd.DataFrame({"date": dates, "ticker": name, **empty, "close": rng.normal(0, 1, 200).cumsum()})
        for name in ("RATE", "VIX")
    ]
    return pd.concat([prices[~absent], *series])


COLUMNS = ("RATE", "S0000", "S0001", "S0002", "S0003", "S0004", "VIX")


def trading(tmp_path: Path, **changes: Any) -> MarketDataModule:
    path = tmp_path / "prices.parquet"
    ragged().to_parquet(path)
    options = {"synthetic": None, "path": str(path), "cache_dir": str(tmp_path), "indicators": ["VIX", "RATE"]}
    rules = TradingRules(max_holding_days=5, max_opens_per_day=5, min_target=900, max_target=1000)
    data = small(**{**options, "rules": rules, **changes})
    data.setup("fit")
    data.build(AGENTS, torch.device("cpu"))
    return data


def orders(data: MarketDataModule, column: int | None, start: int, days: int) -> tuple[float, float, set[str]]:
    """Order an investable column, or each (None), on a window's first day; return trades, gain and why they closed."""
    env, reasons = data.eval_env, set()
    env.reset(options=window_options([start] * env.windows, 1, days))
    action = torch.zeros(AGENTS, env.windows, *env.action_shape)
    action[:, :, slice(None) if column is None else column, 0] = 2.0
    for _ in range(days - 1):
        observation, reward, *_, info = env.step(action)
        reasons |= {CLOSE_REASONS[reason] for reason in info["closes"].reason}
        assert torch.isfinite(reward).all()
        assert all(torch.isfinite(value.float()).all() for value in data.network_inputs(observation).values())
    trades, gain = (float(env.get_episode_summary()[name][0]) / env.windows for name in ("trades", "gain_pct"))
    return trades, gain, reasons


def test_ragged_columns_trade_when_they_are_listed(tmp_path: Path) -> None:
    data = trading(tmp_path)
    assert data.panel.tickers == COLUMNS
    # listed on day 130: filled from its eve's close on only if it had a price to decide by
    assert orders(data, 1, start=100, days=8)[0] == 0
    assert orders(data, 1, start=130, days=8)[0] == 1
    # delists on day 60 while held: sold after its five days, 30 % below its last price
    bars = data.panel.prices[:, COLUMNS.index("S0002")].astype(float)
    cost = (10 + 5) / 10_000
    gain = 100 * (0.7 * bars[59, 3] / bars[57, 0] * (1 - cost) / (1 + cost) - 1)
    assert orders(data, 2, start=56, days=12) == (1, pytest.approx(gain, rel=1e-4), {"delisted"})
    # halts on day 40 while held, for longer than it may be held
    assert orders(data, 3, start=36, days=12)[2] == {"halted"}
    assert orders(data, 3, start=70, days=12)[2] == {"holding"}
    # no price on any day of the window
    assert orders(data, 4, start=20, days=12)[0] == 0
    assert orders(data, None, start=80, days=12)[0] == 2


@pytest.mark.parametrize(
    ("universe", "columns", "words"),
    [
        (Universe(), [1, 2, 3, 4, 5], "5 investable of 7 columns, every ticker; indicators: RATE, VIX"),
        (Universe(tickers=["S0003", "S0000"]), [1, 4], "2 investable of 7 columns, named by data.investable.tickers"),
        # of 120 training days S0002 trades on 60, S0001 on none and S0004 on one
        (Universe(top=2), [1, 4], "2 investable of 7 columns, top 2 by median traded value of the training days"),
    ],
)
def test_investable_columns_are_those_of_the_environments(
    tmp_path: Path, universe: Universe, columns: list[int], words: str
) -> None:
    data = trading(tmp_path, investable=universe)
    assert data.investable_columns == columns
    assert data.describe()["columns"].startswith(words)
    for env in (data.eval_env, data.val_env):
        assert env.action_shape == (len(columns), 2)
    assert data.encoder.investable == columns
    # bought at the open of day 81, sold at the close of the fifth day, if there is one
    open_, close = data.panel.prices[81, columns, 0].astype(float), data.panel.prices[85, columns, 3].astype(float)
    cost = (10 + 5) / 10_000
    for column, gain in enumerate(100 * (close / open_ * (1 - cost) / (1 + cost) - 1)):
        assert orders(data, column, start=80, days=12)[1] == pytest.approx(np.nan_to_num(gain), rel=1e-4)
    needed = data.needed_bytes(AGENTS)
    assert needed["encoder"] == data.encoder.nbytes
    assert needed["environments"] == data.eval_env.nbytes + data.val_env.nbytes
    assert needed["prices"] == 4 * data.panel.prices.size  # mapped from a file


def test_prices_in_memory_are_no_longer_needed(tmp_path: Path) -> None:
    data = small()
    data.setup("fit")
    assert data.panel.folder is None
    assert data.needed_bytes(AGENTS)["prices"] == 0


def test_a_universe_that_does_not_fit_is_refused_at_setup() -> None:
    assert "data.investable.top is 4, but there are 3 tickers" in refusal(small(investable=Universe(top=4)))
    assert "'S0009', which the prices do not have" in refusal(small(investable=Universe(tickers=["S0009"])))
    assert "data.indicators has 'VIX'" in refusal(small(indicators=["VIX"]))
    both = small(investable=Universe(tickers=["S0001"]), indicators=["S0001"])
    assert "'S0001', which data.indicators declares an indicator" in refusal(both)


# What is refused


def refusal(data: MarketDataModule) -> str:
    with pytest.raises(UserError) as error:
        data.setup("fit")
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("fits", "changes", "parts"),
    [
        # 200 - 50 - 30 leave 120; context 100 + trading 15 + settlement 5 fill them
        (
            {"context_days": 100},
            {"context_days": 102},
            ("leave 120 to train on before 50", "context_days 102"),
        ),
        ({"validation_days": 20}, {"validation_days": 19}, ("there are 19 validation days,", "settlement_days 5 = 20")),
        ({}, {"validation_days": 150, "holdout_days": 50}, ("150", "50", "200")),
    ],
)
def test_too_few_days_are_refused(fits: dict[str, int], changes: dict[str, int], parts: tuple[str, ...]) -> None:
    small(**fits).setup("fit")
    message = refusal(small(**changes))
    assert not [part for part in parts if part not in message]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, 0) for name in ("context_days", "trading_days", "settlement_days", "validation_days")),
        *((name, -1) for name in ("holdout_days", "windows_per_generation", "exploration_windows")),
        *((name, 0) for name in ("validation_windows", "replay_capacity", "batch_size")),
        *(("replay_min_size", value) for value in (1, 401)),
    ],
)
def test_settings_out_of_range_are_refused(name: str, value: int) -> None:
    with pytest.raises(UserError, match=rf"^data\.{name} is {value}\b[^\n]*$"):
        small(**{name: value})
    with pytest.raises(UserError, match=r"^data\.path prices\.csv and data\.synthetic are both given[^\n]*$"):
        small(path="prices.csv")


def test_the_sample_is_the_default(tmp_path: Path) -> None:
    data = MarketDataModule(cache_dir=str(tmp_path))
    data.setup("fit")
    assert data.describe()["prices"] == "sample shipped with eigen2"
    assert_inside_training(data, data.training_options(0, 0))


def test_a_short_table_gets_shorter_windows_by_default_and_the_configuration_says_which() -> None:
    data = MarketDataModule(synthetic=SyntheticMarket(days=335, columns=3), trading_days=30)
    data.setup("fit")
    assert (data.context_days, data.trading_days, len(data.panel.splits.holdout)) == (33, 30, 67)
    assert data.config()["context_days"] == 33
    assert data.config()["holdout_days"] is None  # a test's table may be longer
    data.setup("test")  # again, as for a test after a fit
    assert (data.context_days, data.trading_days) == (33, 30)
