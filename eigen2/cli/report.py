"""`python -m eigen2.cli report`: a run's folder as one HTML file."""

from pathlib import Path

from jsonargparse import Namespace

from eigen2.cli.parser import Parser
from eigen2.errors import UserError
from eigen2.report.page import write_report
from eigen2.runtime.files import WRITE_HINT


def make_parser(command: str = "report") -> Parser:
    """Return the parser of `report`."""
    parser = Parser(
        prog=f"python -m eigen2.cli {command}",
        description="Write a run's results as one HTML file that opens without a network.",
    )
    parser.add_argument("folder", metavar="RUN_DIR", help="The run's folder (trainer.default_root_dir).")
    output = "File to write; null writes report.html into the run's folder."
    parser.add_argument("--output", type=str | None, default=None, help=output)
    return parser


def run(command: str, chosen: Namespace) -> None:
    """Write a report."""
    folder = Path(chosen.folder)
    try:
        path = write_report(folder, None if chosen.output is None else Path(chosen.output))
    except OSError as error:
        where = chosen.folder if chosen.output is None else repr(chosen.output)
        reason = f"{error.strerror or error}; {WRITE_HINT}, by --output"
        raise UserError(f"cannot write the report to {where}: {reason}") from error
    print(f"report       {path}")
