"""A run spread over processes is, bit for bit, the run in one process."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import psutil
import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.trainer.states import TrainerFn
from torch import distributed as dist

from eigen2.distributed.strategy import PopulationStrategy
from eigen2.errors import LOST_CONTACT, TERMINATED, UserError
from eigen2.runtime.checkpoint import listed_parts
from eigen2.runtime.run_folder import locked_folder
from tests.command import ROOT, Started, eigen2, in_fork, together, wait_until
from tests.golden.cases import evolution
from tests.runs import metrics, state

GENERATIONS = 4
RUN = ("fit", "--config", "tests/small.yaml", "--model.population_size=6", "--data.replay_capacity=1500")
EVERYTHING = (  # what draws random numbers, moves rows or looks at several agents
    "--model.learner=eigen2.erl.learners.TD3",
    *evolution("Elitism", "TournamentCrossover", "MagnitudeMutation"),
    "--data.replay_capacity=400",  # less than a generation adds
)
STRATEGY = "--trainer.strategy=eigen2.distributed.PopulationStrategy"
CONTROL = ("fit", "--config", "tests/control/small.yaml", "--model.population_size=6")


def folder(root: Path, generations: int = GENERATIONS) -> tuple[str, ...]:
    return f"--trainer.default_root_dir={root}", "--ckpt_path=last", f"--trainer.max_epochs={generations}"


def fit(world: int, root: Path, words: tuple[str, ...], generations: int = GENERATIONS) -> Path:
    if world == 1:
        ended = [eigen2(*words, *folder(root, generations))]
    else:
        ended = [process.ended(300) for process in together(world, *words, *folder(root, generations))]
    said = [(process.returncode, process.stderr) for process in ended]
    assert said == [(0, "")] * world, "\n".join(f"{code} {err}" for code, err in said)
    assert all(not process.stdout or rank == 0 for rank, process in enumerate(ended))
    return root


def flat(value: Any, name: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {k: v for key, part in value.items() for k, v in flat(part, f"{name}.{key}").items()}
    if isinstance(value, list):
        return {k: v for i, part in enumerate(value) for k, v in flat(part, f"{name}.{i}").items()}
    return {name: value}


def assert_same(one: Path, other: Path, data: str = "MarketDataModule") -> None:
    first, second = flat(state(one, data)), flat(state(other, data))
    assert first.keys() == second.keys()
    for name, value in first.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(second[name], value, rtol=0, atol=0, equal_nan=True, msg=name)
        else:
            assert second[name] == value, name
    assert metrics(one) == metrics(other)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fit(1, tmp_path_factory.mktemp("processes") / "alone", RUN)


@pytest.mark.parametrize("world", [3, *(pytest.param(world, marks=pytest.mark.slow) for world in (2, 6))])
def test_any_number_of_processes_comes_to_the_same(world: int, alone: Path, tmp_path: Path) -> None:
    spread = fit(world, tmp_path / "spread", RUN)
    assert_same(alone, spread)
    for name in ("equity.csv", "trades.csv"):
        assert (spread / "champion" / name).read_text() == (alone / "champion" / name).read_text()
    own = {".turn", *(f"memory-{rank}.csv" for rank in range(1, world))}
    assert len(listed_parts(spread / "checkpoints" / "last.ckpt")) == world
    assert {path.name for path in spread.iterdir()} == {path.name for path in alone.iterdir()} | own
    with (spread / "metrics.csv").open() as file:
        received = [float(row["exchange/received_mb"]) for row in csv.DictReader(file)]
    assert len(received) == GENERATIONS
    assert min(received) > 0


@pytest.mark.parametrize(
    ("words", "world", "comparison"),
    [
        pytest.param(RUN + EVERYTHING, 4, {}, id="all that draws, moves or compares"),
        pytest.param(CONTROL, 2, {"data": "ControlDataModule"}, id="another workload, in which one agent learns"),
    ],
)
def test_so_do_other_runs(words: tuple[str, ...], world: int, comparison: dict[str, Any], tmp_path: Path) -> None:
    whole, spread = (fit(each, tmp_path / str(each), words, 3) for each in (1, world))
    assert_same(whole, spread, **comparison)


def test_a_checkpoint_resumes_under_any_number_of_processes(alone: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    fit(3, root, RUN, 2)
    with locked_folder(root, ".turn"):  # in which processes fetch one from a bucket
        fit(2, root, RUN, 3)
    fit(1, root, RUN, 4)
    assert_same(alone, root)


@pytest.mark.slow
def test_lightning_starts_the_processes_itself_and_all_lies_in_the_runs_folder(alone: Path, tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    elsewhere.mkdir()
    config = ("fit", "--config", ROOT / "tests" / "small.yaml", *RUN[3:])
    words = [sys.executable, "-m", "eigen2.cli", *config, *folder(root), "--trainer.devices=2"]
    # matplotlib keeps the list of fonts in the home folder; making it takes seconds
    own = {"PYTHONPATH": ROOT, "PATH": "/usr/bin:/bin", "HOME": elsewhere, "MPLCONFIGDIR": matplotlib.get_configdir()}
    env = {name: str(value) for name, value in own.items()}
    ended = subprocess.run(words, cwd=elsewhere, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    assert_same(alone, root)
    assert list(elsewhere.iterdir()) == []
    wanted = {"checkpoints", "tensorboard", "metrics.csv", "memory.csv", "config.yaml", "run.json"}
    assert wanted <= {path.name for path in root.iterdir()}


@pytest.mark.slow
def test_torchrun_starts_all_again_when_one_is_killed(alone: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "--max_restarts=1"]
    words = [*torchrun, "-m", "eigen2.cli", *RUN, *folder(root), "--trainer.callbacks+=tests.kill.FaultOf"]
    plan = {"place": "training", "generation": 2, "rank": 1}
    env = {**os.environ, "EIGEN2_FAULT": json.dumps(plan)}
    ended = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "lost contact" in ended.stderr
    assert_same(alone, root)


def faulty(
    root: Path, fault: tuple[str, int, int], timeout_s: float = 60, world: int = 3, generations: int = GENERATIONS
) -> list[Started]:
    """Start processes of which one is killed, or no longer answers: at a place, in a generation, of a rank."""
    plan = dict(zip(("place", "generation", "rank"), fault, strict=True))
    words = (*RUN, *folder(root, generations), STRATEGY, f"--trainer.strategy.timeout_s={timeout_s}")
    return together(world, *words, "--trainer.callbacks+=tests.kill.FaultOf", EIGEN2_FAULT=json.dumps(plan))


@pytest.mark.parametrize(("fault", "timeout_s", "world"), [(("write", 2, 1), 60, 3), (("stop training", 2, 1), 4, 2)])
def test_after_a_fault_the_others_end_in_one_line_and_the_run_resumes(
    fault: tuple[str, int, int], timeout_s: float, world: int, alone: Path, tmp_path: Path
) -> None:
    started = faulty(tmp_path / "run", fault, timeout_s, world)
    place, generation, broken = fault
    for rank, process in enumerate(started):
        if rank != broken:
            ended = process.ended(120)
            assert ended.returncode == LOST_CONTACT
            (line,) = ended.stderr.strip().splitlines()
            assert line.startswith(f"process {rank} of 0 to {world - 1} lost contact with the others, ")
            assert "--ckpt_path last resumes" in line
    assert started[broken].process.is_alive() == place.startswith("stop ")
    assert started[broken].ended(0 if place.startswith("stop ") else 60).returncode == -signal.SIGKILL
    assert len(metrics(tmp_path / "run")) >= generation
    assert_same(alone, fit(1, tmp_path / "run", RUN))


@pytest.mark.slow
def test_twenty_faults_anywhere_end_the_others_in_time_and_change_nothing(tmp_path: Path) -> None:
    root, goal, timeout_s = tmp_path / "run", 30, 5.0
    slowest = 0.0
    for seed in range(20):
        chance = np.random.default_rng(seed)
        world = int(chance.integers(2, 5))
        rank = int(chance.integers(world))
        places = [*("rollouts", "training", "evaluate", "train", "evolve", "validate"), *("write", "checkpoint")]
        place = f"{chance.choice(['', 'stop '])}{chance.choice(places)}"
        last = root / "checkpoints" / "last.ckpt"
        reached = torch.load(last, weights_only=True)["epoch"] + 1 if last.exists() else 0
        started = faulty(root, (place, reached + int(chance.integers(2)), rank), timeout_s, world, goal)
        stops = place.startswith("stop ")
        wait_until(lambda broken=started[rank]: not broken.process.is_alive() or is_stopped(broken))
        begun = time.monotonic()
        others = [started[other].ended(60) for other in range(world) if other != rank]
        slowest = max(slowest, time.monotonic() - begun)
        assert {process.returncode for process in others} == {LOST_CONTACT}, (seed, place, others)
        assert started[rank].process.is_alive() == stops
        started[rank].ended(0)
        print(f"fault {seed + 1}: {place} in process {rank} of {world} after {reached} generations")
    print(f"the others ended {slowest:.1f} s after the fault at the latest")
    assert slowest < 60
    assert_same(fit(1, tmp_path / "whole", RUN, goal), fit(2, root, RUN, goal))


def is_stopped(started: Started) -> bool:
    return psutil.Process(started.process.pid).status() == psutil.STATUS_STOPPED


def test_one_process_is_asked_to_stop_and_all_do_after_the_same_generation(alone: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    started = together(2, *RUN, *folder(root, 1000))
    wait_until(lambda: (root / "checkpoints" / "last.ckpt").exists())
    pid = started[1].process.pid
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    ended = [process.ended(120) for process in started]
    assert [process.returncode for process in ended] == [TERMINATED, TERMINATED], ended
    reached = torch.load(root / "checkpoints" / "last.ckpt", weights_only=True)["epoch"] + 1
    goal = max(reached, GENERATIONS)
    whole = alone if goal == GENERATIONS else fit(1, tmp_path / "alone", RUN, goal)
    assert_same(whole, fit(1, root, RUN, goal))


@pytest.mark.parametrize(
    ("words", "variables", "named"),
    [
        (("--trainer.strategy=ddp",), {}, "trainer.strategy is DDPStrategy for 2 processes"),
        (("--model.population_size=1",), {}, "trainer.devices x num_nodes is 2; it must be at most 1"),
        ((STRATEGY, "--trainer.strategy.timeout_s=0"), {}, "timeout_s is 0"),
        ((), {"MASTER_PORT": "abc"}, "MASTER_PORT is 'abc'; it must be a whole number from 1 to 65535"),
        ((), {"MASTER_PORT": "70000"}, "MASTER_PORT is '70000'; it must be"),
    ],
)
def test_mistakes_are_one_line(words: tuple[str, ...], variables: dict[str, str], named: str, tmp_path: Path) -> None:
    for process in together(2, *RUN, *folder(tmp_path), *words, **variables):
        ended = process.ended(120)
        assert ended.returncode == 2, ended.stderr
        (line,) = ended.stderr.strip().splitlines()
        assert named in line


def test_validation_by_several_processes_is_refused() -> None:
    """Lightning would give all of them the weights of the first."""
    trainer = Trainer(accelerator="cpu", devices=2, strategy=PopulationStrategy(), logger=False)
    trainer.state.fn = TrainerFn.VALIDATING
    with pytest.raises(UserError, match="num_nodes is 2; validate and test run in one process: devices=1"):
        trainer.strategy.setup(trainer)


def broadcast(tmp_path: Path) -> object:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    strategy = PopulationStrategy()
    strategy._in_contact = lambda purpose: nullcontext()  # type: ignore[method-assign]
    return strategy.broadcast({"save_dir": tmp_path})


def test_a_logger_may_name_its_folder_by_a_path(tmp_path: Path) -> None:
    assert in_fork(broadcast, tmp_path) == {"save_dir": str(tmp_path)}


def test_parts_without_checksums_are_refused(tmp_path: Path) -> None:
    strategy = PopulationStrategy()
    strategy.checkpoint_io = TorchCheckpointIO()
    with pytest.raises(UserError, match=r"^checkpoints of several processes need eigen2.DurableCheckpointIO\(\)"):
        strategy.save_checkpoint({"epoch": 1, "part": {"rows": torch.ones(3)}}, tmp_path / "last.ckpt")
    assert not any(tmp_path.iterdir())


def test_a_run_survives_a_disk_that_refuses_two_checkpoints_in_a_row(alone: Path, tmp_path: Path) -> None:
    """It runs under torchrun in a job of SLURM, whose variables say nothing of torchrun's processes."""
    slurm = {"SLURM_JOB_NAME": "train", "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    refused = "--trainer.callbacks+=tests.faults.Refused", "--trainer.callbacks.generations=[1,2]"
    first, second = (each.ended(300) for each in together(2, *RUN, *folder(tmp_path), *refused, **slurm))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    last = [line for line in first.stderr.splitlines() if "last.ckpt" in line]
    assert [line.partition("generation ")[2][0] for line in last] == ["1", "2", "3"], first.stderr
    assert "written on retry" not in "".join(last[:2])
    assert_same(alone, tmp_path)
