"""Errors that are reported in one line, and the exit codes of a run."""

import math
from numbers import Real

OUT_OF_MEMORY = 3  # exit code of a run that `callbacks.MemoryBudget` ended
ALL_AGENTS_FAILED = 4  # of a run in which no agent had finite numbers left
LOST_CONTACT = 5  # of a process that lost contact with the others of its run
INTERRUPTED = 130  # of a run that Ctrl-C (SIGINT) ended
TERMINATED = 143  # of a run that SIGTERM ended
REQUEUED = 138  # of a run that SIGUSR1 ended, as SLURM sends it before a job's time is up


class UserError(ValueError):
    """Bad input: one line that names the thing, its value and the remedy; the CLI prints it and exits with 2."""


class RunStopped(Exception):
    """A run that ended early, in order, for a reason of one line; it can be resumed from its last checkpoint."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code  # the process's exit code


def require_range(
    name: str,
    value: float,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> None:
    """Refuse, by a UserError, a setting outside `least` to `most`, or beyond `above` and `below`, which are excluded.

    Without `most` any value must be finite; NaN is outside every range. The name is the setting's full key.
    """
    given: object = value  # whatever the type says: a network's arguments are not checked before
    if isinstance(given, bool) or not isinstance(given, Real):
        raise UserError(f"{name} is {value}; it must be a number")
    bounds = [
        (least is None or value >= least, f"at least {least}" if least is not None else ""),
        (above is None or value > above, f"above {above}" if above is not None else ""),
        (most is None or value <= most, f"at most {most}" if most is not None else ""),
        (below is None or value < below, f"below {below}" if below is not None else ""),
        (most is not None or value < math.inf, "finite" if most is None and not value < math.inf else ""),
    ]
    if not all(holds for holds, _ in bounds):
        raise UserError(f"{name} is {value}; it must be {' and '.join(text for _, text in bounds if text)}")
