"""An index's past universe: the file, the days on which columns may be opened, and every policy on the same ones."""

import json
import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eigen2.errors import UserError
from eigen2.market.data.cache import load_panel
from eigen2.market.data.checks import survivors_line
from eigen2.market.data.panel import MarketPanel, build_panel
from eigen2.market.data.panel_rows import MEMBER, members
from eigen2.market.data.source import read_prices
from eigen2.market.data.universe import Universe, read_membership, resolve
from eigen2.market.datamodule import MarketDataModule
from eigen2.market.evaluation.backtest import Market, backtest
from eigen2.market.evaluation.information import forward_returns, information
from eigen2.market.evaluation.learnability import shuffle_columns
from eigen2.market.evaluation.rankers import fit_rankers
from eigen2.market.features.encoding import AverageEncoder
from eigen2.market.serving.gym import TradingEnv
from eigen2.market.serving.trader import Trader
from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.base import EpisodeSettings
from eigen2.market.simulation.policies import buy_and_hold, minimum_variance
from eigen2.market.simulation.portfolio import make_environment
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.simulate import simulate
from eigen2.market.simulation.windows import window_options
from eigen2.market.synthetic.generator import SyntheticMarket
from tests.command import eigen2
from tests.market.conftest import Fitted

MARKET = SyntheticMarket(days=200, columns=5, seed=2)
PRICES = MARKET.generate()
DATES = pd.DatetimeIndex(np.sort(PRICES["date"].unique()))
SIZES = {"validation_days": 40, "holdout_days": 40}


def spans(*rows: tuple[str, int, int | None]) -> pd.DataFrame:
    """A row for each ticker, first and last day, given by their places in the table."""
    days = [(name, DATES[first], pd.NaT if last is None else DATES[last]) for name, first, last in rows]
    return pd.DataFrame(days, columns=["ticker", "first", "last"])


def written(folder: Path, *rows: tuple[str, int, int | None]) -> Path:
    spans(*rows).to_csv(folder / "members.csv", index=False)
    return folder / "members.csv"


# S0000 leaves and comes back, S0001 joins in the holdout, S0002 leaves in it, S0003 is always in, S0004 never
SPANS = (("S0000", 0, 90), ("S0000", 150, None), ("S0001", 175, None), ("S0002", 0, 180), ("S0003", 0, None))


def panel(**options: object) -> MarketPanel:
    return build_panel(PRICES, **SIZES, membership=spans(*SPANS), **options)


# The file


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_the_file_is_read_sorted_with_open_ends(suffix: str, tmp_path: Path) -> None:
    table = pd.DataFrame(
        {
            "Ticker": ["TRUE", "600000", "AAPL", "AAPL"],
            "note": ["x"] * 4,
            "FIRST": ["2001-02-03", "2001-02-03", "2015-01-01", "2001-01-01"],
            "last": ["2002-01-01", None, "", "2009-12-31"],
        }
    )
    path = tmp_path / f"members.{suffix}"
    table.to_csv(path, index=False) if suffix == "csv" else table.to_parquet(path, index=False)
    found = read_membership(path)
    assert found["ticker"].tolist() == ["600000", "AAPL", "AAPL", "TRUE"]
    assert found["first"].dt.strftime("%Y-%m-%d").tolist() == ["2001-02-03", "2001-01-01", "2015-01-01", "2001-02-03"]
    assert found["last"].isna().tolist() == [True, False, True, False]


def test_times_of_day_count_as_days(tmp_path: Path) -> None:
    path = tmp_path / "members.csv"
    path.write_text("ticker,first,last\nA,2020-03-02 16:00,2020-06-01 09:30\n")
    found = read_membership(path)
    assert [*found["first"], *found["last"]] == [pd.Timestamp("2020-03-02"), pd.Timestamp("2020-06-01")]


