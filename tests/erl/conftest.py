"""One thread and a known seed, so that every number in this folder comes out the same on every machine."""

from collections.abc import Iterator

import pytest
import torch

SEED = 7


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `seed_everything` would set, without touching the global generators."""
    monkeypatch.setenv("PL_GLOBAL_SEED", str(SEED))
