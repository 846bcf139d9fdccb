"""The run that interrupted runs are compared with."""

from pathlib import Path

import pytest

from tests.runs import finish


@pytest.fixture(scope="package")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of four generations without interruption."""
    root = tmp_path_factory.mktemp("uninterrupted")
    finish(root)
    return root
