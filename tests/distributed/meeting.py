"""Processes that meet as those of a run on one machine do, without a run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import torch
from lightning.fabric.plugins.environments import LightningEnvironment
from torch import distributed as dist

from eigen2 import compat
from eigen2.distributed.strategy import PopulationStrategy


def strategy(rank: int, port: int, children: list[subprocess.Popen[bytes]]) -> PopulationStrategy:
    """The strategy of one of two processes; the first has launched children."""
    os.environ |= {"LOCAL_RANK": str(rank), "MASTER_PORT": str(port)}
    made = PopulationStrategy()
    made.parallel_devices = [torch.device("cpu")] * 2
    made.cluster_environment = LightningEnvironment()
    made._script_launcher = SimpleNamespace(procs=children)
    return made


def meet(rank: int, port: int, errors: Path, script: str = "", launcher: int | None = None) -> None:
    """Meet the other process; `script` is what a launched one does, `launcher` the process that launched this one."""
    sys.stderr = errors.open("w")
    if launcher is not None:
        os.environ[compat.LAUNCHER] = str(launcher)
    strategy(rank, port, [subprocess.Popen(["sh", "-c", script])] if script else []).setup_distributed()


def listening(rank: int, port: int, out: Path) -> None:
    """Meet the other process, and write where this one listens."""
    os.environ["MASTER_ADDR"] = "192.0.2.1"  # of no machine here
    strategy(rank, port, []).setup_distributed()
    dist.barrier()
    here = [each.laddr for each in psutil.Process().net_connections() if each.status == psutil.CONN_LISTEN]
    dist.barrier()
    addresses = [[address.ip, address.port] for address in here]
    out.write_text(json.dumps({"addresses": addresses, "interface": os.environ["GLOO_SOCKET_IFNAME"]}))


def orphan(port: int, errors: Path, pid: Path) -> None:
    """Launch a process that waits for this one, and be killed."""
    launcher = os.getpid()
    if (child := os.fork()) == 0:
        meet(1, port, errors, launcher=launcher)
    pid.write_text(str(child))
    time.sleep(0.5)
    os.kill(launcher, signal.SIGKILL)
