"""Two machines, each a network namespace, with a bad network between them; needs root, and ip and tc of iproute2."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from eigen2.errors import LOST_CONTACT
from tests.command import ROOT
from tests.distributed.test_processes import RUN, assert_same, fit, folder, wait_for

BAD = (  # the first that the kernel knows: delay and loss, or a short queue that drops what comes too fast
    ("netem", "delay", "20ms", "5ms", "loss", "1%"),
    ("tbf", "rate", "20mbit", "burst", "16kb", "limit", "20kb"),
)
MACHINES = {"eigen2-a": "10.77.0.1", "eigen2-b": "10.77.0.2"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not hasattr(os, "geteuid") or os.geteuid() != 0 or None in (shutil.which("ip"), shutil.which("tc")),
        reason="makes network namespaces, for which it must be root and have iproute2",
    ),
]


def do(*words: str) -> bool:
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.fixture
def network() -> Iterator[str]:
    """The two machines, connected; the kind of trouble between them."""
    one, other = MACHINES
    try:
        if not do("ip", "netns", "add", one):
            pytest.skip("no network namespace can be made here")
        assert do("ip", "netns", "add", other)
        assert do("ip", "link", "add", one, "type", "veth", "peer", "name", other)
        kind = ""
        for name, address in MACHINES.items():
            assert do("ip", "link", "set", name, "netns", name)
            assert do("ip", "-n", name, "addr", "add", f"{address}/24", "dev", name)
            assert do("ip", "-n", name, "link", "set", "lo", "up")
            assert do("ip", "-n", name, "link", "set", name, "up")
            add = ("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", name, "root")
            kind = next(bad[0] for bad in BAD if do(*add, *bad))
        yield kind
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


def dropped(name: str) -> int:
    """Packets that the network has lost on their way from a machine."""
    told = subprocess.run(
        ["ip", "netns", "exec", name, "tc", "-s", "qdisc", "show", "dev", name],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(told.stdout.partition("(dropped ")[2].partition(",")[0])


def test_generations_agree_over_a_bad_network(network: str, tmp_path: Path) -> None:
    for process in start(tmp_path / "spread", 60, 4):
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    assert sum(map(dropped, MACHINES)) > 0, f"{network} has lost nothing"
    assert_same(fit(1, tmp_path / "whole", RUN, 4), tmp_path / "spread")


def test_a_machine_that_is_cut_off_ends_both_in_one_line_and_the_run_resumes(network: str, tmp_path: Path) -> None:
    root = tmp_path / "spread"
    started = start(root, 6, 1000)
    wait_for(lambda: (root / "checkpoints" / "last.ckpt").exists())
    assert do("ip", "-n", "eigen2-b", "link", "set", "eigen2-b", "down")
    for process in started:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == LOST_CONTACT, errors
        assert "lost contact with the others" in errors.strip().splitlines()[-1]
    with (root / "metrics.csv").open() as file:
        reached = sum(1 for _ in file)
    assert_same(fit(1, tmp_path / "whole", RUN, reached + 1), fit(2, root, RUN, reached + 1))
