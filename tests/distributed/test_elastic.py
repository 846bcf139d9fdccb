"""A run under `torchrun --nnodes=1:2` loses a node and gains one, each an agent of torchrun on this machine."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from eigen2.runtime.checkpoint import listed_parts
from tests.command import ROOT, wait_until
from tests.distributed.test_processes import RUN, assert_same, fit, folder

SOON = "last_call_timeout=2,keep_alive_interval=2,keep_alive_max_attempt=5"
# else a node that joins waits for the address of the store, which the first node does not publish a second time
ENVIRONMENT = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def node(root: Path, port: int) -> subprocess.Popen[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc_per_node=1", "--max_restarts=3"]
    torchrun += ["--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{port}", f"--rdzv_conf={SOON}"]
    words = [*torchrun, "-m", "eigen2.cli", *RUN, *folder(root, 10_000), "--trainer.callbacks+=tests.kill.Slowed"]
    return subprocess.Popen(
        words, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def writers(root: Path) -> int:
    """Return how many processes wrote the last checkpoint; 0 before the first."""
    last = root / "checkpoints" / "last.ckpt"
    return max(1, len(listed_parts(last))) if last.exists() else 0


@pytest.mark.slow
def test_a_run_loses_a_node_gains_one_and_ends_as_an_unbroken_run(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    nodes = [node(root, port)]  # the first holds the rendezvous
    try:
        wait_until(lambda: writers(root) == 1, 600)
        nodes.append(node(root, port))
        wait_until(lambda: writers(root) == 2, 600)
        for process in (*psutil.Process(nodes[1].pid).children(recursive=True), psutil.Process(nodes[1].pid)):
            process.kill()
        wait_until(lambda: writers(root) == 1, 600)
        nodes.append(node(root, port))
        wait_until(lambda: writers(root) == 2, 600)
    finally:
        for each in nodes:
            each.send_signal(signal.SIGTERM)  # ends all after the same generation
        errors = [each.communicate(timeout=600)[1] for each in nodes]
    assert "lost contact" in errors[0]
    reached = torch.load(root / "checkpoints" / "last.ckpt", weights_only=True)["epoch"] + 1
    assert_same(fit(1, tmp_path / "whole", RUN, reached), root)
    assert writers(root) == 2
