"""Whether a run fits into memory, told before anything is allocated."""

import ctypes
import mmap
import sys

import psutil
from torch import Tensor

from callbacks.limits import limits
from eigen2.errors import UserError

GB = 1e9
MB = 1e6


def rss_bytes() -> int:
    """Resident bytes of this process."""
    return int(psutil.Process().memory_info().rss)


def available_bytes() -> int:
    """Bytes this process may still take, by the tightest limit: of the machine, a container, a job or a shell."""
    return min(limit.left for limit in limits())


def release_pages(tensor: Tensor) -> int:
    """Give the whole pages of a contiguous tensor back to the system; they read as zeros afterwards.

    Returns:
        Bytes given back: 0 on another device than the CPU, and on systems other than Linux.
    """
    page = mmap.PAGESIZE
    first = -(-tensor.data_ptr() // page) * page
    count = (tensor.data_ptr() + tensor.nbytes - first) // page
    if sys.platform != "linux" or tensor.device.type != "cpu" or count <= 0:
        return 0
    advise = ctypes.CDLL(None, use_errno=True).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if advise(first, count * page, mmap.MADV_DONTNEED) != 0:
        raise OSError(ctypes.get_errno(), "madvise failed")
    return count * page


def arithmetic(needed: dict[str, int]) -> str:
    """'replay 90.1 + population 20.3 = 110.4 MB', largest first; in GB from one GB on."""
    total = sum(needed.values())
    unit, name = (GB, "GB") if total >= GB else (MB, "MB")
    parts = sorted(needed.items(), key=lambda item: -item[1])
    return " + ".join(f"{owner} {size / unit:,.1f}" for owner, size in parts) + f" = {total / unit:,.1f} {name}"


class RamBudget:
    """Adds up what a run is about to allocate and refuses what cannot fit.

    Args:
        remedy: what the user can lower.
    """

    def __init__(self, remedy: str) -> None:
        self._remedy = remedy
        self._needed: dict[str, int] = {}
        self._available = available_bytes()

    def require(self, needed: dict[str, int]) -> None:
        """Add bytes by owner, before they are allocated.

        Raises:
            UserError: all that was required exceeds what was available at first; with the arithmetic.
        """
        self._needed |= needed
        if sum(self._needed.values()) > self._available:
            raise UserError(f"this run needs {self}; {self._remedy}")

    def __str__(self) -> str:
        return f"{arithmetic(self._needed)} of RAM, {self._available / GB:.1f} GB available"
