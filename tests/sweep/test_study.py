"""Sweeps: trials, pruning, failures, and resume after signals and kills."""

import csv
import os
import signal
import sqlite3
import sys
from contextlib import closing, suppress
from datetime import date
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from eigen2.cli.checkpoint import given
from eigen2.cli.main import main
from eigen2.errors import install_hint
from eigen2.files import Folder
from eigen2.sweep import trial
from tests.command import ROOT, Started, wait_until

study = pytest.importorskip("eigen2.sweep.study")

SPACE = "model.noise: {low: -5.0, high: 5.0}\nmodel.actor: {choices: [a, null, 3]}\n"


def fake() -> None:
    """Replace fit by processes of milliseconds."""
    trial.PROGRAM, study.POLL_S = (sys.executable, str(Path(__file__).with_name("fake_fit.py"))), 0.02


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(trial, "PROGRAM", trial.PROGRAM)  # restored after the test
    monkeypatch.setattr(study, "POLL_S", study.POLL_S)
    fake()


def options(folder: Path, space: str = SPACE, *more: object) -> list[str]:
    """Return the command line of a sweep in a folder; write the space beside it."""
    file = folder.with_suffix(".yaml")
    file.write_text(space)
    args = ["--config", "tests/small.yaml", "--space", file, "--folder", folder, *more]
    return ["sweep", *map(str, args)]


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "trials.csv").open() as file:
        return list(csv.DictReader(file))


def started(folder: Path, *more: object) -> Started:
    """Start a sweep in its own process."""
    return Started(options(folder, SPACE, *more), prepare=fake)


def generations(folder: Path, number: int) -> int:
    return len(trial.fitness(folder / "trials" / str(number)))


def kill(pid: int, *, children: bool = True) -> None:
    descendants = psutil.Process(pid).children(recursive=True) if children else []
    for process in [psutil.Process(pid), *descendants]:
        process.kill()


def configs(folder: Path) -> list[str]:
    """Return the configurations with which the first trial started."""
    return (folder / "trials" / "0" / "starts").read_text().removeprefix("start ").split("; ")


def refusal(capsys: pytest.CaptureFixture[str], args: list[str], printed: bool = False) -> str:
    with pytest.raises(SystemExit) as error:
        main(args)
    output = capsys.readouterr()
    assert (error.value.code, bool(output.out)) == (2, printed)
    (line,) = output.err.splitlines()
    assert line.startswith("error: ")
    return line


def test_invalid_options_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, truth = tmp_path / "sweep", tmp_path / "truth.yaml"
    truth.write_text("model: {gamma: 0.5, on: 1}")
    (beside := tmp_path / "beside.yaml").write_text("trainer: nope.yaml")
    (uploads := tmp_path / "uploads.yaml").write_text("trainer: [CheckpointUploader]")
    for more, message in (
        ("--trials 0", "--trials is 0; it must be at least 1"),
        ("--prune_after.generations -1", "--prune_after.generations is -1; it must be at least 0"),
        ("--model.noise 1", "unknown key model.noise"),
        ("-- fit", "unrecognized arguments: -- fit"),
        ("--set model.gamma", "--set model.gamma has no value; write --set model.gamma=VALUE"),
        ("--set model.noise=1", "--set model.noise=1: model.noise is also in --space"),
        ("--set report=true", "--set: report is set by the sweep itself"),
        ("--set model.nothing=1", "error: unknown key model.nothing"),
        ("--set trainer.callbacks+=CheckpointUploader", "would share checkpoints in the bucket of CheckpointUploader"),
        ("--config nope.yaml", "--config nope.yaml cannot be read"),
        (f"--config {beside}", f"--config {beside}: trainer {tmp_path / 'nope.yaml'} cannot be read"),
        (f"--config {uploads}", "would share checkpoints in the bucket of CheckpointUploader"),
        (f"--config {truth}", f"--config {truth}: True is read as bool, not as a key; put it in quotes"),
        ("--folder /proc/sweep", "cannot write to --folder /proc/sweep: "),
    ):
        assert message in refusal(capsys, options(folder, SPACE, *more.split())), more
    unknown = refusal(capsys, options(folder, "model.other: {low: 1, high: 2}"))
    assert unknown == f"error: --space {tmp_path / 'sweep.yaml'}: unknown key model.other: --help lists the keys"
    assert not folder.exists()
    folder.mkdir()
    (folder / "study.db").write_text("not a database, but long enough to be read as one" * 100)
    line = refusal(capsys, options(folder))
    assert f"{folder / 'study.db'} cannot be used: " in line
    assert line.endswith(f"; move {folder}, or choose another --folder")
    monkeypatch.setitem(sys.modules, "optuna", None)
    for name in ("eigen2.sweep.study", "eigen2.sweep.space"):
        monkeypatch.delitem(sys.modules, name)
    assert refusal(capsys, options(folder)).endswith(f"): {install_hint('sweep')}")


