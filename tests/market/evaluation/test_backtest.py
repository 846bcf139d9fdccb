"""Champions whose skill is known, on days that no fit has seen."""

import json
import math
from dataclasses import replace
from pathlib import Path

import empyrical
import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from eigen2.errors import UserError
from eigen2.files import Folder
from eigen2.market.evaluation.backtest import Backtest, Market, backtest, write
from eigen2.market.evaluation.information import forward_returns
from eigen2.market.evaluation.robustness import Leak, Robustness
from eigen2.market.intervals import Interval, over_trainings
from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.simulate import Policy
from eigen2.market.synthetic.generator import SyntheticMarket

pytestmark = pytest.mark.usefixtures("unchecked")
PRICES = SyntheticMarket(days=200, columns=20, signal=0.0, seed=3).prices()
DATES = pd.bdate_range("2020-01-01", periods=200).to_numpy().astype("datetime64[D]")
RULES = TradingRules(max_holding_days=5, early_close=False)
MARKET = Market(PRICES, RULES, AccountRules(unit_share=0.02), range(100, 200), DATES)


def ordering(score: np.ndarray) -> Policy:
    """Order, each day, the free column with the highest score of that day if it is above 0."""

    def policy(seen: dict[str, Tensor]) -> Tensor:
        day = int(seen["day"].flatten()[0])
        wanted = torch.from_numpy(score[day]) - 1e9 * (seen["held_days"][0] > 0)
        action = torch.zeros(*seen["held_days"].shape, 2)
        if wanted.max() > 0:
            action[0, 0, wanted.argmax()] = torch.tensor([5.0, 50.0])
        return action

    return policy


def at_random(seed: int) -> Policy:
    return ordering(np.random.default_rng(seed).random(PRICES.shape[:2]))


def clairvoyant() -> Policy:
    """Return a policy that knows what a position will gain until it has been held as long as it may."""
    entry, close = PRICES[..., 0].astype(np.float64), PRICES[..., 3].astype(np.float64)
    ahead = np.zeros_like(close)
    ahead[:-5] = close[5:] / entry[1:-4] - 1.01
    return ordering(ahead)


def judged(champion: Policy, policies: int = 100) -> Backtest:
    agents = [at_random(50 + i) for i in range(3)]
    return backtest(MARKET, champion, agents, 80, 7, np.random.default_rng(0), policies)


@pytest.fixture(scope="module")
def plain() -> Backtest:
    """Return the test of a champion that trades at random."""
    return judged(at_random(2))


def test_a_policy_that_knows_the_future_is_significant() -> None:
    found = judged(clairvoyant())
    assert found.luck["p_value"] == pytest.approx(1 / 101)
    assert found.luck["percentile"] == 100
    assert found.selection["deflated_sharpe"] > 0.95
    assert found.measures["champion"]["alpha"] > 1
    assert found.measures["champion"]["alpha p"] < 0.001
    assert found.measures["champion"]["information p"] < 0.001


def test_interest_on_cash_is_no_skill() -> None:
    """Random entries of a hundredth of the money earn little but interest, which is the risk-free rate."""
    few, rate = replace(MARKET, account=AccountRules(unit_share=1e-3)), 0.05 / 252
    plain, paid = (
        backtest(market, at_random(2), [at_random(1)] * 2, 80, 7, np.random.default_rng(0), policies=2)
        for market in (few, replace(few, account=replace(few.account, cash_rate_pct=5.0)))
    )
    assert paid.measures["champion"]["annual return"] > plain.measures["champion"]["annual return"] + 0.045
    excess = paid.champion.returns - rate
    assert paid.measures["champion"]["Sharpe"] == pytest.approx(252**0.5 * excess.mean() / excess.std(ddof=1))
    assert paid.measures["champion"]["Sharpe"] == pytest.approx(plain.measures["champion"]["Sharpe"], abs=0.2)
    assert paid.measures["champion"]["alpha p"] == pytest.approx(plain.measures["champion"]["alpha p"], abs=0.05)
    assert paid.selection["deflated_sharpe"] == pytest.approx(plain.selection["deflated_sharpe"], abs=0.05)


