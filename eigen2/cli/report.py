"""`python -m eigen2.cli report`: write the results of a run as one HTML file."""

from pathlib import Path

from jsonargparse import Namespace

from eigen2.cli.parser import Parser
from eigen2.files import WRITE_HINT, writing
from eigen2.report.page import write_report


def make_parser(command: str = "report") -> Parser:
    """Return the parser of `report`."""
    parser = Parser(
        prog=f"python -m eigen2.cli {command}",
        description="Write the results of a run as one HTML file that needs no network.",
    )
    parser.add_argument("folder", metavar="RUN_DIR", help="The run's folder (trainer.default_root_dir).")
    output = "File to write; null is report.html in the run's folder."
    parser.add_argument("--output", type=str | None, default=None, help=output)
    return parser


def run(command: str, options: Namespace) -> None:
    """Write the report and print its path."""
    folder = Path(options.folder)
    where = options.folder if options.output is None else repr(options.output)
    with writing(f"the report to {where}", f"{WRITE_HINT}, by --output"):
        path = write_report(folder, None if options.output is None else Path(options.output))
    print(f"report       {path}")
