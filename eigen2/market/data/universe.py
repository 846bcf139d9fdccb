"""Choose the columns of a panel that agents may buy, and the days on which they may."""

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from eigen2.errors import UserError, require_range
from eigen2.market.data import columns
from eigen2.market.data.dates import DateFormat
from eigen2.market.data.files import PriceFile, quoted
from eigen2.market.data.panel import MarketPanel
from eigen2.market.data.panel_rows import check_known, members

log = logging.getLogger(__name__)

KEY = "data.investable"
SPAN = ("ticker", "first", "last")  # columns of a file of membership
BATCH_ROWS = 1_000_000


@dataclass
class Universe:
    """Columns that agents may buy; all others are context only.

    At most one of the two is set; with none, all tickers are investable. Indicators never are.
    """

    tickers: list[str] | None = None
    """Names of the columns (one or more). Names that YAML reads as something else need quotes: '["TRUE", "600000"]'."""
    top: int | None = None
    """Number of columns (1 or more), those of the highest median traded value, close x volume, over the training days,
    where a day without trading counts as 0; ties go by name."""

    def __post_init__(self) -> None:
        if self.tickers is not None and self.top is not None:
            raise UserError(f"{KEY} has tickers and top: set one of them to null")
        if self.top is not None:
            require_range(f"{KEY}.top", self.top, least=1, whole=True)
        if self.tickers is not None and not self.tickers:
            raise UserError(f"{KEY}.tickers is empty: name one or more, or set it to null for all")
        for name in self.tickers or ():
            if not isinstance(name, str):
                raise UserError(f"{KEY}.tickers has {name!r}, which is not text: write it in quotes")

    def describe(self) -> str:
        """Describe how columns are chosen."""
        if self.tickers is not None:
            return f"named by {KEY}.tickers"
        return "every ticker" if self.top is None else f"top {self.top} by median traded value of the training days"


def read_membership(path: str | Path) -> pd.DataFrame:
    """Read the days on which tickers were members of an index, such as those of data.membership.

    The file is Parquet, Excel or text with the columns ticker, first and last, a row for each span of days. Both days
    belong to it; without a last day it has no end. Dates are written as 2009-01-31; times of day are dropped.

    Returns:
        Rows sorted by (ticker, first): ticker text, first and last datetime64[s], NaT where there is no last day.

    Raises:
        UserError: when the file cannot be read, lacks a column or has no rows, a ticker or date cannot be read, a first
            day is after the last, or spans of a ticker overlap.
    """
    try:
        file = PriceFile(path)
    except UserError as error:
        raise UserError(f"data.membership: {error}") from error
    folded = [name.strip().lower() for name in file.header.names]
    if missing := [name for name in SPAN if folded.count(name) != 1]:
        found = ", ".join(file.header.names)
        raise UserError(
            f"data.membership {file.where} needs one column named {missing[0]} and has {found}: name them ticker, "
            "first and last"
        )
    places = [folded.index(name) for name in ("first", "ticker", "last")]
    with file.damage_as_user_error():
        batches = [[batch[place] for place in places] for batch in file.raw_batches(places, [], BATCH_ROWS)]
    if not sum(len(batch[0]) for batch in batches):
        raise UserError(f"data.membership {file.where} has no rows: write a ticker and its first day")
    rows = pd.concat([_parsed_spans(*batch) for batch in batches], ignore_index=True)
    for row, wrong in enumerate(rows["wrong"]):
        if wrong:
            raise UserError(f"data.membership {file.where} has in data row {row + 1} {wrong}")
    for name in ("first", "last"):
        rows[name] = rows[name].dt.normalize()
    spans = rows[[*SPAN]].sort_values(["ticker", "first"], kind="stable", ignore_index=True)
    _check_spans(spans, file.where)
    return spans


