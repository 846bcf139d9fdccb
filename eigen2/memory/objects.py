"""Count the live Python objects of this process: all by type, or the instances of given classes."""

import gc
import pkgutil
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

_HAS_GC = 1 << 14  # Py_TPFLAGS_HAVE_GC: gc.get_objects() lists no instances of a type without it


@contextmanager
def tracked_objects() -> Iterator[list[Any]]:
    """List all objects that the garbage collector tracks, frozen ones (`gc.freeze`) included.

    Those are frozen again afterwards, without the garbage, which else would never be freed.
    """
    frozen = gc.get_freeze_count() > 0
    gc.disable()  # a collection in between would stop tracking a tuple that was found tracked
    if frozen:
        gc.unfreeze()
    objects = gc.get_objects()
    try:
        yield objects
    finally:
        objects.clear()
        gc.enable()
        if frozen:
            gc.collect()
            gc.freeze()


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
    """Counts live instances of given classes by name, subclasses not included.

    `gc.get_objects` leaves frozen objects out. Those that exist at the start are therefore searched once, with all
    objects unfrozen for a moment, and tracked by weak references.
    """

    def __init__(self, classes: Mapping[str, type]) -> None:
        self._names = {cls: name for name, cls in classes.items()}
        frozen = gc.get_freeze_count() > 0
        if frozen:
            gc.unfreeze()
        self._initial = [weakref.ref(obj) for obj in self._unfrozen()]
        if frozen:
            gc.freeze()

    def _unfrozen(self) -> Iterator[Any]:
        return (obj for obj in (gc.get_objects() if self._names else ()) if type(obj) in self._names)

    def __call__(self) -> dict[str, int]:
        """Return the number of live instances by name."""
        alive = {id(obj): obj for obj in (*self._unfrozen(), *(ref() for ref in self._initial)) if obj is not None}
        counts = Counter(self._names[type(obj)] for obj in alive.values())
        return {name: counts[name] for name in self._names.values()}


def classes_to_count(names: Sequence[str]) -> dict[str, type]:
    """Return classes by their plain name; raises ValueError for a name that cannot be counted."""
    classes: dict[str, type] = {}
    for name in names:
        try:
            cls = pkgutil.resolve_name(name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"watch: {name!r} is not found ({error}): give package.module.Class") from error
        if not isinstance(cls, type) or not cls.__flags__ & _HAS_GC or not cls.__weakrefoffset__:
            raise ValueError(f"watch: {name!r} cannot be counted: give a class whose instances allow weak references")
        if classes.setdefault(cls.__name__, cls) is not cls:
            raise ValueError(f"watch: {name!r} has the same class name as another one: watch one of them")
    return classes
