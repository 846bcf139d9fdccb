"""A run that was killed and resumed is, bit for bit, the run that was never stopped."""

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
PLACES = [("rollouts", 0), ("training", 1), ("evolve", 1), ("validate", 2), ("checkpoint", 3)]
TORTURE = 24, 30
"""Generations, and kills on the way."""


def kill_at(root: Path, place: str, generation: int) -> None:
    killer = f"--trainer.callbacks.place={place}", f"--trainer.callbacks.generation={generation}"
    done = run(root, "--trainer.callbacks+=tests.kill.KillAt", *killer)
    assert done.returncode == -signal.SIGKILL, done.stderr


def assert_same(root: Path, other: Path) -> None:
    assert same(state(root), state(other))
    assert metrics(root) == metrics(other)


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("uninterrupted")
    finish(root)
    return root


@pytest.fixture
def finished(uninterrupted: Path, tmp_path: Path) -> Path:
    """A copy of the uninterrupted run's folder."""
    return shutil.copytree(uninterrupted, tmp_path / "finished")


@pytest.mark.slow
def test_thirty_kills_anywhere_equal_none(tmp_path: Path) -> None:
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


# what the chain of kills below does not do: a single kill, in the write and in a full buffer
@pytest.mark.parametrize(("place", "generation"), [("write", 1), ("checkpoint", 2), ("rollouts", 3)])
@pytest.mark.slow
def test_one_kill_equals_none(place: str, generation: int, uninterrupted: Path, tmp_path: Path) -> None:
    kill_at(tmp_path, place, generation)
    finish(tmp_path)
    assert_same(tmp_path, uninterrupted)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, on another filesystem than the run's where this machine has one."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def test_kills_in_a_row_equal_none(uninterrupted: Path, tmp_path: Path, elsewhere: Path) -> None:
    for place, generation in PLACES:
        kill_at(tmp_path, place, generation)
    finish(tmp_path)
    assert_same(tmp_path, uninterrupted)
    assert steps(tmp_path) == list(range(GENERATIONS))
    # a rename from there to here would not be one step
    assert not list(elsewhere.rglob("*.ckpt"))
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["best.ckpt", "generation-00002.ckpt", "last.ckpt"]


def test_the_comparison_sees_another_seed(uninterrupted: Path, tmp_path: Path) -> None:
    finish(tmp_path, "--seed_everything=8", "--trainer.max_epochs=2")
    assert not same(state(tmp_path)["weights"], state(uninterrupted)["weights"])
    assert metrics(tmp_path) != metrics(uninterrupted)[:2]


def test_a_finished_run_stays_finished_and_a_new_one_moves_it_aside(uninterrupted: Path, finished: Path) -> None:
    finish(finished)
    assert_same(finished, uninterrupted)
    before = (finished / "metrics.csv").read_text()
    finish(finished, "--ckpt_path=null", "--trainer.max_epochs=1")
    assert (finished / "earlier" / "1" / "metrics.csv").read_text() == before
    assert (finished / "earlier" / "1" / "checkpoints" / "last.ckpt").exists()
    assert len(metrics(finished)) == 1


@pytest.mark.slow
def test_a_run_continued_with_more_epochs_equals_a_long_one(uninterrupted: Path, tmp_path: Path) -> None:
    finish(tmp_path, "--trainer.max_epochs=2")
    finish(tmp_path)
    assert same(state(tmp_path), state(uninterrupted))


def test_a_second_process_in_the_folder_is_refused(tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = run(tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("error: another run is writing to")
    assert not (tmp_path / "metrics.csv").exists()


def test_another_population_is_refused(uninterrupted: Path) -> None:
    done = run(uninterrupted, "--model.population_size=5")
    assert done.returncode == 2
    assert "model.population_size 4, now 5" in done.stderr
    assert "Traceback" not in done.stderr
