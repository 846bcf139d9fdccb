"""`python -m eigen2.cli data`: inspect or prepare price files, look for what can be learned, generate a market."""

import json
from pathlib import Path
from typing import Any, Literal

from jsonargparse import Namespace

from eigen2.cli.parser import Parser
from eigen2.errors import UserError, printable, require_range
from eigen2.market.data.cleaning.policy import CleaningPolicy, Limits
from eigen2.market.data.cleaning.prepare import changes_path, inspect, prepare
from eigen2.market.data.csv_format import CsvFormat
from eigen2.market.data.source import latest_today, read_prices
from eigen2.market.synthetic.generator import SyntheticMarket, write_parquet

LARGEST_CEILING = 3_000_000  # days x columns, about half a gigabyte
SHORTEST_CEILING = 145  # days of a window: 125 of trading, 20 of settlement
FEWEST_COLUMNS = 5  # that learnability ranks
LEARNABILITY_SIZE = 5000, 500  # most days and columns of which learnability takes about a minute


def make_parser(command: str = "data") -> Parser:
    """Return the parser of `data`."""
    inspect_cmd = Parser(description="Report the defects of price files, and what prepare would do about each.")
    inspect_cmd.add_argument("inputs", nargs="+", metavar="FILE", help="Price files, or folders of price files.")
    prepare_cmd = Parser(description="Merge and clean price files into one Parquet file, with a log of every change.")
    prepare_cmd.add_argument("files", nargs="+", metavar="IN OUT.parquet", help="Input files, then the output file.")
    learnability_cmd = Parser(
        description="Measure, before agents train, whether ridge regression or boosted trees find anything in prices."
    )
    learnability_cmd.add_argument("file", type=str, metavar="FILE", help="Price file, as prepare writes it.")
    own = "Further numeric columns that these see, as data.features of fit."
    learnability_cmd.add_argument("--features", type=list[str], default=[], help=own)
    past = "File of the days on which tickers may be bought, as data.membership of fit; null is all."
    learnability_cmd.add_argument("--membership", type=str | None, default=None, help=past)
    holdout = (
        "Last days of the file to leave out, as data.holdout_days of fit: what is decided by the result uses days up, "
        "so that a champion must be tested on others. 0 for a file that ends before; default 252, or a fifth."
    )
    learnability_cmd.add_argument("--holdout_days", type=int | None, default=None, help=holdout)
    synthesize_cmd = Parser(description="Generate a market with a known signal, and report what can be earned on it.")
    synthesize_cmd.add_argument("out", type=str, metavar="OUT.parquet", help="File to write.")
    ceiling = "Also simulate rules that know the hidden drift: the most that can be earned."
    synthesize_cmd.add_argument("--ceiling", type=bool, default=True, help=ceiling)
    synthesize_cmd.add_class_arguments(SyntheticMarket, "market")
    for parser in (prepare_cmd, synthesize_cmd):
        parser.add_argument("--overwrite", action="store_true", help="Replace OUT.parquet if it exists.")
    indicators = (
        "Tickers of series that are not prices, such as an interest rate or a volatility index: they may be zero "
        "or negative, and are only checked for duplicates, missing or infinite values, weekends and stray days."
    )
    for parser in (inspect_cmd, prepare_cmd, learnability_cmd):
        parser.add_argument("--indicators", type=list[str], default=[], help=indicators)
    for parser in (inspect_cmd, prepare_cmd):
        parser.add_argument("--json", action="store_true", help="Print the report as JSON.")
        resample = (
            "Make intraday bars into daily ones: first open, highest high, lowest low, last close, summed volume."
        )
        parser.add_argument("--resample", type=Literal["day"] | None, default=None, help=resample)
        parser.add_class_arguments(CsvFormat, "csv")
        parser.add_class_arguments(Limits, "limits", sub_configs=True)
        parser.add_class_arguments(CleaningPolicy, "policy")
    parser = Parser(prog=f"python -m eigen2.cli {command}", description="Inspect, prepare or generate price files.")
    commands = parser.add_subcommands(dest="command")
    for name, subparser in (
        ("inspect", inspect_cmd),
        ("prepare", prepare_cmd),
        ("learnability", learnability_cmd),
        ("synthesize", synthesize_cmd),
    ):
        commands.add_subcommand(name, subparser)
    return parser


def run(command: str, options: Namespace) -> None:
    """Run a data command; raises UserError for bad input."""
    commands = {"inspect": _inspect, "prepare": _prepare, "learnability": _learnability, "synthesize": _synthesize}
    commands[options.command](options[options.command])


