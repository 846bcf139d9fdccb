"""A run goes on when the disk does not, warns once a generation, and loses nothing that the disk takes later."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from eigen2.runtime.checksums import verify_checksum
from tests.runs import finish, metrics, same, state, steps


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 8 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no filesystem can be mounted here: {error}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def run_with_faults(disk: Path, cache: Path, plan: list[str]) -> str:
    """Return what a run on the disk writes to stderr while a fault a generation comes as planned."""
    faults = "--trainer.callbacks+=tests.faults.Faults", f"--trainer.callbacks.disk={disk}"
    length = f"--trainer.max_epochs={len(plan)}", f"--data.cache_dir={cache}"
    return finish(disk / "run", *length, *faults, f"--trainer.callbacks.plan={plan}").stderr


def test_a_run_survives_its_disk(disk: Path, tmp_path: Path) -> None:
    plan = ["-", "full", "-", "free", "deleted", "read-only", "writable", "clock"]
    errors, whole = run_with_faults(disk, tmp_path, plan), tmp_path / "whole"
    finish(whole, f"--trainer.max_epochs={len(plan)}", f"--data.cache_dir={tmp_path}")
    # nothing is missing, and nothing is there twice
    assert same(state(disk / "run"), state(whole))
    assert metrics(disk / "run") == metrics(whole)
    assert steps(disk / "run") == list(range(len(plan)))
    # each generation complains once of each file
    warned = re.findall(r"generation (\d+): cannot write (\S+?)[: ]", errors)
    assert len(warned) == len(set(warned)), errors
    assert {generation for generation, what in warned if what.endswith("last.ckpt")} == {"1", "2", "5"}
    # the end of a file's last page may still take a row
    assert {"1"} <= {generation for generation, what in warned if what == "curves"} <= {"1", "2"}
    assert "is written again" in errors


@pytest.mark.slow
def test_a_good_file_is_never_replaced_by_a_bad_one(disk: Path, tmp_path: Path) -> None:
    run_with_faults(disk, tmp_path, ["-", "-", "full", "-"])
    folder = disk / "run" / "checkpoints"
    assert verify_checksum(folder / "last.ckpt") == 1
    assert verify_checksum(folder / "generation-00000.ckpt") == 0
    assert verify_checksum(folder / "best.ckpt") >= 0
    assert not list(folder.glob(".*"))
