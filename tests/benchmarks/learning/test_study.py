"""The study at tiny size: data of the folds, keys of rows, and summaries."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks.harness import FIGURES, Task
from benchmarks.learning import study, study_tables
from benchmarks.learning.study import Table
from eigen2.errors import UserError
from eigen2.market import performance
from eigen2.market.datamodule import MarketDataModule
from eigen2.market.simulation.portfolio import PortfolioEnvironment
from eigen2.market.simulation.simulate import Simulation
from eigen2.market.synthetic.generator import SyntheticMarket

DATA = {"context_days": 10, "trading_days": 15, "settlement_days": 5, "validation_days": 30}
DATA |= {"windows_per_generation": 2, "exploration_windows": 1}
DATA |= {"replay_capacity": 500, "replay_min_size": 60, "batch_size": 3}
FOLDS, TEST_DAYS, DAYS, COLUMNS = 2, 30, 200, 5
SETTINGS: dict[str, Any] = {"data_dir": ".", "tables": ["made"], "seeds": 1, "generations": 2}


@pytest.fixture(scope="module")
def prices() -> pd.DataFrame:
    return SyntheticMarket(days=DAYS, columns=COLUMNS, seed=3).generate()


@pytest.fixture(scope="module")
def table(prices: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("study")
    prices.to_parquet(folder / "made.parquet", index=False)
    table = Table(Path("made.parquet"), FOLDS, TEST_DAYS, DATA)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "TABLES", {"made": table})
        patch.setattr(study, "RULES", replace(study.RULES, rebalance_days=5))
        patch.setattr(study, "MODEL", {"population_size": 3, "gradient_steps": 1, "accumulate": 1})
        patch.chdir(folder)
        yield table


@pytest.fixture(scope="module")
def days(prices: pd.DataFrame) -> list[str]:
    return [str(day)[:10] for day in sorted(prices["date"].unique())]


TrainedFold = tuple[dict[str, Any], list[torch.Tensor], dict[str, set[int]]]


def train_fold(table: Table, folder: Path) -> TrainedFold:
    """Return the row of the first fold, weights before the test, and the days left that networks observed by stage."""
    folder.mkdir()
    weights: list[torch.Tensor] = []
    days_left: dict[str, set[int]] = {"training": set(), "test": set()}
    policy, inputs = study.champion_policy, MarketDataModule.network_inputs

    def record_weights(module: Any, data: Any) -> Any:
        weights.extend([module.population.champion_actor.clone(), module.population.actor.detach().clone()])
        return policy(module, data)

    def record_days_left(self: Any, observation: dict[str, torch.Tensor]) -> Any:
        days_left["test" if weights else "training"].update(observation["days_left"].flatten().tolist())
        return inputs(self, observation)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "champion_policy", record_weights)
        patch.setattr(MarketDataModule, "network_inputs", record_days_left)
        return study.measure(Task("made fold 0"), SETTINGS, folder), weights, days_left


@pytest.fixture(scope="module")
def trained_fold(table: Table, tmp_path_factory: pytest.TempPathFactory) -> TrainedFold:
    return train_fold(table, tmp_path_factory.mktemp("trained") / "one")


def test_a_row_depends_on_prices_folds_and_settings(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    (task, _), bytes_before, keys = study.tasks(SETTINGS), table.path.read_bytes(), []
    monkeypatch.setattr(study, "MODEL", dict(study.MODEL))
    monkeypatch.setattr(study, "TABLES", {"made": Table(table.path, FOLDS, TEST_DAYS, dict(DATA))})
    for change in (
        lambda: None,
        lambda: study.MODEL.update(gamma=0.5),
        lambda: study.TABLES["made"].data.update(x=1),
        lambda: table.path.write_bytes(bytes_before + b"0"),
    ):
        change()
        keys.append(json.dumps(study.key(task, SETTINGS), default=repr))
    table.path.write_bytes(bytes_before)
    assert len(set(keys)) == 4


def test_folds_walk_forward(table: Table, days: list[str], tmp_path: Path) -> None:
    """Test spans follow each other to the last day; training and validation end before them."""
    for fold in range(FOLDS):
        data = study.fold_data(table, fold, tmp_path, tmp_path / "cache")
        data.setup("fit")
        dates, splits = [str(day) for day in data.panel.dates], data.panel.splits
        start = DAYS - (FOLDS - fold) * TEST_DAYS
        assert dates == days[: start + TEST_DAYS]
        assert splits.holdout == range(start, start + TEST_DAYS)
        assert splits.validation == (range(start - 30, start),)
        assert splits.train == (range(start - 30),)


def test_training_and_validation_do_not_use_test_days(
    trained_fold: TrainedFold, prices: pd.DataFrame, days: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = days[DAYS - FOLDS * TEST_DAYS]
    later = prices["date"] >= pd.Timestamp(first)
    altered = prices.copy()
    factor = np.random.default_rng(0).uniform(0.7, 1.4, int(later.sum()))
    for column in ("open", "high", "low", "close"):
        altered.loc[later, column] *= factor
    altered.to_parquet(tmp_path / "made.parquet", index=False)
    monkeypatch.chdir(tmp_path)
    (row, weights, _), (other, same_weights, _) = trained_fold, train_fold(study.TABLES["made"], tmp_path / "other")
    assert row["champion_generation"] >= 0
    assert row["test"]["first"] == first
    for one, two in zip(weights, same_weights, strict=True):
        assert torch.equal(one, two)
    assert row["validation_fitness"] == other["validation_fitness"]
    assert row["returns"]["champion"] != other["returns"]["champion"]


def test_a_row_covers_the_test_days_only(trained_fold: TrainedFold, prices: pd.DataFrame, days: list[str]) -> None:
    row, _, days_left = trained_fold
    assert row["policies"].keys() == row["returns"].keys() == {"champion", *study_tables.NAMES}
    assert row["rank_ic"].keys() == {*study_tables.RANKERS}
    assert all(-1 <= value <= 1 for value in row["rank_ic"].values())
    assert row["dates"] == days[DAYS - FOLDS * TEST_DAYS : DAYS - TEST_DAYS]
    assert row["test"] == {"first": row["dates"][0], "last": row["dates"][-1]}
    by_day = prices.set_index(["date", "ticker"])
    bought = by_day.loc[pd.Timestamp(row["dates"][0]), "open"]
    sold = by_day.loc[pd.Timestamp(row["dates"][-1]), "close"]
    held_return = (sold / bought).mean() * 0.999 / 1.001 - 1  # 10 basis points a side
    assert row["policies"]["buy and hold"]["total_return"] == pytest.approx(held_return, rel=1e-5)
    assert row["policies"]["buy and hold"]["alpha"] == pytest.approx(0, abs=1e-9)
    assert days_left["test"] == {19}, "the champion always observes the days left on the first day of a training window"
    assert days_left["test"] < days_left["training"]
    assert json.loads(row["settings"])["data.rules.cost_bps"] == 10


def test_measures_are_means_over_accounts() -> None:
    curves = np.array([[100.0, 110, 121], [100, 100, 100]])
    run = Simulation(curves, 0 * curves, np.array([200.0, 0]), np.array([2, 0]), pd.DataFrame())
    found = study.mean_measures(run, run.returns)
    assert found["total_return"] == pytest.approx(0.105)
    assert found["trades"] == 1
    assert found["turnover"] == pytest.approx(200 / 2 / curves[0].mean() * 126 / 2)


def test_measures_follow_from_the_returns_of_the_tables(trained_fold: TrainedFold) -> None:
    rows = [{**trained_fold[0], "commit": "abc", "seed": seed} for seed in range(2)]
    tables = study_tables.as_tables(rows)
    market = rows[0]["returns"]["buy and hold"]
    for name in rows[0]["policies"].keys() - {"random"}:  # means of the measures of several accounts
        returns = tables["returns"].query("policy == @name and seed == 0")["return"].to_numpy()
        assert returns.dtype == np.float32
        own, others = (np.array(each, np.float64) for each in (returns, market))
        equity = np.cumprod([1.0, *1 + own])
        found = {measure: getattr(performance, measure)(equity) for measure in ("total_return", "max_drawdown")}
        found |= {"sharpe": performance.sharpe_ratio(own), "alpha": performance.alpha_beta(own, others)[0]}
        expected = {measure: rows[0]["policies"][name][measure] for measure in found}
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_a_command_computes_the_figures_from_the_shipped_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = {Task(f"t fold {n}", seed): row(n, seed, 0.1 * seed, 1.0) for n in range(2) for seed in range(3)}
    benchmark = study.BENCHMARKS["study"]
    expected = {"machine": {"cores": 2}, **benchmark.figures(measured)}
    for name, each in benchmark.tables(measured).items():
        each.sample(frac=1, random_state=0).to_parquet(tmp_path / f"study-{name}.parquet")
    (tmp_path / "study.json").write_text(json.dumps({"machine": {"cores": 2}, "tables": "of earlier rows"}))
    study_tables.recompute(tmp_path)
    assert json.loads((tmp_path / "study.json").read_text()) == expected


def test_shipped_figures_follow_from_their_tables(tmp_path: Path) -> None:
    names = ("study.json", "study-trainings.parquet", "study-returns.parquet")
    if not all((FIGURES / name).exists() for name in names):
        pytest.skip("the study was not measured yet")
    for name in names:
        shutil.copy(FIGURES / name, tmp_path)
    study_tables.recompute(tmp_path)
    assert (tmp_path / names[0]).read_text() == (FIGURES / names[0]).read_text()


def test_an_interrupted_training_leaves_no_row(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: PortfolioEnvironment, action: torch.Tensor) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(PortfolioEnvironment, "step", interrupted)
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        study.measure(Task("made fold 0"), SETTINGS, tmp_path)


def test_missing_and_short_tables_are_refused(table: Table, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"dow30 at .* --data-dir"):
        study.tasks({**SETTINGS, "data_dir": str(tmp_path), "tables": ["dow30"]})
    with pytest.raises(UserError, match="only 200 days for 9 folds"):
        study.fold_data(Table(table.path, 9, TEST_DAYS, DATA), 0, tmp_path, tmp_path)


def test_a_price_file_in_place_of_a_table(table: Table) -> None:
    assert list(study.selected_tables({**SETTINGS, "tables": ["made", "./made.parquet"]})) == ["made"]
    tasks = study.tasks({**SETTINGS, "tables": ["./made.parquet"], "seeds": 2})
    assert tasks == [Task(f"made fold {fold}", seed) for seed in range(2) for fold in range(4)]


def row(fold: int, seed: int, excess: float, jitter: float) -> dict[str, Any]:
    """Return a row whose champion earns `excess` more per year than every other policy."""
    generator = np.random.default_rng([fold, seed])
    market = generator.normal(0, 0.01, TEST_DAYS)
    ahead = {name: excess if name == "champion" else 0.0 for name in ("champion", *study_tables.NAMES)}
    return {
        **{"table": "t", "fold": fold, "seed": seed, "seconds": 1.0, "generations": 2, "commit": "abcdefgh"},
        **{"train": {"first": "a", "last": "b"}, "test": {"first": "c", "last": "d"}, "settings": "{}"},
        **{"test_days": TEST_DAYS, "columns": 5, "dates": [f"2000-{day:02}" for day in range(TEST_DAYS)]},
        "rank_ic": {name: 0.01 + excess * (name == "champion") for name in study_tables.RANKERS},
        "diagnostics": dict.fromkeys(study_tables.DIAGNOSTICS),
        "policies": {
            name: {**dict.fromkeys(study_tables.MEASURES, 1.0), "annual_return": 0.1 + each}
            for name, each in ahead.items()
        },
        "returns": {
            name: (market + each / 252 + jitter * generator.normal(0, 0.01, TEST_DAYS)).tolist()
            for name, each in ahead.items()
        },
    }


def summary_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return study_tables.summarise(**study_tables.as_tables(rows))


def test_a_summary_by_hand() -> None:
    rows = [row(fold, seed, 0.1 * seed, 0.0) for fold in range(2) for seed in range(2)]
    summary = summary_of(rows)
    assert summary == summary_of(rows[::-1])
    results = summary["tables"]["t"]
    excess = results["excess"]["ridge"]
    assert excess["annual_return"]["mean"] == pytest.approx(0.05)
    assert excess["daily"]["mean"] == pytest.approx(0.05, rel=1e-4)  # daily returns differ by the same each day
    assert excess["sharpe"] == {"mean": 0, "low": 0, "high": 0}
    assert results["policies"]["champion"]["annual_return"]["mean"] == pytest.approx(0.15)
    assert [fold["annual_return"]["champion"] for fold in results["folds"]] == pytest.approx([0.15, 0.15])
    assert results["rank_ic"]["champion"]["mean"]["mean"] == pytest.approx(0.06)
    assert results["rank_ic"]["ridge"]["mean"] == pytest.approx({"mean": 0.01, "low": 0.01, "high": 0.01})
    assert results["rank_ic"]["ridge"]["champion_less"]["mean"] == pytest.approx(0.05)
    lines = study_tables.rank_ic_table(summary).splitlines()
    assert lines[2].startswith("| t | champion | 0.0600 (0.0")
    assert lines[4].startswith("| t | ridge | 0.0100 | 0.0500 (0.0")
