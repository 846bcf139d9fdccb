"""Sweeps: what they make of trials, and that no kill changes it."""

import csv
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from eigen2.cli.main import main
from eigen2.sweep import trial
from tests.command import ROOT
from tests.sweep.sweeper import FAKE

study = pytest.importorskip("eigen2.sweep.study")

SPACE = "model.noise: {low: -5.0, high: 5.0}\nmodel.actor: {choices: [a, null, 3]}\n"
SLOW_REAL = "model.actor_lr: {low: 1e-4, high: 1e-2, log: true}\nmodel.gradient_steps: {low: 1, high: 4}\n"


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(trial, "PROGRAM", FAKE)
    monkeypatch.setattr(study, "POLL_S", 0.02)


def options(folder: Path, space: str = SPACE, *more: object) -> list[str]:
    """Options of a sweep in a folder, with the space written beside it."""
    file = folder.with_suffix(".yaml")
    file.write_text(space)
    words = ["--config", "tests/small.yaml", "--space", file, "--folder", folder, *more]
    return [str(each) for each in words]


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "trials.csv").open() as file:
        return list(csv.DictReader(file))


def started(folder: Path, *more: object) -> subprocess.Popen[str]:
    """A sweep in a process of its own."""
    words = [sys.executable, "-m", "tests.sweep.sweeper", *options(folder, SPACE, *more)]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def until(holds: Callable[[], bool], seconds: float = 60) -> None:
    begun = time.monotonic()
    while not holds():
        assert time.monotonic() - begun < seconds
        time.sleep(0.01)


def generations(folder: Path, number: int) -> int:
    return len(trial.fitness(folder / "trials" / str(number)))


def kill(process: subprocess.Popen[str], *, children: bool = True) -> None:
    family = psutil.Process(process.pid).children(recursive=True) if children else []
    for each in [psutil.Process(process.pid), *family]:
        each.kill()
    process.wait()


