"""Pages of memory that are not needed for a while."""

import ctypes
import mmap
import sys

from torch import Tensor


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