def test_interest_on_cash_does_not_say_that_the_past_order_of_agents_lasts(plain: Backtest) -> None:
    rng, interest = np.random.default_rng(0), 2e-4
    skill = 1e-3 * rng.standard_normal((160, 8)) * np.linspace(0.01, 1, 8)  # those that trade least vary least
    one = replace(plain, agents=skill)
    paid = replace(one, agents=skill + interest, risk_free=interest)
    assert paid.selection["overfitting"] == pytest.approx(one.selection["overfitting"], abs=1e-9)
    assert replace(one, agents=skill + interest).selection["overfitting"] < one.selection["overfitting"] - 0.2


def test_p_values_are_the_rank_among_the_random_baseline(plain: Backtest) -> None:
    random, champion = plain.simulations["random"], plain.champion
    assert abs(random.trades.mean() / champion.trades[0] - 1) < 0.05
    assert random.equity.shape == (100, 100)
    ends = random.equity[:, -1]
    for own in (ends.min() - 1, np.median(ends), ends[3], ends.max()):
        equity = np.append(champion.equity[:, :-1], [[own]], axis=1)
        ranked = replace(plain, simulations={**plain.simulations, "champion": replace(champion, equity=equity)})
        assert ranked.luck["p_value"] == (1 + (ends >= own).sum()) / 101
        assert ranked.luck["percentile"] == 100 * (ends < own).mean()
    # few policies by chance are better than most of those by chance
    assert 0.02 < plain.luck["p_value"] < 0.98


def test_measures_are_those_of_the_curve_that_is_written(tmp_path: Path, plain: Backtest) -> None:
    found = plain
    write(found, found.champion.closed, Folder(tmp_path), {"data.rules.cost_bps": 10.0})
    curves = pd.read_csv(tmp_path / "test" / "equity.csv", index_col="date", parse_dates=True)
    summary = json.loads((tmp_path / "test" / "summary.json").read_text())
    returns = curves.pct_change().iloc[1:]
    for policy in ("champion", "buy and hold", "momentum"):
        own, measures = returns[policy], summary["measures"][policy]
        assert measures["Sharpe"] == pytest.approx(empyrical.sharpe_ratio(own), rel=1e-6)
        assert measures["Sortino"] == pytest.approx(empyrical.sortino_ratio(own), rel=1e-6)
        assert measures["max drawdown"] == pytest.approx(-empyrical.max_drawdown(own), rel=1e-6)
        assert measures["beta"] == pytest.approx(empyrical.beta(own, returns["buy and hold"]), rel=1e-6)
        assert measures["total return"] == pytest.approx(curves[policy].iloc[-1] / curves[policy].iloc[0] - 1)
    trades = pd.read_csv(tmp_path / "test" / "trades.csv")
    assert len(trades) == summary["measures"]["champion"]["trades"]
    assert curves["champion"].iloc[-1] - curves["champion"].iloc[0] == pytest.approx(trades["profit"].sum())
    assert summary["days"] == {"first": str(DATES[101]), "last": str(DATES[199]), "count": 99}
    assert sorted(summary["random_returns"]) == summary["random_returns"]
    assert len(summary["random_returns"]) == 100
    text = found.text()
    assert max(map(len, text.splitlines())) <= 80
    own, theirs = (summary["luck"][name] for name in ("exposure", "random_exposure"))
    assert own == summary["measures"]["champion"]["exposure"] == pytest.approx(theirs, rel=0.1)
    exposures = f"exposure {100 * own:.1f} %, of random ones {100 * theirs:.1f} %"
    for words in ("max drawdown", "of 80 agents tried", "100 policies", exposures):
        assert words in text
    assert "could not be paid for" not in text
    assert found.scalars()["test/max_drawdown"] == summary["measures"]["champion"]["max drawdown"]


