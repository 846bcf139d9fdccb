"""Two lengths of the same tests: a few hundred inputs within the suite, ten thousand in `make fuzz`."""

from hypothesis import HealthCheck, settings

LONG = "fuzz"

# files are written and read for each example, and a refused file is a good one
few = settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
settings.register_profile(LONG, few, max_examples=10_000)
