"""Agents that decide on target weights: what they see, what their critic judges, and every command on their run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eigen2.core.export import load
from eigen2.core.networks import Sizes
from eigen2.core.onnx import write_onnx
from eigen2.core.replay import rounded_action
from eigen2.errors import UserError
from eigen2.market.data.panel import build_panel
from eigen2.market.data.panel_rows import orderable
from eigen2.market.data.source import read_prices
from eigen2.market.evaluation.backtest import Market, backtest
from eigen2.market.features.encoding import AverageEncoder
from eigen2.market.networks.columns import DRAWS, PORTFOLIO, ColumnActor, ColumnCritic, MarketSizes, TradeModel
from eigen2.market.serving.gym import TradingEnv
from eigen2.market.serving.orders import write_orders
from eigen2.market.serving.trader import Trader
from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.base import EpisodeSettings
from eigen2.market.simulation.policies import momentum, order_by_score
from eigen2.market.simulation.portfolio import PortfolioEnvironment
from eigen2.market.simulation.random_policies import random_baseline
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.simulate import Policy, simulate
from eigen2.market.simulation.windows import window_options
from eigen2.market.synthetic.ceiling import ceiling
from eigen2.market.synthetic.generator import SyntheticMarket, write_parquet
from tests.command import eigen2

RULES = TradingRules(mode="weights", rebalance_days=3)
COLUMNS = 6


def inputs_of(columns: int, batch: int = 2) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(columns)
    portfolio = torch.rand(batch, columns, len(PORTFOLIO["weights"]), generator=rng)
    portfolio[..., 0] = torch.arange(columns) % 3 > 0
    own = {"columns": torch.randn(batch, columns, 20, generator=rng), "market": torch.randn(batch, 5, generator=rng)}
    return {**own, "portfolio": portfolio, DRAWS: torch.zeros(batch, columns, dtype=torch.int16)}


@pytest.mark.parametrize("columns", [5, 500])
@pytest.mark.parametrize("short", [False, True])
def test_networks_of_any_width_rank_columns_whatever_their_order(columns: int, short: bool) -> None:
    inputs, rules = inputs_of(columns), replace(RULES, allow_short=short)
    torch.manual_seed(0)
    sizes = MarketSizes(
        {name: part.shape[1:] for name, part in inputs.items()}, (columns, 1), trade_model=TradeModel(rules)
    )
    actor, critic = ColumnActor(sizes), ColumnCritic(sizes)
    small = inputs_of(5)
    narrow = Sizes({name: part.shape[1:] for name, part in small.items()}, (5, 1))
    assert sum(p.numel() for p in ColumnActor(narrow).parameters()) == sum(p.numel() for p in actor.parameters())
    order = torch.randperm(columns)
    mixed = {name: part if name == "market" else part[:, order] for name, part in inputs.items()}
    score = actor(inputs)
    torch.testing.assert_close(actor(mixed), score[:, order], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(critic(mixed, score[:, order]), critic(inputs, score), atol=1e-4, rtol=1e-4)
    score = score.detach().requires_grad_()
    critic(inputs, score).sum().backward()
    assert score.grad is not None
    tradable = inputs["portfolio"][..., 0] > 0
    assert score.grad[~tradable].abs().max() == 0  # what cannot be traded has no say
    assert score.grad[tradable].abs().min() > 0
    nothing = {**inputs, "portfolio": torch.zeros_like(inputs["portfolio"])}
    assert torch.isfinite(torch.autograd.grad(critic(nothing, score).sum(), score)[0]).all()


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31), short=st.booleans(), execution=st.sampled_from(["next_open", "close"]))
def test_the_critic_judges_the_weights_that_the_account_takes(seed: int, short: bool, execution: Any) -> None:
    panel = build_panel(
        SyntheticMarket(days=60, columns=COLUMNS, seed=seed % 99).generate(), holdout_days=0, validation_days=9
    )
    rng, rules = np.random.default_rng(seed), replace(RULES, allow_short=short, execution=execution, cost_bps=90.0)
    panel.prices[rng.random(panel.prices.shape[:2]) < 0.2] = np.nan
    env = PortfolioEnvironment(panel.prices, rules, 3, 2, account=AccountRules(max_leverage=1.5))
    encoder = AverageEncoder(
        panel, list(range(COLUMNS)), 8, EpisodeSettings(rules, AccountRules(max_leverage=1.5), 20, 5)
    )
    observation, _ = env.reset(options=window_options([10, 30], 20, 25))
    for _ in range(6):
        inputs = encoder(observation)
        assert inputs["portfolio"].shape == (3, 2, *encoder.input_shapes["portfolio"])
        unit = rounded_action(torch.from_numpy(rng.uniform(-1, 1, (3, 2, COLUMNS, 1)).astype(np.float32)))
        judged = TradeModel(rules).taken(unit, inputs["portfolio"])[..., 0] / COLUMNS
        observation, _, _, _, info = env.step(env.native_action(unit))
        np.testing.assert_allclose(judged, info["weights"], atol=1e-6)
        held = env.accounts.shares.reshape(3, 2, COLUMNS) * env._bars[3]
        weight = held / env.accounts.equity.reshape(3, 2, 1)
        np.testing.assert_allclose(observation["weight"], weight, atol=1e-3)


# Baselines, a backtest, and the orders that are written


PRICES = SyntheticMarket(days=120, columns=COLUMNS, seed=3, missing=0.05).prices()
DATES = np.datetime64("2020-01-01") + np.arange(120)


def scoring(table: np.ndarray) -> Policy:
    scores = torch.from_numpy(table.astype(np.float32))[..., None]
    return lambda seen: scores[seen["day"].long()].expand(*seen["weight"].shape, 1)


def test_a_ranking_weighs_columns_by_their_rank() -> None:
    score = np.array([[5.0, np.nan, -1.0, 7.0, 0.0, 0.0]])
    seen = {"day": torch.zeros(1, 1, dtype=torch.int32), "weight": torch.zeros(1, 1, 6)}
    found = order_by_score(score, RULES)(seen)[0, 0, :, 0]
    assert found.tolist() == pytest.approx([0.6, -1, -0.6, 1, 0, 0])


def test_the_random_baseline_plays_the_same_scores_in_other_columns() -> None:
    table, days, rng = np.random.default_rng(0).uniform(-1, 1, PRICES.shape[:2]), range(40, 80), np.random.default_rng
    champion = simulate(PRICES, RULES, AccountRules(), days, scoring(table))
    np.testing.assert_allclose(champion.scores, table[40:79:3], atol=1e-6)
    policy = random_baseline(PRICES, RULES, AccountRules(), champion, days, 50, rng(1))
    scores = pd.DataFrame(champion.scores).where(orderable(PRICES)[40:79:3])
    carried, goes_on = scores.ffill().to_numpy(), scores.bfill().notna().to_numpy()
    for step, day in enumerate(range(40, 79, 3)):
        found, among = policy({"day": torch.full((1, 50), day)})[0, :, :, 0].numpy(), goes_on[step]
        among = among & np.isfinite(carried[step])
        own = np.sort(np.tile(carried[step, among], (50, 1)), axis=1)
        np.testing.assert_allclose(np.sort(found[:, among]), own, rtol=1e-6)
        assert len({tuple(row) for row in found}) > 15


def test_a_champion_that_knows_the_future_is_significant() -> None:
    ahead = np.zeros(PRICES.shape[:2])
    ahead[:-3] = np.nan_to_num(PRICES[3:, :, 3] / PRICES[:-3, :, 3]) - 1
    market = Market(PRICES, RULES, AccountRules(), range(30, 120), DATES)
    agents = [momentum(PRICES, RULES), scoring(np.zeros_like(ahead))]
    result = backtest(market, order_by_score(ahead, RULES), agents, 9, 1, np.random.default_rng(0), policies=99)
    assert result.luck["p_value"] == pytest.approx(0.01)
    measures = result.measures["champion"]
    assert measures["turnover"] > 10
    assert measures["exposure"] > 0.9  # with the last day, on which everything is sold
    assert np.isnan(measures["trades"])
    assert np.isnan(measures["hit rate"])
    json.dumps(result.summary(), allow_nan=False)
    assert "champion" in result.text()


def test_written_rows_are_the_targets_of_a_rebalancing() -> None:
    prices = np.full((6, 2, 4), 100, np.float32)
    prices[3, 1] = np.nan
    table = np.zeros((8, 2))
    table[0] = 1, -1
    names, free = ["A", "B"], replace(RULES, cost_bps=0.0, slippage_bps=0.0)
    rows = write_orders(prices, DATES[:6], names, free, AccountRules(), scoring(table), 0)
    first = 100 / (1 + np.exp(-8))
    found = rows[["action", "ticker"]].fillna("").agg(" ".join, axis=1).tolist()
    assert found == ["buy A", "buy B", "wait ", "wait ", "buy A", "hold B", "wait ", "wait "]
    expected = [first, 100 - first, np.nan, np.nan, 100, 100 - first, np.nan, np.nan]
    np.testing.assert_allclose(rows["stake_pct"], expected, rtol=1e-3)
    assert rows["reason"].tolist()[:3] == [
        "from 0.00 % of the equity, at the next open",
        "from 0.00 % of the equity, at the next open",
        "the next rebalancing is in 2 days",
    ]
    for days in range(1, 6):  # no row depends on later days
        short = write_orders(prices[:days], DATES[:days], names, free, AccountRules(), scoring(table), 0)
        pd.testing.assert_frame_equal(short, rows[rows["date"] <= DATES[days - 1]].reset_index(drop=True))


def test_an_order_without_a_price_at_the_next_open_is_said_to_be_unfilled() -> None:
    prices = np.full((7, 2, 4), 100, np.float32)
    prices[1, 0] = np.nan
    rows = write_orders(prices, DATES[:7], ["A", "B"], RULES, AccountRules(), scoring(np.zeros((9, 2))), 0)
    found = rows[["action", "ticker"]].fillna("").agg(" ".join, axis=1).tolist()
    assert found[:4] == ["buy A", "buy B", "unfilled A", "wait "]
    assert rows["date"].iloc[2] == DATES[1]
    assert "buy A" in found[4:], "it is ordered again"
    assert "buy B" not in found[4:]


def test_an_order_for_more_of_what_is_held_is_said_to_be_unfilled_on_the_day_after() -> None:
    prices, table = np.full((7, 2, 4), 100, np.float32), np.zeros((9, 2))
    prices[4, 0], table[3] = np.nan, (1, -1)
    rows = write_orders(prices, DATES[:7], ["A", "B"], RULES, AccountRules(), scoring(table), 0)
    assert rows[rows["date"] == DATES[4]]["action"].tolist() == ["unfilled", "wait"]
    for days in range(1, 7):  # no row depends on later days
        short = write_orders(prices[:days], DATES[:days], ["A", "B"], RULES, AccountRules(), scoring(table), 0)
        pd.testing.assert_frame_equal(short, rows[rows["date"] <= DATES[days - 1]].reset_index(drop=True))


def test_rows_end_where_the_equity_is_lost() -> None:
    prices, money = np.full((9, 2, 4), 100, np.float32), AccountRules(max_leverage=3.0)
    prices[2:] = 50
    rows = write_orders(prices, DATES[:9], ["A", "B"], RULES, money, scoring(np.zeros((11, 2))), 0)
    assert rows["date"].iloc[-1] == DATES[3]
    assert rows["reason"].iloc[-1] == "the equity is lost: all that is held is closed, and nothing follows"
    assert rows["action"].tolist() == ["buy", "buy", "wait", "wait", "wait"]


@pytest.mark.parametrize("leverage", [1.0, 0.6])
def test_columns_that_have_their_targets_are_held(leverage: float) -> None:
    """A third is no number of half precision, which observations have."""
    prices, money = np.full((9, 3, 4), 100, np.float32), AccountRules(max_leverage=leverage)
    rows = write_orders(prices, DATES[:9], ["A", "B", "C"], RULES, money, scoring(np.zeros((11, 3))), 0)
    rows = rows[rows["action"] != "wait"]
    assert rows["action"].tolist() == ["buy"] * 3 + ["hold"] * 6
    assert rows["stake_pct"].tolist() == pytest.approx([100 * leverage / 3] * 9)
    assert rows["reason"].iloc[-1] == "it has its target"
    assert rows["price"].iloc[-1] == 100


def test_columns_neither_held_nor_wanted_have_no_row() -> None:
    prices, rules = np.full((7, 3, 4), 100, np.float32), replace(RULES, allow_short=True)
    scores = np.zeros((9, 3))
    scores[3] = 1, -1, 0
    rows = write_orders(prices, DATES[:7], ["A", "B", "C"], rules, AccountRules(), scoring(scores), 0)
    rows = rows[~rows["reason"].str.startswith("the next rebalancing")]
    found = rows[["action", "ticker"]].fillna("").agg(" ".join, axis=1).tolist()
    assert found == ["wait ", "buy A", "sell B", "sell A", "buy B"]
    assert rows["reason"].iloc[0] == "nothing is held, and nothing with a price is wanted"


def test_the_ceiling_of_orders_is_refused() -> None:
    with pytest.raises(UserError, match=r"set data\.rules\.mode to orders"):
        ceiling(SyntheticMarket(days=200), RULES)


def test_gymnasium_steps_from_one_rebalancing_to_the_next() -> None:
    options: dict[str, Any] = {"synthetic": {"days": 200, "columns": 3}, "validation_days": 50, "holdout_days": 30}
    options |= {"context_days": 20, "trading_days": 15, "settlement_days": 5}
    env = TradingEnv(rules={"mode": "weights", "rebalance_days": 4}, **options)
    assert env.action_space.shape == (3,)
    observation, info = env.reset(options={"start_idx": 30})
    seen, over = [info["day"]], False
    while not over:
        assert env.observation_space.contains(observation)
        observation, _, over, _, info = env.step(np.ones(3, np.float32))
        seen.append(info["day"])
    assert seen == [30, 34, 38, 42, 49]
    assert info["summary"]["turnover"] == pytest.approx(1, rel=0.1)  # bought once, sold once


# As a user meets it


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fit on prices of a file, and return the folder of the run."""
    home = tmp_path_factory.mktemp("weights")
    write_parquet(SyntheticMarket(days=260, columns=COLUMNS, missing=0.02), home / "prices.parquet")
    done = eigen2("fit", *words(home), "--trainer.enable_progress_bar", True)
    assert done.returncode == 0, done.stderr
    assert "turnover" in done.stdout
    return home / "run"