def _parsed_spans(first: pa.Array, ticker: pa.Array, last: pa.Array) -> pd.DataFrame:
    """Return the columns `SPAN` of some rows, and what is wrong with each of these, an empty text where nothing is."""
    parse_day, parse_ticker = columns.dates(DateFormat())[0], columns.tickers()[0]
    parsed = {name: parse_day(column) for name, column in (("first", first), ("last", last))}
    names, unnamed = parse_ticker(ticker)
    wrong = np.full(len(names), "", dtype=object)
    for (name, (_, bad)), column in zip(parsed.items(), (first, last), strict=True):
        text = column.to_pandas().astype(object).fillna("").astype(str).str.strip().to_numpy()
        for row in np.flatnonzero(bad & ((text != "") | (name == "first"))):
            wrong[row] = f"the {name} day {quoted(text[row])}, which is no date: write dates as 2009-01-31"
    wrong[unnamed] = "no ticker: name it"
    return pd.DataFrame({"ticker": names, **{name: days for name, (days, _) in parsed.items()}, "wrong": wrong})


def _check_spans(spans: pd.DataFrame, where: str) -> None:
    """Raise a UserError for a span that ends before it begins, or overlaps with the one before it of its ticker."""
    reversed_ = (spans["last"] < spans["first"]).to_numpy()
    open_end = spans["last"].fillna(pd.Timestamp.max.floor("s"))
    overlap = (spans["ticker"].shift() == spans["ticker"]) & (open_end.shift() >= spans["first"])
    problems = {
        "its first day is after the last: exchange them": reversed_,
        "it overlaps with the span before: merge them": overlap.to_numpy(),
    }
    for problem, bad in problems.items():
        if bad.any():
            row = spans.iloc[int(bad.argmax())]
            last = "on" if pd.isna(row["last"]) else f"to {row['last']:%Y-%m-%d}"
            span = f"{quoted(row['ticker'])} from {row['first']:%Y-%m-%d} {last}"
            raise UserError(f"data.membership {where} has a span of {span}: {problem}")


def resolve(universe: Universe, panel: MarketPanel, benchmark: str | None = None) -> list[int]:
    """Return the investable columns, ascending, without the benchmark; later prices than training have no influence.

    Raises:
        UserError: when a name is unknown, an indicator's or the benchmark's, nothing is left, or there are too few
            columns or no volumes to choose the top ones.
    """
    if benchmark is not None:
        check_known("data.benchmark", [benchmark], panel.tickers)
        if benchmark in panel.indicators:
            raise UserError(f"data.benchmark is {benchmark!r}, an indicator without prices: take it out of one of them")
        if benchmark in (universe.tickers or ()):
            raise UserError(f"data.benchmark is {benchmark!r}, which {KEY}.tickers has too: take it out of one of them")
    context, ever = {*panel.indicators, benchmark}, {*np.flatnonzero(members(panel.prices).any(axis=0)).tolist()}
    tickers = [column for column, name in enumerate(panel.tickers) if name not in context and column in ever]
    if not tickers and len(ever) < panel.num_columns:
        raise UserError("no ticker is a member on a day of prices, see data.membership: bring its tickers, or others")
    if not tickers:
        raise UserError(f"data.benchmark is {benchmark!r}, the only ticker: bring prices of others to invest in")
    if universe.top is not None:
        return _top(universe.top, tickers, panel)
    if universe.tickers is None:
        return tickers
    check_known(f"{KEY}.tickers", universe.tickers, panel.tickers)
    if indicators := sorted(set(universe.tickers) & set(panel.indicators)):
        raise UserError(
            f"{KEY}.tickers has {indicators[0]!r}, which data.indicators declares an indicator: take it out of one of "
            "them"
        )
    check_known(f"{KEY}.tickers", universe.tickers, [panel.tickers[column] for column in ever], "data.membership does")
    return [column for column in tickers if panel.tickers[column] in universe.tickers]


def _top(count: int, tickers: list[int], panel: MarketPanel) -> list[int]:
    if count > len(tickers):
        raise UserError(f"{KEY}.top is {count}, but there are {len(tickers)} tickers to choose from: lower it")
    value = panel.traded_value[tickers]
    if not value.any():
        raise UserError(
            f"{KEY}.top ranks columns by close x volume, but none has any volume on half of the"
            f" {len(panel.splits.train_days)} training days: bring a file with volumes, or name {KEY}.tickers"
        )
    # columns stand in the order of their names, which a stable sort keeps
    order = np.argsort(-value, kind="stable")[:count]
    if not value[order].all():
        message = "%s.top is %d, but only %d tickers traded on half of the training days: the others go by name"
        log.warning(message, KEY, count, np.sum(value > 0))
    return sorted(tickers[i] for i in order)
