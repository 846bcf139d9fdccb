"""What fit and validate leave of the champion: its money and its trades, and nothing of anyone else."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from eigen2.cli.main import main

ROOT = Path(__file__).parents[2]
SMALL = ["--config", "tests/small.yaml", "--trainer.max_epochs", "3"]
# six windows of 20 days on 30 validation days
WINDOWS, DAYS = 6, 20


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setattr(sys, "argv", ["cli.py"])
        main(["fit", *SMALL, "--data.account.initial_cash", "5000", "--trainer.default_root_dir", str(folder)])
    return folder


def tables(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    return pd.read_csv(folder / "champion" / "equity.csv"), pd.read_csv(folder / "champion" / "trades.csv")


def test_the_trades_are_the_champions_fitness(run: Path) -> None:
    equity, trades = tables(run)
    last = pd.read_csv(run / "metrics.csv").iloc[-1]
    assert set(equity["generation"]) == {last["champion/generation"]}
    idle = WINDOWS - trades["window"].nunique()
    earned = trades["reward"].sum() - 10 * idle  # rules.zero_trade_penalty
    assert earned / WINDOWS == pytest.approx(last["champion/validation_fitness"], rel=1e-5)
    np.testing.assert_allclose(trades["reward"], trades["coefficient"] * trades["gain_pct"], rtol=1e-5)


def test_the_money_is_that_of_the_trades(run: Path) -> None:
    equity, trades = tables(run)
    assert equity.groupby("window").size().tolist() == [DAYS] * WINDOWS
    by_window = equity.groupby("window")["equity"]
    assert (by_window.first() == 5000).all()
    profit = trades.groupby("window")["profit"].sum().reindex(range(WINDOWS), fill_value=0)
    np.testing.assert_allclose(by_window.last() - 5000, profit, rtol=1e-9, atol=1e-9)
    assert (equity["cash"] >= -1e-9).all()  # no leverage
    assert (equity["exposure"].groupby(equity["window"]).last() == 0).all()


def test_tickers_and_dates_have_their_names(run: Path) -> None:
    equity, trades = tables(run)
    assert set(trades["ticker"]) <= {f"S{column:04d}" for column in range(6)}
    assert (trades["entry_date"] <= trades["exit_date"]).all()
    assert trades["entry_date"].between(equity["date"].min(), equity["date"].max()).all()


def test_validate_writes_the_same_record(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["cli.py"])
    before = tables(run)
    for name in ("equity.csv", "trades.csv"):
        (run / "champion" / name).unlink()
    options = ["--data.account.initial_cash", "5000", "--trainer.default_root_dir", str(run)]
    main(["validate", "--config", "tests/small.yaml", *options, "--ckpt_path", "best"])
    for first, second in zip(before, tables(run), strict=True):
        pd.testing.assert_frame_equal(first, second, rtol=1e-6)


def test_a_new_run_moves_the_record_away(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["cli.py"])
    main(["fit", "--config", "tests/small.yaml", "--trainer.max_epochs", "1", "--trainer.default_root_dir", str(run)])
    assert (run / "earlier" / "1" / "champion" / "trades.csv").exists()
