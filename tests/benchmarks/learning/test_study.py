"""The study at tiny size: what a fold may see, what a row depends on, and how rows are summed up."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks.harness import Task, describe_machine
from benchmarks.learning import study, study_tables
from benchmarks.learning.study import Table
from eigen2.errors import UserError
from eigen2.market.datamodule import MarketDataModule
from eigen2.market.simulation.environment import TradingEnvironment
from eigen2.market.synthetic.generator import SyntheticMarket

DATA = {
    "context_days": 10,
    "trading_days": 15,
    "settlement_days": 5,
    "validation_days": 30,
    "windows_per_generation": 2,
    "exploration_windows": 1,
    "replay_capacity": 500,
    "replay_min_size": 60,
    "batch_size": 3,
}
FOLDS, TEST_DAYS, DAYS, COLUMNS = 2, 30, 200, 5
SETTINGS: dict[str, Any] = {"data_dir": ".", "tables": ["made"], "seeds": 1, "generations": 1}


@pytest.fixture(scope="module")
def prices() -> pd.DataFrame:
    return SyntheticMarket(days=DAYS, columns=COLUMNS, seed=3).generate()


@pytest.fixture
def made(prices: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    prices.to_parquet(tmp_path / "made.parquet", index=False)
    table = Table(Path("made.parquet"), FOLDS, TEST_DAYS, DATA)
    monkeypatch.setattr(study, "TABLES", {"made": table})
    monkeypatch.setattr(study, "MODEL", {"population_size": 3, "gradient_steps": 1, "accumulate": 1})
    monkeypatch.chdir(tmp_path)
    return table


def days_of(prices: pd.DataFrame) -> list[str]:
    return [str(day)[:10] for day in sorted(prices["date"].unique())]


def test_a_row_depends_on_prices_cuts_and_settings(made: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    (task, _), first = study.tasks(SETTINGS), []
    for change in (lambda: None, lambda: study.MODEL.update(gamma=0.5), lambda: study.TABLES["made"].data.update(x=1)):
        change()
        first.append(json.dumps(study.key(task, SETTINGS), default=repr))
    made.path.write_bytes(made.path.read_bytes() + b"0")
    first.append(json.dumps(study.key(task, SETTINGS), default=repr))
    DATA.pop("x")
    assert len(set(first)) == 4


def test_folds_walk_forward(made: Table, prices: pd.DataFrame, tmp_path: Path) -> None:
    """Test spans follow each other to the last day; training and validation end before them."""
    days = days_of(prices)
    for fold in range(FOLDS):
        data = study.fold_data(made, fold, tmp_path, tmp_path / "cache")
        data.setup("fit")
        dates, splits = [str(day) for day in data.panel.dates], data.panel.splits
        start = DAYS - (FOLDS - fold) * TEST_DAYS
        assert dates == days[: start + TEST_DAYS]
        assert splits.holdout == range(start, start + TEST_DAYS)
        assert splits.validation == range(start - 30, start)
        assert splits.train == range(start - 30)


def test_false_prices_are_days_without_trading(made: Table, prices: pd.DataFrame, tmp_path: Path) -> None:
    """A bar of another company on a test day: nobody trades on it, and on the others all is as it was."""
    days = days_of(prices)
    false = (prices["date"] == pd.Timestamp(days[-40])) & (prices["ticker"] == prices["ticker"].min())
    spoilt = prices.copy()
    spoilt.loc[false, ["open", "high", "low", "close"]] *= 5
    data = []
    for name, table in (("whole", prices), ("spoilt", spoilt)):
        table.to_parquet(made.path, index=False)
        (tmp_path / name).mkdir()
        data.append(study.fold_data(made, 1, tmp_path / name, tmp_path / name))
        data[-1].setup("fit")
    whole, clean = (each.panel.prices for each in data)
    assert np.isnan(clean[-40, 0]).all()
    differs = ~np.isclose(whole, clean, equal_nan=True).all(-1)
    assert np.argwhere(differs).tolist() == [[DAYS - 40, 0]]


def trained(prices: pd.DataFrame, table: Table, folder: Path) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """A row of the first fold, and what decided the champion's orders."""
    prices.to_parquet(table.path, index=False)
    folder.mkdir()
    kept: list[torch.Tensor] = []

    def seen(module: Any, data: Any) -> Any:
        kept.extend([module.population.champion_actor.clone(), module.population.actor.detach().clone()])
        return policy(module, data)

    with pytest.MonkeyPatch.context() as patch:
        policy = study.champion_policy
        patch.setattr(study, "champion_policy", seen)
        return study.measure(Task("made fold 0"), {**SETTINGS, "generations": 3}, folder), kept


