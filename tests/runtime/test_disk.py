"""A run continues when its disk fails, warns once a generation, and loses nothing that can be written later."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from eigen2.market.data.cache import mapped_array
from tests.command import server
from tests.runs import finish, metrics, same, state, steps


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a filesystem of 8 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no filesystem can be mounted here: {error}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def write_beyond(disk: Path) -> None:
    """End with exit code 3 if an array that the disk has no room for is kept in memory."""
    array = mapped_array(disk, "large", {}, (2_000_000,), np.dtype(np.float64), lambda array: array.fill(1.0))
    sys.exit(3 if array.sum() == 2_000_000 and not [*disk.iterdir()] else 0)


def test_an_array_that_the_disk_has_no_room_for_stays_in_memory(disk: Path) -> None:
    """Writing to a mapped page without a block ends a process by SIGBUS."""
    process = server.Process(target=write_beyond, args=(disk,))
    process.start()
    process.join()
    assert process.exitcode == 3


def test_a_run_survives_its_disk(disk: Path, tmp_path: Path) -> None:
    """Each generation has the fault that is planned for it."""
    plan, whole = ["-", "full", "-", "free", "deleted", "read-only", "writable", "clock"], tmp_path / "whole"
    faults = "--trainer.callbacks+=tests.faults.Faults", f"--trainer.callbacks.disk={disk}"
    length = f"--trainer.max_epochs={len(plan)}", f"--data.cache_dir={tmp_path}"
    errors = finish(disk / "run", *length, *faults, f"--trainer.callbacks.plan={plan}").stderr
    finish(whole, *length)
    # nothing is missing, and nothing is there twice
    assert same(state(disk / "run"), state(whole))
    assert metrics(disk / "run") == metrics(whole)
    assert steps(disk / "run") == list(range(len(plan)))
    # each generation warns once of each file
    warned = re.findall(r"generation (\d+): cannot write (\S+?)[: ]", errors)
    assert len(warned) == len(set(warned)), errors
    assert {generation for generation, what in warned if what.endswith("last.ckpt")} == {"1", "2", "5"}
    # the end of a file's last page may still take a row
    assert {"1"} <= {generation for generation, what in warned if what == "curves"} <= {"1", "2"}
    assert "was written on retry" in errors
