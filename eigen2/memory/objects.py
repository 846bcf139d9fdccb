"""Look at the live Python objects of this process: counts by type, the largest, and the path that keeps each alive.

Python's garbage collector does not track NumPy arrays and lists none of them; they are found in the objects that refer
to them.
"""

from __future__ import annotations

import functools
import gc
import inspect
import pkgutil
import re
import sys
import tracemalloc
import types
import weakref
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
from torch import Tensor

from eigen2.memory.owners import mapped_files, spans_of

# types that refer to no array directly: half of all objects
_DESCRIPTORS = types.GetSetDescriptorType, types.MethodDescriptorType, types.WrapperDescriptorType
NO_ARRAYS = frozenset({types.FunctionType, types.BuiltinFunctionType, *_DESCRIPTORS, type})
_OWN_MODULES = ("eigen2.memory.", "callbacks.")
_MAX_STEPS = 16  # longest path
_MAX_WIDTH = 256  # referrers followed per step and target: what hundreds of objects refer to has no owner
_LONG_TEXT = 100_000  # characters from which a string is looked at
_TEXTS = (bytes, bytearray, str)
_CONTAINERS = (list, dict, set, tuple, deque)
_HAS_GC = 1 << 14  # Py_TPFLAGS_HAVE_GC: gc.get_objects() lists no instances of a type without it


@dataclass(frozen=True, slots=True)
class LargeObject:
    """An object that holds many bytes."""

    type: str  # its type, for arrays and tensors with element type and shape
    nbytes: int  # bytes of the object, for arrays and tensors of the storage behind
    path: str  # what keeps it alive, such as `app.state['runs'][3]`; `?` if no module, function or class was found
    site: str  # file and line that created it, if tracemalloc was on; else empty
    mapped: bool = False  # whether it is a file mapped into memory

    def __str__(self) -> str:
        site = f", made at {self.site}" if self.site else ""
        return f"{self.nbytes / 1e6:,.1f} MB{' mapped' if self.mapped else ''}  {self.type}  {self.path}{site}"


def type_counts() -> Counter[str]:
    """Count live objects by type, of those that the garbage collector tracks and that are not frozen (`gc.freeze`)."""
    names: Counter[str] = Counter()
    for cls, count in Counter(map(type, gc.get_objects())).items():
        names[type_name(cls)] += count
    return names