def words(home: Path) -> list[object]:
    data = ["--data.synthetic", "null", "--data.path", home / "prices.parquet", "--data.replay_min_size", 60]
    rules = ["--data.rules.mode", "weights", "--data.rules.rebalance_days", 3, "--data.rules.max_opens_per_day", 1]
    return ["--config", "tests/small.yaml", *data, *rules, "--trainer.default_root_dir", home / "run"]


def test_a_fit_learns_and_records_its_champion(run: Path) -> None:
    metrics = pd.read_csv(run / "metrics.csv")
    assert (metrics["trading/turnover"] > 0).all()
    assert metrics["train/critic_loss"].iloc[-1] > 0
    assert metrics["fitness/money_correlation"].min() > 0.999
    equity = pd.read_csv(run / "champion" / "equity.csv")
    assert (equity.groupby("window")["equity"].first() == 100_000).all()
    assert [file.name for file in (run / "champion").iterdir()] == ["equity.csv"]
    champion = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
    last = equity.groupby("window")["equity"].last() / 100_000
    assert float(champion["population.champion_fitness"]) == pytest.approx(100 * np.log(last).mean(), rel=1e-9)


def test_a_test_compares_it_with_baselines(run: Path) -> None:
    done = eigen2("test", *words(run.parent), "--ckpt_path", "best")
    assert done.returncode == 0, done.stderr
    assert sorted(file.name for file in (run / "test").iterdir()) == ["equity.csv", "rank_ic.csv", "summary.json"]
    summary = json.loads((run / "test" / "summary.json").read_text())
    assert summary["measures"]["champion"]["exposure"] > 0.5
    assert len(set(summary["random_returns"])) > 100


