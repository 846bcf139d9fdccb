"""One thread and a known seed, so that every number in this folder comes out the same on every machine."""

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("erl", deadline=None, max_examples=50)
settings.load_profile("erl")

SEED = 7


@pytest.fixture(autouse=True)
def _seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `seed_everything` would set, without touching the global generators."""
    monkeypatch.setenv("PL_GLOBAL_SEED", str(SEED))
