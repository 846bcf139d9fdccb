"""`python -m eigen2.cli report`: a run's folder as one HTML file."""

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser
from rich.console import Console

from eigen2.cli.parser import OneLineErrors
from eigen2.errors import UserError
from eigen2.report.page import write_report
from eigen2.runtime.files import WRITE_HINT


class ReportParser(OneLineErrors, ArgumentParser):
    """jsonargparse's parser, with errors of one line."""


def make_parser() -> ReportParser:
    """The command's parser."""
    parser = ReportParser(
        prog="python -m eigen2.cli report",
        description="Write what a run has come to as one HTML file that opens without a network.",
    )
    parser.add_argument("folder", metavar="RUN_DIR", help="The run's folder (trainer.default_root_dir).")
    parser.add_argument(
        "--output", type=str | None, default=None, help="The file; null writes report.html into the run's folder."
    )
    parser.add_argument(
        "--tearsheet",
        type=bool,
        default=False,
        help="Write quantstats' page of the champion's test, tearsheet.html, too.",
    )
    return parser


def run(args: Sequence[str]) -> None:
    """Write a report.

    Args:
        args: the words after `report`.

    Raises:
        UserError: there is no run, or the file cannot be written.
    """
    parser = make_parser()
    chosen = parser.parse_args(list(args))
    target = None if chosen.output is None else Path(chosen.output)
    try:
        written = [write_report(Path(chosen.folder), target)]
        if chosen.tearsheet:
            from eigen2.report.tearsheet import write_tearsheet

            written.append(write_tearsheet(Path(chosen.folder)))
    except OSError as error:
        where = chosen.folder if chosen.output is None else repr(chosen.output)
        raise UserError(
            f"cannot write the report to {where}: {error.strerror or error}; {WRITE_HINT}, by --output"
        ) from error
    for path in written:
        Console(highlight=False).print(f"report       {path}", soft_wrap=True)
