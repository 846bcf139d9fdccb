"""Which objects, made in which phase, outlive the generation that made them."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from eigen2.memory.objects import NO_ARRAYS, LargeObject, arrays_among, describe_held, type_name
from eigen2.memory.owners import spans_of

_TOLD = 5


@dataclass(slots=True)
class Kept:
    """What one phase of one generation left behind."""

    nbytes: int = 0
    """Of arrays and tensors."""
    types: Counter[str] = field(default_factory=Counter)
    """Objects by type."""
    largest: list[tuple[Any, int]] = field(default_factory=list)
    """The largest arrays with their bytes; without any, other objects."""

    def described(self) -> tuple[LargeObject, ...]:
        """The largest, with the path by which each is held and where it was made."""
        found = [((each,), nbytes) for each, nbytes in self.largest]
        return tuple(describe_held(found, ignore=[self.largest, *self.largest]))


class Survivors:
    """Follows one generation's births until the end of the next one.

    Weak references tell which objects are new after a phase, and which of them live in the end, without keeping them
    alive. Plain containers (dict, list, tuple), which take none, are left out. While this runs nothing is set aside
    (`gc.freeze`), as what was set aside cannot be looked at, and tracemalloc notes where objects are made.

    Attributes:
        arrays: NumPy arrays alive at the start.
        arrays_now: and at the end.
    """

    def __init__(self) -> None:
        self._froze = gc.get_freeze_count() > 0
        gc.unfreeze()
        gc.collect()
        self._known, self.arrays = _look()
        self.arrays_now = self.arrays
        self._born: dict[str, list[weakref.ref[Any]]] = {}
        self._generations = 0
        self._traces = not tracemalloc.is_tracing()
        if self._traces:
            tracemalloc.start()

    def phase_end(self, phase: str) -> None:
        """Note what was made in this phase and lives, in the first generation."""
        if self._generations == 0:
            now, _ = _look()
            # a reference to the object that lives is always the same one, a later object's at this address another
            self._born[phase] = [note for address, note in now.items() if self._known.get(address) is not note]
            self._known = now

    def generation_end(self) -> dict[str, Kept] | None:
        """None at the end of the first generation; at the end of the second what each phase left."""
        self._generations += 1
        if self._generations < 2:
            return None
        self._known.clear()
        gc.collect()
        _, self.arrays_now = _look()
        kept = {}
        for phase, born in self._born.items():
            left = kept[phase] = Kept()
            storages: set[int] = set()
            others: dict[str, Any] = {}
            alive = [each for each in (note() for note in born) if each is not None]
            # an array before the tensor whose memory it shows, which may be held by the array alone
            for each in sorted(alive, key=lambda each: not issubclass(type(each), np.ndarray)):
                name = type_name(type(each))
                left.types[name] += 1
                others.setdefault(name, each)
                for span in spans_of(each) if issubclass(type(each), np.ndarray | Tensor) else ():
                    if span.start not in storages:
                        storages.add(span.start)
                        left.nbytes += span.stop - span.start
                        left.largest.append((each, span.stop - span.start))
            left.largest.sort(key=lambda found: -found[1])
            del left.largest[_TOLD:]
            if not left.largest:
                left.largest = [(others[name], 0) for name, _ in left.types.most_common(_TOLD)]
        return kept

    def stop(self) -> None:
        """Put the garbage collector and tracemalloc back."""
        if self._traces:
            tracemalloc.stop()
            self._traces = False
        if self._froze:
            gc.collect()
            gc.freeze()
            self._froze = False


def _look() -> tuple[dict[int, weakref.ref[Any]], int]:
    """Weak references by address to all objects that take them, arrays among them; and the number of NumPy arrays."""
    objects = [each for each in gc.get_objects() if type(each) not in NO_ARRAYS]
    notes = {id(each): weakref.ref(each) for each in objects if type(each).__weakrefoffset__}
    arrays = {id(way[-1]): way[-1] for way in arrays_among(objects) if issubclass(type(way[-1]), np.ndarray)}
    notes.update((address, weakref.ref(each)) for address, each in arrays.items())
    return notes, len(arrays)
