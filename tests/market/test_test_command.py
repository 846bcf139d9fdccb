"""`test`: the champion on what its fit has not seen, as a user meets it."""

import json
from pathlib import Path

import pytest

from eigen2.market.evaluation.backtest import RANDOM_POLICIES
from tests.command import eigen2

SMALL = ("--config", "tests/small.yaml")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run")
    done = eigen2("fit", *SMALL, "--trainer.default_root_dir", root)
    assert done.returncode == 0, done.stderr
    return root


def refused(root: Path, *options: object) -> str:
    done = eigen2("test", *SMALL, "--trainer.default_root_dir", root, *options)
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("Seed set")]
    return line


def test_the_champion_is_judged_on_the_holdout(run: Path) -> None:
    metrics = (run / "metrics.csv").read_text()
    done = eigen2("test", *SMALL, "--trainer.default_root_dir", run, "--ckpt_path", "best")
    assert done.returncode == 0, done.stderr
    summary = json.loads((run / "test" / "summary.json").read_text())
    assert summary["days"]["count"] == 30
    assert summary["luck"]["policies"] == RANDOM_POLICIES
    assert summary["selection"]["tried"] == 16  # four agents, four generations, whichever the champion is of
    assert {path.name for path in (run / "test").iterdir()} == {"summary.json", "equity.csv", "trades.csv"}
    assert "buy and hold" in done.stdout
    assert f"of {RANDOM_POLICIES:,} policies" in done.stdout
    assert (run / "metrics.csv").read_text() == metrics
    again = eigen2("test", *SMALL, "--trainer.default_root_dir", run, "--ckpt_path", "best")
    assert again.stdout == done.stdout


def test_other_settings_than_the_fits_are_said_and_the_test_before_is_kept(run: Path) -> None:
    words = ("test", *SMALL, "--trainer.default_root_dir", run, "--ckpt_path", "best")
    assert eigen2(*words).returncode == 0
    before = {path.name: path.read_bytes() for path in (run / "test").iterdir()}
    dear = eigen2(*words, "--data.rules.cost_bps", 50)
    assert dear.returncode == 0, dear.stderr
    said = "tested with other settings than those of the fit: data.rules.cost_bps 10.0, now 50.0"
    assert said in dear.stderr.splitlines()
    settings = json.loads((run / "test" / "summary.json").read_text())["settings"]
    assert settings["data.rules.cost_bps"] == 50
    assert {path.name: path.read_bytes() for path in (run / "test-1").iterdir()} == before
    again = eigen2(*words, "--data.rules.cost_bps", 50)
    assert again.stdout == dear.stdout
    assert not (run / "test-2").exists()


def test_a_validation_with_other_settings_says_so(run: Path) -> None:
    words = ("validate", *SMALL, "--trainer.default_root_dir", run, "--ckpt_path", "best")
    same, other = eigen2(*words), eigen2(*words, "--data.rules.cost_bps", 50)
    assert (same.returncode, other.returncode) == (0, 0), other.stderr
    said = "validated with other settings than those of the fit: data.rules.cost_bps 10.0, now 50.0"
    assert "other settings" not in same.stderr
    assert said in other.stderr.splitlines()


def test_days_that_the_fit_has_seen_are_refused(run: Path) -> None:
    line = refused(run, "--ckpt_path", "best", "--data.holdout_days", 42)
    assert line.startswith("error: the test would play 12 days that the fit has trained or validated on, ")
    assert line.endswith("lower data.holdout_days to 30 or bring later prices")


def test_what_is_missing_is_named(run: Path, tmp_path: Path) -> None:
    assert refused(run) == "error: test needs a checkpoint: --ckpt_path best, last or a file"
    missing = refused(tmp_path, "--ckpt_path", "best")
    assert missing.endswith(
        "best.ckpt; give an existing file, or best or last of the run in --trainer.default_root_dir"
    )
    sizes = refused(run, "--ckpt_path", "best", "--data.context_days", 10, "--data.encoding", "windows")
    assert "; other there: data.context_days, data.encoding" in sizes
    best = run / "checkpoints" / "best.ckpt"
    other = eigen2("test", "--config", "tests/control/small.yaml", "--ckpt_path", best)
    assert other.returncode == 2
    assert "is of the workload market, not control; give --workload market" in other.stderr


def test_a_control_champion_plays_new_episodes(tmp_path: Path) -> None:
    small = ("--config", "tests/control/small.yaml", "--trainer.default_root_dir", tmp_path)
    assert eigen2("fit", *small).returncode == 0
    done = eigen2("test", *small, "--ckpt_path", "best")
    assert done.returncode == 0, done.stderr
    assert "100, with starts that fit has not seen" in done.stdout
