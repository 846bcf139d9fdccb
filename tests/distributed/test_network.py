"""Two machines, each a network namespace, and the network between them; needs root, and ip of iproute2."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from eigen2.errors import LOST_CONTACT
from tests.command import ROOT, wait_until
from tests.distributed.test_processes import RUN, assert_same, fit, folder

MACHINES = {"eigen2-a": "10.77.0.1", "eigen2-b": "10.77.0.2"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("ip") is None,
        reason="makes network namespaces, for which it must be root and have iproute2",
    ),
]


def do(*words: str) -> bool:
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.fixture
def network() -> Iterator[None]:
    """The two machines, connected."""
    one, other = MACHINES
    try:
        if not do("ip", "netns", "add", one):
            pytest.skip("no network namespace can be made here")
        assert do("ip", "netns", "add", other)
        assert do("ip", "link", "add", one, "type", "veth", "peer", "name", other)
        for name, address in MACHINES.items():
            assert do("ip", "link", "set", name, "netns", name)
            assert do("ip", "-n", name, "addr", "add", f"{address}/24", "dev", name)
            assert do("ip", "-n", name, "link", "set", "lo", "up")
            assert do("ip", "-n", name, "link", "set", name, "up")
        yield
    finally:
        for name in MACHINES:
            do("ip", "netns", "del", name)


def start(root: Path, timeout_s: float, generations: int) -> list[subprocess.Popen[str]]:
    """A process on each machine."""
    words = [sys.executable, "-m", "eigen2.cli", *RUN, *folder(root, generations), "--trainer.num_nodes=2"]
    words += ["--trainer.strategy=eigen2.distributed.PopulationStrategy", f"--trainer.strategy.timeout_s={timeout_s}"]
    shared = {**os.environ, "MASTER_ADDR": MACHINES["eigen2-a"], "MASTER_PORT": "29500", "WORLD_SIZE": "2"}
    shared |= {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "test", "GROUP_WORLD_SIZE": "2"}
    return [
        subprocess.Popen(
            ["ip", "netns", "exec", name, *words],
            cwd=ROOT,
            env={**shared, "RANK": str(rank), "GROUP_RANK": str(rank), "GLOO_SOCKET_IFNAME": name},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, name in enumerate(MACHINES)
    ]


@pytest.mark.usefixtures("network")
def test_a_machine_that_is_cut_off_ends_both_in_one_line_and_the_run_resumes(tmp_path: Path) -> None:
    root = tmp_path / "spread"
    started = start(root, 6, 1000)
    wait_until(lambda: (root / "checkpoints" / "last.ckpt").exists())
    assert do("ip", "-n", "eigen2-b", "link", "set", "eigen2-b", "down")
    for process in started:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == LOST_CONTACT, errors
        assert "lost contact with the others" in errors.strip().splitlines()[-1]
    with (root / "metrics.csv").open() as file:
        reached = sum(1 for _ in file)
    assert_same(fit(1, tmp_path / "whole", RUN, reached + 1), fit(2, root, RUN, reached + 1))
