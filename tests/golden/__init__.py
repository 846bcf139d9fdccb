"""Golden digests: whether a change of the code changes what short runs compute."""