def test_days_in_parquet_may_be_dates(tmp_path: Path) -> None:
    table = spans(("A", 3, 5), ("A", 9, None))
    table.to_parquet(tmp_path / "stamps.parquet", index=False)
    dates = table.assign(**{name: table[name].dt.date for name in ("first", "last")})
    dates.to_parquet(tmp_path / "dates.parquet", index=False)
    for name in ("stamps", "dates"):
        found = read_membership(tmp_path / f"{name}.parquet")
        pd.testing.assert_frame_equal(found, table.astype(found.dtypes))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ticker,first\nA,2001-01-01\n", "needs one column named last and has ticker, first: name them"),
        ("ticker,first,last\n", "has no rows: write a ticker and its first day"),
        ("ticker,first,last\nA,2001-01-01,\nB,soon,\n", "has in data row 2 the first day 'soon', which is no date"),
        ("ticker,first,last\nA,,2001-01-01\n", "has in data row 1 the first day '', which is no date"),
        ("ticker,first,last\nA,2001-01-01,31/12/2001\n", "the last day '31/12/2001', which is no date: write dates as"),
        ("ticker,first,last\n,2001-01-01,\n", "has in data row 1 no ticker: name it"),
        (
            "ticker,first,last\nA,2001-01-02,2001-01-01\n",
            "has a span of 'A' from 2001-01-02 to 2001-01-01: its first day is after the last: exchange them",
        ),
        (
            "ticker,first,last\nA,2001-01-01,2001-06-01\nB,2001-01-01,\nA,2001-06-01,\n",
            "has a span of 'A' from 2001-06-01 on: it overlaps with the span before: merge them",
        ),
        ("ticker,first,last\nA,2001-01-01,\nA,2003-01-01,2004-01-01\n", "it overlaps with the span before"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "members.csv"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read_membership(path)
    assert str(error.value).startswith(f"data.membership {str(path)!r} ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^data.membership: no price file at .*none.csv"):
        read_membership(tmp_path / "none.csv")


# The panel


def test_a_panel_says_on_which_days_columns_may_be_opened() -> None:
    found, plain = panel(), build_panel(PRICES, **SIZES)
    np.testing.assert_array_equal(found.prices[..., :MEMBER], plain.prices)
    np.testing.assert_array_equal(found.features, plain.features)
    expected = np.zeros((200, 5), bool)
    expected[:91, 0] = expected[150:, 0] = expected[175:, 1] = expected[:181, 2] = expected[:, 3] = True
    np.testing.assert_array_equal(members(found.prices), expected)
    assert members(plain.prices).all()
    assert found.covered == 1
    assert plain.covered is None
    assert found.content_hash != plain.content_hash


def test_tickers_without_prices_are_named_once_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Half of the members' days have prices; S0003 halts on the last half of its days."""
    path = written(tmp_path, ("S0003", 0, 99), ("GONE", 0, 49), ("LEFT", 50, 99))
    halted = PRICES[~((PRICES["ticker"] == "S0003") & (PRICES["date"] >= DATES[50]))]
    halted.to_parquet(tmp_path / "p.parquet", index=False)
    options = {**SIZES, "membership": path, "cache_dir": tmp_path / "cache"}
    for _ in range(2):  # built, and read from the cache
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            found = load_panel(tmp_path / "p.parquet", **options)
        assert caplog.messages == ["no prices of 2 of 3 tickers of data.membership: 'GONE', 'LEFT'"]
        assert found.covered == 0.25
        assert survivors_line(found.prices, -0.3, found.covered) == (
            "prices cover 25.0 % of the days of data.membership: results are too good by what the others lost"
        )
    with pytest.raises(UserError, match=r"the prices have none of the 1 tickers of data\.membership \('GONE'\)"):
        load_panel(tmp_path / "p.parquet", **{**options, "membership": written(tmp_path, ("GONE", 0, None))})


def test_whole_coverage_takes_the_place_of_the_warning_of_survivors() -> None:
    assert survivors_line(panel().prices, -0.3, 1.0) == "prices cover 100.0 % of the days of data.membership"
    dead = PRICES[~((PRICES["ticker"] == "S0002") & (PRICES["date"] > DATES[120]))]
    line = survivors_line(build_panel(dead, **SIZES).prices, -0.3, 1.0)
    assert line is not None
    assert line.startswith("4 of 5 tickers trade to the last day; positions in the others end 30 % below")


def test_a_ticker_that_never_was_a_member_is_context() -> None:
    assert resolve(Universe(), panel()) == [0, 1, 2, 3]
    assert len(resolve(Universe(top=4), panel())) == 4
    assert resolve(Universe(tickers=["S0003"]), panel()) == [3]
    with pytest.raises(UserError, match=r"data\.investable\.top is 5, but there are 4 tickers to choose from"):
        resolve(Universe(top=5), panel())
    with pytest.raises(UserError, match=r"data\.investable\.tickers has 'S0004', which data\.membership does not have"):
        resolve(Universe(tickers=["S0003", "S0004"]), panel())
    with pytest.raises(UserError, match="no ticker is a member on a day of prices"):
        resolve(Universe(), build_panel(PRICES, **SIZES, membership=spans(("S0000", 0, None)), indicators=["S0000"]))


# The environments


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from(["next_open", "close"]))
def test_orders_are_those_of_a_policy_that_asks_for_members_alone(seed: int, allow_short: bool, execution: str) -> None:
    """What an agent asks of other columns has no effect: neither an order nor the loss of one to a better column."""
    rng, days = np.random.default_rng(seed), 40
    prices = SyntheticMarket(days=days, columns=6, missing=0.1, seed=seed % 1000).prices()
    may_open = rng.random((days, 6)) < 0.6
    limited = np.concatenate([prices, may_open[..., None].astype(np.float32)], axis=-1)
    rules = TradingRules(
        allow_short=allow_short, execution=execution, max_opens_per_day=2, max_holding_days=4, early_close=False
    )
    actions = torch.from_numpy(rng.uniform(-5 if allow_short else 0, 5, (days, 2, 3, 6, 2)).astype(np.float32))
    actions[..., 1] = 10 + 4 * actions[..., 1].abs()
    starts = [0, 5, 9]
    results = []
    for table, asks in ((limited, False), (prices, True)):
        env = make_environment(table, rules, 2, 3)
        env.reset(options=window_options(starts, 20, 25))
        rewards = []
        for step in range(24):
            action = actions[step].clone()
            if asks:
                allowed = torch.from_numpy(may_open[[start + step for start in starts]])
                action[..., 0] *= allowed
            rewards.append(env.step(action)[1])
        results.append((torch.stack(rewards), env.accounts.equity.copy()))
    assert torch.equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])
    assert results[0][0].any()


