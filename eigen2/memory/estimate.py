"""Estimate the peak memory of a run before anything of it is allocated."""

import weakref
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from eigen2 import compat
from eigen2.errors import UserError
from eigen2.memory.limits import limits
from eigen2.memory.process import GB, MB, peak_rss_bytes, rss_bytes, trim_malloc

LATER_BYTES = 45_000_000  # what every process adds after the set-up: pages of code that runs first then, kernels, plots
FRAGMENTATION = 1.7  # resident bytes of the C heap per byte of temporary tensors; 1.3 to 1.8 measured (docs/memory.md)


def available_bytes(budget_bytes: int | None = None, processes: int = 1) -> int:
    """Return the bytes this process may still take, by the tightest limit: its budget, machine, container or shell.

    Of what is shared, each of the run's `processes` on this machine gets an equal part.
    """
    return min(limit.left // (processes if limit.shared else 1) for limit in limits(budget_bytes))


def processes_here(trainer: Trainer) -> int:
    """Return the number of the run's processes on this machine, after a barrier, so that all see the same memory."""
    if trainer.world_size == 1:
        return 1
    trainer.strategy.barrier()
    return int(getattr(trainer.strategy, "num_processes", 1))


def checkpoint_bytes(trainer: Trainer) -> int:
    """Return the size of the file that the trainer resumes from; 0 without one."""
    path = Path(trainer.ckpt_path or "")
    return path.stat().st_size if path.is_file() else 0


def arithmetic(needed: dict[str, int]) -> str:
    """Format a sum as 'replay 90.1 + population 20.3 = 110.4 MB', largest first; in GB from one GB on."""
    total = sum(needed.values())
    unit, name, digits = (GB, "GB", 2) if total >= GB else (MB, "MB", 1)
    parts = sorted(needed.items(), key=lambda item: -item[1])
    terms = " + ".join(f"{owner} {size / unit:,.{digits}f}" for owner, size in parts)
    return f"{terms} = {total / unit:,.{digits}f} {name}"


class PeakEstimate:
    """Adds up what a run will hold at most, before it is allocated, and refuses what cannot fit.

    The peak resident memory of a run on the CPU is the sum of: the process as it is when this is constructed, what
    every process adds later, the owners' bytes, and FRAGMENTATION times the temporary tensors. On a GPU the owners and
    temporary tensors are compared with the memory that is free there. For the last two arguments see `available_bytes`;
    the remedy is what the user can lower.
    """

    def __init__(self, remedy: str, device: torch.device, budget_bytes: int | None = None, processes: int = 1) -> None:
        self._remedy = remedy
        self._gpu = device.type == "cuda"
        self._kind = "GPU memory" if self._gpu else "RAM"
        if self._gpu:
            self._available, self._process = torch.cuda.mem_get_info(device)[0], 0
        else:
            trim_malloc()  # pages freed after reading prices will be used again
            self._available, self._process = available_bytes(budget_bytes, processes), rss_bytes()
        self._peak_before = 0 if self._gpu else peak_rss_bytes()
        self._needed: dict[str, int] = {} if self._gpu else {"later": LATER_BYTES}

    def require(self, needed: dict[str, int]) -> None:
        """Add bytes by owner, before they are allocated; raises UserError if all exceed what was available at first."""
        self._needed |= needed
        if sum(self._needed.values()) > self._available:
            raise UserError(
                f"this run needs {arithmetic(self._needed)} of {self._kind} beside the {self._process / GB:.2f} GB it "
                f"has, {self._available / GB:.2f} GB available; {self._remedy}"
            )

    def require_temporary(self, tensors: int, checkpoint: int = 0) -> None:
        """Add, as `work space`, the bytes of temporary tensors, or of the checkpoint read whole before any are made."""
        self.require({"work space": tensors if self._gpu else max(round(FRAGMENTATION * tensors), checkpoint)})

    @property
    def peak_bytes(self) -> int:
        """Return the peak memory of the run, on the CPU the resident memory of the process."""
        return max(self._process + sum(self._needed.values()), self._peak_before)

    def __str__(self) -> str:
        held = self._needed if self._gpu else {"process": self._process, **self._needed}
        peak = f", at most {self.peak_bytes / GB:.2f} GB" if self.peak_bytes > sum(held.values()) else ""
        return f"{arithmetic(held)} of {self._kind}{peak}, {self._available / GB:,.1f} GB available"


class LivePeak:
    """Context that counts the bytes of tensors created inside, backward passes included: `live` now, and the `peak`."""

    def __init__(self) -> None:
        self.live: int = 0
        self.peak: int = 0
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._watched = compat.watch_results(self._count)

    def __enter__(self) -> "LivePeak":
        self._watched.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._watched.__exit__(*error)

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        address, nbytes = storage.data_ptr(), storage.nbytes()
        if address in self._storages or not nbytes:  # a view, or written in place
            return

        def forget(_: object) -> None:
            del self._storages[address]
            self.live -= nbytes

        self._storages[address] = weakref.ref(storage, forget)
        self.live += nbytes
        self.peak = max(self.peak, self.live)
