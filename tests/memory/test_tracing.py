"""The list of live objects, in which a trace looks for what holds a leak."""

import gc
from typing import Any

import pytest

from eigen2.memory.tracing import tracked_objects


class Plain:
    def __init__(self) -> None:
        self.itself: Any = None


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
