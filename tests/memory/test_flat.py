"""`assert_flat` passes what keeps nothing, and fails what keeps a little."""

from collections import deque
from typing import Any

import pytest
import torch

from callbacks import assert_flat


def test_what_replaces_and_bounds_its_memory_passes() -> None:
    last: deque[torch.Tensor] = deque(maxlen=3)
    assert_flat(lambda: last.append(torch.ones(10_000)))


@pytest.mark.parametrize(("kept_bytes", "allowed", "flat"), [(4000, "1 kB", False), (4000, "1 MB", True)])
def test_what_keeps_more_than_is_allowed_fails(kept_bytes: int, allowed: str, flat: bool) -> None:
    kept: list[Any] = []

    def run() -> None:
        kept.append(bytearray(kept_bytes))

    if flat:
        assert_flat(run, per_generation=allowed)
    else:
        with pytest.raises(AssertionError, match=r"memory grows by 4,\d\d\d bytes a generation, where 1 kB is allowed"):
            assert_flat(run, per_generation=allowed)


@pytest.mark.parametrize(
    ("options", "named"), [({"generations": 9}, "generations is 9"), ({"per_generation": "1k"}, "'1k'")]
)
def test_a_wrong_argument_is_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        assert_flat(lambda: None, **options)
