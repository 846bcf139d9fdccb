"""List the live Python objects of this process, and count them by type."""

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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