def test_a_sweep_finds_the_best_and_refuses_other_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, setting = tmp_path / "sweep", ("--set", "model.gamma=0.5")
    main(options(folder, SPACE, "--trials", 7, *setting))
    stdout, trials = capsys.readouterr().out, rows(folder)
    assert [row["trial"] for row in trials] == [str(number) for number in range(7)]
    assert {row["state"] for row in trials} <= {"complete", "pruned"}
    for row in trials:
        last = int(row["generations"]) - 1
        assert float(row["value"]) == pytest.approx(10 * last - abs(float(row["model.noise"])), abs=1e-12)
    best = max(trials, key=lambda row: float(row["value"]))
    checkpoint = folder / "trials" / best["trial"] / "checkpoints" / "best.ckpt"
    assert f"python -m eigen2.cli test --ckpt_path {checkpoint}" in stdout
    # samples depend on the seed alone, also if the sweep is resumed
    for name, parts, seed in (("parts", (3, 7), 42), ("other", (1,), 43)):
        for count in parts:
            main(options(tmp_path / name, SPACE, "--trials", count, "--seed", seed, *setting))
    assert rows(tmp_path / "parts") == trials
    assert rows(tmp_path / "other")[0]["model.noise"] != trials[0]["model.noise"]
    capsys.readouterr()
    for option, space, more in (
        ("--space", SPACE.replace("5.0", "6.0"), setting),
        ("--config", SPACE, (*setting, "--config", "configs/erl.yaml")),
        ("--set", SPACE, ()),
    ):
        line = f"error: {folder} holds a sweep with another {option}; restore it, or choose another --folder"
        assert refusal(capsys, options(folder, space, *more)) == line
    for option, begun in (("--seed", 42), ("--prune_after.trials", 5), ("--prune_after.generations", 5)):
        line = f"error: {folder} holds a sweep begun with {option} {begun}; give it, or choose another --folder"
        assert refusal(capsys, options(folder, SPACE, *setting, option, begun + 1)) == line
    with Folder(folder).lock(".lock") or pytest.fail("locked"):
        line = refusal(capsys, options(folder, SPACE, *setting))
    assert line.startswith(f"error: another sweep is using {folder}; ")
    assert rows(folder) == trials


def test_trials_without_their_database_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "sweep"
    main(options(folder, SPACE, "--trials", 1))
    capsys.readouterr()
    (folder / "study.db").unlink()
    expected = f"error: {folder} has trials that its study.db lacks; move it, or choose another --folder"
    for _ in range(2):
        assert refusal(capsys, options(folder, SPACE, "--trials", 1)) == expected


def test_trials_start_from_what_the_sweep_read(tmp_path: Path) -> None:
    """A group may be another file, beside the configuration; a later change of either is not seen.

    The folder may have any name.
    """
    config, folder = tmp_path / "config.yaml", tmp_path / "lr?%20{0}#"
    config.write_text("data: data.yaml\nmodel: {gamma: 0.5}")
    (tmp_path / "data.yaml").write_text("holdout_from: 2021-01-01")
    main(options(folder, SPACE, "--trials", 1, "--config", config))
    assert {path.name for path in folder.iterdir()} == {".lock", "cache", "study.db", "trials", "trials.csv"}
    first, second = map(yaml.safe_load, configs(folder))
    assert first == yaml.safe_load(Path("tests/small.yaml").read_text())
    assert second == {"data": {"holdout_from": date(2021, 1, 1)}, "model": {"gamma": 0.5}}


