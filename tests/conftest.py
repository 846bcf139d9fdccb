"""Settings of the whole suite."""

import gc
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings

import tests.docstrings  # noqa: F401

# the same examples in every run, on every machine; `pytest --hypothesis-profile default` draws new ones
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("repeatable")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave what is imported out of every collection: to look through it takes half a second."""
    gc.disable()  # imports make no garbage
    try:
        return (yield)
    finally:
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