def test_a_position_outlasts_its_membership_unless_the_agent_closes_it() -> None:
    """Bought on the last day of membership, held as long as allowed, or closed by a size below 1, and not opened."""
    days = np.ones((12, 1, 5), np.float32)
    days[3:, :, MEMBER] = 0
    for early_close, size, held in ((False, 0.0, 5), (True, 5.0, 5), (True, 0.0, 1)):
        rules = TradingRules(max_holding_days=5, early_close=early_close)
        env = make_environment(days, rules, 1)
        env.record_agent(0)
        env.reset(options=window_options([2], 9, 10))
        for step in range(9):
            env.step(torch.tensor([5.0 if step == 0 else size, 50.0]).reshape(1, 1, 1, 2))
        trades = env.record.trades()
        assert len(trades) == 1
        assert trades["exit_day"][0] - trades["entry_day"][0] == held - (0 if held == 1 else 1)
    assert trades["reason"].tolist() == ["signal"]


def test_target_weights_sell_what_is_no_member_at_the_next_rebalancing() -> None:
    table = np.full((12, 3, 5), 100, np.float32)
    table[..., MEMBER] = 1
    table[5:, 0, MEMBER] = 0  # leaves
    table[:8, 2, MEMBER] = 0  # joins
    rules = TradingRules(mode="weights", rebalance_days=3, concentration=0, cost_bps=0, slippage_bps=0)
    env = make_environment(table, rules, 1)
    observation, _ = env.reset(options=window_options([0], 12, 12))
    weights = []
    for _ in range(4):
        observation, *_ = env.step(torch.zeros(1, 1, 3, 1))
        weights.append([round(weight, 2) for weight in observation["weight"].flatten().tolist()])
    assert weights[:3] == [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 1, 0]]  # decided on days 0, 3 and 6
    assert weights[3] == [0, 0, 0]  # the last day sells
    assert env.accounts.equity[0] == pytest.approx(100_000)


