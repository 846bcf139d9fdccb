"""Count the live instances of classes."""

import gc
import pkgutil
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

# Py_TPFLAGS_HAVE_GC: instances of a type without it are never listed by gc.get_objects()
_TRACKED_BY_GC = 1 << 14


class InstanceCounter:
    """Counts live instances of exactly some classes, those that `gc.freeze` set aside included.

    Objects set aside are on no list that Python gives out. So the first count after a freeze lifts it for a moment,
    notes those that it looks for, and sets aside all that is there then. Later counts look at the few new objects
    alone. Of a class without weak references (`__slots__`) nothing can be noted: then every count looks at everything.

    Args:
        classes: what is counted, by the name the count gets.
    """

    def __init__(self, classes: Mapping[str, type]) -> None:
        # by id, as a metaclass may define its own equality
        self._names = {id(cls): name for name, cls in classes.items()}
        self._can_note = all(cls.__weakrefoffset__ for cls in classes.values())
        self._noted: list[weakref.ref[Any]] = []
        self._mark: list[None] | None = [] if gc.get_freeze_count() == 0 else None

    def __call__(self) -> dict[str, int]:
        """Live instances by name."""
        if not self._names:
            return {}
        objects = gc.get_objects()
        # a mark that is not listed any more has been set aside, and all else with it
        frozen = not any(each is self._mark for each in objects)
        if frozen:
            gc.unfreeze()
            objects = gc.get_objects()
        found = [each for each in objects if id(type(each)) in self._names]
        if frozen:
            gc.freeze()
            self._noted = [weakref.ref(each) for each in found] if self._can_note else []
            self._mark = [] if self._can_note else None
        alive = {id(each): each for each in (*found, *(note() for note in self._noted)) if each is not None}
        counts = Counter(self._names[id(type(each))] for each in alive.values())
        return {name: counts[name] for name in self._names.values()}


def classes_to_count(names: Sequence[str]) -> dict[str, type]:
    """Classes by their plain name; raises ValueError for a name that cannot be watched."""
    classes: dict[str, type] = {}
    for name in names:
        try:
            found = pkgutil.resolve_name(name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"watch: {name!r} is not found ({error}): give package.module.Class") from error
        if not isinstance(found, type):
            raise ValueError(f"watch: {name!r} is no class: give package.module.Class")
        # the collector stops tracking plain dicts and tuples of plain values, so it lists only some of them
        if not found.__flags__ & _TRACKED_BY_GC or found in (dict, tuple):
            raise ValueError(f"watch: Python keeps no list of {name!r}: watch a class that holds them")
        if classes.setdefault(found.__name__, found) is not found:
            raise ValueError(f"watch: {name!r} has the same class name as another one: watch one of them")
    return classes
