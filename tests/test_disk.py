"""A run goes on when the disk does not, says so once a generation, and loses nothing that the disk takes later."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from eigen2.runtime.checksums import verify_checksum
from tests.command import eigen2
from tests.test_resume import metrics, same, state


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


def run(root: Path, cache: Path, generations: int, *options: str) -> subprocess.CompletedProcess[str]:
    settings = {"default_root_dir": root, "max_epochs": generations}
    words = [f"--trainer.{name}={value}" for name, value in settings.items()]
    words += ["--ckpt_path", "last", f"--data.cache_dir={cache}"]
    done = eigen2("fit", "--config", "tests/small.yaml", *words, *options)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done


def steps(root: Path) -> list[int]:
    curves = EventAccumulator(str(root / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return [event.step for event in curves.Scalars("fitness/mean")]


def test_a_run_survives_its_disk(disk: Path, tmp_path: Path) -> None:
    plan = ["-", "full", "-", "free", "deleted", "read-only", "writable", "clock", "-"]
    faults = [f"--trainer.callbacks.disk={disk}", f"--trainer.callbacks.plan={plan}"]
    done = run(disk / "run", tmp_path, len(plan), "--trainer.callbacks+=tests.faults.Faults", *faults)
    whole = tmp_path / "whole"
    run(whole, tmp_path, len(plan))
    # nothing is missing, and nothing is there twice
    assert same(state(disk / "run"), state(whole))
    assert metrics(disk / "run") == metrics(whole)
    assert steps(disk / "run") == list(range(len(plan)))
    # each generation complains once of each file
    said = re.findall(r"generation (\d+): cannot write (\S+?)[: ]", done.stderr)
    assert len(said) == len(set(said)), done.stderr
    assert {generation for generation, what in said if what.endswith("last.ckpt")} == {"1", "2", "5"}
    # the end of a file's last page may still take a row
    assert {"1"} <= {generation for generation, what in said if what == "curves"} <= {"1", "2"}
    assert "is written again" in done.stderr


@pytest.mark.slow
def test_a_good_file_is_never_replaced_by_a_bad_one(disk: Path, tmp_path: Path) -> None:
    plan = ["-", "-", "full", "-"]
    faults = [f"--trainer.callbacks.disk={disk}", f"--trainer.callbacks.plan={plan}"]
    run(disk / "run", tmp_path, len(plan), "--trainer.callbacks+=tests.faults.Faults", *faults)
    folder = disk / "run" / "checkpoints"
    assert verify_checksum(folder / "last.ckpt") == 1
    assert verify_checksum(folder / "generation-00000.ckpt") == 0
    assert verify_checksum(folder / "best.ckpt") >= 0
    assert not list(folder.glob(".*"))