def test_numbers_that_do_not_exist_for_a_champion_that_never_trades_are_none() -> None:
    found = judged(ordering(np.zeros(PRICES.shape[:2])), policies=5)
    assert found.luck["p_value"] == 1
    summary = found.summary()
    assert summary["measures"]["champion"]["trades"] == 0
    assert summary["measures"]["champion"]["Sortino"] is None
    assert summary["measures"]["champion"]["alpha p"] is None
    assert summary["measures"]["buy and hold"]["information p"] is None
    assert summary["selection"]["deflated_sharpe"] is None
    assert "unknown" in found.text()


def test_a_test_with_other_checks_or_trainings_keeps_the_earlier_one(tmp_path: Path, plain: Backtest) -> None:
    root = Folder(tmp_path)
    seeds = replace(plain, trainings=np.array([0.1, np.nan, 0.2]))
    checked = replace(plain, checks=Robustness({}, {}, Leak(("2020-06-01",))))
    for found in (seeds, plain, plain, checked, plain):
        write(found, None, root, {"data.rules.cost_bps": 10.0})
    kept = [json.loads((tmp_path / f"test{which}" / "summary.json").read_text()) for which in ("-1", "-2", "-3", "")]
    assert [each["trainings"] for each in kept] == [[0.1, None, 0.2], *[plain.trainings.tolist()] * 3]
    assert [each["checks"] is None for each in kept] == [True, True, False, True]
    assert not (tmp_path / "test-4").exists()


def test_orders_that_could_not_be_paid_for_are_said() -> None:
    """Five positions of 50 % each do not fit into an account."""
    poor = replace(MARKET, account=AccountRules(unit_share=0.1))
    found = backtest(poor, at_random(2), [at_random(1)] * 2, 80, 7, np.random.default_rng(0), policies=2)
    unfunded = found.summary()["unfunded"]
    assert unfunded == 99 - found.champion.trades[0] > 20  # an order on each of the 99 days
    assert f"orders       {unfunded} could not be paid for" in found.text()


def test_learners_rank_and_trade_beside_the_champion(tmp_path: Path) -> None:
    """Scores that are the returns themselves rank without a fault and earn most; a champion without them does not."""
    ahead = forward_returns(PRICES, RULES, 5)
    knowing = replace(MARKET, scores={"ridge": ahead, "LightGBM": -ahead})
    found = backtest(knowing, at_random(2), [at_random(1)] * 2, 80, 7, np.random.default_rng(0), policies=2)
    assert found.information["ridge"][5].mean == pytest.approx(1)
    assert found.information["LightGBM"][5].mean == pytest.approx(-1)
    assert 0.2 < found.information["ridge"][1].mean < 0.8
    assert abs(found.information["champion"][5].t) < 3
    totals = {name: each["total return"] for name, each in found.measures.items()}
    assert totals["ridge"] > totals["1/N"] > totals["LightGBM"]
    assert found.scalars()["test/rank_ic_5"] == found.information["champion"][5].mean
    write(found, None, Folder(tmp_path), {})
    daily = pd.read_csv(tmp_path / "test" / "rank_ic.csv", index_col="date", parse_dates=True)
    np.testing.assert_allclose(daily["ridge 5"].dropna(), 1)
    assert daily["ridge 5"].isna().sum() == 5
    summary = json.loads((tmp_path / "test" / "summary.json").read_text())["information"]
    assert summary["ridge"]["5"]["years"] == pytest.approx({"2020": 1.0})
    text = found.text()
    assert max(map(len, text.splitlines())) <= 80
    assert [line[:8].strip() for line in text.splitlines()].count("LightGBM") == 2