def test_trials_are_of_the_workload_of_the_configuration(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    main(options(folder, SPACE, "--trials", 1, "--config", "configs/control.yaml"))
    assert given(["fit", f"--config={configs(folder)[-1]}"], "workload") == "control"


def test_a_trial_below_the_median_that_has_ended_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "POLL_S", 2.0)
    after = ["--prune_after.trials", 2, "--prune_after.generations", 4, "--seed", 8]
    main(options(tmp_path / "sweep", SPACE, "--trials", 3, *after))
    assert [(row["state"], row["generations"]) for row in rows(tmp_path / "sweep")] == [("complete", "4")] * 3


def test_a_trial_that_ended_before_its_sweep_was_killed_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(study, "POLL_S", 2.0)
    after = ["--prune_after.trials", 2, "--prune_after.generations", 4, "--seed", 8, "--trials", 3]
    finish = study.Sweep._finish

    def killed(sweep: Any, trial: Any, *results: Any) -> None:
        if trial.number == 2:
            raise OSError("killed")
        finish(sweep, trial, *results)

    with monkeypatch.context() as patch:
        patch.setattr(study.Sweep, "_finish", killed)
        assert refusal(capsys, options(tmp_path / "sweep", SPACE, *after), printed=True).endswith(
            "killed; the same command resumes"
        )
    main(options(tmp_path / "sweep", SPACE, *after))
    assert [(row["state"], row["generations"]) for row in rows(tmp_path / "sweep")] == [("complete", "4")] * 3


def test_trials_below_the_median_are_pruned(tmp_path: Path) -> None:
    """Once two trials are complete, trials below the median are pruned: with this seed the next two."""
    folder = tmp_path / "sweep"
    after = ["--prune_after.trials", 2, "--prune_after.generations", 2, "--seed", 8]
    main(options(folder, SPACE, "--trials", 4, *after, "--set", "model.noise_decay=0.6"))
    trials = [(row["state"], row["generations"]) for row in rows(folder)]
    assert trials == [("complete", "4")] * 2 + [("pruned", "2")] * 2
    for number in (2, 3):
        assert generations(folder, number) < 4  # the process was stopped, not only marked as pruned


def test_failed_trials_are_reported_and_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "sweep"
    space = SPACE + "model.gamma: {choices: [0.5, 2]}\n"
    main(options(folder, space, "--trials", 3, "--workers", 2))
    trials = rows(folder)
    states = [row["state"] for row in trials]
    assert states.count("complete") == 3
    assert states.count("fail") >= 1
    for row in trials:
        failed = row["state"] == "fail"
        assert (row["model.gamma"] == "2") == failed
        assert row["reason"] == ("model.gamma is 2; it must be at most 1" if failed else "")
    capsys.readouterr()
    with pytest.raises(SystemExit) as error:
        main(options(tmp_path / "hopeless", SPACE, "--set", "model.gamma=2"))
    assert error.value.code == 2
    stderr = capsys.readouterr().err
    assert stderr == "error: 5 trials failed in a row, the last one with: model.gamma is 2; it must be at most 1\n"
    assert len(rows(tmp_path / "hopeless")) == 5


def test_the_last_line_is_of_the_last_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "PROGRAM", [sys.executable, "-c", "import sys; print(sys.argv[1])"])
    for said, line in (("error: no price file", "no price file"), ("stopped", "stopped"), ("", "it printed nothing")):
        with (tmp_path / "running").open("w") as running:
            trial.start(Folder(tmp_path), [said], running).wait()
        assert trial.last_line(tmp_path) == line