# All policies


def members_in_holdout() -> tuple[Market, AverageEncoder]:
    found = panel()
    rules, account = TradingRules(max_holding_days=3, max_opens_per_day=2), AccountRules(unit_share=0.05)
    columns = resolve(Universe(), found)
    encoder = AverageEncoder(found, columns, 20, EpisodeSettings(rules, account, 15, 5))
    holdout = found.splits.holdout
    days = range(holdout.start - 1, holdout.stop)
    scores = fit_rankers(encoder, found, 3, days)
    return Market(found.prices[:, columns], rules, account, days, found.dates, scores=scores), encoder


def eager(seen: dict[str, Tensor]) -> Tensor:
    """Order every column, every day."""
    shape = seen["held_days"].shape
    return torch.tensor([5.0, 50.0]).expand(*shape, 2)


def test_every_policy_buys_members_alone() -> None:
    market, _ = members_in_holdout()
    may_open = members(market.prices)
    result = backtest(market, eager, [eager], 10, 1, np.random.default_rng(0), policies=20)
    assert {"champion", "momentum", "ridge", "LightGBM", "random"} <= {*result.simulations}
    for name in ("champion", "momentum", "ridge", "LightGBM", "random"):
        closed = result.simulations[name].closed
        assert len(closed) > 5
        assert may_open[closed["entry_day"] - 1, closed["column"]].all(), name
    # S0001 joins on day 175, S0002 leaves after day 180
    champion = result.champion.closed
    assert champion.loc[champion["column"] == 1, "entry_day"].min() == 176
    assert champion.loc[champion["column"] == 2, "entry_day"].max() in (179, 180, 181)  # held for three days each
    bought = result.simulations["buy and hold"].closed
    assert bought["column"].tolist() == [0, 2, 3]  # members on the first day


def test_weights_of_the_baselines_are_of_members_alone() -> None:
    market, _ = members_in_holdout()
    rules = TradingRules(mode="weights", rebalance_days=1, concentration=100, cost_bps=0, slippage_bps=0)
    days = range(185, 195)  # S0002 has left
    run = simulate(market.prices, rules, market.account, days, minimum_variance(market.prices))
    without = np.delete(market.prices, 2, axis=1)
    alone = simulate(without, rules, market.account, days, minimum_variance(without))
    np.testing.assert_allclose(run.equity, alone.equity, rtol=1e-6)
    held = buy_and_hold(market.prices, rules, market.account, days).closed
    assert held["column"].tolist() == [0, 1, 3]


def test_learners_and_rank_ic_know_members_alone() -> None:
    market, encoder = members_in_holdout()
    may_open = members(market.prices)
    returns = forward_returns(market.prices, market.rules, 3)
    assert not np.isfinite(returns[~may_open]).any()
    assert abs(np.nanmean(returns[:-3], axis=1)).max() < 1e-9  # less the mean of the members
    for scores in market.scores.values():
        held = slice(market.days.start, market.days.stop)
        np.testing.assert_array_equal(np.isfinite(scores[held]), may_open[held])
    perfect = information(returns, market.prices, market.rules, market.days, [3])[3]
    assert perfect.mean == pytest.approx(1)
    assert perfect.coverage == 1
    assert encoder(observation(encoder, 178))["portfolio"][0, 0, :, 0].tolist() == [1, 1, 1, 1]
    inputs = encoder(observation(encoder, 190))
    assert inputs["portfolio"][0, 0, :, 0].tolist() == [1, 1, 0, 1]
    assert (inputs["draws"] >= 0).all()  # a position in it can be closed


def observation(encoder: AverageEncoder, day: int) -> dict[str, Tensor]:
    env = make_environment(
        panel().prices[:, encoder.investable], encoder.episode.rules, 1, account=encoder.episode.account
    )
    return env.reset(options=window_options([day], 5, 8))[0]


