"""Large objects are found wherever they are held, and their paths lead to them."""

import gc
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from eigen2.memory.objects import LargeObject, large_objects, type_counts, type_name

MB = 10**6
KEPT: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _empty() -> Generator[None]:
    yield
    KEPT.clear()


def find(nbytes: int) -> LargeObject:
    """The one large object of so many bytes."""
    (found,) = [each for each in large_objects(top=1000, least_bytes=nbytes) if each.nbytes == nbytes]
    return found


def kept_in_a_closure() -> Callable[[int], None]:
    history: list[np.ndarray] = []

    def remember(n: int) -> None:
        history.append(np.empty(n, np.uint8))

    return remember


class Attribute:
    def __init__(self, n: int) -> None:
        self.array = np.empty(n, np.uint8)


class Slot:
    __slots__ = ("array",)

    def __init__(self, n: int) -> None:
        self.array = np.empty(n, np.uint8)


class Table:
    rows: Any = None


def test_an_array_of_200_mb_in_a_list_in_a_closure_is_named_with_its_path() -> None:
    remember = KEPT["remember"] = kept_in_a_closure()
    remember(10)
    remember(200 * MB)
    found = find(200 * MB)
    assert found.type == "numpy.ndarray uint8 (200000000,)"
    assert found.path.endswith("remember closure history[1]")
    assert large_objects(top=1)[0] == found


HOLDERS: list[tuple[Callable[[int], Any], str]] = [
    (lambda n: np.empty(n, np.uint8), ""),
    (lambda n: [None, np.empty(n, np.uint8)], "[1]"),
    (lambda n: (np.empty(n, np.uint8),), "[0]"),
    (lambda n: {7: {"a": np.empty(n, np.uint8)}}, "[7]['a']"),
    (lambda n: deque([np.empty(n, np.uint8)]), "[0]"),
    (lambda n: np.array([None, np.empty(n, np.uint8)], dtype=object), "[1]"),
    (lambda n: np.empty(n, np.uint8)[n // 2 :], ""),
    (Attribute, ".array"),
    (Slot, ".array"),
    (lambda n: torch.empty(n, dtype=torch.uint8), ""),
    (lambda n: nn.Sequential(nn.Linear(n // 16, 4, bias=False)), ".0.weight"),
    (lambda n: bytearray(n - 57), ""),
    (lambda n: b"x" * (n - 33), ""),
    (lambda n: [None] * ((n - 56) // 8), ""),
]


@pytest.mark.parametrize("frozen", [False, True])
def test_whatever_holds_it_a_large_object_is_found_once_with_its_path(frozen: bool) -> None:
    sizes = [37 * MB + 1600 * i for i in range(len(HOLDERS))]
    for i, (hold, _) in enumerate(HOLDERS):
        KEPT[f"it{i}"] = hold(sizes[i])
    if frozen:
        gc.freeze()
    try:
        found = large_objects(top=1000, least_bytes=37 * MB)
        assert gc.get_freeze_count() > 0 or not frozen
    finally:
        gc.unfreeze()
    paths = [(each.nbytes, each.path) for each in found if each.path.startswith(f"{__name__}.KEPT")]
    expected = [(sizes[i], f"{__name__}.KEPT['it{i}']{path}") for i, (_, path) in enumerate(HOLDERS)]
    assert sorted(paths) == expected


def test_alone_in_a_dictionary_that_python_does_not_track_it_is_found() -> None:
    for make in (lambda: np.empty(39 * MB, np.uint8), lambda: b"x" * (39 * MB - 33)):
        KEPT["it"] = make()
        gc.collect()
        assert find(39 * MB).path == f"{__name__}.KEPT['it']"


def test_a_class_a_generator_and_a_running_function_are_owners() -> None:
    Table.rows = np.empty(31 * MB, np.uint8)
    assert find(31 * MB).path == f"{__name__}.Table.rows"
    Table.rows = None

    def numbers() -> Generator[Any]:
        local = np.empty(32 * MB, np.uint8)
        yield
        yield local

    KEPT["generator"] = numbers()
    next(KEPT["generator"])
    assert find(32 * MB).path == f"{__name__}.KEPT['generator'] local local"
    here = np.empty(33 * MB, np.uint8)
    found = find(here.nbytes)
    assert found.path == f"{__name__}.test_a_class_a_generator_and_a_running_function_are_owners: here"


def test_only_the_largest_are_told_and_none_that_is_small() -> None:
    KEPT["it"] = [np.empty(size * MB, np.uint8) for size in (41, 44, 43, 42)]
    before = [each for each in large_objects(top=1000, least_bytes=41 * MB) if "KEPT" in each.path]
    assert [each.nbytes // MB for each in before] == [44, 43, 42, 41]
    assert len(large_objects(top=2)) == 2
    assert not any("KEPT" in each.path for each in large_objects(top=1000, least_bytes=45 * MB))
    assert str(before[0]) == f"44.0 MB  numpy.ndarray uint8 (44000000,)  {__name__}.KEPT['it'][1]"


def test_counts_are_of_live_tracked_objects_by_type() -> None:
    name = type_name(Attribute)
    before = type_counts()[name]
    KEPT["it"] = [Attribute(1) for _ in range(5)]
    assert type_counts()[name] == before + 5
    KEPT.clear()
    assert type_counts()[name] == before
    assert (type_name(int), name) == ("int", f"{__name__}.Attribute")
