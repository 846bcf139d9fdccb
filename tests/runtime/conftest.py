"""The run that interrupted ones are compared with."""

from pathlib import Path

import pytest

from tests.runs import finish


@pytest.fixture(scope="package")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four generations in one go."""
    root = tmp_path_factory.mktemp("uninterrupted")
    finish(root)
    return root