def test_it_predicts_and_is_exported(run: Path, tmp_path: Path) -> None:
    path = ("--data.path", run.parent / "prices.parquet")
    done = eigen2("predict", "--trainer.default_root_dir", run, *path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = pd.read_csv(tmp_path / "orders.csv")
    sums = rows[rows["action"].isin(["buy", "sell"])].groupby("date")["stake_pct"].sum()
    assert len(sums) == 11  # of 31 days, every third
    assert sums.to_numpy() == pytest.approx(100, rel=1e-4)
    champion = load(run / "checkpoints" / "best.ckpt")
    champion.save(tmp_path / "export")
    again = Trader.load(tmp_path / "export").orders(read_prices(run.parent / "prices.parquet"))
    np.testing.assert_allclose(again["stake_pct"], rows["stake_pct"], rtol=1e-5)
    session = pytest.importorskip("onnxruntime").InferenceSession(
        write_onnx(champion.actor(), champion.sizes, tmp_path / "actor.onnx")
    )
    inputs = {name: torch.rand(2, *shape) for name, shape in champion.sizes.inputs.items()}
    names = {part.name for part in session.get_inputs()}
    (scores,) = session.run(["action"], {name: part.numpy() for name, part in inputs.items() if name in names})
    np.testing.assert_allclose(scores, champion.actor()(inputs).numpy(), atol=1e-5)
