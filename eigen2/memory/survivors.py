"""Find which objects, created in which phase, outlive their generation."""

import gc
import tracemalloc
import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from eigen2.memory.objects import NO_ARRAYS, LargeObject, describe_held, held_arrays, type_name
from eigen2.memory.owners import spans_of

_MAX_LARGEST = 5


@dataclass(slots=True)
class Kept:
    """What one phase of one generation left behind."""

    nbytes: int = 0  # of arrays and tensors
    types: Counter[str] = field(default_factory=Counter)  # objects by type
    largest: list[tuple[Any, int]] = field(default_factory=list)
    """The largest arrays with their bytes; without any, other objects."""

    def described(self) -> tuple[LargeObject, ...]:
        """Return the largest, with what keeps each alive and where it was created."""
        found = [((each,), nbytes) for each, nbytes in self.largest]
        return tuple(describe_held(found, ignore=[self.largest, *self.largest]))


class Survivors:
    """Follows the objects created in one generation until the end of the next one.

    Weak references tell which objects are new after a phase, and which of them live in the end, without keeping them
    alive. Plain containers (dict, list, tuple), which allow none, are left out. Meanwhile nothing is frozen
    (`gc.freeze`), as frozen objects are on no list, and tracemalloc records where objects are created. `arrays` is the
    number of NumPy arrays alive at the start, `arrays_now` at the end.
    """

    def __init__(self) -> None:
        self._froze = gc.get_freeze_count() > 0
        gc.unfreeze()
        gc.collect()
        self._known, self.arrays = _references()
        self.arrays_now = self.arrays
        self._created: dict[str, list[weakref.ref[Any]]] = {}
        self._generations = 0
        self._traces = not tracemalloc.is_tracing()
        if self._traces:
            tracemalloc.start()

    def phase_end(self, phase: str) -> None:
        """Remember what was created in this phase and lives, in the first generation."""
        if self._generations == 0:
            now, _ = _references()
            # a living object always has the same reference, a later object at its address another
            self._created[phase] = [ref for address, ref in now.items() if self._known.get(address) is not ref]
            self._known = now

    def generation_end(self) -> dict[str, Kept] | None:
        """Return None at the end of the first generation; at the end of the second what each phase left."""
        self._generations += 1
        if self._generations < 2:
            return None
        self._known.clear()
        gc.collect()
        _, self.arrays_now = _references()
        return {phase: _kept(references) for phase, references in self._created.items()}

    def stop(self) -> None:
        """Restore the garbage collector and tracemalloc."""
        if self._traces:
            tracemalloc.stop()
        if self._froze:
            gc.collect()
            gc.freeze()


def _references() -> tuple[dict[int, weakref.ref[Any]], int]:
    """Return weak references by address to all objects that allow them, arrays included; and the number of arrays."""
    objects = [each for each in gc.get_objects() if type(each) not in NO_ARRAYS]
    references = {id(each): weakref.ref(each) for each in objects if type(each).__weakrefoffset__}
    arrays = {id(way[-1]): way[-1] for way in held_arrays(objects) if issubclass(type(way[-1]), np.ndarray)}
    references.update((address, weakref.ref(each)) for address, each in arrays.items())
    return references, len(arrays)


def _kept(references: list[weakref.ref[Any]]) -> Kept:
    """Describe those of the referenced objects that still live."""
    kept = Kept()
    storages: set[int] = set()
    examples: dict[str, Any] = {}
    alive = [each for each in (ref() for ref in references) if each is not None]
    # an array before the tensor whose memory it shows, which may be held by the array alone
    for each in sorted(alive, key=lambda each: not issubclass(type(each), np.ndarray)):
        name = type_name(type(each))
        kept.types[name] += 1
        examples.setdefault(name, each)
        for span in spans_of(each) if issubclass(type(each), np.ndarray | Tensor) else ():
            if span.start not in storages:
                storages.add(span.start)
                kept.nbytes += span.stop - span.start
                kept.largest.append((each, span.stop - span.start))
    kept.largest.sort(key=lambda found: -found[1])
    del kept.largest[_MAX_LARGEST:]
    if not kept.largest:
        kept.largest = [(examples[name], 0) for name, _ in kept.types.most_common(_MAX_LARGEST)]
    return kept
