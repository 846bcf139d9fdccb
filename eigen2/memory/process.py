"""Measure the memory of this process, and return free memory to the operating system."""

import contextlib
import ctypes
import functools
import math
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eigen2 import compat
from eigen2.memory.limits import resident

GB = 1e9
MB = 1e6
_ARENA = 64 << 20  # address by which glibc aligns the heap of a thread
_SMAPS = Path("/proc/self/smaps")
_MAPPING = re.compile(r"^([0-9a-f]+-[0-9a-f]+) \S+ \S+ \S+ \d+ *(.*)\n((?:[A-Z].*\n)+)", re.MULTILINE)
_BLOCK_BYTES = 64  # typical size of a small Python object, where the allocator does not tell


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Memory of the process at one moment, in bytes; None where the system has no value."""

    rss_bytes: int  # physical memory, mapped files and libraries included
    vms_bytes: int  # address space
    file_bytes: int | None  # part of `rss_bytes`: pages of files, libraries included
    shared_bytes: int  # part of `rss_bytes`: pages of shared memory; 0 but on Linux
    anonymous_bytes: int  # part of `rss_bytes`: all the rest
    shm_files_bytes: int  # of shared memory that this process made by multiprocessing.shared_memory, in use or not
    children_bytes: int  # anonymous memory of child processes and theirs, not of the run's own; 0 but on Linux
    heap_bytes: int | None  # in use: of the C library (glibc 2.33 or newer) and of Arrow
    python_bytes: int | None  # in use: of Python's allocator of small objects, of up to 512 bytes; None: not asked for
    arena_bytes: int | None  # what that allocator has taken from the system; None: not asked for
    gpu_allocated_bytes: int  # in live CUDA tensors, on all devices; 0 without CUDA
    gpu_reserved_bytes: int  # held by PyTorch's CUDA allocator, on all devices; 0 without CUDA
    gpu_peak_bytes: int  # highest `gpu_allocated_bytes` of each device so far, added up; 0 without CUDA

    @property
    def live_bytes(self) -> float:
        """Return the bytes in use of C heap and small objects: RSS if the heap's are unknown, NaN if the others'."""
        if self.heap_bytes is None:
            return self.rss_bytes
        return math.nan if self.python_bytes is None else self.heap_bytes + self.python_bytes

    def levels(self) -> dict[str, float]:
        """Return the bytes of everything that can leak, by name."""
        return {
            "memory": self.live_bytes,
            "anonymous memory": self.anonymous_bytes,
            "GPU memory": self.gpu_allocated_bytes,
            "shared memory": self.shared_bytes,
            "files in /dev/shm": self.shm_files_bytes,
            "child processes": self.children_bytes,
        }


def measure(objects: bool = True) -> ProcessMemory:
    """Measure this process: its small Python `objects` in 0.1 ms, all else in 0.2; with cold caches in 0.8 and 0.6."""
    sizes = resident("self")
    heap = _heap()
    small = arenas = None
    if objects:
        small, arenas = compat.small_object_bytes() or (_BLOCK_BYTES * sys.getallocatedblocks(), 0)
    return ProcessMemory(
        rss_bytes=sizes["VmRSS"],
        vms_bytes=sizes["VmSize"],
        file_bytes=sizes.get("RssFile"),
        shared_bytes=sizes.get("RssShmem", 0),
        anonymous_bytes=sizes.get("RssAnon", sizes["VmRSS"]),
        shm_files_bytes=_shm_files_bytes(),
        children_bytes=_children_bytes("self") if sys.platform == "linux" else 0,
        heap_bytes=None if heap is None else int(heap.uordblks + heap.hblkhd) + _arrow_bytes(),
        python_bytes=small,
        arena_bytes=arenas,
        gpu_allocated_bytes=_over_gpus(torch.cuda.memory_allocated),
        gpu_reserved_bytes=_over_gpus(torch.cuda.memory_reserved),
        gpu_peak_bytes=_over_gpus(torch.cuda.max_memory_allocated),
    )


def measure_mappings() -> tuple[int, int]:
    """Return resident bytes of libraries' data and stacks, and of the free pieces of the C heap, in some 20 ms.

    Both are 0 on other systems than Linux.
    """
    libraries = heap = 0
    used = _heap()
    smaps = _SMAPS.read_text() if _SMAPS.exists() else ""
    for addresses, path, fields in _MAPPING.findall(smaps):
        anonymous = 1024 * int(fields.split("Anonymous:", 1)[1].split(None, 1)[0])
        if path.startswith(("/", "[stack")):
            libraries += anonymous
        elif path == "[heap]" or int(addresses.split("-")[0], 16) % _ARENA == 0:
            heap += anonymous
    return libraries, 0 if used is None else max(0, heap - int(used.uordblks))


def _heap() -> Any:
    """Return `struct mallinfo2`; None without one, or where another allocator has taken the C library's place."""
    mallinfo2 = _libc_function("mallinfo2", _Mallinfo2)
    heap = None if mallinfo2 is None else mallinfo2()
    return heap if heap is not None and heap.uordblks + heap.hblkhd else None


def _children_bytes(process: str) -> int:
    total = 0
    with contextlib.suppress(OSError):  # no child, a process that ended meanwhile, or a kernel without these files
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # raises if there is none, and is fast
        for thread in os.scandir(f"/proc/{process}/task"):
            for child in Path(thread.path, "children").read_text().split():
                if int(child) in compat.LAUNCHED:  # another process of the run, which counts its own memory
                    continue
                with contextlib.suppress(OSError):
                    total += resident(child).get("RssAnon", 0) + _children_bytes(child)
    return total


def _shm_files_bytes() -> int:
    """Return the bytes of shared memory that was created here, whether closed or not, until it is unlinked."""
    total, names = 0, compat.created_shared_memory()
    for name in [*names]:
        try:
            total += os.stat(f"/dev/shm/{name}").st_blocks * 512
        except OSError:
            names.discard(name)
    return total


def _arrow_bytes() -> int:
    """Return the bytes in use in Arrow's own pool, which keeps what is freed."""
    pool = getattr(sys.modules.get("pyarrow"), "default_memory_pool", None)
    return 0 if pool is None or pool().backend_name == "system" else int(pool().bytes_allocated())


def rss_bytes() -> int:
    """Return the resident bytes of this process."""
    return resident("self")["VmRSS"]


def uses_cuda() -> bool:
    """Return whether this process has started CUDA."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def trim_malloc() -> bool:
    """Return free pages of the C heap to the system; False if there are none, or the C library cannot."""
    trim = _libc_function("malloc_trim", ctypes.c_int, ctypes.c_size_t)
    return trim is not None and bool(trim(0))


class _Mallinfo2(ctypes.Structure):
    """`struct mallinfo2` of malloc.h."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


@functools.cache
def _libc_function(name: str, result: Any, *arguments: Any) -> Callable[..., Any] | None:
    try:
        function = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):  # musl, macOS and old glibc lack the symbol
        return None
    function.restype, function.argtypes = result, arguments
    return function


def _over_gpus(query: Callable[[int], int]) -> int:
    return sum(query(device) for device in range(torch.cuda.device_count())) if uses_cuda() else 0
