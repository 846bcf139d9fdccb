"""Settings of the whole suite."""

import gc
from collections.abc import Iterator

import pytest
from hypothesis import settings

import tests.docstrings  # noqa: F401

gc.disable()  # until tests run: imports make no garbage

# the same examples in every run, on every machine; `pytest --hypothesis-profile default` draws new ones
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("repeatable")


def pytest_collection_finish() -> None:
    """Leave what was imported out of every collection: to look through it takes half a second."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def thawed() -> Iterator[None]:
    """Nothing is frozen, for a test that freezes."""
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()
