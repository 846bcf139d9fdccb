"""Count the bytes of each owner: every array and tensor it holds, each storage once, mapped files apart."""

from __future__ import annotations

import bisect
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
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
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type, ModuleType, FunctionType, torch.dtype, torch.device)


@runtime_checkable
class MemoryOwner(Protocol):
    """A module, data module, callback, logger or checkpoint plugin that lists what its parts hold."""

    def memory_owners(self) -> Mapping[str, object]:
        """Return what holds bytes, by a name unique in the run.

        Arrays, tensors, objects or containers that have them; an int for bytes that were counted already; a `Filling`
        around either for what grows up to a known size.
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


def account(owners: Mapping[str, object]) -> dict[str, Held]:
    """Count what each owner (see `MemoryOwner`) holds; what several hold counts for the first of them.

    Tensors count with their whole storage and views with the array they look into, as these are what stays alive.
    """
    files = np.array(mapped_files(), np.int64).reshape(-1, 2)
    counted: dict[str, list[tuple[int, int]]] = {}
    held = {}
    for name, owner in owners.items():
        value = owner.value if isinstance(owner, Filling) else owner
        anonymous, mapped, gpu = value if isinstance(value, int) else 0, 0, 0
        for array in arrays_in(value):
            for device, start, stop in spans_of(array):
                for low, high in _add_to_union(counted.setdefault(device, []), start, stop):
                    if device == "cpu":
                        in_files = int(np.diff(files.clip(low, high)).sum())
                        mapped += in_files
                        anonymous += high - low - in_files
                    else:
                        gpu += high - low
        held[name] = Held(anonymous, mapped, gpu)
    return held


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
        each = waiting.pop()
        if isinstance(each, _PLAIN) or id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, np.ndarray | Tensor):
            yield each
        waiting.extend(_parts(each))


def _parts(each: Any) -> Iterable[object]:
    """Return what an object holds itself."""
    if isinstance(each, np.ndarray):
        return list(each.flat) if each.dtype == object else ()
    if isinstance(each, Tensor):
        return [each.grad] if each.is_leaf else ()
    if isinstance(each, nn.Module):
        return [*each.parameters(recurse=False), *each.buffers(recurse=False), *each.children()]
    if isinstance(each, Mapping):
        held = list(each.values())
    else:
        held = list(each) if isinstance(each, list | tuple | set | frozenset | deque) else []
    if is_dataclass(each) and not hasattr(each, "__dict__"):
        return [*held, *(getattr(each, field.name) for field in fields(each))]
    return [*held, *getattr(each, "__dict__", {}).values()]


def spans_of(array: np.ndarray | Tensor) -> list[tuple[str, int, int]]:
    """Return device, start and end of the memory behind an array or tensor, for a view all of what it looks into.

    There is none behind tensors without a storage: sparse ones, and those of the meta device.
    """
    if isinstance(array, np.ndarray):
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        start, stop = np.lib.array_utils.byte_bounds(root) if root.size else (0, 0)
        return [("cpu", start, stop)] if stop > start else []
    try:
        storage = array.untyped_storage()
        start = storage.data_ptr() if array.device.type != "meta" else 0
    except RuntimeError:  # a sparse tensor, or a fake one, as torch.export leaves them behind
        return []
    return [(str(array.device), start, start + storage.nbytes())] if start and storage.nbytes() else []


def mapped_files() -> list[tuple[int, int]]:
    """Return the addresses, start and stop, of mapped files, ascending; none on other systems than Linux."""
    if not sys.platform.startswith("linux"):
        return []
    found = []
    for line in _MAPS.read_text().splitlines():
        addresses, _, _, _, inode, *path = line.split(None, 5)
        if inode != "0" and not (path and path[0].startswith(_NO_FILE)):
            start, stop = addresses.split("-")
            found.append((int(start, 16), int(stop, 16)))
    return found


def owners_of(parts: Iterable[object]) -> dict[str, object]:
    """Return what holds bytes by owner name, of parts that are a `MemoryOwner`; raises ValueError for a name twice."""
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
