"""`python -m eigen2.cli`: the command line."""

import difflib
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from eigen2.errors import (
    INTERRUPTED,
    OUT_OF_MEMORY,
    RunStopped,
    StoppedBySignal,
    UserError,
    causes,
    is_shortage,
    one_line,
    printable,
)
from eigen2.memory.limits import limits

TRAINING = ("fit", "validate", "test")
MODULES = {
    "predict": "eigen2.cli.champion",
    "export": "eigen2.cli.champion",
    "report": "eigen2.cli.report",
    "data": "eigen2.cli.data",
    "sweep": "eigen2.cli.sweep",
    "fire": "eigen2.cli.fire",
}
"""Modules of the other commands: each has `make_parser(command)` and `run(command, options)`."""


def main(args: Sequence[str] | None = None) -> None:
    """Run a command.

    Bad input exits with 2 after one line. A run that ends early exits with 3 (memory), 4 (all agents failed), 5
    (contact with another process lost), 130 (Ctrl-C), 143 (SIGTERM) or 138 (SIGUSR1), after one line on how to resume.
    """
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Printable())
    try:
        _run(sys.argv[1:] if args is None else list(args))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has what it wants, as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        sys.exit(1)
    except (RunStopped, StoppedBySignal) as stop:
        _exit(stop.code, str(stop))
    except Exception as error:
        if (shortage := next(filter(is_shortage, causes(error)), None)) is not None:
            reason = one_line(f"{type(shortage).__name__}: {shortage}")
            _exit(
                OUT_OF_MEMORY,
                f"error: no memory or threads left ({reason}), with {limits()[0]}: free memory or raise that limit; "
                "a fit goes on from its last checkpoint with --ckpt_path last",
            )
        if not isinstance(error, UserError):
            raise
        _exit(2, f"error: {one_line(error, most=None)}")
    except KeyboardInterrupt:  # before the first generation or after the last
        _exit(INTERRUPTED, "interrupted")


class _Printable(logging.Formatter):
    """Writes a warning, which may quote a file, without characters that a terminal obeys."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def _run(args: list[str]) -> None:
    """Import only the command's module and run it: price files and reports need neither torch nor Lightning."""
    _refuse_other_callbacks()
    commands = (*TRAINING, *MODULES)
    command = args[0] if args else ""
    if command in (*TRAINING, "-h", "--help"):
        import_module("eigen2.cli.training").run(args)
    elif command in MODULES:
        module = import_module(MODULES[command])
        parser = module.make_parser(command)
        module.run(command, parser.instantiate(parser.parse_args(args[1:])))
    else:
        close = difflib.get_close_matches(command, commands, 1)
        wrong = f"{command} must follow a command" if command.startswith("-") else f"unknown command {command}"
        raise UserError(
            f"{wrong if args else 'a command is missing'}; choose from {', '.join(commands)}, "
            f"and see its options with --help{f': did you mean {close[0]}?' if close else ''}"
        )


def _refuse_other_callbacks() -> None:
    """Refuse, by a UserError, a `callbacks` of the working folder, which Python would import in place of eigen2's."""
    spec = find_spec("callbacks")
    found = Path((spec and spec.origin) or "callbacks").absolute()
    if found.parent != Path(__file__).absolute().parents[2] / "callbacks":
        raise UserError(
            f"{found} would be imported in place of eigen2's callbacks; rename it, or run eigen2 in another folder"
        )


def _exit(code: int, line: str) -> NoReturn:
    sys.stderr.write(f"{printable(line)}\n")
    sys.exit(code)
