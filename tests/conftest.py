"""Settings of the whole suite."""

import gc
import os
from collections.abc import Generator, Iterator

import jaxtyping
import pytest
from hypothesis import settings

import tests.parsers  # noqa: F401
from tests.disk import not_synced

LONG = ("test_readme.py", "test_processes.py", "test_failing_disk.py", "test_memory_flat.py")
"""Modules that come first, as a minute at the end would keep one core waiting for the other."""

# the same examples in every run, on every machine; `pytest --hypothesis-profile default` draws new ones
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("repeatable")


os.fsync = not_synced


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the long modules first."""
    items.sort(key=lambda item: item.path.name not in LONG)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave what is imported out of every collection: to look through it takes half a second."""
    gc.disable()  # imports make no garbage
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="module")
def unchecked() -> Iterator[None]:
    """Check no shapes and types at calls: that takes half of the time of whole runs, and tests of parts check them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        yield


@pytest.fixture
def thawed() -> Iterator[None]:
    """Nothing is frozen, for a test that freezes."""
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()
