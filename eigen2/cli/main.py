"""`python -m eigen2.cli`: the command line."""

import difflib
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from eigen2.errors import INTERRUPTED, RunStopped, UserError

TRAINING = ("fit", "validate", "test")
MODULES = {
    "predict": "eigen2.cli.champion",
    "export": "eigen2.cli.champion",
    "report": "eigen2.cli.report",
    "data": "eigen2.cli.data",
    "sweep": "eigen2.cli.sweep",
    "fire": "eigen2.cli.fire",
    "completion": "eigen2.cli.completion",
}
"""Module of each other command: `make_parser(command)`, and `run(command, settings)` with what the parser returns."""
COMMANDS = (*TRAINING, *MODULES)


def main(args: Sequence[str] | None = None) -> None:
    """Run a command.

    Bad input exits with 2 after one line. A run that ends early exits with 3 (memory), 4 (all agents failed), 5
    (contact with another process lost), 130 (Ctrl-C), 143 (SIGTERM) or 138 (SIGUSR1), after one line on how to go on.
    """
    words = sys.argv[1:] if args is None else list(args)
    try:
        _run(words)
    except UserError as error:
        _refuse(" ".join(str(error).split()))
    except RunStopped as stop:
        sys.stderr.write(f"{stop}\n")
        sys.exit(stop.code)
    except KeyboardInterrupt:  # before the first generation or after the last
        sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)


def _run(words: list[str]) -> None:
    """Import the command's module and run it: price files and reports need neither torch nor Lightning."""
    command = words[0] if words else ""
    if command in TRAINING or command.startswith("-"):
        import_module("eigen2.cli.training").run(words)
    elif command in MODULES:
        module = import_module(MODULES[command])
        parser = module.make_parser(command)
        module.run(command, parser.instantiate(parser.parse_args(words[1:])))
    else:
        known = ", ".join(COMMANDS)
        if not words:
            _refuse(f"a command is missing; choose from {known}, with --help after it for its options")
        close = difflib.get_close_matches(command, COMMANDS, 1)
        _refuse(f"unknown command {command}; choose from {known}" + (f": did you mean {close[0]}?" if close else ""))


def _refuse(reason: str) -> NoReturn:
    sys.stderr.write(f"error: {reason}\n")
    sys.exit(2)


if __name__ == "__main__":
    main()
