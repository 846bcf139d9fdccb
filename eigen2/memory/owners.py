"""Count the bytes of each owner: every array and tensor it holds, each storage once, mapped files apart."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

_MAPS = Path("/proc/self/maps")
_NO_FILE = ("/dev/shm/", "/dev/zero", "/memfd:", "/SYSV")
"""Prefixes of mappings that have a name, but no file on a disk to which the system could write their pages."""
_LARGE = 1 << 18  # bytes from which on memory may be that of a mapped file
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type, ModuleType, FunctionType, torch.dtype, torch.device)


@runtime_checkable
class MemoryOwner(Protocol):
    """A module, data module, callback, logger or checkpoint plugin that lists what its parts hold."""

    def memory_owners(self) -> Mapping[str, object]:
        """Return what holds memory, by a name unique in the run.

        Values are arrays, tensors, objects or containers that hold some, or an int for bytes that the owner counted
        itself; a `Filling` around either marks what grows up to a known size.
        """


@dataclass(frozen=True, slots=True)
class Filling:
    """An owner that grows up to a known size, such as a buffer, whose growth is no leak."""

    value: object  # what holds the bytes
    full: bool  # whether it has reached its size


@dataclass(frozen=True, slots=True)
class Held:
    """What an owner holds, in bytes."""

    anonymous: int = 0  # memory that only its owner can free
    mapped: int = 0  # files mapped into memory, resident or not; the system may drop their pages
    gpu: int = 0  # on other devices than the CPU

    @property
    def total(self) -> int:
        """Return the sum of all."""
        return self.anonymous + self.mapped + self.gpu


class MappedFiles:
    """Addresses of mapped files, read in some 10 ms whenever large spans of memory are new."""

    def __init__(self) -> None:
        self._files = np.zeros((0, 2), np.int64)
        self._known: set[tuple[int, int]] = set()

    def count(self, spans: Mapping[str, Sequence[tuple[int, int]]]) -> dict[str, int]:
        """Return by owner the bytes of spans of memory that are in files; small spans count as none."""
        large = {name: [span for span in own if span[1] - span[0] >= _LARGE] for name, own in spans.items()}
        asked = {span for own in large.values() for span in own}
        if not asked <= self._known:
            self._files = mapped_files()
        self._known = asked
        return {name: sum(int(np.diff(self._files.clip(*span)).sum()) for span in own) for name, own in large.items()}


def account(owners: Mapping[str, object], files: MappedFiles | None = None) -> dict[str, Held]:
    """Count what each owner (see `MemoryOwner`) holds; memory held by several counts for the first of them.

    A tensor counts with its whole storage and a view with the whole array it views, since these stay alive.
    """
    counted: dict[str, list[tuple[int, int]]] = {}
    seen: set[tuple[str, int, int]] = set()
    cpu: dict[str, list[tuple[int, int]]] = {name: [] for name in owners}
    gpu, plain = dict.fromkeys(owners, 0), dict.fromkeys(owners, 0)
    for name, owner in owners.items():
        value = owner.value if isinstance(owner, Filling) else owner
        plain[name] = value if isinstance(value, int) else 0
        for array in arrays_in(value):
            for device, start, stop in spans_of(array):
                if (device, start, stop) in seen:
                    continue
                seen.add((device, start, stop))
                pieces = _add_to_union(counted.setdefault(device, []), start, stop)
                cpu[name] += pieces if device == "cpu" else []
                gpu[name] += 0 if device == "cpu" else sum(high - low for low, high in pieces)
    mapped = (files or MappedFiles()).count(cpu)
    return {
        name: Held(plain[name] + sum(high - low for low, high in cpu[name]) - mapped[name], mapped[name], gpu[name])
        for name in owners
    }


def _add_to_union(union: list[tuple[int, int]], start: int, stop: int) -> list[tuple[int, int]]:
    """Add a span to sorted disjoint spans, in place, and return the pieces of it that they did not cover."""
    first = bisect.bisect_left(union, start, key=lambda span: span[1])
    last = bisect.bisect_right(union, stop, key=lambda span: span[0])
    edges = [start, *(edge for span in union[first:last] for edge in span), stop]
    union[first:last] = [(min(edges), max(edges))]
    return [(low, high) for low, high in zip(edges[::2], edges[1::2], strict=True) if low < high]


def arrays_in(owner: object) -> Iterator[np.ndarray | Tensor]:
    """Yield every array and tensor in an object, its attributes and containers, to any depth; none twice."""
    seen: set[int] = set()
    waiting = [owner]
    while waiting:
        part = waiting.pop()
        if isinstance(part, _PLAIN) or id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, np.ndarray | Tensor):
            yield part
        waiting.extend(_parts(part))


def _parts(whole: Any) -> Iterable[object]:
    """Return the objects that an object refers to directly."""
    if isinstance(whole, np.ndarray):
        return list(whole.flat) if whole.dtype == object else ()
    if isinstance(whole, Tensor):
        return [whole.grad] if whole.is_leaf else ()
    if isinstance(whole, nn.Module):
        return [*whole.parameters(recurse=False), *whole.buffers(recurse=False), *whole.children()]
    if isinstance(whole, Mapping):
        items = list(whole.values())
    else:
        items = list(whole) if isinstance(whole, list | tuple | set | frozenset | deque) else []
    if is_dataclass(whole) and not hasattr(whole, "__dict__"):
        return [*items, *(getattr(whole, field.name) for field in fields(whole))]
    return [*items, *getattr(whole, "__dict__", {}).values()]


def spans_of(array: np.ndarray | Tensor) -> list[tuple[str, int, int]]:
    """Return device, start and end of the memory behind an array or tensor; for a view, of the whole array it views.

    Tensors without a storage, sparse ones and those on the meta device, have none.
    """
    if isinstance(array, np.ndarray):
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        if root.flags.c_contiguous:  # byte_bounds takes ten times as long
            start, stop = root.ctypes.data, root.ctypes.data + root.nbytes
        else:
            start, stop = np.lib.array_utils.byte_bounds(root)
        return [("cpu", start, stop)] if stop > start else []
    try:
        storage = array.untyped_storage()
        start = storage.data_ptr() if array.device.type != "meta" else 0
    except RuntimeError:  # a sparse tensor, or a fake one, as torch.export leaves them behind
        return []
    return [(str(array.device), start, start + storage.nbytes())] if start and storage.nbytes() else []


def mapped_files() -> np.ndarray:
    """Return the addresses, start and stop, of mapped files, ascending; none on other systems than Linux."""
    files = []
    for line in _MAPS.read_text().splitlines() if _MAPS.exists() else ():
        addresses, _, _, _, inode, *path = line.split(None, 5)
        if inode != "0" and not (path and path[0].startswith(_NO_FILE)):
            files.append([int(address, 16) for address in addresses.split("-")])
    return np.array(files, np.int64).reshape(-1, 2)


def owners_of(parts: Iterable[object]) -> dict[str, object]:
    """Return the owners of all parts that are a `MemoryOwner`; raises ValueError if two have the same name."""
    owners: dict[str, object] = {}
    for part in parts:
        owned: object = part.memory_owners() if isinstance(part, MemoryOwner) else {}
        if not isinstance(owned, Mapping):  # Lightning's logger of a fast_dev_run answers every call with None
            continue
        for name, held in owned.items():
            if name in owners:
                raise ValueError(f"{type(part).__name__}.memory_owners(): another owner is named {name!r} too")
            owners[name] = held
    return owners
