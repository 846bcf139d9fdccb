"""What a process uses, where the C library does not tell."""

import atexit
import subprocess
import sys
from typing import Any

import pytest
from lightning.fabric.plugins.environments import LightningEnvironment

from eigen2 import compat
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


@pytest.mark.skipif(sys.platform != "linux", reason="children are counted on Linux alone")
def test_other_processes_of_the_run_are_no_children(monkeypatch: pytest.MonkeyPatch) -> None:
    program = (sys.executable, "-c", "held = bytearray(50_000_000); print(flush=True); input()")

    def start() -> subprocess.Popen[bytes]:
        started = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert started.stdout is not None
        started.stdout.readline()
        return started

    monkeypatch.setattr(compat, "LAUNCHED", set())
    launcher = compat.script_launcher(LightningEnvironment(), 2, 1)
    monkeypatch.setattr(launcher, "_call_children_scripts", lambda: launcher.procs.append(start()))
    monkeypatch.setattr(atexit, "register", lambda *arguments: None)
    before = measure(objects=False).children_bytes
    worker, grown = start(), measure(objects=False).children_bytes
    try:
        assert grown > before + 50e6
        assert launcher.launch(lambda: measure(objects=False).children_bytes) < grown + 1e6
    finally:
        for started in (worker, *launcher.procs):
            started.communicate(b"\n")
