"""`assert_flat` passes what keeps nothing, and fails what keeps a little."""

from collections import deque
from typing import Any

import pytest

from callbacks import assert_flat
from tests.command import in_fork


def run_flat(length: int, maxlen: int | None, allowed: str) -> None:
    kept: deque[Any] = deque(maxlen=maxlen)
    assert_flat(lambda: kept.append(bytearray(length)), per_generation=allowed)


@pytest.mark.parametrize(("length", "maxlen", "allowed"), [(40_000, 3, "1 kB"), (4000, None, "1 MB")])
def test_what_bounds_its_memory_or_keeps_no_more_than_is_allowed_passes(
    length: int, maxlen: int | None, allowed: str
) -> None:
    assert in_fork(run_flat, length, maxlen, allowed) is None  # else assert_flat raises


def test_what_keeps_more_than_is_allowed_fails() -> None:
    with pytest.raises(AssertionError, match=r"memory grows by 4,\d\d\d bytes a generation, where 1 kB is allowed"):
        in_fork(run_flat, 4000, None, "1 kB")


@pytest.mark.parametrize(
    ("options", "named"), [({"generations": 9}, "generations is 9"), ({"per_generation": "1k"}, "'1k'")]
)
def test_a_wrong_argument_is_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        assert_flat(lambda: None, **options)
