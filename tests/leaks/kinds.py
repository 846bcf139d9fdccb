"""Kinds of leaks: functions that keep some 400 kB more in `kept` each time they are called."""

import contextlib
import copy
import ctypes
import functools
import logging
import mmap
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

SIZE = 400_000
Kind = Callable[[list[Any]], object]


class Node:
    registry: list[Any] = []  # noqa: RUF012 - shared by all instances: that is the leak

    def __init__(self) -> None:
        self.values = np.ones(SIZE // 8)
        self.itself = self


class Late:
    def __init__(self) -> None:
        self.values = np.ones(SIZE // 8)

    def use(self) -> None: ...


HOOKED, OWNER = torch.nn.Linear(1, 1), Late()


@functools.cache
def cached(number: int) -> np.ndarray:
    return np.full(SIZE // 8, number)


def suspended() -> Any:
    values = np.ones(SIZE // 8)
    yield values.sum()
    yield values


def failing() -> None:
    values = np.ones(SIZE // 8)
    raise ValueError(len(values))


def an_exception(kept: list[Any]) -> None:
    with contextlib.suppress(KeyError):
        try:
            failing()
        except ValueError as error:
            kept.append(error)


def a_thread(kept: list[Any]) -> None:
    values, wait = np.ones(SIZE // 8), threading.Event()
    thread = threading.Thread(target=lambda: wait.wait() and values.sum(), daemon=True)
    thread.start()
    kept.append((wait, thread))


def a_mapping(kept: list[Any]) -> None:
    pages = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.write(b"x" * SIZE)
    kept.append(pages)


def a_shared_mapping(kept: list[Any]) -> None:
    pages = mmap.mmap(-1, SIZE)
    pages.write(b"x" * SIZE)
    kept.append(pages)


def c_memory(kept: list[Any]) -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    address = libc.malloc(SIZE)
    ctypes.memset(address, 1, SIZE)
    kept.append(address)


def shared(kept: list[Any], close: bool) -> None:
    memory = SharedMemory(create=True, size=SIZE)
    memory.buf[:SIZE] = b"x" * SIZE
    kept.append(memory)
    if close:
        memory.close()


def a_process(kept: list[Any]) -> None:
    code = f"x = bytearray(b'x' * {SIZE}); print(flush=True); input()"
    process = subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    kept.append(process)


def a_graph(kept: list[Any]) -> None:
    weight = torch.ones(SIZE // 8, requires_grad=True)
    kept.append(weight.exp().sum())


def a_figure(kept: list[Any]) -> None:
    from matplotlib.figure import Figure

    figure = Figure()
    figure.add_subplot().plot(np.ones(SIZE // 64))
    kept.append(figure)


def a_handler(kept: list[Any]) -> None:
    handler = logging.NullHandler()
    handler.buffer = bytearray(SIZE)
    logging.getLogger("tests.leaks").addHandler(handler)
    kept.append(None)


def a_hook(kept: list[Any]) -> None:
    values = np.ones(SIZE // 8)
    kept.append(HOOKED.register_forward_hook(lambda *_: values.sum()))


def a_finalizer(kept: list[Any]) -> None:
    weakref.finalize(OWNER, len, np.ones(SIZE // 8))
    kept.append(None)


def optimizer_state(kept: list[Any]) -> None:
    weight = torch.nn.Parameter(torch.ones(SIZE // 16))
    optimizer = torch.optim.Adam([weight])
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    kept.append(optimizer)


KINDS: dict[str, Kind] = {
    "list of arrays": lambda kept: kept.append(np.ones(SIZE // 8)),
    "dictionary of arrays": lambda kept: kept.append({len(kept): np.ones(SIZE // 8)}),
    "deque": lambda kept: kept.append(deque([np.ones(SIZE // 8)])),
    "set of bytes": lambda kept: kept.append({bytes([len(kept)]) * SIZE}),
    "texts": lambda kept: kept.extend(f"{len(kept)} {number}".ljust(400) for number in range(900)),
    "small tuples": lambda kept: kept.extend((float(number), number + 1000) for number in range(3500)),
    "small dictionaries": lambda kept: kept.extend({"loss": float(number)} for number in range(1500)),
    "objects": lambda kept: kept.append(Late()),
    "reference cycles": lambda kept: kept.append(Node()),
    "class attribute": lambda kept: Node.registry.append(np.ones(SIZE // 8)),
    "closures": lambda kept: kept.append(functools.partial(len, np.ones(SIZE // 8))),
    "bound methods": lambda kept: kept.append(Late().use),
    "unbounded cache": lambda kept: kept.append(cached(len(kept)).size),
    "exception": an_exception,
    "generator": lambda kept: kept.append((generator := suspended(), next(generator))),
    "thread": a_thread,
    "view of a large array": lambda kept: kept.append(np.ones(SIZE // 8)[:1]),
    "bytearray": lambda kept: kept.append(bytearray(SIZE)),
    "memoryview": lambda kept: kept.append(memoryview(bytearray(SIZE))[:1]),
    "log handlers": a_handler,
    "finalizers": a_finalizer,
    "tensor": lambda kept: kept.append(torch.ones(SIZE // 4)),
    "loss with its graph": a_graph,
    "copies of a state": lambda kept: kept.append(copy.deepcopy(torch.nn.Linear(300, 300).state_dict())),
    "hooks": a_hook,
    "optimizers": optimizer_state,
    "figures": a_figure,
    "private mapping": a_mapping,
    "shared mapping": a_shared_mapping,
    "C memory": c_memory,
    "shared memory": functools.partial(shared, close=False),
    "shared memory that is closed": functools.partial(shared, close=True),
    "share_memory_": lambda kept: kept.append(torch.ones(SIZE // 4).share_memory_()),
    "Arrow's pool": lambda kept: kept.append(
        pa.array(np.arange(SIZE // 8), from_pandas=True).cast(pa.int32()).cast(pa.int64())
    ),
    "Arrow-backed text": lambda kept: kept.append(
        pd.Series([f"{n:400}" for n in range(1000)], dtype="string[pyarrow]")
    ),
    "child processes": a_process,
}
SLOW = {"child processes", "figures"}
"""Kinds that take seconds."""


def clean(kept: list[Any]) -> None:
    """End and free what outlives its references."""
    for each in kept:
        if isinstance(each, subprocess.Popen):
            each.communicate(b"\n")
        if isinstance(each, SharedMemory):
            with contextlib.suppress(BufferError):
                each.close()
            each.unlink()
        if isinstance(each, tuple) and isinstance(each[0], threading.Event):
            each[0].set()
    kept.clear()
    Node.registry.clear()
    cached.cache_clear()
    logging.getLogger("tests.leaks").handlers.clear()