def test_nothing_before_the_test_sees_its_days(made: Table, prices: pd.DataFrame, tmp_path: Path) -> None:
    days = days_of(prices)
    first = days[DAYS - FOLDS * TEST_DAYS]
    later = prices["date"] >= pd.Timestamp(first)
    altered = prices.copy()
    factor = np.random.default_rng(0).uniform(0.7, 1.4, int(later.sum()))
    for column in ("open", "high", "low", "close"):
        altered.loc[later, column] *= factor
    row, weights = trained(prices, made, tmp_path / "one")
    other, same_weights = trained(altered, made, tmp_path / "other")
    assert row["champion_generation"] >= 0
    assert row["test"][0] == first
    for one, two in zip(weights, same_weights, strict=True):
        assert torch.equal(one, two)
    assert row["validation_fitness"] == other["validation_fitness"]
    assert row["policies"]["champion"]["returns"] != other["policies"]["champion"]["returns"]


def test_a_row_is_the_tests_days_and_no_others(made: Table, prices: pd.DataFrame, tmp_path: Path) -> None:
    row = study.measure(Task("made fold 0"), SETTINGS, tmp_path)
    assert {len(found["returns"]) for found in row["policies"].values()} == {TEST_DAYS}
    days = days_of(prices)
    first, last = (days[DAYS - FOLDS * TEST_DAYS], days[DAYS - TEST_DAYS - 1])
    assert row["test"] == [first, last]
    by_day = prices.set_index(["date", "ticker"])
    bought, sold = by_day.loc[pd.Timestamp(first), "open"], by_day.loc[pd.Timestamp(last), "close"]
    held = (sold / bought).mean() * 0.999 / 1.001 - 1  # 10 basis points a side
    assert row["policies"]["buy and hold"]["total_return"] == pytest.approx(held, rel=1e-5)
    for found in row["policies"].values():
        assert np.prod(1 + np.array(found["returns"])) - 1 == pytest.approx(found["total_return"], abs=0.02)


def test_random_entries_turn_over_as_much_as_the_champion(made: Table, tmp_path: Path) -> None:
    """A champion that orders something every third day, in sizes for which there is money."""
    data = study.fold_data(made, 1, tmp_path, tmp_path)
    data.setup("fit")
    data.build(1, torch.device("cpu"))

    def every_third(seen: dict[str, torch.Tensor]) -> torch.Tensor:
        action = torch.zeros(*seen["held_days"].shape, 2)
        action[..., 0] = 2.0 * (seen["day"][..., None] % 3 == 0)
        action[..., 1] = 50.0
        return action

    tracks = study.play_all(every_third, data, np.random.default_rng(0))
    champion, random = tracks["champion"].measures(), tracks["random"].measures()
    assert champion["trades"] >= 6
    assert random["trades"] == pytest.approx(champion["trades"], rel=0.15)
    assert random["turnover"] == pytest.approx(champion["turnover"], rel=0.15)
    assert champion["turnover"] < tracks["momentum"].measures()["turnover"]


def test_the_champion_sees_days_left_as_in_training(
    made: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, set[int]] = {"training": set(), "test": set()}
    when = "training"
    inputs = MarketDataModule.network_inputs

    def noted(self: Any, observation: dict[str, torch.Tensor]) -> Any:
        seen[when].update(observation["days_left"].flatten().tolist())
        return inputs(self, observation)

    def play(*given: Any) -> Any:
        nonlocal when
        when = "test"
        return play_all(*given)

    play_all = study.play_all
    monkeypatch.setattr(MarketDataModule, "network_inputs", noted)
    monkeypatch.setattr(study, "play_all", play)
    study.measure(Task("made fold 0"), SETTINGS, tmp_path)
    assert seen["test"] == {19}
    assert seen["test"] < seen["training"]


def test_costs_are_ten_basis_points_a_side() -> None:
    assert study.RULES.side_cost == 0.001


def test_an_interrupted_training_leaves_no_row(made: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: TradingEnvironment, action: torch.Tensor) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(TradingEnvironment, "step", interrupted)
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        study.measure(Task("made fold 0"), SETTINGS, tmp_path)


def test_tables_that_are_not_there_are_refused(tmp_path: Path) -> None:
    for tables in (["dow30"], ["no/such.parquet"]):
        with pytest.raises(UserError, match=r"--tables .* --data-dir"):
            study.tasks({**SETTINGS, "data_dir": str(tmp_path), "tables": tables})


