"""`python -m eigen2.cli`: the command line."""

import sys
from collections.abc import Sequence
from typing import NoReturn

from eigen2.errors import INTERRUPTED, RunStopped, UserError
from eigen2.runtime.messages import UNION, one_line


def main(args: Sequence[str] | None = None) -> None:
    """Run a command; bad input prints one line and exits with 2.

    A run that ends before its time exits with 3 (memory), 4 (all agents failed), 5 (contact with another process
    lost), 130 (Ctrl-C), 143 (SIGTERM) or 138 (SIGUSR1), after saying in one line how to go on.

    Args:
        args: words of the command line; None takes the process's.
    """
    words = sys.argv[1:] if args is None else list(args)
    try:
        # price files and reports need neither torch nor Lightning, whose import takes seconds and 300 MB
        if words[:1] == ["data"]:
            from eigen2.market.data_cli import run as run_data

            run_data(words[1:])
        elif words[:1] == ["report"]:
            from eigen2.report.cli import run as run_report

            run_report(words[1:])
        elif words[:1] in (["predict"], ["export"]):
            from eigen2.champion_cli import run as run_champion

            run_champion(words)
        elif words[:1] == ["completion"]:
            from eigen2.completion import run as run_completion

            run_completion(words[1:])
        else:
            from eigen2.training_cli import run as run_training

            run_training(None if args is None else words)
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


def _refuse(reason: str) -> NoReturn:
    sys.stderr.write(f"error: {reason}\n")
    sys.exit(2)


if __name__ == "__main__":
    main()