def type_name(cls: type) -> str:
    """Return `package.module.Class`, for builtins the name alone."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


class InstanceCounter:
    """Counts live instances of given classes, subclasses not included, frozen objects (`gc.freeze`) included.

    gc.get_objects() does not list frozen objects. So the first count after a freeze unfreezes for a moment, keeps weak
    references to the instances that it finds, and freezes all that is there then. Later counts look at the few new
    objects alone. Classes without weak references (`__slots__`) need the full look each time.
    """

    def __init__(self, classes: Mapping[str, type]) -> None:
        # by id, as a metaclass may define its own equality
        self._names = {id(cls): name for name, cls in classes.items()}
        self._weak = all(cls.__weakrefoffset__ for cls in classes.values())
        self._frozen: list[weakref.ref[Any]] = []
        self._mark: list[None] | None = [] if gc.get_freeze_count() == 0 else None

    def __call__(self) -> dict[str, int]:
        """Return the number of live instances by name."""
        if not self._names:
            return {}
        objects = gc.get_objects()
        # a mark that is not listed any more has been frozen, and all else with it
        frozen = not any(each is self._mark for each in objects)
        if frozen:
            gc.unfreeze()
            objects = gc.get_objects()
        found = [each for each in objects if id(type(each)) in self._names]
        if frozen:
            gc.freeze()
            self._frozen = [weakref.ref(each) for each in found] if self._weak else []
            self._mark = [] if self._weak else None
        alive = {id(each): each for each in (*found, *(ref() for ref in self._frozen)) if each is not None}
        counts = Counter(self._names[id(type(each))] for each in alive.values())
        return {name: counts[name] for name in self._names.values()}


def classes_to_count(names: Sequence[str]) -> dict[str, type]:
    """Return classes by their plain name; raises ValueError for a name that cannot be counted."""
    classes: dict[str, type] = {}
    for name in names:
        try:
            cls = pkgutil.resolve_name(name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"watch: {name!r} is not found ({error}): give package.module.Class") from error
        if not isinstance(cls, type):
            raise ValueError(f"watch: {name!r} is no class: give package.module.Class")
        # the collector stops tracking plain dicts and tuples of plain values, so it lists only some of them
        if not cls.__flags__ & _HAS_GC or cls in (dict, tuple):
            raise ValueError(f"watch: Python keeps no list of {name!r}: watch a class that holds them")
        if classes.setdefault(cls.__name__, cls) is not cls:
            raise ValueError(f"watch: {name!r} has the same class name as another one: watch one of them")
    return classes


def large_objects(top: int = 20, least_bytes: int = 10_000_000) -> list[LargeObject]:
    """Find the largest objects, largest first: arrays and tensors, each storage once, strings, and bare containers.

    Looks at every object of the process, which takes about a second, and returns at most `top` >= 1. Saved tensors of a
    graph that no Python object refers to are not found.
    """
    with everything() as objects:
        found: dict[tuple[str, int], tuple[tuple[Any, ...], int]] = {}
        for way in held_arrays(objects):
            array = way[-1]
            if issubclass(type(array), _TEXTS):
                found["", id(array)] = way, sys.getsizeof(array)
            else:
                for device, start, stop in spans_of(array):
                    found.setdefault((device, start), (way, stop - start))
        for each in objects:
            if issubclass(type(each), _CONTAINERS) and each is not objects and sys.getsizeof(each) >= least_bytes:
                found["", id(each)] = (each,), sys.getsizeof(each)
        large = [each for each in found.values() if each[1] >= least_bytes]
        large.sort(key=lambda each: -each[1])
        del large[top:]
        found.clear()
        return describe_held(large, ignore=[objects])


def describe_held(found: list[tuple[tuple[Any, ...], int]], ignore: Sequence[Any] = ()) -> list[LargeObject]:
    """Describe objects, each after the untracked containers that hold it, with its bytes; 0 for `sys.getsizeof`.

    Holders in `ignore` are no owners.
    """
    ways = [way for way, _ in found]
    paths = _paths([way[0] for way in ways], [*ignore, found, *found, ways, *ways])
    files = mapped_files()
    described = []
    for (way, nbytes), path in zip(found, paths, strict=True):
        each, kind = way[-1], type_name(type(way[-1]))
        spans = []
        if issubclass(type(each), np.ndarray | Tensor):
            device = f" on {each.device}" if isinstance(each, Tensor) and each.device.type != "cpu" else ""
            kind = f"{kind} {str(each.dtype).removeprefix('torch.')} {tuple(each.shape)}{device}"
            spans = spans_of(each)
        elif issubclass(type(each), (*_TEXTS, *_CONTAINERS)):
            kind = f"{kind} of {len(each):,}"
        mapped = any(low <= span.start < high for span in spans for low, high in files)
        size = nbytes or sys.getsizeof(each)
        described.append(LargeObject(kind, size, path + _format_path(way), _creation_site(each), mapped))
    return described


@contextmanager
def everything() -> Iterator[list[Any]]:
    """List all tracked objects, frozen ones (`gc.freeze`) included; they are frozen again afterwards."""
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
            gc.collect()  # garbage that is frozen is never freed
            gc.freeze()


def held_arrays(objects: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield arrays, tensors and long strings that the objects, or running functions, refer to; maybe repeatedly.

    Each is the last of a tuple; before it comes what holds it and is not tracked either, outermost first: Python
    stops tracking tuples and dictionaries of plain values and arrays, and arrays of objects are never tracked.
    """
    holders = [each for each in objects if type(each) not in NO_ARRAYS]
    for first in range(0, len(holders), 2000):
        yield from _arrays_among(gc.get_referents(*holders[first : first + 2000]))
    for frame in _running_frames():
        yield from _arrays_among(list(frame.f_locals.values()))


