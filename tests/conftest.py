"""Of all tests."""

import tests.docstrings  # noqa: F401
