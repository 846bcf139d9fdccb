"""The live objects of this process: how many of each type, the largest, and the path by which each is held.

NumPy arrays are not tracked by Python's garbage collector and appear on none of its lists; they are found through what
refers to them.
"""

from __future__ import annotations

import functools
import gc
import inspect
import re
import sys
import tracemalloc
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from types import (
    BuiltinFunctionType,
    BuiltinMethodType,
    CellType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np
from torch import Tensor

from eigen2.memory.owners import mapped_files, spans_of

_HERE = Path(__file__).parent
_CHUNK = 2000
_STEPS = 16
"""Longest path told."""
_WIDTH = 256
"""Objects looked at on the way up, a step: what hundreds of things refer to is no owner."""
_TEXTS = (bytes, bytearray, str)
NO_ARRAYS = frozenset(
    {FunctionType, BuiltinFunctionType, GetSetDescriptorType, MethodDescriptorType, WrapperDescriptorType, type}
)
"""Types that refer to no array directly: half of all objects."""
_LONG = 100_000
"""Characters from which a text is looked at."""
_CONTAINERS = (list, dict, set, tuple, deque)


@dataclass(frozen=True, slots=True)
class LargeObject:
    """An object that holds many bytes."""

    type: str
    """Its type, of arrays and tensors with element type and shape."""
    nbytes: int
    """Bytes of the object, of arrays and tensors of the storage behind."""
    path: str
    """How it is held, such as `app.state['runs'][3]`; `?` if from no module, function or class that Python shows."""
    site: str
    """File and line that made it, if tracemalloc watched; else empty."""
    mapped: bool = False
    """Whether it is a file mapped into memory."""

    def __str__(self) -> str:
        site = f", made at {self.site}" if self.site else ""
        return f"{self.nbytes / 1e6:,.1f} MB{' mapped' if self.mapped else ''}  {self.type}  {self.path}{site}"


def type_counts() -> Counter[str]:
    """Live objects by type, of those that the garbage collector tracks and that were not set aside (`gc.freeze`)."""
    counts = Counter(map(type, gc.get_objects()))
    names: Counter[str] = Counter()
    for cls, count in counts.items():
        names[type_name(cls)] += count
    return names


def type_name(cls: type) -> str:
    """`package.module.Class`, of builtins the name alone."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def large_objects(top: int = 20, least_bytes: int = 10_000_000) -> list[LargeObject]:
    """The largest objects, largest first: arrays and tensors, each storage once, texts, and containers themselves.

    Looks at every object of the process, which takes about a second. Saved tensors of a graph that no Python object
    refers to are not seen.

    Args:
        top: so many at most, >= 1.
        least_bytes: smaller ones are left out.
    """
    with everything() as objects:
        found = _largest(objects, top, least_bytes)
        return describe_held(found, ignore=[objects])


def describe_held(found: list[tuple[tuple[Any, ...], int]], ignore: Sequence[Any] = ()) -> list[LargeObject]:
    """What is told of objects.

    Args:
        found: each after the untracked containers that hold it, and its bytes; 0 for what Python says.
        ignore: holders that are no owners.
    """
    ways = [way for way, _ in found]
    paths = _paths([way[0] for way in ways], ignore=[*ignore, found, *found, ways, *ways])
    files = mapped_files()
    return [
        LargeObject(
            type=_described(way[-1]),
            nbytes=nbytes or sys.getsizeof(way[-1]),
            path=path + _steps(way),
            site=site_of(way[-1]),
            mapped=_is_mapped(way[-1], files),
        )
        for (way, nbytes), path in zip(found, paths, strict=True)
    ]


def _is_mapped(each: Any, files: list[tuple[int, int]]) -> bool:
    if not issubclass(type(each), np.ndarray | Tensor):
        return False
    return any(start <= span.start < stop for span in spans_of(each) for start, stop in files)


@contextmanager
def everything() -> Iterator[list[Any]]:
    """All tracked objects, those that were set aside (`gc.freeze`) included; they are set aside again afterwards."""
    frozen, enabled = gc.get_freeze_count() > 0, gc.isenabled()
    # a collection in between would stop tracking a tuple that was found tracked
    gc.disable()
    if frozen:
        gc.unfreeze()
    objects = gc.get_objects()
    try:
        yield objects
    finally:
        objects.clear()
        if enabled:
            gc.enable()
        if frozen:
            gc.collect()  # garbage that is set aside stays
            gc.freeze()


def site_of(each: object) -> str:
    """File and line that made an object, or the first of its parts that is known; empty if tracemalloc did not watch.

    Python 3.11 finds no trace of instances of Python's own classes, but of what their attributes hold.
    """
    for part in (each, *gc.get_referents(each)):
        trace = tracemalloc.get_object_traceback(part)
        if trace:
            return f"{trace[0].filename}:{trace[0].lineno}"
    return ""


def arrays_among(objects: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Arrays, tensors and long texts that the objects, or functions that run now, refer to; maybe repeatedly.

    Each is the last of a tuple; before it comes what holds it and is not tracked either, outermost first: Python
    stops tracking tuples and dictionaries of plain values and arrays, and arrays of objects are never tracked.
    """
    holders = [each for each in objects if type(each) not in NO_ARRAYS]
    for first in range(0, len(holders), _CHUNK):
        yield from _untracked(gc.get_referents(*holders[first : first + _CHUNK]))
    for frame in running():
        yield from _untracked(list(frame.f_locals.values()))


def _untracked(objects: Sequence[Any], above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    # in C where it can be, as there are millions of references and few of them matter
    for each in _of_kind("array", objects):
        yield (*above, each)
        if type(each) is np.ndarray and each.dtype == object:
            yield from _untracked(list(each.flat), (*above, each))
    for each in _of_kind("text", objects):
        if len(each) >= _LONG:
            yield (*above, each)
    plain = [each for each in _of_kind("container", objects) if not gc.is_tracked(each)]
    if plain and len(above) < _STEPS and _hold_arrays(plain):
        for each in plain:
            yield from _untracked(list(each.values() if type(each) is dict else each), (*above, each))


def _hold_arrays(containers: Sequence[Any], depth: int = 0) -> bool:
    """Whether there are arrays or long texts in untracked containers, at any depth."""
    parts = gc.get_referents(*containers)
    if next(_of_kind("array", parts), None) is not None or any(len(each) >= _LONG for each in _of_kind("text", parts)):
        return True
    inner = [each for each in _of_kind("container", parts) if not gc.is_tracked(each)]
    return bool(inner) and depth < _STEPS and _hold_arrays(inner, depth + 1)


def _of_kind(kind: str, objects: Sequence[Any]) -> Iterator[Any]:
    return compress(objects, map(_KINDS[kind].__getitem__, map(type, objects)))


class _Kind(dict[type, bool]):
    """Whether a type is one of some classes; by type, as a proxy may answer isinstance by importing what it is for."""

    def __init__(self, *classes: type) -> None:
        self._classes = classes

    def __missing__(self, cls: type) -> bool:
        self[cls] = issubclass(cls, self._classes)
        return self[cls]


_KINDS = {"array": _Kind(np.ndarray, Tensor), "text": _Kind(*_TEXTS), "container": _Kind(dict, tuple)}


def running() -> Iterator[FrameType]:
    """Functions that run now in any thread, but for those of this package."""
    for frame in list(sys._current_frames().values()):
        at: FrameType | None = frame
        while at is not None:
            if Path(at.f_code.co_filename).parent != _HERE:
                yield at
            at = at.f_back


def _largest(objects: list[Any], top: int, least_bytes: int) -> list[tuple[tuple[Any, ...], int]]:
    """Objects, each after the untracked ones that hold it, with their bytes and memory, largest first."""
    storages: dict[tuple[str, int], tuple[tuple[Any, ...], int]] = {}
    for way in arrays_among(objects):
        each = way[-1]
        if issubclass(type(each), _TEXTS):
            size = sys.getsizeof(each)
            if size >= least_bytes:
                storages["", id(each)] = way, size
            continue
        for span in spans_of(each):
            if span.stop - span.start >= least_bytes:
                storages.setdefault((span.device, span.start), (way, span.stop - span.start))
    containers = [
        ((each,), size)
        for each in objects
        if issubclass(type(each), _CONTAINERS) and each is not objects and (size := sys.getsizeof(each)) >= least_bytes
    ]
    return sorted([*storages.values(), *containers], key=lambda found: -found[1])[:top]


def _described(each: Any) -> str:
    name = type_name(type(each))
    if issubclass(type(each), np.ndarray | Tensor):
        kind = str(each.dtype).removeprefix("torch.")
        device = f" on {each.device}" if isinstance(each, Tensor) and each.device.type != "cpu" else ""
        return f"{name} {kind} {tuple(each.shape)}{device}"
    return f"{name} of {len(each):,}" if issubclass(type(each), (*_TEXTS, *_CONTAINERS)) else name


# Paths


def _paths(targets: list[Any], ignore: list[Any]) -> list[str]:
    """For each target the shortest path from a module, a class or a function that runs.

    For each step up one look at all objects finds who holds what was found so far.
    """
    # of each object found, by number of the target: what it holds on the way to that target
    toward: dict[int, dict[int, Any]] = {id(each): {i: None} for i, each in enumerate(targets)}
    done: dict[int, str] = {}
    frames = list(running())
    local = [(frame, frame.f_locals) for frame in frames]
    modules = {id(vars(module)): name for name, module in list(sys.modules.items()) if isinstance(module, ModuleType)}
    level = {id(each): each for each in targets}
    hidden = {id(each) for each in (targets, toward, done, frames, local, modules, ignore, *ignore)}
    hidden |= {id(names) for _, names in local}
    for _ in range(_STEPS):
        for frame, names in local:
            for name, value in names.items():
                _finish(value, f"{_function(frame)}: {name}", toward, done) if id(value) in level else None
        if not level or len(done) == len(targets):
            break
        values = list(level.values())
        holders = gc.get_referrers(*values)
        hidden |= {id(level), id(values), id(holders)}
        level = {}
        for holder in holders:
            if id(holder) in hidden or isinstance(holder, FrameType):
                continue
            # a holder that was met before is met again by targets that are further away from it
            known = toward.get(id(holder), {})
            held = {id(each): each for each in gc.get_referents(holder) if id(each) in toward}
            new = {i: each for each in held.values() for i in toward[id(each)] if i not in done and i not in known}
            if not new:
                continue
            if id(holder) in modules or isinstance(holder, type):
                toward[id(holder)] = known | new
                _finish(holder, modules.get(id(holder), ""), toward, done)
            elif len(level) < _WIDTH:
                toward[id(holder)] = known | new
                level[id(holder)] = holder
        hidden |= {id(level)}
        del holders, values
    return [done.get(i, "?") for i in range(len(targets))]


def _finish(first: Any, name: str, toward: dict[int, dict[int, Any]], done: dict[int, str]) -> None:
    """Write down the paths of all targets that an object leads to; the object itself is told by its name."""
    for i in toward[id(first)]:
        if i not in done:
            path = [first]
            while (following := toward[id(path[-1])][i]) is not None:
                path.append(following)
            done[i] = name + (type_name(first) if isinstance(first, type) else "") + _steps(path)


def _steps(path: Sequence[Any]) -> str:
    """How each object of a path holds the next."""
    text, i = "", 0
    while i + 1 < len(path):
        holder, held = path[i], path[i + 1]
        cells = holder.__closure__ if isinstance(holder, FunctionType) else None
        if cells is not None and held is cells and i + 2 < len(path):
            # the tuple of cells, a cell, what is in it
            which = next(k for k, cell in enumerate(cells) if cell is path[i + 2])
            text, i = f"{text} closure {holder.__code__.co_freevars[which]}", i + 3
            continue
        text += _step(holder, held)
        i += 1
    for namespaces in ("__dict__", "_modules|_parameters|_buffers"):
        text = re.sub(rf"\.(?:{namespaces})\['(\w+)'\]", r".\1", text)
    return text


def _step(holder: Any, held: Any) -> str:
    """How an object holds another."""
    if isinstance(holder, dict):
        key = next((key for key, value in holder.items() if value is held), None)
        spoken = repr(key) if isinstance(key, str | int | tuple) and len(repr(key)) <= 60 else "..."
        return f".__dict__[{spoken}]" if "__name__" in holder and "__loader__" in holder else f"[{spoken}]"
    if isinstance(holder, list | tuple | deque | np.ndarray):
        held_by = holder.flat if isinstance(holder, np.ndarray) else holder
        return f"[{next((i for i, each in enumerate(held_by) if each is held), '...')}]"
    if isinstance(holder, GeneratorType | CoroutineType):
        frame = holder.gi_frame if isinstance(holder, GeneratorType) else holder.cr_frame
        names = {} if frame is None else frame.f_locals
        return f" local {next((name for name, value in names.items() if value is held), '?')}"
    if isinstance(holder, CellType | MethodType | BuiltinMethodType | functools.partial):
        return ""
    if isinstance(holder, FunctionType):
        return " default" if held is holder.__defaults__ else f" of {holder.__qualname__}"
    namespace = getattr(holder, "__dict__", {})
    if namespace is held or isinstance(holder, type):
        return ".__dict__"
    for name in (*namespace, *dir(type(holder))):
        member = inspect.getattr_static(holder, name, None)
        slot = isinstance(member, MemberDescriptorType) and getattr(holder, name, None) is held
        if member is held or slot:
            return f".{name}"
    return f".<{type(holder).__name__}>"


def _function(frame: FrameType) -> str:
    """`module.function` of a frame."""
    name = frame.f_globals.get("__name__", "?")
    return name if frame.f_code.co_name == "<module>" else f"{name}.{frame.f_code.co_qualname}"
