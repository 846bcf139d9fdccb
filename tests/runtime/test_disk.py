"""A run continues when its disk fails, warns once a generation, and loses nothing that can be written later."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

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
