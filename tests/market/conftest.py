"""What all tests of the trading workload share."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """One thread: the tensors here are tiny, and test processes share the machine."""
    torch.set_num_threads(1)
