"""Several processes of a run, each with a share of the population, and no gradient between them."""

import atexit
import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import torch
from lightning.fabric.utilities.distributed import _distributed_is_initialized, _init_dist_connection
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher
from torch import Tensor
from torch import distributed as dist
from torch._C._distributed_c10d import TCPStore

from eigen2.distributed.communicator import in_contact
from eigen2.distributed.rendezvous import meet
from eigen2.errors import UserError, require_range

Plain = TypeVar("Plain")
LEAVE_S = 10.0
"""Seconds that the processes it has started are given to end after the first one."""


class _Launcher(_SubprocessScriptLauncher):
    """Starts this machine's other processes, unless torchrun or a scheduler has.

    Unlike Lightning's it does not change the number of threads, on which results depend, and lets a process that is
    left alone find out and say so, where Lightning's would be killed without a word.
    """

    def launch(self, function: Callable[..., Any], *args: Any, trainer: Trainer | None = None, **kwargs: Any) -> Any:
        """Start them and call the function."""
        self.cluster_environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
        if not self.cluster_environment.creates_processes_externally and not self.procs:
            self._call_children_scripts()
            atexit.register(_end, self.procs)
        return function(*args, **kwargs)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Leave no process behind: those that do not end soon by themselves are ended."""
    until = time.monotonic() + LEAVE_S
    for process in processes:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


class PopulationStrategy(DDPStrategy):
    """Starts processes as Lightning's DDP does, and leaves each one's weights to itself.

    What `ERLModule` exchanges, a few messages a generation, goes through gloo and the CPU's memory, on GPUs too.
    """

    def __init__(self, timeout_s: float = 300.0) -> None:
        """Choose how long to wait for other processes.

        Args:
            timeout_s: Seconds that a process may be behind the others, above 0; longer, and the run ends with exit
                code 5, to be resumed. More than a generation's slowest phase takes. Default 300.

        Raises:
            UserError: `timeout_s` is not above 0.
        """
        require_range("trainer.strategy.timeout_s", timeout_s, above=0)
        super().__init__(process_group_backend="gloo", timeout=timedelta(seconds=timeout_s))

    def setup_distributed(self) -> None:
        """Find the other processes.

        Raises:
            RunStopped: not all came in time.
        """
        reset_seed()
        self.set_world_ranks()
        assert self.cluster_environment is not None
        assert self._timeout is not None
        with self._in_contact("starting"):
            if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
                address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
                store = TCPStore(*address, is_master=False, timeout=self._timeout)
                rank, world = self.global_rank, self.world_size
                own = meet(store, rank, world, self._timeout)
                dist.init_process_group("gloo", store=own, timeout=self._timeout, rank=rank, world_size=world)
            else:
                _init_dist_connection(self.cluster_environment, "gloo", timeout=self._timeout)
        atexit.register(_leave)  # gloo's threads must not outlive the interpreter

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        self._launcher = _Launcher(self.cluster_environment, self.num_processes, self.num_nodes)

    def setup(self, trainer: Trainer) -> None:
        """Set up as the strategy for one process does, without a wrapper that would average gradients."""
        super().setup(trainer)
        # Lightning would ask process 0 before every batch whether it got SIGTERM; GracefulStop asks once a generation
        trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]

    def configure_ddp(self) -> None:
        """Nothing: every process has other weights."""

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Wait for all processes.

        Raises:
            RunStopped: contact with another process was lost.
        """
        with self._in_contact("waiting for all"):
            super().barrier()

    def broadcast(self, obj: Plain, src: int = 0) -> Plain:
        """What process `src` has, to all: plain values only, as JSON.

        Raises:
            RunStopped: contact with another process was lost.
        """
        if not _distributed_is_initialized():
            return obj
        content = torch.frombuffer(bytearray(json.dumps(obj).encode()), dtype=torch.uint8)
        length = torch.tensor(len(content))
        with self._in_contact("sharing a setting"):
            dist.broadcast(length, src)
            content = content if self.global_rank == src else torch.empty(int(length), dtype=torch.uint8)
            dist.broadcast(content, src)
        shared: Plain = json.loads(bytes(content.tolist()))
        return shared

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """As Lightning's, through the CPU's memory.

        Raises:
            RunStopped: contact with another process was lost.
        """
        if not isinstance(tensor, Tensor):
            return tensor
        with self._in_contact("deciding together"):
            return super().reduce(tensor.cpu(), group, reduce_op).to(tensor.device)

    def _in_contact(self, what: str) -> Any:
        return in_contact(self.global_rank, self.world_size, what)


def check_processes(trainer: Trainer, agents: int) -> None:
    """Refuse a strategy that cannot spread a population over processes, and more processes than agents.

    Args:
        trainer: about to fit.
        agents: size of the population.

    Raises:
        UserError: names the setting, its value and the remedy.
    """
    if trainer.world_size > 1 and not isinstance(trainer.strategy, PopulationStrategy):
        raise UserError(
            f"trainer.strategy is {type(trainer.strategy).__name__} for {trainer.world_size} processes; "
            "eigen2.distributed.PopulationStrategy spreads a population over them"
        )
    if trainer.world_size > agents:
        raise UserError(
            f"there are {trainer.world_size} processes for model.population_size {agents}: each takes one agent at "
            "least; start fewer or raise it"
        )


def processes(config: Mapping[str, Any]) -> tuple[int, int]:
    """Processes on each machine, and machines, that a Trainer's arguments ask for, or torchrun has started.

    Args:
        config: the Trainer's arguments by name.
    """
    if dist.is_torchelastic_launched():
        here = int(os.environ["LOCAL_WORLD_SIZE"])
        return here, int(os.environ["WORLD_SIZE"]) // here
    devices, nodes = config.get("devices", 1), int(config.get("num_nodes") or 1)
    if isinstance(devices, str) and "," in devices:
        devices = [part for part in devices.split(",") if part]
    if isinstance(devices, list):
        return len(devices), nodes
    if devices in ("auto", "-1", -1):
        on_gpus = config.get("accelerator", "auto") in ("auto", "gpu", "cuda")
        return max(1, torch.cuda.device_count() if on_gpus else 1), nodes
    return int(devices), nodes
