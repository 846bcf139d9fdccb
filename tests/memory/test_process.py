"""What a process uses, where the C library does not tell."""

from typing import Any

import pytest

from eigen2.memory import process
from eigen2.memory.process import measure


@pytest.mark.parametrize("heap", [None, lambda: process._Mallinfo2()], ids=["no mallinfo2", "another allocator"])
def test_resident_memory_counts_where_the_heap_is_unknown(heap: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another allocator, such as jemalloc, the C library reports a heap of 0 bytes."""
    assert measure().live_bytes != measure().rss_bytes
    monkeypatch.setattr(process, "_libc_function", lambda *_: heap)
    found = measure()
    assert found.heap_bytes is None
    assert found.live_bytes == found.rss_bytes
