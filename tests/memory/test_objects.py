"""Lists of live objects, and their counts by type."""

import gc
from typing import Any

import pytest

from eigen2.memory.objects import tracked_objects, type_counts, type_name


class Plain:
    def __init__(self) -> None:
        self.itself: Any = None


def test_counts_are_of_live_tracked_objects_by_type() -> None:
    name, kept = type_name(Plain), list[Any]()
    before = type_counts()[name]
    kept.extend(Plain() for _ in range(5))
    assert type_counts()[name] == before + 5
    kept.clear()
    assert type_counts()[name] == before
    assert (type_name(int), name) == ("int", f"{__name__}.Plain")


@pytest.mark.parametrize("frozen", [False, True])
def test_all_objects_are_listed_and_garbage_is_not_frozen_for_good(frozen: bool) -> None:
    kept, circle = Plain(), Plain()
    circle.itself = circle
    gc.collect()
    if frozen:
        gc.freeze()
    try:
        with tracked_objects() as objects:
            assert sum(type(each) is Plain for each in objects) == 2
            del circle
        gc.collect()
        with tracked_objects() as objects:
            assert [each for each in objects if type(each) is Plain] == [kept]
        assert (gc.get_freeze_count() > 0) == frozen
    finally:
        gc.unfreeze()
