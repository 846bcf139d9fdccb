"""Count the bytes of each owner: every array and tensor it holds, each storage once, mapped files apart."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, nn

from eigen2.errors import UserError

_MAPS = Path("/proc/self/maps")
_NO_FILE = ("/dev/shm/", "/dev/zero", "/memfd:", "/SYSV")
"""Prefixes of mappings that have a name, but no file on a disk to which the system could write their pages."""
_DEVICE = 1 << 50  # between the addresses of one device and the next
_LARGE = 1 << 18  # bytes from which on memory may be that of a mapped file
_PLAIN = {str, bytes, int, float, complex, bool, type(None), FunctionType, torch.dtype, torch.device}
_NAMESPACES = type, ModuleType
_COLLECTIONS = list, tuple, set, frozenset, deque


class MemoryOwner(Protocol):
    """A module, data module, callback, logger or checkpoint plugin that lists what its parts hold."""

    def memory_owners(self) -> Mapping[str, object]:
        """Return what holds memory, by a name unique in the run.

        Values are arrays, tensors, objects or containers that hold some, or an int for bytes that the owner counted
        itself; a `Filling` around either marks what grows up to a known size.
        """


@dataclass(frozen=True, slots=True)
class Filling:
    """An owner that grows up to a known size, such as a buffer, whose growth is no leak.

    Write to the whole buffer when it is made (`buffer.fill(0)`): pages of `np.zeros` and `torch.empty` take memory only
    once written to, so the process would grow although the buffer's size stays the same.
    """

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
        self._files = np.zeros(2, np.int64)
        self._known: set[tuple[int, ...]] = set()

    def count(self, spans: Int64[np.ndarray, "spans 2"], edges: Int64[np.ndarray, " edges"]) -> np.ndarray:
        """Return the bytes in files of the pieces between the ascending edges of spans; of small ones perhaps none."""
        asked = {*map(tuple, spans[np.diff(spans)[:, 0] >= _LARGE].tolist())}
        if not asked <= self._known:
            self._files = mapped_files()
        self._known = asked
        below = np.cumsum(np.diff(self._files, prepend=self._files[:1]) * (np.arange(self._files.size) % 2))
        return np.asarray(np.diff(np.interp(edges, self._files, below)).round())


def account(owners: Mapping[str, object], files: MappedFiles | None = None) -> dict[str, Held]:
    """Count what each owner (see `MemoryOwner`) holds; memory held by several counts for the first of them.

    A tensor counts with its whole storage and a view with the whole array it views, since these stay alive.
    """
    values = [owner.value if isinstance(owner, Filling) else owner for owner in owners.values()]
    holders: dict[tuple[str, int, int], int] = {}
    for place, value in enumerate(values):
        for array in arrays_in(value):
            for span in spans_of(array):
                holders.setdefault(span, place)
    devices = dict.fromkeys(("cpu", *(device for device, _, _ in holders)))
    offsets = {device: n * _DEVICE for n, device in enumerate(devices)}
    spans = np.array([(offsets[device] + start, offsets[device] + stop) for device, start, stop in holders], np.int64)
    edges, spans = np.sort(spans, axis=None), spans.reshape(-1, 2)
    holder = np.full(max(edges.size - 1, 0), -1)
    for (first, last), place in reversed([*zip(np.searchsorted(edges, spans).tolist(), holders.values(), strict=True)]):
        holder[first:last] = place
    gpu = (edges[:-1] >= _DEVICE) * np.diff(edges)
    mapped = (files or MappedFiles()).count(spans, edges)

    def total(sizes: np.ndarray) -> list[int]:
        return np.bincount(holder + 1, sizes, len(values) + 1)[1:].astype(np.int64).tolist()

    plain = [value if isinstance(value, int) else 0 for value in values]
    parts = total(np.diff(edges) - gpu - mapped), total(mapped), total(gpu)
    return {name: Held(own + add, *rest) for name, add, own, *rest in zip(owners, plain, *parts, strict=True)}


def arrays_in(owner: object) -> Iterator[np.ndarray | Tensor]:
    """Yield every array and tensor in an object, its attributes and containers, to any depth; none twice.

    Of an `nn.Module` these are parameters, buffers and submodules.
    """
    seen: set[int] = set()
    waiting = [owner]
    while waiting:
        part = waiting.pop()
        if type(part) in _PLAIN or id(part) in seen or isinstance(part, _NAMESPACES):
            continue
        seen.add(id(part))
        if isinstance(part, (np.ndarray, Tensor)):
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
    items = whole.values() if isinstance(whole, Mapping) else whole if isinstance(whole, _COLLECTIONS) else ()
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
            start = root.ctypes.data
            stop = start + root.nbytes
        else:
            start, stop = np.lib.array_utils.byte_bounds(root)
        return [("cpu", start, stop)] if stop > start else []
    try:
        storage = array.untyped_storage()
        start = storage.data_ptr() if array.device.type != "meta" else 0
    except RuntimeError:  # a sparse tensor, or a fake one, as torch.export leaves them behind
        return []
    return [(str(array.device), start, start + storage.nbytes())] if start and storage.nbytes() else []


def mapped_files() -> Int64[np.ndarray, " addresses"]:
    """Return where mapped files start and stop, ascending addresses in turn; zeros on other systems than Linux."""
    files = [0, 0]
    for line in _MAPS.read_text().splitlines() if _MAPS.exists() else ():
        addresses, _, _, _, inode, *path = line.split(None, 5)
        if inode != "0" and not (path and path[0].startswith(_NO_FILE)):
            files += [int(address, 16) for address in addresses.split("-")]
    return np.array(files, np.int64)


def owners_of(parts: Iterable[object]) -> dict[str, object]:
    """Return the owners of all parts that are a `MemoryOwner`; raises UserError if two have the same name."""
    owners: dict[str, object] = {}
    for part in parts:
        owned: object = getattr(part, "memory_owners", dict)()
        if not isinstance(owned, Mapping):  # Lightning's logger of a fast_dev_run answers every call with None
            continue
        for name, held in owned.items():
            if name in owners:
                where = f"{type(part).__name__}.memory_owners()"
                raise UserError(f"{where} names {name!r}, as another owner does; give it another name")
            owners[name] = held
    return owners
