"""`python -m eigen2.cli data`: inspect price files, prepare them, or generate a synthetic market."""

from __future__ import annotations

import json
from pathlib import Path

from jsonargparse import Namespace

from eigen2.cli.parser import Parser
from eigen2.errors import UserError
from eigen2.market.data.cleaning.policy import Limits, Policy
from eigen2.market.data.cleaning.prepare import changes_path, inspect, prepare
from eigen2.market.synthetic.generator import SyntheticMarket, write_parquet

LARGEST_CEILING = 3_000_000  # days x columns, about half a gigabyte
SHORTEST_CEILING = 145  # days of a window: 125 of trading, 20 of settlement


def make_parser(command: str = "data") -> Parser:
    """Return the parser of `data`."""
    inspecting = Parser(description="Report what is wrong with price files and what prepare would do about it.")
    inspecting.add_argument("inputs", nargs="+", metavar="FILE", help="price files or folders of them")
    preparing = Parser(description="Merge and clean price files into one Parquet file, with a log of every change.")
    preparing.add_argument("files", nargs="+", metavar="IN OUT.parquet", help="what to read, and last what to write")
    synthesizing = Parser(description="Generate a market with a known signal, and report what can be earned on it.")
    synthesizing.add_argument("out", type=str, metavar="OUT.parquet", help="the file to write")
    ceiling = "Simulate the market with a rule that knows its drift."
    synthesizing.add_argument("--ceiling", type=bool, default=True, help=ceiling)
    synthesizing.add_class_arguments(SyntheticMarket, "market")
    for each in (preparing, synthesizing):
        each.add_argument("--overwrite", action="store_true", help="Replace OUT.parquet if it exists.")
    for each in (inspecting, preparing):
        each.add_argument("--json", action="store_true", help="Print the report as JSON, for machines.")
        indicators = (
            "Tickers that are series such as a rate or an index of volatility, not prices: they may be zero or "
            "negative, and only duplicates, missing and infinite values, weekends and stray days are looked for."
        )
        each.add_argument("--indicators", type=list[str], default=[], help=indicators)
        each.add_class_arguments(Limits, "limits", sub_configs=True)
        each.add_class_arguments(Policy, "policy")
    parser = Parser(prog=f"python -m eigen2.cli {command}", description="Inspect, prepare or generate price files.")
    commands = parser.add_subcommands(dest="command")
    for name, each in (("inspect", inspecting), ("prepare", preparing), ("synthesize", synthesizing)):
        commands.add_subcommand(name, each, help=each.description)
    return parser


def run(command: str, chosen: Namespace) -> None:
    """Run a data command; bad input is a UserError of one line."""
    {"inspect": _inspect, "prepare": _prepare, "synthesize": _synthesize}[chosen.command](chosen[chosen.command])


def _inspect(chosen: Namespace) -> None:
    report = inspect(chosen.inputs, chosen.policy, chosen.limits, chosen.indicators)
    text = f"{report}\nprepare would leave {report.result()}"
    print(json.dumps(report.as_dict(), indent=2, allow_nan=False) if chosen.json else text)


def _prepare(chosen: Namespace) -> None:
    if len(chosen.files) < 2:
        raise UserError(f"prepare got only {chosen.files[0]!r}: name the files to read and last the file to write")
    *inputs, out = chosen.files
    report = prepare(inputs, out, chosen.policy, chosen.limits, chosen.indicators, overwrite=chosen.overwrite)
    changes = changes_path(Path(out))
    found = {**report.as_dict(), "out": out, "changes": str(changes)}
    wrote = f"wrote {out} ({report.prepared['rows']:,} rows) and {changes}, the log of every change"
    text = f"{report}\nleft {report.result()}\n{wrote}"
    print(json.dumps(found, indent=2, allow_nan=False) if chosen.json else text)


def _synthesize(chosen: Namespace) -> None:
    out, market = Path(chosen.out), chosen.market
    if out.exists() and not chosen.overwrite:
        raise UserError(f"{str(out)!r} exists: name another file, or give --overwrite")
    write_parquet(market, out)
    print(f"wrote {out}: {market.days:,} days x {market.columns:,} columns")
    if chosen.ceiling:
        print(_ceiling(market))


def _ceiling(market: SyntheticMarket) -> str:
    if market.days * market.columns > LARGEST_CEILING or market.days < SHORTEST_CEILING:
        return f"no ceiling: it takes {SHORTEST_CEILING} days, and at most {LARGEST_CEILING:,} days x columns"
    # torch takes seconds to import
    from eigen2.market.simulation.rules import TradingRules
    from eigen2.market.synthetic.ceiling import ceiling

    return str(ceiling(market, TradingRules()))
