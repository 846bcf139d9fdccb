"""Errors that are reported in one line, and the exit codes of a run."""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any, Literal, get_args, get_origin, get_type_hints

OUT_OF_MEMORY = 3  # exit code of a run stopped by `callbacks.MemoryBudget`
ALL_AGENTS_FAILED = 4  # exit code of a run in which no agent had finite numbers left
LOST_CONTACT = 5  # exit code of a process that lost contact with the others of its run
INTERRUPTED = 130  # exit code of a run stopped by Ctrl-C (SIGINT)
TERMINATED = 143  # exit code of a run stopped by SIGTERM
REQUEUED = 138  # exit code of a run stopped by SIGUSR1, which SLURM sends before a job's time is up
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""Return text with the control characters that a terminal would obey as escapes such as \x1b.

    New lines and tabs stay.
    """
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


SHORTAGE = re.compile(
    r"can(?:no|')t allocate memory|not enough memory|out of memory|bad_alloc|can't start new thread"
    r"|failed to map segment|resource temporarily unavailable|error return without exception set",
    re.IGNORECASE,
)


def is_shortage(error: BaseException) -> bool:
    """Return whether an exception says that memory or threads ran out, which says nothing about any file."""
    by_message = isinstance(error, (RuntimeError, OSError, ImportError, SystemError))
    return isinstance(error, MemoryError) or (by_message and SHORTAGE.search(str(error)) is not None)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, then those that it came from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def one_line(text: object, most: int | None = 160) -> str:
    """Return text, such as what an exception says, in one line of at most so many characters."""
    return " ".join(str(text).split())[:most]


def install_hint(extra: str) -> str:
    """Return the command that installs an optional extra of eigen2, which is on no package index."""
    return f"pip install -c constraints.txt -e '.[{extra}]' in the folder of eigen2"


class UserError(ValueError):
    """Bad input: one line that names the thing, its value and the remedy; the CLI prints it and exits with 2."""


@contextmanager
def damage_as_user_error(what: str, remedy: str) -> Iterator[None]:
    """Turn whatever a decoder raises on damaged bytes, which may be anything, into a UserError of one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if is_shortage(error):
            raise
        raise UserError(f"{what} ({one_line(error)}); {remedy}") from error


class _Ended(BaseException):
    """The end of a run for a one-line reason, and the process's exit code."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason, code)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


class RunStopped(_Ended, Exception):
    """A run that was stopped early and cleanly, for a one-line reason; it can be resumed from its last checkpoint."""


class StoppedBySignal(_Ended):
    """A run that a signal stopped; it can be resumed from its last checkpoint.

    Not an Exception, as KeyboardInterrupt is none: a handler may raise it anywhere, also where errors are caught.
    """


def require_range(
    name: str,
    value: Any,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    whole: bool = False,
) -> None:
    """Raise a UserError unless `least` <= value <= `most` and `above` < value < `below`, as far as these are set.

    It must be a number, and without `most` finite; NaN is outside every range. A `whole` one must be an integer. `name`
    is the full key of the setting.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UserError(f"{name} is {value!r}; it must be a number")
    if whole and not isinstance(value, Integral):
        raise UserError(f"{name} is {value!r}; it must be a whole number")
    number: Any = value  # which a Real does not compare with, by its annotations
    bounds = [
        (least is None or number >= least, f"at least {least}" if least is not None else ""),
        (above is None or number > above, f"above {above}" if above is not None else ""),
        (most is None or number <= most, f"at most {most}" if most is not None else ""),
        (below is None or number < below, f"below {below}" if below is not None else ""),
        (most is not None or number < math.inf, "finite" if most is None and not number < math.inf else ""),
    ]
    if not all(holds for holds, _ in bounds):
        raise UserError(f"{name} is {value}; it must be {' and '.join(text for _, text in bounds if text)}")


def require_choices(prefix: str, annotated: object, values: Mapping[str, object]) -> None:
    """Raise a UserError unless each of `values` that a Literal annotates is one of its choices, and a bool is one.

    The command line checks them, a call does not. `annotated` is a class or function, `prefix` the keys' group.
    """
    for name, hint in get_type_hints(annotated).items():
        if get_origin(hint) is Literal and values[name] not in get_args(hint):
            choices = " or ".join(map(str, get_args(hint)))
            raise UserError(f"{prefix}.{name} is {values[name]!r}; it must be {choices}")
        if hint is bool and not isinstance(values[name], bool):
            raise UserError(f"{prefix}.{name} is {values[name]!r}; it must be true or false")
