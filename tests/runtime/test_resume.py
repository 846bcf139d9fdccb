"""A run that was killed and resumed equals, bit for bit, the run that was never stopped."""

import fcntl
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.runs import finish, metrics, run, same, state, steps

GENERATIONS = 4
BEST = "checkpoints/best.ckpt"
# the replay buffer holds 228 transitions a generation and trains from 300: generation 0 only warms up
PLACES = [("training", 1), ("validate", 2), ("checkpoint", 3)]
TORTURE = 24, 30
"""Generations of a run, and the number of kills."""


def kill_at(root: Path, place: str, generation: int) -> None:
    killer = f"--trainer.callbacks.place={place}", f"--trainer.callbacks.generation={generation}"
    done = run(root, "--trainer.callbacks+=tests.kill.KillAt", *killer)
    assert done.returncode == -signal.SIGKILL, done.stderr


def assert_same(root: Path, other: Path) -> None:
    assert same(state(root), state(other))
    assert metrics(root) == metrics(other)


def test_a_run_that_lists_no_checkpoints_is_resumed_too(tmp_path: Path) -> None:
    for generations in (1, 2):
        finish(tmp_path, "--trainer.callbacks=null", f"--trainer.max_epochs={generations}")
    assert [row["generation"] for row in metrics(tmp_path)] == ["0", "1"]
    assert {path.name for path in (tmp_path / "checkpoints").glob("*.ckpt")} >= {"last.ckpt", "best.ckpt"}
    assert not (tmp_path / "earlier").exists()
    done = finish(tmp_path, "--trainer.callbacks=null", "--trainer.max_epochs=2")
    assert "The run has had 2 generations: raise trainer.max_epochs to go on." in done.stdout


@pytest.mark.slow
def test_thirty_kills_anywhere_change_nothing(tmp_path: Path) -> None:
    generations, kills = TORTURE
    length = f"--trainer.max_epochs={generations}"
    root, whole = tmp_path / "killed", tmp_path / "whole"
    for seed in range(kills):
        killer = "--trainer.callbacks+=tests.kill.KillAnywhere", f"--trainer.callbacks.seed={seed}"
        done = run(root, length, *killer)
        assert done.returncode == -signal.SIGKILL, done.stderr
        print(f"kill {seed + 1}: {len(metrics(root)) if (root / 'metrics.csv').exists() else 0} generations so far")
    for folder in (root, whole):
        finish(folder, length)
    assert_same(root, whole)
    best, other = (torch.load(folder / BEST, weights_only=True)["state_dict"] for folder in (root, whole))
    assert same(best, other)
    assert [row["generation"] for row in metrics(root)] == [str(n) for n in range(generations)]
    assert steps(root) == list(range(generations))


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder for temporary files, on another filesystem than the run's if this machine has one."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def test_consecutive_kills_change_nothing(uninterrupted: Path, tmp_path: Path, elsewhere: Path) -> None:
    for place, generation in PLACES:
        kill_at(tmp_path, place, generation)
    finish(tmp_path)
    assert_same(tmp_path, uninterrupted)
    assert steps(tmp_path) == list(range(GENERATIONS))
    # a rename between filesystems would not be atomic
    assert not list(elsewhere.rglob("*.ckpt"))
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["best.ckpt", "generation-00002.ckpt", "last.ckpt"]


def test_a_finished_run_stays_finished_and_a_new_one_moves_it_aside(uninterrupted: Path, tmp_path: Path) -> None:
    root = shutil.copytree(uninterrupted, tmp_path / "finished")
    finish(root)
    assert_same(root, uninterrupted)
    before = (root / "metrics.csv").read_text()
    finish(root, "--ckpt_path=null", "--trainer.max_epochs=1", "--seed_everything=8")
    assert (root / "earlier" / "1" / "metrics.csv").read_text() == before
    assert (root / "earlier" / "1" / "checkpoints" / "last.ckpt").exists()
    # the comparison sees another seed
    assert len(metrics(root)) == 1
    assert metrics(root) != metrics(uninterrupted)[:1]
    assert not same(state(root)["weights"], state(uninterrupted)["weights"])


def test_a_second_process_and_another_population_are_refused(uninterrupted: Path, tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        locked = run(tmp_path)
    assert not (tmp_path / "metrics.csv").exists()
    other = run(uninterrupted, "--model.population_size=5")
    for done, message in ((locked, "error: another run is writing to"), (other, "model.population_size 4, now 5")):
        assert done.returncode == 2
        assert message in done.stderr.strip().splitlines()[-1]
        assert "Traceback" not in done.stderr
