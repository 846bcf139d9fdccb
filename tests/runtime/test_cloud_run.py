"""A run that uploads to a real server, which dies and comes back: training goes on, flat, and nothing is lost."""

import csv
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eigen2.runtime.bucket import CheckpointStore, Place, connect
from tests.command import ROOT
from tests.runtime.buckets import SECRET, free_port

GENERATIONS = 90
DIES, RETURNS = 30, 60
PLACE = Place("s3", "bucket", "run")


def server(port: int) -> subprocess.Popen[bytes]:
    """Moto in a process of its own, with an empty bucket at each start."""
    command = [sys.executable, "-c", "from moto.server import main; main()", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(300):
        try:
            connect(PLACE).mkdir(PLACE.bucket)
            return process
        except Exception:  # not there yet
            time.sleep(0.1)
    pytest.fail("no server")


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


@pytest.mark.slow
def test_a_server_that_is_killed_and_comes_back_costs_neither_training_nor_memory_nor_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("s3fs", "moto.server"):
        pytest.importorskip(module)
    root, port = tmp_path / "run", free_port()
    variables = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": SECRET, "CLOUD_PROVIDER": "s3"}
    variables |= {"AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port}", "CLOUD_BUCKET": PLACE.bucket}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-m", "eigen2.cli", "fit", "--config", "tests/small.yaml"]
    command += [f"--trainer.max_epochs={GENERATIONS}", f"--trainer.default_root_dir={root}"]
    command += ["--trainer.enable_progress_bar=true", "--trainer.callbacks.attempts=1"]
    command.insert(-1, "--trainer.callbacks+=eigen2.runtime.uploader.CheckpointUploader")
    running = server(port)
    try:
        with (tmp_path / "said").open("w") as said:
            fit = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=subprocess.STDOUT, env=dict(os.environ))
            wait_for(fit, root, DIES)
            kill(running)
            wait_for(fit, root, RETURNS)
            running = server(port)
            assert fit.wait(300) == 0, (tmp_path / "said").read_text()
        fetched = CheckpointStore(lambda: connect(PLACE), PLACE).fetch_newest(tmp_path / "fetched", print)
    finally:
        kill(running)
    output = (tmp_path / "said").read_text()
    assert fetched is not None
    assert fetched.read_bytes() == (root / "checkpoints" / "last.ckpt").read_bytes()
    assert "is tried again" in output
    assert re.search(r"cloud: [12] pending, \d+ done", output)
    assert "checkpoints are not in" not in output
    assert SECRET not in output
    rows = memory_rows(root)
    assert len(rows) == GENERATIONS
    # the library and its connections come with the first uploads
    rss = [int(row["rss_bytes"]) for row in rows[DIES:]]
    assert max(rss) - rss[0] <= 8e6


def memory_rows(root: Path) -> list[dict[str, str]]:
    """Return memory at the end of each generation so far."""
    with (root / "memory.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["phase"] == "generation"]


def wait_for(fit: "subprocess.Popen[bytes]", root: Path, generations: int) -> None:
    """Until so many generations are over."""
    for _ in range(3000):
        if (root / "memory.csv").exists() and len(memory_rows(root)) >= generations:
            return
        assert fit.poll() is None, "ended early"
        time.sleep(0.1)
    pytest.fail("too slow")