def _inspect(options: Namespace) -> None:
    report = inspect(options.inputs, **_settings(options))
    text = f"{report}\nprepare would leave {report.result()}\n{report.examples()}"
    print(json.dumps(report.as_dict(), indent=2, allow_nan=False) if options.json else printable(text))


def _prepare(options: Namespace) -> None:
    if len(options.files) < 2:
        raise UserError(f"prepare got only {options.files[0]!r}: name the files to read, then the file to write")
    *inputs, out = options.files
    report = prepare(inputs, out, **_settings(options), overwrite=options.overwrite)
    changes = changes_path(Path(out))
    summary = {**report.as_dict(), "out": out, "changes": str(changes)}
    wrote = f"wrote {out} ({report.prepared['rows']:,} rows) and {changes}, the log of every change"
    text = f"{report}\nleft {report.result()}\n{wrote}"
    print(json.dumps(summary, indent=2, allow_nan=False) if options.json else printable(text))


def _settings(options: Namespace) -> dict[str, Any]:
    """Return the arguments that `inspect` and `prepare` share."""
    names = ("policy", "limits", "indicators", "resample")
    return {**{name: options[name] for name in names}, "form": options.csv}


def _learnability(options: Namespace) -> None:
    # torch takes seconds to import
    import numpy as np

    from eigen2.market.data.panel import build_panel
    from eigen2.market.data.panel_rows import select_rows
    from eigen2.market.data.splits import SHORT_DAYS, default_days
    from eigen2.market.data.universe import Universe, read_membership, resolve
    from eigen2.market.evaluation.learnability import describe, find
    from eigen2.market.features.encoding import AverageEncoder
    from eigen2.market.simulation.account import AccountRules
    from eigen2.market.simulation.base import EpisodeSettings
    from eigen2.market.simulation.rules import TradingRules

    prices, (most_days, most_columns) = read_prices(options.file, options.features), LEARNABILITY_SIZE
    membership = None if options.membership is None else read_membership(options.membership)
    days, left_out = select_rows(prices, options.indicators).dates, options.holdout_days
    if left_out is None:
        left_out = default_days("holdout_days", len(days))
    require_range("--holdout_days", left_out, least=0, most=len(days) - 1)
    days = days[: len(days) - left_out][-most_days:]
    prices = prices[prices["date"].isin(days)]
    past = prices["date"].isin(days[: len(days) - default_days("holdout_days", len(days))])
    rows = past.groupby(prices["ticker"]).sum()  # by the past, not by survival
    if membership is not None:
        rows = rows[rows.index.isin(membership["ticker"])]
    rows = rows.drop(options.indicators, errors="ignore")
    kept = {*rows.sort_values(ascending=False, kind="stable").index[:most_columns], *options.indicators}
    settings: dict[str, Any] = {name: options[name] for name in ("indicators", "features")}
    panel = build_panel(prices[prices["ticker"].isin(kept)], **settings, membership=membership)
    columns = resolve(Universe(), panel)
    if panel.num_days < SHORT_DAYS or len(columns) < FEWEST_COLUMNS:
        found = f"{options.file} has {panel.num_days} days before the last {left_out} and {len(columns)} columns"
        raise UserError(f"{found}; learnability needs {SHORT_DAYS} and {FEWEST_COLUMNS}: bring more")
    context, window = (default_days(name, panel.num_days) for name in ("context_days", "trading_days"))
    encoder = AverageEncoder(panel, columns, context, EpisodeSettings(TradingRules(), AccountRules(), window, 20))
    findings = find(encoder, panel, np.random.default_rng(0))
    print(f"prices       {printable(options.file)}{f', but for the last {left_out} days' if left_out else ''}")
    print(describe(findings, panel, len(columns)))


def _synthesize(options: Namespace) -> None:
    out, market = Path(options.out), options.market
    if out.exists() and not options.overwrite:
        raise UserError(f"{str(out)!r} exists: name another file, or give --overwrite")
    if (last := market.last_day) > latest_today():
        days = f"{market.days:,} days end on {last}, after today, which fit refuses in a file"
        raise UserError(f"market.days: {days}; lower it, or train on data.synthetic, which may")
    write_parquet(market, out)
    print(f"wrote {out}: {market.days:,} days x {market.columns:,} columns")
    if options.ceiling:
        print(_ceiling(market))


def _ceiling(market: SyntheticMarket) -> str:
    if market.days * market.columns > LARGEST_CEILING or market.days < SHORTEST_CEILING:
        return f"no ceiling: it needs {SHORTEST_CEILING} days, and at most {LARGEST_CEILING:,} days x columns"
    # torch takes seconds to import
    from eigen2.market.simulation.rules import TradingRules
    from eigen2.market.synthetic.ceiling import ceiling

    return str(ceiling(market, TradingRules()))
