"""Who holds the bytes: every array and tensor of an owner, each storage once, files apart from memory."""

from __future__ import annotations

import bisect
import sys
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
"""Mappings that have a name, but whose pages no disk can take back."""
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type, ModuleType, FunctionType, torch.dtype, torch.device)


@runtime_checkable
class MemoryOwner(Protocol):
    """A module, data module, callback, logger or checkpoint plugin that says what its parts hold."""

    def memory_owners(self) -> Mapping[str, object]:
        """What holds bytes, by a name unique in the run.

        Arrays, tensors, objects or containers that have them; an int for bytes that were counted already; a `Filling`
        around either for what grows up to a known size.
        """


@dataclass(frozen=True, slots=True)
class Filling:
    """What holds bytes and will hold more, up to a size that is known: a buffer that fills is no leak."""

    value: object
    """What holds them."""
    full: bool
    """Whether it has come to its size."""


@dataclass(frozen=True, slots=True)
class Held:
    """What an owner holds, in bytes."""

    anonymous: int = 0
    """Memory that only its owner can give back."""
    mapped: int = 0
    """Files mapped into memory, resident or not; their pages are shared by processes, and the system may drop them."""
    gpu: int = 0
    """On other devices than the CPU."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.anonymous + self.mapped + self.gpu

    def __add__(self, other: Held) -> Held:
        """Both, field by field."""
        return Held(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of memory: addresses from `start` up to, but not including, `stop`."""

    device: str
    start: int
    stop: int


def account(owners: Mapping[str, object]) -> dict[str, Held]:
    """Count what each owner holds; what several hold, the first of them owns.

    Tensors count with their whole storage and views with the array they look into, as these are what stays alive.

    Args:
        owners: by name arrays, tensors, or objects and containers of them, in which all are found; or an int, bytes
            that were counted already; either of them in a `Filling` if it grows up to a known size.
    """
    files = mapped_files()
    counted: dict[str, _Union] = {}
    held: dict[str, Held] = {}
    for name, said in owners.items():
        owner = said.value if isinstance(said, Filling) else said
        if isinstance(owner, int):
            held[name] = Held(anonymous=int(owner))
            continue
        total = Held()
        for array in arrays_in(owner):
            for span in spans_of(array):
                union = counted.setdefault(span.device, _Union())
                for piece in union.add(span):
                    total += _classify(piece, files)
        held[name] = total
    return held


def _classify(span: Span, files: list[tuple[int, int]]) -> Held:
    size = span.stop - span.start
    if span.device != "cpu":
        return Held(gpu=size)
    # mappings are disjoint and in order
    first = bisect.bisect_right(files, span.start, key=lambda mapping: mapping[1])
    mapped = 0
    for start, stop in files[first:]:
        if start >= span.stop:
            break
        mapped += min(stop, span.stop) - max(start, span.start)
    return Held(anonymous=size - mapped, mapped=mapped)


class _Union:
    """Addresses that were counted, as disjoint spans in order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def add(self, span: Span) -> list[Span]:
        """Count the span; the pieces of it that were not counted before."""
        first = bisect.bisect_right(self._stops, span.start)
        last = bisect.bisect_left(self._starts, span.stop)
        pieces, at = [], span.start
        for start, stop in zip(self._starts[first:last], self._stops[first:last], strict=True):
            if at < start:
                pieces.append(Span(span.device, at, start))
            at = max(at, stop)
        if at < span.stop:
            pieces.append(Span(span.device, at, span.stop))
        if pieces:
            starts, stops = self._starts[first:last], self._stops[first:last]
            self._starts[first:last] = [min([span.start, *starts[:1]])]
            self._stops[first:last] = [max([span.stop, *stops[-1:]])]
        return pieces


def arrays_in(owner: object) -> Iterator[np.ndarray | Tensor]:
    """Every array and tensor in an object: in its attributes, and in containers, to any depth; none twice."""
    seen: set[int] = set()
    waiting = [owner]
    while waiting:
        each = waiting.pop()
        if isinstance(each, _PLAIN) or id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, np.ndarray):
            yield each
            if each.dtype == object:
                waiting.extend(each.flat)
        elif isinstance(each, Tensor):
            yield each
            if each.is_leaf and each.grad is not None:
                waiting.append(each.grad)
        else:
            waiting.extend(_parts(each))


def _parts(each: Any) -> Iterator[object]:
    """What an object that is no array holds itself."""
    if isinstance(each, Mapping):
        yield from each.values()
    elif isinstance(each, list | tuple | set | frozenset) or type(each).__name__ == "deque":
        yield from each
    elif isinstance(each, nn.Module):
        yield from (*each._parameters.values(), *each._buffers.values(), *each._modules.values())
    if is_dataclass(each) and not hasattr(each, "__dict__"):
        yield from (getattr(each, field.name) for field in fields(each))
    elif not isinstance(each, nn.Module):
        yield from getattr(each, "__dict__", {}).values()


def spans_of(array: np.ndarray | Tensor) -> list[Span]:
    """The memory behind an array or tensor: of a view all that it looks into."""
    if isinstance(array, np.ndarray):
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        start, stop = np.lib.array_utils.byte_bounds(root) if root.size else (0, 0)
        return [Span("cpu", start, stop)] if stop > start else []
    if array.layout == torch.sparse_coo:
        return [span for part in (array._indices(), array._values()) for span in spans_of(part)]
    if array.layout != torch.strided:
        return [span for part in (array.crow_indices(), array.col_indices(), array.values()) for span in spans_of(part)]
    storage = array.untyped_storage()
    try:
        start = storage.data_ptr() if array.device.type != "meta" else 0
    except RuntimeError:  # it stands for a tensor, as torch.export leaves them behind, and has no memory
        return []
    return [Span(str(array.device), start, start + storage.nbytes())] if start and storage.nbytes() else []


def mapped_files() -> list[tuple[int, int]]:
    """Addresses, start and stop, of mapped files, ascending; none where the system does not tell (not Linux)."""
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
    """What holds bytes by owner name, of those parts that have `memory_owners`.

    Raises:
        ValueError: Two of them use one name.
    """
    owners: dict[str, object] = {}
    for part in parts:
        if not isinstance(part, MemoryOwner):
            continue
        owned: object = part.memory_owners()
        if not isinstance(owned, Mapping):  # Lightning's logger of a fast_dev_run answers every call with None
            continue
        for name, held in owned.items():
            if name in owners:
                raise ValueError(f"{type(part).__name__}.memory_owners(): another owner is named {name!r} too")
            owners[name] = held
    return owners
