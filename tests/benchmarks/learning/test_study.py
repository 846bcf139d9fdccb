"""The study at tiny size: what a fold may see, what is run again, and what is said of it."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks.learning import study
from benchmarks.learning import study_tables as study_summary
from benchmarks.learning.study import Table, Tables, Task
from eigen2.market.simulation.environment import TradingEnvironment
from eigen2.market.synthetic.generator import SyntheticMarket

SETTINGS = {
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


@pytest.fixture(scope="module")
def prices() -> pd.DataFrame:
    return SyntheticMarket(days=DAYS, columns=COLUMNS, seed=3).generate()


@pytest.fixture
def made(prices: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    prices.to_parquet(tmp_path / "made.parquet", index=False)
    monkeypatch.setattr(study, "TABLES", {"made": Table(Path("made.parquet"), FOLDS, TEST_DAYS, SETTINGS)})
    monkeypatch.setattr(study, "MODEL", {"population_size": 3, "gradient_steps": 1, "accumulate": 1})
    monkeypatch.chdir(tmp_path)
    return Table(tmp_path / "made.parquet", FOLDS, TEST_DAYS, SETTINGS)


WORDS = ["--data-dir", ".", "--tables", "made", "--rows", "rows", "--generations", "2", "--seeds", "1"]


def days_of(prices: pd.DataFrame) -> list[str]:
    return [str(day)[:10] for day in sorted(prices["date"].unique())]


def test_rows_are_run_once_and_summed_up(
    made: Table, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study.main([*WORDS, "--part", "1", "2"])
    assert [file.name for file in Path("rows").glob("*")] == ["made-fold1-seed0.json"]
    assert "champions" not in capsys.readouterr().out
    study.main([*WORDS, "--out", "first.json"])
    assert {file.name for file in Path("rows").glob("*")} == {f"made-fold{fold}-seed0.json" for fold in range(FOLDS)}
    said = capsys.readouterr().out
    for words in study_summary.NAMES.values():
        assert re.search(rf"^made: the champions earned [\d.]+ points a year (more|less) than {words}, ", said, re.M)
    monkeypatch.setattr(study, "run", None)
    study.main([*WORDS, "--out", "second.json"])
    assert Path("first.json").read_text() == Path("second.json").read_text()
    with pytest.raises(SystemExit) as exit_:
        study.main([*WORDS, "--generations", "3"])
    assert exit_.value.code == 2
    assert "--rows" in capsys.readouterr().err


def test_folds_walk_forward(made: Table, prices: pd.DataFrame, tmp_path: Path) -> None:
    """Test spans follow each other to the last day; training and validation end before them."""
    days, tables = days_of(prices), Tables({"made": made}, tmp_path)
    for fold in range(FOLDS):
        data = tables.fold("made", fold)
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
        data.append(Tables({"made": made}, tmp_path / name).fold("made", 1))
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
        return study.run(Task("made", 0, 0), Tables({"made": table}, folder), generations=3), kept


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
    row = study.run(Task("made", 0, 0), Tables({"made": made}, tmp_path), generations=1)
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
    data = Tables({"made": made}, tmp_path).fold("made", 1)
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


def test_the_champion_is_told_of_days_left_as_in_training(
    made: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, set[int]] = {"training": set(), "test": set()}
    when = "training"
    tables = Tables({"made": made}, tmp_path)
    data = tables.fold("made", 0)
    inputs = type(data).network_inputs

    def noted(self: Any, seen: dict[str, torch.Tensor]) -> Any:
        told[when].update(seen["days_left"].flatten().tolist())
        return inputs(self, seen)

    def play(*given: Any) -> Any:
        nonlocal when
        when = "test"
        return play_all(*given)

    play_all = study.play_all
    monkeypatch.setattr(type(data), "network_inputs", noted)
    monkeypatch.setattr(study, "play_all", play)
    study.run(Task("made", 0, 0), tables, generations=1)
    assert told["test"] == {19}
    assert told["test"] < told["training"]


def test_costs_are_ten_basis_points_a_side() -> None:
    assert study.RULES.side_cost == 0.001


def test_an_interrupted_training_leaves_no_row(made: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    step = TradingEnvironment.step

    def interrupted(self: TradingEnvironment, action: torch.Tensor) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(TradingEnvironment, "step", interrupted)
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        study.main(WORDS)
    assert list(Path("rows").glob("*")) == []
    monkeypatch.setattr(TradingEnvironment, "step", step)


class TestOptions:
    def refused(self, words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
        with pytest.raises(SystemExit) as exit_:
            study.main(words)
        assert exit_.value.code == 2
        said = capsys.readouterr().err
        assert said.startswith("error: ")
        assert said.count("\n") == 1
        return said

    def test_without_the_tables(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for words in ([], ["--tables", "no/such.parquet"]):
            said = self.refused(words, capsys)
            assert "--tables" in said
            assert "--data-dir" in said
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        "words",
        [["--seeds", "0"], ["--generations", "0"], ["--out", "no/such/folder.json"], ["--part", "2", "2"]],
    )
    def test_bad_values(self, words: list[str], made: Table, capsys: pytest.CaptureFixture[str]) -> None:
        assert words[0] in self.refused([*WORDS, *words], capsys)

    def test_a_table_that_is_too_short(
        self, made: Table, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for folds, said in ((9, "too few for 9 folds"), (6, "leave no training day")):
            monkeypatch.setattr(study, "TABLES", {"made": Table(Path("made.parquet"), folds, TEST_DAYS, SETTINGS)})
            assert said in self.refused(WORDS, capsys)

    def test_own_prices(self, made: Table) -> None:
        chosen = study.chosen_tables(["made", "./made.parquet"], Path("."))
        assert list(chosen) == ["made"]
        (own,) = study.chosen_tables([str(made.path)], Path("elsewhere")).values()
        assert own == Table(made.path)

    def test_parts_are_run_in_processes_of_their_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        started: list[list[str]] = []

        class Child:
            def __init__(self, command: list[str], **rest: object) -> None:
                started.append(command)

            def wait(self) -> int:
                return len(started) - 2

        monkeypatch.setattr(study.subprocess, "Popen", Child)
        study.spread(2, ["--seeds", "3"])
        assert [command[3:] for command in started] == [["--seeds", "3", "--part", f"{i}", "2"] for i in range(2)]
        with pytest.raises(SystemExit):
            study.spread(1, [])


def row(fold: int, seed: int, excess: float, jitter: float) -> dict[str, Any]:
    """A row whose champion is ahead of all others by so much a year."""
    chance = np.random.default_rng([fold, seed])
    market = chance.normal(0, 0.01, TEST_DAYS)

    def policy(ahead: float) -> dict[str, Any]:
        returns = market + ahead / 252 + jitter * chance.normal(0, 0.01, TEST_DAYS)
        measures = dict.fromkeys(study_summary.MEASURES, 1.0)
        return {**measures, "annual_return": 0.1 + ahead, "returns": returns.tolist()}

    policies = {name: policy(excess if name == "champion" else 0) for name in ("champion", *study_summary.NAMES)}
    facts = {"train": ["a", "b"], "train_days": 9, "test": ["c", "d"], "test_days": TEST_DAYS, "columns": 5}
    meta = {"table": "t", "fold": fold, "seed": seed, "seconds": 1.0, "generations": 2, "commit": "abcdefgh"}
    return {**meta, **facts, "policies": policies}


class TestSummary:
    def verdict(self, rows: list[dict[str, Any]]) -> str:
        return next(study_summary.verdicts(study_summary.summarise(rows)))

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
            ([-0.3, 0.5], 3.0, "10.0 points a year more .* no 95 % interval leaves 0 out: not told apart from chance"),
        ],
    )
    def test_verdicts(self, excess: list[float], jitter: float, said: str) -> None:
        rows = [row(fold, seed, excess[seed], jitter) for fold in range(2) for seed in range(2)]
        assert re.search(said, self.verdict(rows))

    def test_one_seed_says_nothing_of_others(self) -> None:
        assert "over days leaves 0 out, that over seeds does not" in self.verdict([row(0, 0, 0.2, 0.001)])

    def test_figures_by_hand(self) -> None:
        rows = [row(fold, seed, 0.1 * seed, 0.0) for fold in range(2) for seed in range(2)]
        found = study_summary.summarise(rows)["tables"]["t"]
        excess = found["excess"]["momentum"]
        assert excess["annual_return"]["mean"] == pytest.approx(0.05)
        assert excess["daily"]["mean"] == pytest.approx(0.05)  # daily returns differ by the same each day
        assert excess["sharpe"] == {"mean": 0, "low": 0, "high": 0}
        assert found["policies"]["champion"]["annual_return"]["mean"] == pytest.approx(0.15)
        assert [fold["annual_return"]["champion"] for fold in found["folds"]] == pytest.approx([0.15, 0.15])

    def test_the_order_of_rows_does_not_matter(self) -> None:
        rows = [row(fold, seed, 0.1 * seed, 1.0) for fold in range(2) for seed in range(3)]
        assert study_summary.summarise(rows) == study_summary.summarise(rows[::-1])

    def test_every_table_has_a_row_for_everything(self) -> None:
        found = {
            **study_summary.summarise([row(0, 0, 0.1, 1.0)]),
            "machine": {**study.describe_machine(), "threads": 1},
        }
        text = study_summary.tables(json.loads(json.dumps(found)))
        assert text.keys() == study_summary.tables(None).keys()
        assert text["policies"].count("\n| t |") == 4
        assert text["excess"].count("\n| t |") == 3
        assert text["folds"].count("\n| t |") == 1


class TestPage:
    def test_every_figure_in_its_place_is_the_measured_one(self) -> None:
        page = study_summary.PAGE.read_text()
        places = re.findall(r"<!-- measured: (\w+) -->\n(.*?)\n<!-- end -->", page, re.DOTALL)
        found = study_summary.tables(study_summary.load())
        assert dict(places) == found
        measured = {line for text in found.values() for line in text.splitlines()}
        assert [line for line in page.splitlines() if line[:1] == "|" and line not in measured] == []
