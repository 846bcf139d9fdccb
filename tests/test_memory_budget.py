"""A run ends in order before a real limit kills it, and goes on where it was."""

import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from eigen2.cli.main import main
from eigen2.market.data.sample import sample_path
from tests.command import Started
from tests.runs import metrics, same, state

ROOT = Path(__file__).parent.parent
GENERATIONS = 12
MB = 10**6
GROUPS = Path("/sys/fs/cgroup/memory")
Limit = Callable[[], None]


def run(
    root: Path, *options: str, limit: Limit | None = None, hog: bool = True, room: int = 0
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "eigen2.cli", "fit", "--config", "tests/small.yaml", "--ckpt_path", "last"]
    folder = ["--trainer.default_root_dir", str(root), "--trainer.max_epochs", str(GENERATIONS)]
    leak = ["--trainer.callbacks+=tests.hog.Hog", "--trainer.callbacks.megabytes=80"] if hog else []
    leak += [f"--trainer.callbacks.room={room}"] if hog else []
    # without threads of the BLAS libraries, each of which reserves address space
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    words, kept = [*command, *folder, *leak, *options], {"capture_output": True, "text": True}
    return subprocess.run(words, cwd=ROOT, env=environment, check=False, preexec_fn=limit, **kept)


@pytest.fixture
def control_group() -> Iterator[Limit]:
    """Puts a process into a group of 950 MB; skipped where this user may make none."""
    group = GROUPS / f"eigen2-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(950 * MB))
    except OSError as error:
        pytest.skip(f"no control group of the first version can be made here: {error}")
    yield lambda: (group / "cgroup.procs").write_text(str(os.getpid())) and None
    group.rmdir()


@pytest.mark.slow
def test_a_run_survives_the_limit_of_a_control_group(control_group: Limit, tmp_path: Path) -> None:
    assert "the control group's memory" in last_line(tmp_path, limit=control_group)


@pytest.mark.slow  # takes more than a minute
def test_a_run_survives_a_limit_of_its_address_space(tmp_path: Path) -> None:
    assert "the address space (RLIMIT_AS)" in last_line(tmp_path, room=800)
    resumed, whole = tmp_path / "run", tmp_path / "whole"
    for root in (resumed, whole):
        done = run(root, hog=False)
        assert done.returncode == 0, done.stderr
    assert same(state(resumed), state(whole))
    assert metrics(resumed) == metrics(whole)


def last_line(root: Path, **limit: Any) -> str:
    """What a run says that ends in order where one without a budget is killed."""
    killed = run(root / "without", "--trainer.callbacks+=tests.hog.NoBudget", **limit)
    assert killed.returncode in (1, -signal.SIGKILL), killed.stderr
    stopped = run(root / "run", **limit)
    assert stopped.returncode == 3, stopped.stderr
    (line,) = [line for line in stopped.stderr.splitlines() if line.startswith("stopped ")]
    assert "resume from the last checkpoint" in line
    assert "memory runs short" in stopped.stderr
    # the report: who holds the memory, and the verdict
    assert "leak in" in stopped.stdout or "verdict" in stopped.stdout
    assert "unaccounted" in stopped.stdout
    assert len(metrics(root / "run")) > 1
    return line


@pytest.mark.slow
def test_a_budget_ends_a_run_that_outgrows_it(tmp_path: Path) -> None:
    done = run(tmp_path, "--budget.memory_budget_gb=0.8")
    assert done.returncode == 3, done.stderr
    assert "of the memory budget used" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["memory_budget_gb=0.2"], r"this run needs overhead .*, with 0\.00 GB available; lower "),
        (["memory_budget_share=1.5"], r"error: budget\.memory_budget_share is 1\.5; it must be above 0 and at most 1$"),
        (["memory_budget_gb=8", "data.replay_capacity=2000000000"], r"needs replay .* lower data\.replay_cap"),
    ],
)
def test_a_budget_that_is_wrong_or_cannot_hold_the_run_is_refused_in_one_line(
    tmp_path: Path, options: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"--{word}" if word.startswith("data.") else f"--budget.{word}" for word in options]
    with pytest.raises(SystemExit) as left:
        main(["fit", "--config", "tests/small.yaml", "--trainer.default_root_dir", str(tmp_path), *words])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert re.search(expected, said.splitlines()[-1])


def leave(room: int) -> None:
    """Let the address space of this process grow by so many megabytes."""
    most = psutil.Process().memory_info().vms + room * MB
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


FIT = ("fit", "--config", "tests/small.yaml", "--trainer.max_epochs=1", "--data.replay_capacity=300000")
NO_BUDGET = "--trainer.callbacks+=tests.hog.NoBudget"


@pytest.mark.parametrize(
    ("words", "rooms"),
    [
        ((*FIT, NO_BUDGET), (2, 30, 60)),
        (("data", "inspect", sample_path()), (1, 20, 90)),
        (("data", "prepare", sample_path()), (5, 90)),
    ],
    ids=["fit", "inspect", "prepare"],
)
def test_a_command_ends_in_one_line_wherever_its_address_space_does(
    words: tuple[object, ...], rooms: tuple[int, ...], tmp_path: Path
) -> None:
    codes = []
    for room in rooms:
        out = tmp_path / f"{room}.parquet"
        options = {"fit": [f"--trainer.default_root_dir={tmp_path / str(room)}"], "prepare": [out]}
        more = next((options[word] for word in words if word in options), [])
        ended = Started([*words, *more], prepare=partial(leave, room)).ended(300)
        codes.append(ended.returncode)
        assert "Traceback" not in ended.stderr, ended.stderr
        if ended.returncode != 0:
            (line,) = [line for line in ended.stderr.splitlines() if line.startswith(("error: ", "stopped "))]
            assert ended.returncode in (2, 3), line
            assert re.search(r"GB available[;:] |no memory or threads left", line)
            assert not out.exists()
    assert 0 not in codes[:-1]  # threads take address space, too, and so do more cores
