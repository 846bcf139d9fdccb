"""Count the live instances of classes."""

import gc
import weakref
from collections import Counter
from collections.abc import Mapping
from typing import Any


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
