"""Lightning strategy of a population over processes: every process trains rows of its own, no gradient is averaged."""

import atexit
import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch import distributed as dist
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from eigen2 import compat
from eigen2.distributed.communicator import in_contact
from eigen2.distributed.rendezvous import LOOPBACK, check_port, listen, loopback_interface, rendezvous, watched
from eigen2.errors import LOST_CONTACT, UserError, require_range
from eigen2.runtime.checkpoint import CHECKSUM, DurableCheckpointIO, delete_unused_parts, write_part

Plain = TypeVar("Plain")


class PopulationStrategy(DDPStrategy):
    """Starts processes as Lightning's DDP does, and leaves each one's weights to itself.

    What `ERLModule` exchanges, a few messages a generation, goes through gloo and the CPU's memory, on GPUs too. Every
    collective raises RunStopped if contact with another process is lost.

    Args:
        timeout_s: Seconds that a process may lag behind the others, above 0, at most 1e7; beyond them the run ends
            with exit code 5, to be resumed. Choose more than a generation's slowest phase takes.
    """

    def __init__(self, timeout_s: float = 300.0) -> None:
        require_range("trainer.strategy.timeout_s", timeout_s, above=0, most=1e7)
        super().__init__(process_group_backend="gloo", timeout=timedelta(seconds=timeout_s))
        self._join_timeout = timedelta(seconds=timeout_s)
        self._script_launcher: Any = None
        self._launcher_pid = 0

    @property
    def launcher(self) -> Any:
        """Return what starts this machine's other processes; raises UserError for a MASTER_PORT that is no port."""
        if self._script_launcher is None:
            check_port(os.environ.get("MASTER_PORT"))
            assert self.cluster_environment is not None
            self._script_launcher = compat.script_launcher(self.cluster_environment, self.num_processes, self.num_nodes)
        return self._script_launcher

    def setup_distributed(self) -> None:
        """Connect to the other processes; raise RunStopped if not all join in time.

        Processes of one machine listen on its loopback interface alone. One that ends before all processes joined takes
        those of its machine with it.
        """
        reset_seed()
        self.set_world_ranks()
        if dist.is_initialized():  # by an earlier call of the Trainer
            return
        rank, world, cluster = self.global_rank, self.world_size, self.cluster_environment
        assert cluster is not None
        under_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        address, port, serves = cluster.main_address, cluster.main_port, rank == 0 and not under_torchrun
        if world == self.num_processes:  # no other machine
            address = address if under_torchrun else LOOPBACK
            if (interface := loopback_interface()) is not None:
                os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        self._launcher_pid = int(os.environ.pop(compat.LAUNCHER, 0))
        with self._in_contact("starting"), watched(self._find_lost):
            store: Store = TCPStore(
                address,
                port,
                world,
                is_master=serves,
                timeout=self._join_timeout,
                wait_for_workers=False,
                multi_tenant=True,
                master_listen_fd=listen(address, port) if serves else None,
            )
            if under_torchrun:
                store = rendezvous(store, rank, world, self._join_timeout)
            dist.init_process_group("gloo", store=store, timeout=self._join_timeout, rank=rank, world_size=world)
        atexit.register(_destroy_process_group)  # gloo's threads must not outlive the interpreter

    def setup(self, trainer: Trainer) -> None:
        """Set up as the strategy for one process does, without a wrapper that averages gradients.

        Raises a UserError where several processes validate or test: Lightning would give all the weights of the first.
        """
        if self.world_size > 1 and trainer.state.fn != TrainerFn.FITTING:
            raise UserError(
                f"trainer.devices x num_nodes is {self.world_size}; validate and test run in one process: devices=1"
            )
        super().setup(trainer)
        compat.skip_sigterm_broadcast(trainer)  # GracefulStop asks all processes twice a generation

    def configure_ddp(self) -> None:
        """Do nothing: every process has other weights."""

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Wait for all processes."""
        with self._in_contact("waiting for all"):
            super().barrier()

    def broadcast(self, obj: Plain, src: int = 0) -> Plain:
        """Return the object of process `src`, sent as JSON, a path as its text, on all processes."""
        if not dist.is_initialized():
            return obj
        content = torch.frombuffer(bytearray(json.dumps(obj, default=os.fspath).encode()), dtype=torch.uint8)
        length = torch.tensor(len(content))
        with self._in_contact("sharing a setting"):
            dist.broadcast(length, src)
            content = content if self.global_rank == src else torch.empty(int(length), dtype=torch.uint8)
            dist.broadcast(content, src)
        return json.loads(bytes(content.tolist()))

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Reduce a tensor over all processes, through the CPU's memory."""
        if not isinstance(tensor, Tensor):
            return tensor
        with self._in_contact("deciding together"):
            return super().reduce(tensor.cpu(), group, reduce_op).to(tensor.device)

    def _find_lost(self) -> tuple[str, int] | None:
        """Return a line and an exit code if the launcher of this process, or one that it has launched, has ended."""
        if self._launcher_pid and os.getppid() != self._launcher_pid:
            line = f"process {self.global_rank}: process 0 of this machine ended before all processes joined"
            return line, LOST_CONTACT
        for number, child in enumerate(self.launcher.procs, 1):
            if (code := child.poll()) is not None:
                how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
                line = f"process {number} of this machine {how} before all processes joined, and so does process 0"
                return f"{line}; --ckpt_path last resumes", max(code, 0) or LOST_CONTACT
        return None

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Write every process's part, if there are parts; once all are on the disk, let process 0 write the rest.

        If the disk refuses a part, nothing changes and process 0 raises OSError.
        """
        if (part := checkpoint.pop("part", None)) is not None:
            if not isinstance(self.checkpoint_io, DurableCheckpointIO):
                raise UserError("checkpoints of several processes need eigen2.DurableCheckpointIO() as a plugin")
            try:
                answer = write_part(Path(filepath), part, self.global_rank, int(checkpoint["epoch"]))
            except OSError as error:
                answer = f"process {self.global_rank}: {error}"
            answers = self._gather_text(answer)
            checkpoint["parts"] = [text for text in answers if CHECKSUM.fullmatch(text)]
            if refused := [text for text in answers if not CHECKSUM.fullmatch(text)]:
                if self.is_global_zero:
                    delete_unused_parts(Path(filepath).parent)
                    raise OSError("; ".join(refused)[:200])
                return
        super().save_checkpoint(checkpoint, filepath, storage_options)  # which deletes parts that are not used any more

    def _gather_text(self, text: str) -> list[str]:
        """Return the first 200 bytes of every process's text, by rank."""
        own = torch.frombuffer(bytearray(text.encode()[:200].ljust(200)), dtype=torch.uint8)
        texts = [torch.empty_like(own) for _ in range(self.world_size)]
        with self._in_contact("writing a checkpoint"):
            dist.all_gather(texts, own)
        return [bytes(each.tolist()).decode(errors="replace").strip() for each in texts]

    def _in_contact(self, purpose: str) -> AbstractContextManager[None]:
        return in_contact(self.global_rank, self.world_size, purpose)