def refusal(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    with pytest.raises(SystemExit) as left:
        main(["sweep", *words])
    said = capsys.readouterr()
    assert (left.value.code, said.out) == (2, "")
    (line,) = said.err.splitlines()
    assert line.startswith("error: ")
    return line


def test_wrong_words_are_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "sweep"
    for more, said in (
        (["--trials", "0"], "--trials is 0; it must be at least 1"),
        (["--workers", "0"], "--workers is 0; it must be at least 1"),
        (["--seed", "-1"], "--seed is -1; it must be at least 0"),
        (["--prune_after.generations", "-1"], "--prune_after.generations is -1; it must be at least 0"),
        (["--model.noise", "1"], "unknown key model.noise"),
        (["--", "fit"], "unrecognized arguments: -- fit"),
        (["--set", "model.gamma"], "--set model.gamma has no value; write --set model.gamma=VALUE"),
        (["--set", "model.noise=1"], "--set model.noise=1: model.noise is in --space"),
        (["--set", "report=true"], "--set: report is set by the sweep itself"),
        (["--set", "model.nothing=1"], "error: unknown key model.nothing"),
        (["--config", "nope.yaml"], "--config nope.yaml cannot be read"),
        (["--folder", "/proc/sweep"], "cannot write to --folder /proc/sweep: "),
    ):
        assert said in refusal(capsys, options(folder, SPACE, *more)), more
    unknown = refusal(capsys, options(folder, "model.other: {low: 1, high: 2}"))
    assert unknown == f"error: --space {tmp_path / 'sweep.yaml'}: unknown key model.other: --help lists the keys"
    assert not folder.exists()
    folder.mkdir()
    (folder / "study.db").write_text("no database, but long enough to be looked at" * 100)
    assert f"{folder / 'study.db'} cannot be used: " in refusal(capsys, options(folder))


def test_without_optuna_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    for name in ("eigen2.sweep.study", "eigen2.sweep.space"):
        monkeypatch.delitem(sys.modules, name)
    line = refusal(capsys, options(tmp_path / "sweep"))
    assert line.startswith("error: sweep needs Optuna (")
    assert line.endswith("): pip install 'eigen2[sweep]'")


def test_a_sweep_finds_the_best_and_says_how_to_use_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "sweep"
    main(["sweep", *options(folder, SPACE, "--trials", 11, "--set", "model.gamma=0.5")])
    said, found = capsys.readouterr().out, rows(folder)
    assert [row["trial"] for row in found] == [str(number) for number in range(11)]
    assert {row["state"] for row in found} <= {"complete", "pruned"}
    for row in found:
        last = int(row["generations"]) - 1
        assert float(row["value"]) == pytest.approx(10 * last - abs(float(row["model.noise"])), abs=1e-12)
    best = max(found, key=lambda row: float(row["value"]))
    config = folder / "trials" / best["trial"] / "config.yaml"
    assert f"python -m eigen2.cli test --config {config} --ckpt_path best" in said
    table = [line for line in said.splitlines() if line.startswith(("│", "┃", "┏"))]
    assert len(table) > 11
    assert max(map(len, table)) <= 80
    # the choices depend on the seed alone, also where the sweep is made in two parts
    for name, parts, seed in (("parts", (5, 11), 42), ("other", (2,), 43)):
        for trials in parts:
            words = options(tmp_path / name, SPACE, "--trials", trials, "--seed", seed, "--set", "model.gamma=0.5")
            main(["sweep", *words])
    assert rows(tmp_path / "parts") == found
    assert rows(tmp_path / "other")[0]["model.noise"] != found[0]["model.noise"]


def test_trials_without_hope_are_pruned(tmp_path: Path) -> None:
    """Once two are complete, those below the median after a generation are ended; of this seed the next two."""
    folder = tmp_path / "sweep"
    after = ["--prune_after.trials", 2, "--prune_after.generations", 1, "--seed", 9]
    slow = ["--set", "model.noise_decay=0.5"]
    main(["sweep", *options(folder, SPACE, "--trials", 4, *after, *slow)])
    assert [(row["state"], row["generations"]) for row in rows(folder)] == [("complete", "4")] * 2 + [
        ("pruned", "2")
    ] * 2
    for number in (2, 3):
        assert generations(folder, number) < 4  # it was ended, not only called so


def test_failures_are_told_and_others_take_their_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "sweep"
    space = SPACE + "model.gamma: {choices: [0.5, 2]}\n"
    main(["sweep", *options(folder, space, "--trials", 3, "--workers", 2)])
    found = rows(folder)
    states = [row["state"] for row in found]
    assert states.count("complete") == 3
    assert states.count("fail") >= 1
    for row in found:
        failed = row["state"] == "fail"
        assert (row["model.gamma"] == "2") == failed
        assert row["reason"] == ("model.gamma is 2; it must be at most 1" if failed else "")
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        main(["sweep", *options(tmp_path / "hopeless", SPACE, "--set", "model.gamma=2")])
    assert left.value.code == 2
    said = capsys.readouterr()
    assert said.err == "error: 5 trials failed in a row, the last with: model.gamma is 2; it must be at most 1\n"
    assert len(rows(tmp_path / "hopeless")) == 5


def test_another_space_or_config_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "sweep"
    main(["sweep", *options(folder, SPACE, "--trials", 1)])
    capsys.readouterr()
    before = (folder / "trials.csv").read_text()
    for option, space, more in (
        ("--space", SPACE.replace("5.0", "6.0"), []),
        ("--config", SPACE, ["--config", "configs/erl.yaml"]),
        ("--set", SPACE, ["--set", "model.gamma=0.5"]),
    ):
        said = f"error: {folder} holds a sweep of another {option}; give that one, or choose another --folder"
        assert refusal(capsys, options(folder, space, *more)) == said
    assert (folder / "trials.csv").read_text() == before


@pytest.mark.parametrize("orphan", [False, True], ids=["with its trial", "alone"])
def test_a_killed_sweep_goes_on_as_if_it_had_not_been(orphan: bool, tmp_path: Path) -> None:
    """Alone: the trial's process lives on; the next sweep waits for it, and never runs it twice at a time."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    shared = ["--trials", 4, "--set", "model.noise_decay=0.15"]
    reference = started(whole, *shared)
    sweep = started(killed, *shared)
    until(lambda: generations(killed, 1) == 2)
    kill(sweep, children=not orphan)
    assert not rows(killed)[1:]
    again = started(killed, *shared)
    assert again.wait(60) == 0, again.communicate()
    assert reference.wait(60) == 0
    assert rows(killed) == rows(whole)
    starts = [(killed / "trials" / str(number) / "starts").read_text().count("start") for number in range(4)]
    assert starts == [1, 2, 1, 1]
    assert again.communicate()[0].splitlines()[-1] == reference.communicate()[0].splitlines()[-1].replace(
        str(whole), str(killed)
    )


@pytest.mark.parametrize(
    ("sent", "code", "more"),
    [
        pytest.param(signal.SIGTERM, 143, "", marks=pytest.mark.slow),
        (signal.SIGINT, 130, ""),
        (signal.SIGUSR1, 138, "; there is no SLURM job to queue again"),
    ],
    ids=["SIGTERM", "Ctrl-C", "SLURM"],
)
def test_signals_end_trials_in_order(sent: signal.Signals, code: int, more: str, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    shared = ["--trials", 3, "--workers", 2, "--set", "model.noise_decay=0.3"]
    sweep = started(folder, *shared)
    until(lambda: generations(folder, 0) == 1 and generations(folder, 1) == 1)
    sweep.send_signal(sent)
    _, err = sweep.communicate(timeout=30)
    first, last = err.splitlines()
    assert first == f"{sent.name}: trials end after their generations; a second signal ends them at once"
    assert (sweep.returncode, last) == (code, f"stopped by {sent.name}; the same command resumes{more}")
    assert [generations(folder, number) for number in range(2)] == [2, 2]
    again = started(folder, *shared)
    assert again.wait(60) == 0
    assert [(row["state"], row["generations"]) for row in rows(folder)] == [("complete", "4")] * 3


def test_several_commands_share_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    sweeps = [started(folder, "--trials", 6, "--set", "model.noise_decay=0.1") for _ in range(3)]
    assert [sweep.wait(60) for sweep in sweeps] == [0, 0, 0], [sweep.communicate() for sweep in sweeps]
    assert [(row["trial"], row["state"]) for row in rows(folder)] == [(str(number), "complete") for number in range(6)]
    assert all((path / "starts").read_text() == "start\n" for path in (folder / "trials").iterdir())
    said = [line for sweep in sweeps for line in sweep.communicate()[0].splitlines() if line.startswith("trial ")]
    assert len(said) == 6


@pytest.mark.slow
def test_a_killed_sweep_of_real_fits(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "eigen2.cli", "sweep"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert subprocess.run([*words, *options(whole, SLOW_REAL, "--trials", 3)], cwd=ROOT).returncode == 0
    sweep = subprocess.Popen([*words, *options(killed, SLOW_REAL, "--trials", 3)], cwd=ROOT)
    until(lambda: generations(killed, 1) >= 2, seconds=200)
    kill(sweep)
    assert subprocess.run([*words, *options(killed, SLOW_REAL, "--trials", 3)], cwd=ROOT).returncode == 0
    assert rows(killed) == rows(whole)
    assert len({row["value"] for row in rows(whole)}) > 1
