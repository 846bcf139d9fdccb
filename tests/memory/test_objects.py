"""Counts of live objects, by type and of given classes."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from callbacks import MemoryProfiler
from eigen2.memory.objects import InstanceCounter, type_counts, type_name

KEPT: list[Any] = []


class Plain:
    class Plain:
        """Another class of the same name."""


class Other:
    pass


class Slots:
    __slots__ = ("itself",)


@pytest.fixture(autouse=True)
def _unfrozen() -> Iterator[None]:
    gc.collect()
    yield
    gc.unfreeze()
    KEPT.clear()


def test_counts_are_of_live_tracked_objects_by_type() -> None:
    name = type_name(Plain)
    before = type_counts()[name]
    KEPT.extend(Plain() for _ in range(5))
    assert type_counts()[name] == before + 5
    KEPT.clear()
    assert type_counts()[name] == before
    assert (type_name(int), name) == ("int", f"{__name__}.Plain")


@pytest.mark.parametrize("frozen_before", [False, True])
def test_instances_are_counted_frozen_or_not(frozen_before: bool) -> None:
    KEPT.extend(Plain() for _ in range(3))
    noise = Other()
    if frozen_before:
        gc.freeze()
    before = gc.get_freeze_count()
    count = InstanceCounter({"it": Plain, "other": Other})
    assert count() == {"it": 3, "other": 1}
    assert (gc.get_freeze_count() > 0) == (before > 0)
    gc.freeze()  # as `GarbageCollector` does where it comes after the profiler
    KEPT.append(Plain())
    assert count() == {"it": 4, "other": 1}
    del KEPT[0], noise
    assert count() == {"it": 3, "other": 0}
    gc.unfreeze()
    assert count() == {"it": 3, "other": 0}
    KEPT.clear()
    assert count() == {"it": 0, "other": 0}


@pytest.mark.parametrize(
    ("watch", "named"),
    [
        (["no_such_package.Thing"], "no_such_package"),
        (["callbacks.Absent"], "callbacks.Absent"),
        (["callbacks.memory.log_memory"], "log_memory"),
        ([""], "''"),
        (["numpy.ndarray"], "numpy.ndarray"),  # Python does not track arrays: the count would always be 0
        ([f"{__name__}.Slots"], "Slots"),
        ([f"{__name__}.Plain", f"{__name__}.Plain.Plain"], "Plain.Plain"),
        ("callbacks.MemoryProfiler", "list of class names"),
    ],
)
def test_a_class_that_cannot_be_counted_is_refused_by_name(watch: list[str], named: str) -> None:
    with pytest.raises(ValueError, match="watch") as error:
        MemoryProfiler(watch=watch)
    assert named in str(error.value)
