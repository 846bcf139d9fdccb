"""Estimate the peak memory of a run before it is allocated."""

import weakref
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from eigen2 import compat
from eigen2.errors import UserError
from eigen2.memory.limits import available_bytes, resident
from eigen2.memory.process import GB, MB, rss_bytes, trim_malloc

OVERHEAD_BYTES = 45_000_000  # added by every process after set-up: code pages, kernels and plotting on their first use
FRAGMENTATION = 1.7  # resident bytes of the C heap per byte of temporary tensors; 1.3 to 1.8 measured (docs/memory.md)


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


def peak_rss_bytes() -> int:
    """Return the peak resident bytes of this process; the current ones where the system records no peak."""
    return resident("self").get("VmHWM", rss_bytes())  # the peak of `getrusage` is the parent's, too


class PeakEstimate:
    """Adds up the peak memory of a run before it is allocated, and refuses a run that cannot fit.

    The peak resident memory of a run on the CPU is the sum of: the process as it is when this is constructed,
    OVERHEAD_BYTES, the owners' bytes, and FRAGMENTATION times the temporary tensors. On a GPU the owners and temporary
    tensors are compared with its free memory. `remedy` tells the user which settings to lower; for the last two
    arguments see `available_bytes`.
    """

    def __init__(self, remedy: str, device: torch.device, budget_bytes: int | None = None, processes: int = 1) -> None:
        self._remedy = remedy
        self._gpu = device.type == "cuda"
        self._kind = "GPU memory" if self._gpu else "RAM"
        if self._gpu:
            torch.cuda.empty_cache()  # cached memory counts as taken
            self._available, self._process = torch.cuda.mem_get_info(device)[0], 0
        else:
            trim_malloc()  # else the RSS counts pages that were freed after reading prices
            self._available, self._process = available_bytes(budget_bytes, processes), rss_bytes()
        self._peak_before = 0 if self._gpu else peak_rss_bytes()
        self._needed: dict[str, int] = {} if self._gpu else {"overhead": OVERHEAD_BYTES}

    def require(self, needed: dict[str, int]) -> None:
        """Add bytes by owner before they are allocated; raises UserError if the total exceeds what was available."""
        self._needed |= needed
        if sum(self._needed.values()) > self._available:
            used = "" if self._gpu else f" in addition to the {self._process / GB:.2f} GB in use"
            raise UserError(
                f"this run needs {arithmetic(self._needed)} of {self._kind}{used}, with "
                f"{self._available / GB:.2f} GB available; {self._remedy}"
            )

    def require_temporary(self, tensors: int, checkpoint: int = 0) -> None:
        """Add, as `work space`, the larger of the temporary tensors and the checkpoint, which is read whole before."""
        self.require({"work space": tensors if self._gpu else max(round(FRAGMENTATION * tensors), checkpoint)})

    @property
    def peak_bytes(self) -> int:
        """Return the estimated peak of the run in bytes: on the CPU, of the resident memory of the process."""
        return max(self._process + sum(self._needed.values()), self._peak_before)

    def __str__(self) -> str:
        terms = self._needed if self._gpu else {"process": self._process, **self._needed}
        peak = f", at most {self.peak_bytes / GB:.2f} GB" if self.peak_bytes > sum(terms.values()) else ""
        return f"{arithmetic(terms)} of {self._kind}{peak}, {self._available / GB:,.1f} GB available"


class LivePeak:
    """Context that counts the bytes of tensors created inside it, backward passes included: `live` ones and `peak`."""

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
        self._storages[address] = weakref.ref(storage, partial(self._forget, address, nbytes))
        self.live += nbytes
        self.peak = max(self.peak, self.live)

    def _forget(self, address: int, nbytes: int, storage: object) -> None:
        del self._storages[address]
        self.live -= nbytes
