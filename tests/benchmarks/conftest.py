"""A run of tiny size in place of the full one."""

from collections.abc import Iterator

import pytest
import torch

from benchmarks.harness import ROOT
from benchmarks.speed.full_scale import FullScale


@pytest.fixture(scope="module", autouse=True)
def own_environment() -> Iterator[None]:
    """Keep the seed that the command line leaves in the environment from other tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
            patch.setenv(name, "0")
        torch.set_num_threads(1)
        yield


@pytest.fixture(scope="module")
def small(own_environment: None) -> Iterator[FullScale]:
    with FullScale(ROOT / "tests" / "small.yaml") as full:
        yield full