@pytest.mark.parametrize(("folds", "said"), [(9, "too few for 9 folds"), (6, "leave no training day")])
def test_a_table_that_is_too_short(made: Table, tmp_path: Path, folds: int, said: str) -> None:
    with pytest.raises(UserError, match=said):
        study.fold_data(Table(made.path, folds, TEST_DAYS, DATA), 0, tmp_path, tmp_path).setup("fit")


def test_prices_of_ones_own(made: Table) -> None:
    assert list(study.chosen_tables({**SETTINGS, "tables": ["made", "./made.parquet"]})) == ["made"]
    tasks = study.tasks({**SETTINGS, "tables": ["./made.parquet"], "seeds": 2})
    assert tasks == [Task(f"made fold {fold}", seed) for seed in range(2) for fold in range(4)]


def row(fold: int, seed: int, excess: float, jitter: float) -> dict[str, Any]:
    """A row whose champion is ahead of all others by so much a year."""
    generator = np.random.default_rng([fold, seed])
    market = generator.normal(0, 0.01, TEST_DAYS)

    def policy(ahead: float) -> dict[str, Any]:
        returns = market + ahead / 252 + jitter * generator.normal(0, 0.01, TEST_DAYS)
        measures = dict.fromkeys(study_tables.MEASURES, 1.0)
        return {**measures, "annual_return": 0.1 + ahead, "returns": returns.tolist()}

    policies = {name: policy(excess if name == "champion" else 0) for name in ("champion", *study_tables.NAMES)}
    facts = {"train": ["a", "b"], "train_days": 9, "test": ["c", "d"], "test_days": TEST_DAYS, "columns": 5}
    meta = {"table": "t", "fold": fold, "seed": seed, "seconds": 1.0, "generations": 2, "commit": "abcdefgh"}
    return {**meta, **facts, "policies": policies}


class TestSummary:
    def verdict(self, rows: list[dict[str, Any]]) -> str:
        return next(study_tables.verdicts(study_tables.summarise(rows)))

    @pytest.mark.parametrize(
        ("excess", "jitter", "said"),
        [
            (
                [0.2, 0.3],
                0.001,
                "earned 25.0 points a year more .* in 2 of 2 folds more; both 95 % intervals leave 0 out",
            ),
            ([-0.2, -0.3], 0.001, "25.0 points a year less .* in 0 of 2 folds more; both 95 % intervals leave 0 out"),
            ([0.2, 0.3], 3.0, "over seeds leaves 0 out, that over days does not"),
            (
                [-0.3, 0.5],
                3.0,
                "10.0 points a year more .* no 95 % interval leaves 0 out: not told apart from chance",
            ),
        ],
    )
    def test_verdicts(self, excess: list[float], jitter: float, said: str) -> None:
        rows = [row(fold, seed, excess[seed], jitter) for fold in range(2) for seed in range(2)]
        assert re.search(said, self.verdict(rows))

    def test_one_seed_says_nothing_of_others(self) -> None:
        assert "over days leaves 0 out, that over seeds does not" in self.verdict([row(0, 0, 0.2, 0.001)])

    def test_figures_by_hand(self) -> None:
        rows = [row(fold, seed, 0.1 * seed, 0.0) for fold in range(2) for seed in range(2)]
        found = study_tables.summarise(rows)["tables"]["t"]
        excess = found["excess"]["momentum"]
        assert excess["annual_return"]["mean"] == pytest.approx(0.05)
        assert excess["daily"]["mean"] == pytest.approx(0.05)  # daily returns differ by the same each day
        assert excess["sharpe"] == {"mean": 0, "low": 0, "high": 0}
        assert found["policies"]["champion"]["annual_return"]["mean"] == pytest.approx(0.15)
        assert [fold["annual_return"]["champion"] for fold in found["folds"]] == pytest.approx([0.15, 0.15])

    def test_the_order_of_rows_does_not_matter(self) -> None:
        rows = [row(fold, seed, 0.1 * seed, 1.0) for fold in range(2) for seed in range(3)]
        assert study_tables.summarise(rows) == study_tables.summarise(rows[::-1])

    def test_every_table_has_a_row_for_everything(self) -> None:
        machine = {"machine": {**describe_machine(), "threads": 1}}
        found = json.loads(json.dumps({**machine, **study_tables.summarise([row(0, 0, 0.1, 1.0)])}))
        text = {name: block.make(found) for name, block in study_tables.PAGE.blocks.items()}
        assert text["policies"].count("\n| t |") == 4
        assert text["excess"].count("\n| t |") == 3
        assert text["folds"].count("\n| t |") == 1
