"""Settings of the whole suite."""

from hypothesis import settings

import tests.docstrings  # noqa: F401

# the same examples in every run, on every machine; `pytest --hypothesis-profile default` draws new ones
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("repeatable")