def test_a_trial_that_is_stopped_by_itself_failed_and_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    sweep = started(folder, "--trials", 2, "--set", "model.noise_decay=0.3")
    wait_until(lambda: generations(folder, 0) == 1)
    assert sweep.process.pid is not None
    (fit,) = psutil.Process(sweep.process.pid).children()
    fit.terminate()
    assert sweep.ended(60).returncode == 0
    assert [row["state"] for row in rows(folder)] == ["fail", "complete", "complete"]
    assert "143" in rows(folder)[0]["reason"]


@pytest.mark.parametrize("orphan", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_killed_sweep_resumes_to_the_same_result(orphan: bool, tmp_path: Path) -> None:
    """An orphaned trial keeps running; the next sweep waits for it instead of running it twice at a time."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    shared = ["--trials", 4, "--set", "model.noise_decay=0.15"]
    reference, sweep = started(whole, *shared), started(killed, *shared)
    wait_until(lambda: generations(killed, 1) == 2)
    assert sweep.process.pid is not None
    kill(sweep.process.pid, children=not orphan)
    sweep.ended()
    assert not rows(killed)[1:]
    resumed, expected = started(killed, *shared).ended(60), reference.ended(60)
    assert (resumed.returncode, expected.returncode) == (0, 0), resumed.stderr
    assert rows(killed) == rows(whole)
    starts = [(killed / "trials" / str(number) / "starts").read_text().count("start") for number in range(4)]
    assert starts == [1, 2, 1, 1]
    assert resumed.stdout.splitlines()[-1] == expected.stdout.splitlines()[-1].replace(str(whole), str(killed))


@pytest.mark.parametrize(
    ("sent", "code", "more"),
    [
        pytest.param(signal.SIGTERM, 143, "", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 130, "", marks=pytest.mark.slow),
        (signal.SIGUSR1, 138, "; there is no SLURM job to queue again"),
    ],
)
def test_signals_stop_trials_after_their_generation(sent: signal.Signals, code: int, more: str, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    shared = ["--trials", 3, "--workers", 2, "--set", "model.noise_decay=0.6"]
    sweep = started(folder, *shared)
    wait_until(lambda: generations(folder, 0) == 1 and generations(folder, 1) == 1)
    assert sweep.process.pid is not None
    os.kill(sweep.process.pid, sent)
    result = sweep.ended(30)
    first, last = result.stderr.splitlines()
    assert first == f"{sent.name}: trials stop after this generation; a second signal stops them at once"
    assert (result.returncode, last) == (code, f"stopped by {sent.name}; the same command resumes{more}")
    assert [generations(folder, number) for number in range(2)] == [2, 2]
    main(options(folder, SPACE, *shared))
    assert [(row["state"], row["generations"]) for row in rows(folder)] == [("complete", "4")] * 3


@pytest.mark.parametrize("value", ["no JSON {", *(pytest.param(value, marks=pytest.mark.slow) for value in ("[]", -7))])
def test_an_altered_database_ends_in_one_line(
    value: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every text and number that Optuna stored, in turn, becomes another."""
    main(options(tmp_path / "sweep", SPACE, "--trials", 2))
    whole = (tmp_path / "sweep" / "study.db").read_bytes()
    capsys.readouterr()
    with sqlite3.connect(tmp_path / "sweep" / "study.db") as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = [(table, column[1]) for table in tables for column in database.execute(f"PRAGMA table_info({table})")]
    refused = 0
    for table, column in columns:
        (tmp_path / "sweep" / "study.db").write_bytes(whole)
        with (
            closing(sqlite3.connect(tmp_path / "sweep" / "study.db")) as database,
            suppress(sqlite3.IntegrityError),
        ):
            database.execute(f"UPDATE {table} SET {column} = ?", (value,))
            database.commit()
        try:
            main(options(tmp_path / "sweep", SPACE, "--trials", 2))  # nothing is left to do
        except SystemExit as error:
            assert error.code == 2, (table, column, value)  # noqa: PT017 - some values do no harm
            refused += 1
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith("error: "), (table, column, value)
    assert refused > 5