def _destroy_process_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def check_processes(trainer: Trainer, agents: int) -> None:
    """Refuse, by a UserError, more processes than agents, and a strategy that cannot spread a population."""
    name, world = type(trainer.strategy).__name__, trainer.world_size
    check_world(world, agents)
    if world > 1 and not isinstance(trainer.strategy, PopulationStrategy):
        raise UserError(f"trainer.strategy is {name} for {world} processes; use eigen2.distributed.PopulationStrategy")


def check_world(world: int, agents: int) -> None:
    """Refuse, by a UserError, more processes than agents."""
    if world > agents:
        raise UserError(f"trainer.devices x num_nodes is {world}; it must be at most {agents}, the number of agents")


def processes(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return processes on each machine, and machines, that a Trainer's arguments ask for or torchrun has started."""
    if dist.is_torchelastic_launched():
        here = int(os.environ["LOCAL_WORLD_SIZE"])
        return here, int(os.environ["WORLD_SIZE"]) // here
    devices, nodes = config.get("devices", 1), int(config.get("num_nodes") or 1)
    if (listed := _listed(devices)) is not None:
        devices = len(listed)
    elif devices in ("auto", "-1", -1):
        on_gpus = config.get("accelerator", "auto") in ("auto", "gpu", "cuda")
        devices = max(1, torch.cuda.device_count() if on_gpus else 1)
    try:
        return int(devices), nodes
    except ValueError:
        raise UserError(f"trainer.devices is {devices!r}: give a number, a list of numbers, or auto") from None


def listed_gpus(config: Mapping[str, Any]) -> list[Any]:
    """Return the GPUs that a Trainer's arguments list; none if they give a number, or where there are no GPUs."""
    on_gpus = config.get("accelerator", "auto") in ("auto", "gpu", "cuda") and torch.cuda.is_available()
    return (_listed(config.get("devices")) or []) if on_gpus else []


def _listed(devices: Any) -> list[Any] | None:
    if isinstance(devices, str) and "," in devices:
        return [int(part) if part.strip().isdigit() else part for part in devices.split(",") if part]
    return devices if isinstance(devices, list) else None
