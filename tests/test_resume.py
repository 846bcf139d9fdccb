"""A run that was killed and resumed is, bit for bit, the run that was never stopped."""

import csv
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.command import eigen2

GENERATIONS = 4
BEST = "checkpoints/best.ckpt"
# the replay buffer holds 228 transitions a generation and trains from 300: generation 0 only warms up
PLACES = [("rollouts", 0), ("training", 1), ("evolve", 1), ("validate", 2), ("checkpoint", 3)]


def run(root: Path, *options: str) -> CompletedProcess[str]:
    folder = ["--trainer.default_root_dir", root, "--ckpt_path", "last"]
    return eigen2("fit", "--config", "tests/small.yaml", *folder, *options)


def kill_at(root: Path, place: str, generation: int) -> None:
    done = run(
        root,
        "--trainer.callbacks+=tests.kill.KillAt",
        f"--trainer.callbacks.place={place}",
        f"--trainer.callbacks.generation={generation}",
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def finish(root: Path) -> None:
    done = run(root)
    assert done.returncode == 0, done.stderr


def state(root: Path, data: str = "MarketDataModule") -> dict[str, object]:
    checkpoint = torch.load(root / "checkpoints" / "last.ckpt", weights_only=True)
    return {
        "weights": checkpoint["state_dict"],
        "optimizer": checkpoint["optimizer_states"],
        "data": checkpoint[data],
        "epoch": checkpoint["epoch"],
    }


def metrics(root: Path) -> list[dict[str, str]]:
    """metrics.csv without what a clock or the memory of a process decides."""
    with (root / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "memory/", "exchange/"))} for row in rows]


def same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("uninterrupted")
    finish(root)
    return root


@pytest.fixture
def finished(uninterrupted: Path, tmp_path: Path) -> Path:
    """A folder of the test's own with the uninterrupted run in it."""
    return shutil.copytree(uninterrupted, tmp_path / "finished")


TORTURE = 24, 30
"""Generations, and kills on the way."""


@pytest.mark.slow
def test_thirty_kills_anywhere_equal_none(tmp_path: Path) -> None:
    generations, kills = TORTURE
    length = ["--trainer.max_epochs", str(generations)]
    root, whole = tmp_path / "killed", tmp_path / "whole"
    for seed in range(kills):
        killer = ["--trainer.callbacks+=tests.kill.KillAnywhere", f"--trainer.callbacks.seed={seed}"]
        done = run(root, *length, *killer)
        assert done.returncode == -signal.SIGKILL, done.stderr
        print(f"kill {seed + 1}: {len(metrics(root)) if (root / 'metrics.csv').exists() else 0} generations so far")
    for folder in (root, whole):
        assert run(folder, *length).returncode == 0
    assert same(state(root), state(whole))
    assert same(
        torch.load(root / BEST, weights_only=True)["state_dict"],
        torch.load(whole / BEST, weights_only=True)["state_dict"],
    )
    assert metrics(root) == metrics(whole)
    assert [row["generation"] for row in metrics(root)] == [str(n) for n in range(generations)]
    curves = EventAccumulator(str(root / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    assert [event.step for event in curves.Scalars("fitness/mean")] == list(range(generations))


# what the chain of kills below does not do: a single kill, in the write and in a full buffer
@pytest.mark.parametrize(("place", "generation"), [("write", 1), ("checkpoint", 2), ("rollouts", 3)])
@pytest.mark.slow
def test_killed_and_resumed_equals_uninterrupted(
    place: str, generation: int, uninterrupted: Path, tmp_path: Path
) -> None:
    kill_at(tmp_path, place, generation)
    finish(tmp_path)
    assert same(state(tmp_path), state(uninterrupted))
    assert metrics(tmp_path) == metrics(uninterrupted)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, on another filesystem than the run's where this machine has one."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def test_killed_again_and_again_equals_uninterrupted(uninterrupted: Path, tmp_path: Path, elsewhere: Path) -> None:
    for place, generation in PLACES:
        kill_at(tmp_path, place, generation)
    finish(tmp_path)
    assert same(state(tmp_path), state(uninterrupted))
    assert metrics(tmp_path) == metrics(uninterrupted)
    curves = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in curves.Scalars("fitness/mean")] == list(range(GENERATIONS))
    leftovers = [path.name for path in (tmp_path / "checkpoints").iterdir()]
    # a rename from there to here would not be one step
    assert not [path for path in elsewhere.rglob("*") if path.suffix == ".ckpt"]
    assert sorted(leftovers) == ["best.ckpt", "generation-00002.ckpt", "last.ckpt"]


def test_comparison_sees_a_difference(uninterrupted: Path, tmp_path: Path) -> None:
    """The oracle of this file can fail: another seed gives another run."""
    done = run(tmp_path, "--seed_everything", "8")
    assert done.returncode == 0, done.stderr
    assert not same(state(tmp_path)["weights"], state(uninterrupted)["weights"])
    assert metrics(tmp_path) != metrics(uninterrupted)


def test_finished_run_resumed_stays_finished(uninterrupted: Path, finished: Path) -> None:
    finish(finished)
    assert same(state(finished), state(uninterrupted))
    assert metrics(finished) == metrics(uninterrupted)


@pytest.mark.slow
def test_stop_and_resume_by_max_epochs_equals_uninterrupted(uninterrupted: Path, tmp_path: Path) -> None:
    assert run(tmp_path, "--trainer.max_epochs", "2").returncode == 0
    finish(tmp_path)
    assert same(state(tmp_path), state(uninterrupted))


def test_new_run_moves_the_earlier_one_aside(finished: Path) -> None:
    before = (finished / "metrics.csv").read_text()
    done = run(finished, "--ckpt_path", "null", "--trainer.max_epochs", "1")
    assert done.returncode == 0, done.stderr
    assert (finished / "earlier" / "1" / "metrics.csv").read_text() == before
    assert (finished / "earlier" / "1" / "checkpoints" / "last.ckpt").exists()
    assert len(metrics(finished)) == 1


def test_second_process_in_the_folder_is_refused(tmp_path: Path) -> None:
    import fcntl

    lock = os.open(tmp_path / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    done = run(tmp_path)
    os.close(lock)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("error: another run is writing to")
    assert not (tmp_path / "metrics.csv").exists()


def test_another_population_is_refused(uninterrupted: Path) -> None:
    done = run(uninterrupted, "--model.population_size", "5")
    assert done.returncode == 2
    assert "model.population_size 4, now 5" in done.stderr
    assert "Traceback" not in done.stderr
