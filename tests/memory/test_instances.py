import gc
from collections.abc import Iterator

import pytest

from eigen2.memory.objects import InstanceCounter


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


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    gc.collect()
    yield
    gc.unfreeze()


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


def test_a_freeze_before_the_start_hides_nothing() -> None:
    kept = Plain()
    gc.freeze()
    count = InstanceCounter({"it": Plain})
    assert count() == {"it": 1}
    del kept
    assert count() == {"it": 0}


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


def test_nothing_to_count_looks_at_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "get_objects", lambda: pytest.fail("looked"))
    assert InstanceCounter({})() == {}