def _arrays_among(objects: list[Any]) -> Iterator[tuple[Any, ...]]:
    waiting: list[tuple[tuple[Any, ...], list[Any]]] = [((), objects)]
    while waiting:
        above, parts = waiting.pop()
        # most of the filter runs in C, as there are millions of references and few of them matter
        for each in compress(parts, map(_KINDS.__getitem__, map(type, parts))):
            kind = _KINDS[type(each)]
            if kind is _CONTAINERS:
                if each and not gc.is_tracked(each) and len(above) < _MAX_STEPS:
                    inner = each.values() if issubclass(type(each), dict) else each
                    waiting.append(((*above, each), list(inner)))
            elif kind is not _TEXTS or len(each) >= _LONG_TEXT:
                yield (*above, each)
                if type(each) is np.ndarray and each.dtype == object:
                    waiting.append(((*above, each), list(each.flat)))


class _Kinds(dict[type, tuple[type, ...]]):
    """The kind of each type; by type, as a proxy may answer isinstance by importing what it stands for."""

    def __missing__(self, cls: type) -> tuple[type, ...]:
        arrays: tuple[type, ...] = (np.ndarray, Tensor)
        kinds = {arrays: arrays, _TEXTS: _TEXTS, (dict, tuple): _CONTAINERS}
        self[cls] = next((kind for base, kind in kinds.items() if issubclass(cls, base)), ())
        return self[cls]


_KINDS = _Kinds()


def _running_frames() -> Iterator[types.FrameType]:
    """Yield the frames of all threads, but for those of the code that looks."""
    for top in list(sys._current_frames().values()):
        frame: types.FrameType | None = top
        while frame is not None:
            if not frame.f_globals.get("__name__", "").startswith(_OWN_MODULES):
                yield frame
            frame = frame.f_back


def _creation_site(each: object) -> str:
    # Python 3.11 has no trace of instances of Python's own classes, but of what their attributes hold
    for part in (each, *gc.get_referents(each)):
        trace = tracemalloc.get_object_traceback(part)
        if trace:
            return f"{trace[0].filename}:{trace[0].lineno}"
    return ""


class _Search:
    """The objects found on the way up from one target: all with what they hold, and those of the last step."""

    __slots__ = ("held", "level", "path", "upper")

    def __init__(self, target: Any) -> None:
        self.held: dict[int, Any] = {id(target): None}
        self.level: dict[int, Any] = {id(target): target}
        self.upper: dict[int, Any] = {}
        self.path = ""

    def add(self, holder: Any, parts: Sequence[Any], name: str) -> None:
        """Note a holder of these parts; one with a name ends the path."""
        part = next((each for each in parts if id(each) in self.level), None)
        if part is not None and not self.path and id(holder) not in self.held:
            self.held[id(holder)] = part
            if name:
                self.finish(holder, name)
            elif len(self.upper) < _MAX_WIDTH:
                self.upper[id(holder)] = holder

    def finish(self, first: Any, name: str) -> None:
        """Format the path from a named object down to the target."""
        steps = [first]
        while (following := self.held[id(steps[-1])]) is not None:
            steps.append(following)
        self.path = name + _format_path(steps)
        self.upper.clear()

    def step(self) -> None:
        """Go on from the holders found in this step."""
        self.level, self.upper = self.upper, {}


