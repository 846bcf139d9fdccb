"""The benchmarks of learning at tiny size, and the pages that say what they measured."""

import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from benchmarks.learning import control_tables as control_results
from benchmarks.learning import oracle, planted
from benchmarks.learning import tables as learning_results
from benchmarks.learning.planted import merged
from benchmarks.machine import ROOT
from eigen2.erl.module import ERLModule
from eigen2.market.datamodule import MarketDataModule
from eigen2.market.synthetic.generator import SyntheticMarket

TINY = {"trading_days": 15, "settlement_days": 5, "replay_capacity": 4000, "replay_min_size": 100, "batch_size": 4}


@pytest.mark.parametrize("results", [learning_results, control_results], ids=["learning", "control"])
def test_the_page_says_what_was_measured(results: ModuleType) -> None:
    found = results.tables()
    page = results.PAGE.read_text()
    assert dict(re.findall(r"<!-- measured: (\w+) -->\n(.*?)\n<!-- end -->", page, re.DOTALL)) == found
    text = re.sub(r"<!-- measured.*?<!-- end -->", "", page, flags=re.DOTALL)
    numbers = [line for line in text.splitlines() if re.search(r"\| *[-+]?[\d,.]+ *(%? \||$)", line)]
    assert not numbers, "figures that nothing measured"


def row(seed: int, champion: float) -> dict[str, Any]:
    rules = {"random": 0.0, "momentum": 80.0, "filtered": 100.0, "informed": 200.0}
    return {"seed": seed, "champion": champion, "agents": champion - 10, "seconds": 120.0, "perfect": 50.0, **rules}


def test_tables_of_known_runs() -> None:
    runs = {"erl": [row(0, 90.0), row(1, 100.0)], "gradients alone": [row(0, 70.0), row(1, 90.0)]}
    main = learning_results.planted_table(runs)
    assert "| erl | 95 | 119 % | 95 % | 2.0 | 85 | 90 | 100 |" in main.splitlines()
    apart = "+15 | +10 to +20 | -49 to +79"  # 5 is the standard error, 12.71 the quantile of one degree of freedom
    against = learning_results.against_table(runs).splitlines()
    assert f"| gradients alone | {apart} | {apart} | 2 and 2 of 2 |" in against
    fresh = learning_results.fresh_table(runs).splitlines()
    assert "| erl | 95 | 119 % | 95 % | 85 | 90, 100 |" in fresh
    changes = learning_results.ablation_table({**runs, "better": [row(0, 91.0), row(1, 103.0)]}).splitlines()
    assert changes[2:] == [
        "| better | +1 | +3 | +1 | +3 |",
        "| gradients alone | -20 | -10 | -20 | -10 |",
    ]
    heads = [f"{who}, market {market}" for who in ("all agents", "champion") for market in (0, 1)]
    assert f"| {' | '.join(['change', *heads])} |" in changes
    partly = learning_results.ablation_table({**runs, "better": [row(0, 91.0)]}).splitlines()
    assert "| better | +1 |  | +1 |  |" in partly
    assert merged({"a": [row(0, 1.0), row(2, 2.0)]}, {"a": [row(1, 3.0), row(0, 4.0)], "b": [row(5, 5.0)]}) == {
        "a": [row(0, 4.0), row(1, 3.0), row(2, 2.0)],
        "b": [row(5, 5.0)],
    }
    told = {"tomorrow": [row(0, 45.0), row(1, 47.0)], "without": [row(0, -5.0), row(1, 5.0)]}
    assert "| tomorrow | 46 | 92 % | +46 (+42 to +50) |" in learning_results.oracle_table(told).splitlines()


def test_tables_of_known_control_runs() -> None:
    runs = {
        "1": {"champion": [1.0, 320.0], "env_steps": [1000.0, 2000.0], "goal_at_env_steps": 1000.0},
        "2": {"champion": [7.0], "env_steps": [900.0], "goal_at_env_steps": None},
    }
    swimmer = control_results.goal_table({"goal": 300.0, "runs": runs}).splitlines()
    assert swimmer[2:] == ["| 1 | 320.0 | 2,000 | 1,000 |", "| 2 | 7.0 | 900 | never |"]
    ours, theirs = (
        [{"return": value, "steps_per_s": speed, "steps_per_cpu_s": 2 * speed} for value in (-150.0, -160.0)]
        for speed in (30.0, 20.0)
    )
    found = {"runs": {"eigen2": ours, "other": theirs}, "ratios": {"steps_per_s": 1.5, "steps_per_cpu_s": 1.5}}
    pendulum = control_results.pendulum_table(found).splitlines()
    assert pendulum[2] == "| eigen2 | -155.0 | -150, -160 | 30.0 | 60.0 |"
    assert pendulum[-1] == "| ours over theirs, median of pairs |  |  | 1.50 | 1.50 |"


