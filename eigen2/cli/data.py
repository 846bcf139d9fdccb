"""`python -m eigen2.cli data`: look into price files, prepare them, make some up."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from rich.console import Console

from eigen2.cli.parser import Parser
from eigen2.errors import UserError
from eigen2.market.data.cleaning.defects import Limits
from eigen2.market.data.cleaning.policy import Policy
from eigen2.market.data.cleaning.prepare import changes_path, inspect, prepare
from eigen2.market.synthetic.generator import SyntheticMarket, write_parquet

LARGEST_CEILING = 3_000_000
"""Days x columns up to which a made-up market's ceiling is played: about half a gigabyte."""
SHORTEST_CEILING = 145
"""Days of a ceiling's window, 125 trading and 20 settlement days."""


def make_parser(command: str = "data") -> Parser:
    """Return the parser of `data`."""
    parser = Parser(prog=f"python -m eigen2.cli {command}", description="Inspect, prepare or generate price files.")
    commands = parser.add_subcommands(dest="command")
    for name, (make, _) in COMMANDS.items():
        own = make()
        commands.add_subcommand(name, own, help=own.description)
    return parser


def run(command: str, chosen: Namespace) -> None:
    """Run a data command.

    Raises:
        UserError: bad input, in one line.
    """
    COMMANDS[chosen.command][1](chosen[chosen.command])


def _inspect_parser() -> Parser:
    parser = Parser(description="Report what is wrong with price files and what prepare would do about it.")
    parser.add_argument("inputs", nargs="+", metavar="FILE", help="price files or folders of them")
    parser.add_argument("--json", action="store_true", help="Print the report as JSON, for machines.")
    parser.add_argument(
        "--temp_dir", type=str | None, default=None, help="Folder for spill files as large as the inputs."
    )
    return _add_reading(parser)


def _prepare_parser() -> Parser:
    parser = Parser(description="Merge and clean price files into one Parquet file, with a log of every change.")
    parser.add_argument("files", nargs="+", metavar="IN OUT.parquet", help="what to read, and last what to write")
    parser.add_argument("--overwrite", action="store_true", help="Replace OUT.parquet if it exists.")
    parser.add_argument("--json", action="store_true", help="Print the report as JSON, for machines.")
    return _add_reading(parser)


def _add_reading(parser: Parser) -> Parser:
    parser.add_argument(
        "--indicators",
        type=list[str],
        default=[],
        help="Tickers that are series such as a rate or an index of volatility, not prices: they may be zero or "
        "negative, and only duplicates, missing and infinite values, weekends and stray days are looked for.",
    )
    parser.add_argument(
        "--adjust",
        type=bool,
        default=True,
        help="Multiply prices by adjusted close / close where a file has both.",
    )
    parser.add_class_arguments(Limits, "limits", sub_configs=True)
    parser.add_class_arguments(Policy, "policy")
    return parser


def _synthesize_parser() -> Parser:
    parser = Parser(description="Make up a market with a known signal, and say what can be earned on it.")
    parser.add_argument("out", type=str, metavar="OUT.parquet", help="the file to write")
    parser.add_argument("--overwrite", action="store_true", help="Replace OUT.parquet if it exists.")
    parser.add_argument("--ceiling", type=bool, default=True, help="Play the market with a rule that knows its drift.")
    parser.add_class_arguments(SyntheticMarket, "market")
    return parser


def _inspect(chosen: Namespace) -> None:
    report = inspect(
        chosen.inputs, chosen.policy, chosen.limits, chosen.indicators, chosen.adjust, temp_dir=chosen.temp_dir
    )
    if chosen.json:
        _print_json(report.as_dict())
        return
    console = Console()
    report.show(console)
    _say(console, f"prepare would leave {report.verdict()}")


def _prepare(chosen: Namespace) -> None:
    if len(chosen.files) < 2:
        raise UserError(f"prepare got only {chosen.files[0]!r}: name the files to read and last the file to write")
    *inputs, out = chosen.files
    report = prepare(
        inputs, out, chosen.policy, chosen.limits, chosen.indicators, chosen.adjust, overwrite=chosen.overwrite
    )
    if chosen.json:
        _print_json({**report.as_dict(), "out": out, "changes": str(changes_path(Path(out)))})
        return
    console = Console()
    report.show(console)
    _say(console, f"left {report.verdict()}")
    _say(console, f"wrote {out} ({report.prepared.rows:,} rows) and {changes_path(Path(out))}, the log of every change")


def _synthesize(chosen: Namespace) -> None:
    out = Path(chosen.out)
    if out.exists() and not chosen.overwrite:
        raise UserError(f"{str(out)!r} exists: name another file, or give --overwrite")
    write_parquet(chosen.market, out)
    console = Console()
    _say(console, f"wrote {out}: {chosen.market.days:,} days x {chosen.market.columns:,} columns")
    if chosen.ceiling:
        _say(console, _ceiling(chosen.market))


def _ceiling(market: SyntheticMarket) -> str:
    if market.days * market.columns > LARGEST_CEILING:
        return f"no ceiling: it is played in memory, up to {LARGEST_CEILING:,} days x columns; make fewer for it"
    if market.days < SHORTEST_CEILING:
        return f"no ceiling: it is played in windows of {SHORTEST_CEILING} days; make more days for it"
    # torch takes seconds to import
    from eigen2.market.simulation.rules import TradingRules
    from eigen2.market.synthetic.ceiling import ceiling

    return str(ceiling(market, TradingRules()))


def _print_json(report: dict[str, Any]) -> None:
    json.dump(report, sys.stdout, indent=2, allow_nan=False)
    print()


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False)


COMMANDS: dict[str, tuple[Callable[[], Parser], Callable[[Namespace], None]]] = {
    "inspect": (_inspect_parser, _inspect),
    "prepare": (_prepare_parser, _prepare),
    "synthesize": (_synthesize_parser, _synthesize),
}