def _paths(targets: list[Any], ignore: list[Any]) -> list[str]:
    """Return for each target the shortest path from a module, a class or a running function."""
    modules = {id(vars(module)): name for name, module in list(sys.modules.items()) if inspect.ismodule(module)}
    frames = [(frame, frame.f_locals) for frame in _running_frames()][::-1]
    local = {id(value): f"{_function(frame)}: {name}" for frame, names in frames for name, value in names.items()}
    searches = [_Search(each) for each in targets]
    hidden = {id(each) for each in (targets, frames, *frames, ignore, *ignore, *(names for _, names in frames))}
    hidden |= {id(search.held) for search in searches}
    for _ in range(_MAX_STEPS):
        for search in searches:
            for address in list(search.level.keys() & local.keys())[:1]:
                search.finish(search.level[address], local[address])
        # one pass over all objects per step finds the referrers of everything that was found in the step before
        wanted = {id(each): each for search in searches if not search.path for each in search.level.values()}
        values = [*wanted.values()]
        hidden |= {id(each) for search in searches for each in (search.level, search.upper)} | {id(values), id(wanted)}
        for holder in gc.get_referrers(*values) if values else ():
            if id(holder) not in hidden and not isinstance(holder, types.FrameType):
                parts = [each for each in gc.get_referents(holder) if id(each) in wanted]
                name = modules.get(id(holder)) or (type_name(holder) if isinstance(holder, type) else "")
                for search in searches:
                    search.add(holder, parts, name)
        for search in searches:
            search.step()
    return [search.path or "?" for search in searches]


def _function(frame: types.FrameType) -> str:
    name = frame.f_globals.get("__name__", "?")
    return name if frame.f_code.co_name == "<module>" else f"{name}.{frame.f_code.co_qualname}"


def _format_path(path: Sequence[Any]) -> str:
    text, i = "", 0
    while i + 1 < len(path):
        holder, held = path[i], path[i + 1]
        cells = holder.__closure__ if isinstance(holder, types.FunctionType) else None
        if cells is not None and held is cells and i + 2 < len(path):
            # the tuple of cells, a cell, what is in it
            which = next(k for k, cell in enumerate(cells) if cell is path[i + 2])
            text, i = f"{text} closure {holder.__code__.co_freevars[which]}", i + 3
            continue
        text += _format_step(holder, held)
        i += 1
    for namespaces in ("__dict__", "_modules|_parameters|_buffers"):
        text = re.sub(rf"\.(?:{namespaces})\['(\w+)'\]", r".\1", text)
    return text


def _format_step(holder: Any, held: Any) -> str:
    """Format how an object holds another."""
    if isinstance(holder, dict):
        key = next((key for key, value in holder.items() if value is held), None)
        shown = repr(key) if isinstance(key, str | int | tuple) and len(repr(key)) <= 60 else "..."
        return f".__dict__[{shown}]" if "__name__" in holder and "__loader__" in holder else f"[{shown}]"
    if isinstance(holder, list | tuple | deque | np.ndarray):
        items = holder.flat if isinstance(holder, np.ndarray) else holder
        return f"[{next((i for i, each in enumerate(items) if each is held), '...')}]"
    if isinstance(holder, types.GeneratorType | types.CoroutineType):
        frame = holder.gi_frame if isinstance(holder, types.GeneratorType) else holder.cr_frame
        names = {} if frame is None else frame.f_locals
        return f" local {next((name for name, value in names.items() if value is held), '?')}"
    if isinstance(holder, types.CellType | types.MethodType | types.BuiltinMethodType | functools.partial):
        return ""
    if isinstance(holder, types.FunctionType):
        return " default" if held is holder.__defaults__ else f" of {holder.__qualname__}"
    namespace = getattr(holder, "__dict__", {})
    if namespace is held or isinstance(holder, type):
        return ".__dict__"
    slots = dict(inspect.getmembers_static(type(holder), inspect.ismemberdescriptor))
    for name, value in (*namespace.items(), *((slot, getattr(holder, slot, None)) for slot in slots)):
        if value is held:
            return f".{name}"
    return f".<{type(holder).__name__}>"
