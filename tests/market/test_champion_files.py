"""What fit, validate and test write of the champion, as a user meets it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from eigen2 import api
from tests.command import eigen2
from tests.market.conftest import Fitted

# six windows of 20 days on 30 validation days
WINDOWS, DAYS = 6, 20
pytestmark = pytest.mark.usefixtures("unchecked")
TESTED = {"summary.json", "equity.csv", "rank_ic.csv", "trades.csv"}


@pytest.fixture(scope="module")
def own(fitted: Fitted, tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    """Copy the run, so that it may be changed."""
    run = tmp_path_factory.mktemp("own") / "run"
    shutil.copytree(fitted.run, run)
    return fitted._replace(run=run)


def tables(run: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    return pd.read_csv(run / "champion" / "equity.csv"), pd.read_csv(run / "champion" / "trades.csv")


def refused(run: Fitted, command: str, *options: object) -> str:
    done = eigen2(command, *run.words, *options)
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("Seed set")]
    return line


# champion/


def test_the_record_is_the_champions_fitness(fitted: Fitted) -> None:
    equity, trades = tables(fitted.run)
    last = pd.read_csv(fitted.run / "metrics.csv").iloc[-1]
    assert set(equity["generation"]) == {last["champion/generation"]}
    by_window = equity.groupby("window")["equity"]
    idle = WINDOWS - trades["window"].nunique()
    # the mean log return in percent less rules.zero_trade_penalty, which is 10 basis points
    score = (100 * np.log(by_window.last() / by_window.first())).mean() - 0.1 * idle / WINDOWS
    assert score == pytest.approx(last["champion/validation_fitness"], rel=1e-6)
    # the reward is the profit in basis points of the equity at the close before the fill
    before = equity.set_index(["window", "date"])["equity"].groupby("window").shift()
    at_order = before.loc[list(zip(trades["window"], trades["entry_date"], strict=True))].to_numpy()
    np.testing.assert_allclose(trades["reward"], 1e4 * trades["profit"] / at_order, rtol=1e-9)
    assert set(trades["ticker"]) <= {f"S{column:04d}" for column in range(6)}
    assert (trades["entry_date"] <= trades["exit_date"]).all()
    assert trades["entry_date"].between(equity["date"].min(), equity["date"].max()).all()


def test_the_money_is_that_of_the_trades(fitted: Fitted) -> None:
    equity, trades = tables(fitted.run)
    assert equity.groupby("window").size().tolist() == [DAYS] * WINDOWS
    by_window = equity.groupby("window")["equity"]
    assert (by_window.first() == 5000).all()
    profit = trades.groupby("window")["profit"].sum().reindex(range(WINDOWS), fill_value=0)
    np.testing.assert_allclose(by_window.last() - 5000, profit, rtol=1e-9, atol=1e-9)
    assert (equity["cash"] >= -1e-9).all()  # no leverage
    assert (equity["exposure"].groupby(equity["window"]).last() == 0).all()


def test_validate_writes_the_same_record_and_reports_other_settings(own: Fitted) -> None:
    before = tables(own.run)
    for name in ("equity.csv", "trades.csv"):
        (own.run / "champion" / name).unlink()
    words = ("validate", *own.words, "--ckpt_path", "best")
    same = eigen2(*words)
    assert same.returncode == 0, same.stderr
    for first, second in zip(before, tables(own.run), strict=True):
        pd.testing.assert_frame_equal(first, second, rtol=1e-6)
    other = eigen2(*words, "--data.rules.cost_bps", 50)
    assert other.returncode == 0, other.stderr
    warning = "validated with other settings than those of the fit: data.rules.cost_bps 10.0, now 50.0"
    assert "other settings" not in same.stderr
    assert warning in other.stderr.splitlines()


# test/


def test_the_champion_is_tested_on_the_holdout_and_an_earlier_test_is_kept(own: Fitted) -> None:
    words, test = ("test", *own.words, "--ckpt_path", "best"), own.run / "test"
    metrics = (own.run / "metrics.csv").read_text()
    done = eigen2(*words)
    assert done.returncode == 0, done.stderr
    summary = json.loads((test / "summary.json").read_text())
    assert summary["days"]["count"] == 30
    assert summary["luck"]["policies"] == 2000
    assert summary["selection"]["tried"] == 16  # four agents, four generations, whichever the champion is of
    assert {path.name for path in test.iterdir()} == TESTED
    assert "buy and hold" in done.stdout
    assert "of 2,000 policies" in done.stdout
    assert (own.run / "metrics.csv").read_text() == metrics
    before = {path.name: path.read_bytes() for path in test.iterdir()}
    dear = [eigen2(*words, "--data.rules.cost_bps", 50) for _ in range(2)]
    assert dear[0].returncode == 0, dear[0].stderr
    warning = "tested with other settings than those of the fit: data.rules.cost_bps 10.0, now 50.0"
    assert warning in dear[0].stderr.splitlines()
    assert json.loads((test / "summary.json").read_text())["settings"]["data.rules.cost_bps"] == 50
    assert {path.name: path.read_bytes() for path in (own.run / "test-1").iterdir()} == before
    assert dear[1].stdout == dear[0].stdout != done.stdout  # the same test again takes the place of the first
    assert not (own.run / "test-2").exists()
    checkpoints = own.run / "checkpoints"
    shutil.copy(min(checkpoints.glob("generation-*.ckpt")), checkpoints / "best.ckpt")
    assert "of 16 agents tried" in api.test(own.run).text  # in Python too


def test_what_cannot_be_tested_is_named(fitted: Fitted, tmp_path: Path) -> None:
    seen = refused(fitted, "test", "--ckpt_path", "best", "--data.holdout_days", 42)
    assert seen.startswith("error: the test would play 12 days that the fit has trained or validated on, ")
    assert seen.endswith("lower data.holdout_days to 30 or bring later prices")
    missing = refused(fitted._replace(run=tmp_path), "test")
    assert missing.endswith(
        "best.ckpt; give an existing file, or best or last of the run in --trainer.default_root_dir"
    )
    sizes = refused(fitted, "test", "--ckpt_path", "best", "--data.context_days", 10, "--data.encoding", "windows")
    assert "use the settings of the run that wrote it" in sizes
    best = fitted.run / "checkpoints" / "best.ckpt"
    other = eigen2("test", "--config", "tests/control/small.yaml", "--ckpt_path", best)
    assert other.returncode == 2
    assert "the checkpoint is of the workload market, not control; give --workload market" in other.stderr
