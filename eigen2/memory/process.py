"""What the operating system, the C library and Python say about the memory of this process."""

import ctypes
import functools
import mmap
import sys
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import torch
from torch import Tensor

if sys.platform != "win32":
    import resource

GB = 1e9
MB = 1e6
BLOCK_BYTES = 64
"""What a small Python object takes, about: between the smallest block of 16 bytes and the largest of 512."""


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Memory of the process at one moment, in bytes but for the last; None where the system does not tell."""

    rss_bytes: int
    """Physical memory, mapped files and libraries included."""
    file_bytes: int | None
    """Of that, pages of files and of memory shared with other processes."""
    vms_bytes: int
    """Address space."""
    heap_bytes: int | None
    """Given out by the C library (glibc 2.33 or newer): arrays, tensors, large Python objects. Unlike RSS it is free of
    what waits to be used again, so that it tells a leak of kilobytes."""
    gpu_allocated_bytes: int
    """In live CUDA tensors, on all devices; 0 without CUDA."""
    gpu_reserved_bytes: int
    """Held by PyTorch's CUDA allocator, on all devices; 0 without CUDA."""
    gpu_peak_bytes: int
    """The most that was ever in live CUDA tensors, the sum over devices; 0 without CUDA."""
    python_blocks: int
    """Number of Python's own blocks, of up to 512 bytes each: small objects."""


def measure() -> ProcessMemory:
    """The memory of this process now; takes some 30 microseconds."""
    memory = psutil.Process().memory_info()
    return ProcessMemory(
        rss_bytes=memory.rss,
        file_bytes=getattr(memory, "shared", None),
        vms_bytes=memory.vms,
        heap_bytes=heap_bytes(),
        gpu_allocated_bytes=_gpu(torch.cuda.memory_allocated),
        gpu_reserved_bytes=_gpu(torch.cuda.memory_reserved),
        gpu_peak_bytes=_gpu(torch.cuda.max_memory_allocated),
        python_blocks=sys.getallocatedblocks(),
    )


def shares() -> tuple[int | None, int | None]:
    """PSS and USS: RSS with shared pages divided by those who share them, and without them; some milliseconds."""
    try:
        full = psutil.Process().memory_full_info()
    except psutil.AccessDenied:
        return None, None
    return getattr(full, "pss", None), getattr(full, "uss", None)


def heap_bytes() -> int | None:
    """Bytes that the C library has given out and not got back; None where it has no `mallinfo2`."""
    ask = _mallinfo2()
    if ask is None:
        return None
    found = ask()
    return int(found.uordblks + found.hblkhd)


class _Mallinfo2(ctypes.Structure):
    """`struct mallinfo2` of malloc.h."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


@functools.cache
def _mallinfo2() -> Callable[[], _Mallinfo2] | None:
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):  # musl, macOS and old glibc lack it, Windows the process handle
        return None
    function.restype = _Mallinfo2
    function.argtypes = []
    return function


def uses_cuda() -> bool:
    """Whether this process has started CUDA."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _gpu(ask: Callable[[int], int]) -> int:
    return sum(ask(device) for device in range(torch.cuda.device_count())) if uses_cuda() else 0


def rss_bytes() -> int:
    """Resident bytes of this process."""
    return int(psutil.Process().memory_info().rss)


def peak_rss_bytes() -> int:
    """The most resident bytes that this process had so far; those it has now where the system does not tell."""
    peak = rss_bytes()
    if sys.platform == "linux":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return peak


def trim_malloc() -> bool:
    """Return free pages of the C heap to the system.

    Returns:
        True if pages were returned; False if there were none, or the C library has no `malloc_trim`.
    """
    trim = _malloc_trim()
    return trim is not None and bool(trim(0))


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    """The C library's `malloc_trim`, None where it has none."""
    try:
        function = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # musl and macOS lack the symbol, Windows the process handle
        return None
    function.argtypes = [ctypes.c_size_t]
    function.restype = ctypes.c_int
    return function


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