def test_shuffled_prices_keep_their_members() -> None:
    prices = panel().prices
    found = shuffle_columns(prices, np.random.default_rng(0))
    np.testing.assert_array_equal(members(found), members(prices))
    assert not np.allclose(found[1:, :, 3], prices[1:, :, 3])


# The module, and the commands


def test_the_module_trades_and_describes_members(tmp_path: Path) -> None:
    path = written(tmp_path, *SPANS)
    lengths = {"context_days": 20, "trading_days": 15, "settlement_days": 5, **SIZES}
    data = MarketDataModule(synthetic=MARKET, membership=str(path), **lengths)
    data.setup("fit")
    data.build(2, torch.device("cpu"))
    assert data.investable_columns == [0, 1, 2, 3]
    assert data.describe()["membership"] == f"{path}: 2 to 4 columns may be bought, 2.7 on average"  # 547 of 200 days
    assert data.needed_bytes(2)["encoder"] == data.encoder.nbytes
    assert data.config()["membership"] == str(path)
    without = MarketDataModule(synthetic=MARKET, **lengths)
    without.setup("fit")
    assert "membership" not in without.describe()
    assert data.settings()["prices"] != without.settings()["prices"]


def test_a_gymnasium_environment_shows_which_columns_may_be_ordered(tmp_path: Path) -> None:
    lengths = {"context_days": 20, "trading_days": 15, "settlement_days": 5, "validation_days": 40, "holdout_days": 40}
    env = TradingEnv(synthetic=MARKET, membership=written(tmp_path, *SPANS), split="holdout", **lengths)
    assert env.investable == [0, 1, 2, 3]
    for day, orderable in ((170, [1, 0, 1, 1]), (178, [1, 1, 1, 1])):
        observation, _ = env.reset(options={"start_idx": day})
        assert observation[env.layout["portfolio"]].reshape(4, -1)[:, 0].tolist() == orderable


def test_a_champion_is_tested_and_predicts_on_members(fitted: Fitted, tmp_path: Path) -> None:
    dates = np.sort(read_prices(fitted.prices)["date"].unique())
    last = {"S0000": 9, "S0001": None, "S0002": 9, "S0003": 250, "S0004": 9, "S0005": None}
    days = [pd.NaT if day is None else dates[day] for day in last.values()]
    path, left = tmp_path / "members.csv", {"S0001", "S0003", "S0005"}
    pd.DataFrame({"ticker": [*last], "first": dates[0], "last": days}).to_csv(path, index=False)
    checkpoint = fitted.run / "checkpoints" / "best.ckpt"
    root = ("--ckpt_path", checkpoint, "--trainer.default_root_dir", tmp_path)
    done = eigen2("test", *fitted.words, *root, "--data.membership", path)
    assert done.returncode == 0, done.stderr
    trades = pd.read_csv(tmp_path / "test" / "trades.csv", parse_dates=["entry_date"])
    assert {"S0001", "S0005"} & {*trades["ticker"]}
    assert {*trades["ticker"]} <= left
    assert (trades.loc[trades["ticker"] == "S0003", "entry_date"] <= dates[251]).all()
    survivors = json.loads((tmp_path / "test" / "summary.json").read_text())["survivors"]
    assert survivors == "prices cover 100.0 % of the days of data.membership"
    assert f"survivors    {survivors}" in done.stdout
    prices = read_prices(fitted.longer)
    trader = Trader.load(checkpoint)
    orders = trader.orders(prices, membership=path)
    bought = orders[orders["action"] == "buy"]
    assert {*bought["ticker"]} <= left
    assert (bought.loc[bought["ticker"] == "S0003", "date"] <= dates[250]).all()
    assert not {*trader.orders(prices).query("action == 'buy'")["ticker"]} <= left
    words = ("--ckpt_path", checkpoint, "--data.path", fitted.longer, "--output", tmp_path / "orders.csv")
    done = eigen2("predict", *words, "--data.membership", path)
    assert done.returncode == 0, done.stderr
    assert len(pd.read_csv(tmp_path / "orders.csv")) == len(orders)