def test_the_verdict_in_words() -> None:
    """A champion that knows the future beats 1/N; how it ranks beside ridge is told by the daily differences."""
    market = replace(MARKET, scores={"ridge": np.random.default_rng(3).normal(size=PRICES.shape[:2])})
    found = backtest(market, clairvoyant(), [at_random(1)] * 2, 80, 7, np.random.default_rng(0), policies=9)
    (own,), (equal,) = (found.simulations[name].equity for name in ("champion", "1/N"))
    ratio = (own[-1] / own[0]) / (equal[-1] / equal[0])  # over 99 days
    assert found.excess.mean == pytest.approx(252 / 99 * math.log(ratio))
    assert found.excess.low < found.excess.mean < found.excess.high
    assert f"{100 * ratio ** (252 / 99) - 100:+.1f} % a year beyond it, with a 95 % interval" in found.verdict
    assert "earn as much with p = 0.100" in found.verdict
    assert found.verdict in " ".join(found.text().split())
    ridge = found.information["ridge"]
    wiggle = np.tile([0.1, -0.1], 50)
    for shift, words in ((0.2, "better than"), (0.0, "no better and no worse than"), (-0.2, "worse than")):
        champion = {**ridge, 5: replace(ridge[5], daily=ridge[5].daily + shift + wiggle)}
        other = replace(found, information={"champion": champion, "ridge": ridge})
        assert f"It ranks the columns {words} a ridge regression: Rank IC {champion[5].mean:.3f}" in other.verdict
    worse = replace(found, excess=Interval(-0.02, -0.05, 0.01), information={"champion": ridge})
    assert "-2.0 % a year beyond it, with a 95 % interval from -4.9 to +1.0" in worse.verdict
    assert "was not compared" in worse.verdict
    same = replace(found, information={"champion": ridge, "ridge": ridge})
    assert "ranks the columns no better and no worse than a ridge regression" in same.verdict
    few = {5: replace(ridge[5], daily=np.where(np.arange(100) < 9, ridge[5].daily, np.nan))}
    assert "was not compared" in replace(found, information={"champion": few, "ridge": ridge}).verdict


def test_trainings_with_other_seeds_and_their_ensemble() -> None:
    """What each earned beyond 1/N, the interval over them, and an ensemble that trades as any policy."""
    others = [at_random(3), at_random(4)]
    champion, rng = at_random(2), np.random.default_rng(0)
    found = backtest(MARKET, champion, [at_random(1)] * 2, 80, 7, rng, 2, others=others, ensemble=others[0])
    alone = backtest(MARKET, others[0], [at_random(1)] * 2, 80, 7, np.random.default_rng(0), 2)
    assert found.trainings.shape == (3,)
    assert found.trainings[0] == pytest.approx(found.excess.mean)
    assert found.trainings[1] == pytest.approx(alone.excess.mean)
    np.testing.assert_array_equal(found.simulations["ensemble"].equity, alone.champion.equity)
    np.testing.assert_array_equal(found.information["ensemble"][5].daily, alone.information["champion"][5].daily)
    mean, low, high = (100 * math.expm1(value) for value in over_trainings(found.trainings))
    average = f"{mean:+.1f} on average, from {low:+.1f} to {high:+.1f}."
    assert f"over days, and 3 trainings with different seeds {average}" in found.verdict
    text = " ".join(found.text().split())
    own = [f"{100 * math.expm1(each):+.1f}" for each in found.trainings]
    assert f"by seed: {', '.join(own)}; their ensemble {own[1]}" in text
    assert max(map(len, found.text().splitlines())) <= 80
    assert found.summary()["trainings"] == found.trainings.tolist()
    assert len(alone.trainings) == 1
    assert "seed" not in alone.text()
    assert "ensemble" not in alone.text()


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        ({"SCIKIT_LEARN": False}, "minimum variance"),
        ({"LIGHTGBM": False, "SCIKIT_LEARN": False}, "LightGBM and minimum variance"),
    ],
)
def test_baselines_without_their_library_are_said(
    installed: dict[str, bool], said: str, monkeypatch: pytest.MonkeyPatch, plain: Backtest
) -> None:
    assert "minimum variance" in plain.simulations
    assert "left out" not in plain.text()
    for name, is_installed in installed.items():
        monkeypatch.setattr(f"eigen2.market.evaluation.backtest.HAS_{name}", is_installed)
    found = judged(at_random(2), 2)
    assert ("minimum variance" in found.simulations) == ("SCIKIT_LEARN" not in installed)
    lines = [line for line in found.text().splitlines() if line.startswith("left out")]
    assert lines == [f"left out     {said}: install the extra baselines"]


