"""A tiny run in place of the full-scale run."""

from collections.abc import Iterator

import pytest
import torch

from benchmarks.harness import ROOT
from benchmarks.speed.full_scale import FullScale


@pytest.fixture(scope="module", autouse=True)
def isolated_environment() -> Iterator[None]:
    """Restore the environment variables of seeds, which the command line sets."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
            patch.setenv(name, "0")
        torch.set_num_threads(1)
        yield


@pytest.fixture(scope="module")
def small(isolated_environment: None) -> Iterator[FullScale]:
    with FullScale(ROOT / "tests" / "small.yaml") as full:
        yield full