def test_rows_are_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def run(seed: int, generations: int, variant: dict[str, Any]) -> dict[str, Any]:
        asked.append(seed)
        return row(seed, 1.5)

    monkeypatch.setattr(planted, "run", run)
    found = [planted.kept_row(tmp_path / "rows", "erl", seed, 2) for seed in (3, 4, 3)]
    assert asked == [3, 4]
    assert found[0] == found[2]
    assert found[0]["champion"] == 1.5
    assert len(list((tmp_path / "rows").iterdir())) == 2


def test_every_variant_can_be_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """With networks of the sizes of the market: what would fail after an hour fails here."""
    for variant in planted.VARIANTS.values():
        module = ERLModule(**{"population_size": 4, **variant.get("model", {})})
        data = MarketDataModule(**{**planted.SIZES, **variant.get("data", {})})
        assert module.population_size == 4
        assert data.context_days in (64, 504)


def test_a_run_says_what_champion_and_rules_earn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planted, "MARKET", {"days": 220, "columns": 4, "signal": 2.0})
    monkeypatch.setattr(planted, "SIZES", {"context_days": 8, "validation_days": 30, "holdout_days": 40})
    small = {"model": {"population_size": 3, "gradient_steps": 1, "accumulate": 1}, "data": TINY}
    found = planted.run(5, 2, small)
    assert found["generations"] == 2
    assert found["informed"] > found["random"]
    assert found["agents"] != found["champion"]
    assert planted.run(5, 2, small)["champion"] == found["champion"]


def test_the_oracle_tells_the_return_of_another_day() -> None:
    prices = np.full((5, 2, 4), 100.0, np.float32)
    prices[:, 0, 3] = [101, 102, 103, 104, 105]
    gain = np.log(prices[..., 3] / prices[..., 0])
    for delay, days in ((-1, [1, 2, 3, 4, None]), (2, [None, None, 0, 1, 2])):
        told = oracle.returns_told(prices, delay) * gain.std()
        expected = [0.0 if day is None else gain[day, 0] for day in days]
        np.testing.assert_allclose(told[:, 0], expected, rtol=1e-5)
        assert (told[:, 1] == 0).all()


def test_the_perfect_rule_earns_what_can_be_earned() -> None:
    data = oracle.OracleRollouts(
        -1,
        synthetic=SyntheticMarket(seed=1, days=200, columns=3, signal=0.0),
        rules=oracle.RULES,
        validation_days=30,
        holdout_days=40,
        **{**oracle.SIZES, **TINY, "settlement_days": 2},
    )
    data.setup("fit")
    prices, total = data.panel.prices.astype(np.float64), []
    kept = (1 - oracle.RULES.side_cost) / (1 + oracle.RULES.side_cost)
    for start in planted.holdout_starts(data):
        days = range(start + 1, start + 1 + data.trading_days)
        best = np.array([100 * max(prices[day, :, 3] / prices[day, :, 0] * kept - 1) for day in days])
        total.append(5 * best.clip(0).sum())
    assert oracle.perfect_reward(data) == pytest.approx(np.mean(total), rel=1e-4)


@pytest.mark.slow
def test_the_oracle_is_used_and_the_past_is_not() -> None:
    told, past = (oracle.run(0, 8, name) for name in ("tomorrow", "past"))
    assert told["champion"] > 0.5 * told["perfect"]
    assert past["champion"] < 0.2 * past["perfect"]


def test_the_figures_are_of_the_benchmarks_as_they_are() -> None:
    for file in (learning_results.PLANTED, learning_results.ABLATIONS):
        if file.exists():
            kept = json.loads(file.read_text())
            assert kept["market"] == planted.MARKET, f"{file.relative_to(ROOT)} is of another market"
            assert kept["runs"].keys() <= planted.VARIANTS.keys()
