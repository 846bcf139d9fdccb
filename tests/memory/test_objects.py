"""Large objects are found wherever they are held, and their paths lead to them."""

import gc
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from eigen2.memory.objects import InstanceCounter, LargeObject, large_objects, type_counts, type_name

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


def test_whatever_holds_it_a_large_object_is_found_once_with_its_path() -> None:
    sizes = [37 * MB + 1600 * i for i in range(len(HOLDERS))]
    for i, (hold, _) in enumerate(HOLDERS):
        KEPT[f"it{i}"] = hold(sizes[i])
    gc.freeze()
    try:
        found = large_objects(top=1000, least_bytes=37 * MB)
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
    paths = [(each.nbytes, each.path) for each in found if each.path.startswith(f"{__name__}.KEPT")]
    expected = [(sizes[i], f"{__name__}.KEPT['it{i}']{path}") for i, (_, path) in enumerate(HOLDERS)]
    assert sorted(paths) == expected


def test_untracked_dictionaries_classes_generators_and_running_functions_are_holders() -> None:
    KEPT["array"], KEPT["text"] = {"it": np.empty(39 * MB, np.uint8)}, {"it": b"x" * (40 * MB - 33)}
    gc.collect()  # which stops tracking dictionaries of plain values
    Table.rows = np.empty(31 * MB, np.uint8)

    def numbers() -> Generator[Any]:
        local = np.empty(32 * MB, np.uint8)
        yield
        yield local

    KEPT["generator"] = numbers()
    next(KEPT["generator"])
    here = np.empty(33 * MB, np.uint8)
    paths = {each.nbytes // MB: each.path.removeprefix(f"{__name__}.") for each in large_objects(1000, 31 * MB)}
    Table.rows = None
    function = "test_untracked_dictionaries_classes_generators_and_running_functions_are_holders"
    assert [paths[size] for size in (31, 32)] == ["Table.rows", "KEPT['generator'] local local"]
    assert paths[here.nbytes // MB] == f"{function}: here"
    assert [paths[size] for size in (39, 40)] == ["KEPT['array']['it']", "KEPT['text']['it']"]


def test_only_the_largest_are_told_and_none_that_is_small() -> None:
    KEPT["it"] = [np.empty(size * MB, np.uint8) for size in (41, 44, 43, 42)]
    before = [each for each in large_objects(top=1000, least_bytes=41 * MB) if "KEPT" in each.path]
    assert [each.nbytes // MB for each in before] == [44, 43, 42, 41]
    assert [each.nbytes // MB for each in large_objects(top=2, least_bytes=41 * MB)] == [44, 43]
    assert str(before[0]) == f"44.0 MB  numpy.ndarray uint8 (44000000,)  {__name__}.KEPT['it'][1]"


def test_counts_are_of_live_tracked_objects_by_type() -> None:
    name = type_name(Attribute)
    before = type_counts()[name]
    KEPT["it"] = [Attribute(1) for _ in range(5)]
    assert type_counts()[name] == before + 5
    KEPT.clear()
    assert type_counts()[name] == before
    assert (type_name(int), name) == ("int", f"{__name__}.Attribute")


class Meta(type):
    """Whose classes all compare equal."""

    def __eq__(cls, other: object) -> bool:
        return True

    def __hash__(cls) -> int:
        return 0


class Plain(metaclass=Meta):
    pass


class Other(metaclass=Meta):
    pass


class Slots:
    __slots__ = ("itself",)


@pytest.fixture
def thawed() -> Iterator[None]:
    gc.collect()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("thawed")
@pytest.mark.parametrize("cls", [Plain, Slots])
def test_instances_are_counted_through_freezes_and_thaws(cls: type) -> None:
    count = InstanceCounter({"it": cls, "other": Other})
    kept = [cls() for _ in range(3)]
    noise = Other()
    assert count() == {"it": 3, "other": 1}
    gc.freeze()
    kept.append(cls())
    assert count() == {"it": 4, "other": 1}
    del kept[0], noise
    assert count() == {"it": 3, "other": 0}
    kept += [cls(), cls()]
    assert count() == {"it": 5, "other": 0}
    gc.freeze()  # again
    kept.append(cls())
    assert count() == {"it": 6, "other": 0}
    gc.unfreeze()  # behind its back
    kept.append(cls())
    assert count() == {"it": 7, "other": 0}
    kept.clear()
    assert count() == {"it": 0, "other": 0}


@pytest.mark.usefixtures("thawed")
def test_a_freeze_before_the_start_hides_nothing() -> None:
    kept = Plain()
    gc.freeze()
    count = InstanceCounter({"it": Plain})
    assert count() == {"it": 1}
    del kept
    assert count() == {"it": 0}


@pytest.mark.usefixtures("thawed")
def test_frozen_objects_stay_frozen_and_are_walked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count = InstanceCounter({"it": Plain})
    gc.freeze()
    before = gc.get_freeze_count()
    count()
    assert gc.get_freeze_count() > before - 100  # but for what died meanwhile
    thaws: list[int] = []
    monkeypatch.setattr(gc, "unfreeze", lambda: thaws.append(1))
    for _ in range(3):
        count()
    assert not thaws


@pytest.mark.usefixtures("thawed")
def test_nothing_to_count_looks_at_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "get_objects", lambda: pytest.fail("looked"))
    assert InstanceCounter({})() == {}
