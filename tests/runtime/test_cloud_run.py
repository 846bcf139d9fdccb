"""A run that uploads to a real server, which dies and comes back: training goes on, flat, and nothing is lost."""

import csv
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eigen2.runtime.bucket.checkpoint_store import CheckpointStore
from eigen2.runtime.bucket.object_store import Place, connect
from tests.command import ROOT
from tests.runtime.bucket.test_checkpoint_store import free_port
from tests.runtime.buckets import SECRET

GENERATIONS = 90
DIES, RETURNS = 30, 60
PLACE = Place("s3", "bucket", "run")


class Server:
    """Moto in a process of its own, with an empty bucket at each start."""

    def __init__(self) -> None:
        self.port = free_port()

    def start(self) -> None:
        command = [sys.executable, "-c", "from moto.server import main; main()", "-p", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(300):
            try:
                connect(PLACE, 5.0).mkdir(PLACE.bucket)
                return
            except Exception:  # not there yet
                time.sleep(0.1)
        pytest.fail("no server")

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


@pytest.mark.slow
def test_a_server_that_is_killed_and_comes_back_costs_neither_training_nor_memory_nor_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("s3fs", "moto.server"):
        pytest.importorskip(module)
    server, root = Server(), tmp_path / "run"
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{server.port}",
        "CLOUD_PROVIDER": "s3",
        "CLOUD_BUCKET": PLACE.bucket,
    }.items():
        monkeypatch.setenv(name, value)
    server.start()
    command = [sys.executable, "-m", "eigen2.cli", "fit", "--config", "tests/small.yaml"]
    command += ["--trainer.max_epochs", str(GENERATIONS), "--trainer.default_root_dir", str(root)]
    command += ["--trainer.enable_progress_bar", "true"]
    command += ["--trainer.callbacks+=eigen2.runtime.uploader.CheckpointUploader"]
    command += ["--trainer.callbacks.attempts=2", "--trainer.callbacks.backoff_s=0.1"]
    try:
        with (tmp_path / "said").open("w") as said:
            fit = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=subprocess.STDOUT, env=dict(os.environ))
            wait_for(fit, root, DIES)
            server.kill()
            wait_for(fit, root, RETURNS)
            server.start()
            assert fit.wait(300) == 0, (tmp_path / "said").read_text()
        output = (tmp_path / "said").read_text()
        fetched = CheckpointStore(lambda: connect(PLACE, 5.0), PLACE).fetch_newest(tmp_path / "fetched", print)
    finally:
        server.kill()
    assert fetched is not None
    assert fetched.read_bytes() == (root / "checkpoints" / "last.ckpt").read_bytes()
    assert "is tried again" in output
    assert re.search(r"cloud: \d pending, \d+ done, [12] failed", output)
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
