"""Settings of the whole suite."""

from hypothesis import settings

import tests.docstrings  # noqa: F401

settings.register_profile("untimed", deadline=None)  # a test does not fail for a busy machine
settings.load_profile("untimed")