def test_one_day_is_no_test() -> None:
    with pytest.raises(UserError, match=r"^the holdout has 1 days; a test needs at least 2: raise data.holdout_days"):
        Market(PRICES, RULES, MARKET.account, range(198, 200), DATES)


def test_what_cannot_be_bought_on_the_first_day_is_named() -> None:
    ordered, filled = (str(DATES[MARKET.days.start + later])[:10] for later in (0, 1))
    lacking = f"lacks the close of {ordered} or the open of {filled}, by which the test begins"
    missing = PRICES[:, :1].copy()
    missing[MARKET.days.start + 1] = np.nan
    without = replace(MARKET, benchmark=("SPY", missing))
    with pytest.raises(UserError, match=f"^data.benchmark SPY {lacking}"):
        backtest(without, at_random(0), [at_random(1)], 1, 0, np.random.default_rng(0), 2)
    prices = PRICES.copy()
    prices[MARKET.days.start + 1] = np.nan
    with pytest.raises(UserError, match=f"^every investable ticker {lacking}"):
        backtest(replace(MARKET, prices=prices), at_random(0), [at_random(1)], 1, 0, np.random.default_rng(0), 2)


def test_a_benchmark_takes_the_place_of_the_market_in_alpha_and_beta(plain: Backtest) -> None:
    """A champion's alpha and beta against a benchmark are those of empyrical, and of the benchmark itself 0 and 1."""
    index = PRICES[:, :1] * np.float32(3)
    against = replace(MARKET, benchmark=("SPY", index), survivors="all 20 tickers trade to the last day: too good")
    found = backtest(against, at_random(2), [at_random(50 + i) for i in range(3)], 80, 7, np.random.default_rng(0), 5)
    assert [*found.simulations][:4] == ["champion", "buy and hold", "benchmark", "momentum"]
    np.testing.assert_array_equal(found.champion.equity, plain.champion.equity)
    benchmark = found.simulations["benchmark"].returns
    np.testing.assert_allclose(benchmark[1:-1], PRICES[102:-1, 0, 3] / PRICES[101:-2, 0, 3] - 1, rtol=1e-4, atol=1e-6)
    own, without = found.measures["champion"], plain.measures["champion"]
    assert own["beta"] == pytest.approx(empyrical.beta(found.champion.returns, benchmark), rel=1e-6)
    assert own["alpha"] == pytest.approx(empyrical.alpha(found.champion.returns, benchmark), rel=1e-6)
    assert found.measures["benchmark"]["beta"] == pytest.approx(1)
    assert found.measures["benchmark"]["alpha"] == pytest.approx(0, abs=1e-12)
    assert np.isnan(found.measures["benchmark"]["information ratio"])
    relative = {"alpha", "alpha t", "alpha p", "beta", "information ratio", "information t", "information p"}
    assert {name for name in own if own[name] != without[name]} == relative
    assert "benchmark" in found.curves()
    assert found.summary()["benchmark"] == "SPY"
    text = found.text()
    assert max(map(len, text.splitlines())) <= 80
    assert "benchmark    SPY: alpha, beta and information ratio are against it" in text
    assert "survivors    all 20 tickers trade" in text
    assert "benchmark" not in plain.text()
    assert "survivors" not in plain.text()
