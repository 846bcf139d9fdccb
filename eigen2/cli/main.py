"""`python -m eigen2.cli`: the command line."""

import difflib
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from eigen2.cli.parser import UNION, one_line
from eigen2.errors import INTERRUPTED, RunStopped, UserError

TRAINING = ("fit", "validate", "test")
HOMES = {
    "predict": "eigen2.cli.champion",
    "export": "eigen2.cli.champion",
    "report": "eigen2.cli.report",
    "data": "eigen2.cli.data",
    "sweep": "eigen2.cli.sweep",
    "fire": "eigen2.cli.fire",
    "completion": "eigen2.cli.completion",
}
"""Modules of the other commands."""
COMMANDS = (*TRAINING, *HOMES)


def main(args: Sequence[str] | None = None) -> None:
    """Run a command; bad input prints one line and exits with 2.

    A run that ends before its time exits with 3 (memory), 4 (all agents failed), 5 (contact with another process
    lost), 130 (Ctrl-C), 143 (SIGTERM) or 138 (SIGUSR1), after saying in one line how to go on.

    Args:
        args: words of the command line; None takes the process's.
    """
    words = sys.argv[1:] if args is None else list(args)
    try:
        _run(words, alone=args is None)
    except UserError as error:
        _refuse(" ".join(str(error).split()))
    except RunStopped as stop:
        sys.stderr.write(f"{stop}\n")
        sys.exit(stop.code)
    except KeyboardInterrupt:  # before the first generation or after the last
        sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)
    except ValueError as error:
        # a setting that fits none of several types
        if UNION not in str(error):
            raise
        _refuse(one_line(str(error)))


def _run(words: list[str], alone: bool) -> None:
    """Run what the first word names; its libraries are imported then.

    Price files and reports need neither torch nor Lightning, whose import takes seconds and 300 MB.

    Args:
        words: of the command line.
        alone: whether they are the process's own, which Lightning then reads by itself.
    """
    command = words[0] if words else ""
    if command in TRAINING or command.startswith("-"):
        import_module("eigen2.cli.training").run(None if alone else words)
    elif command in HOMES:
        import_module(HOMES[command]).run(words if command in ("predict", "export") else words[1:])
    else:
        _refuse(_no_command(words))


def _no_command(words: list[str]) -> str:
    known = ", ".join(COMMANDS)
    if not words:
        return f"a command is missing; give one of {known}, and --help after it"
    near = difflib.get_close_matches(words[0], COMMANDS, 1)
    return f"{words[0]} is no command; give one of {known}" + (f": did you mean {near[0]}?" if near else "")


def _refuse(reason: str) -> NoReturn:
    sys.stderr.write(f"error: {reason}\n")
    sys.exit(2)


if __name__ == "__main__":
    main()
