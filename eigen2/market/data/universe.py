"""Choose the columns of a panel that agents may buy."""

from __future__ import annotations

import csv
import logging
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eigen2.errors import UserError, require_range
from eigen2.market.data.panel import MarketPanel
from eigen2.market.data.panel_rows import check_known

log = logging.getLogger(__name__)

KEY = "data.investable"


@dataclass
class Universe:
    """Columns that agents may buy; all others are context only.

    At most one of the three is set; with none, all tickers are investable. Indicators never are.
    """

    tickers: list[str] | None = None
    """Names of the columns (one or more). Names that YAML reads as something else need quotes: '["TRUE", "600000"]'."""
    file: str | None = None
    """File of their names: text with one ticker a line, or CSV (.csv) with a column `ticker`; # begins a comment."""
    top: int | None = None
    """Number of columns (1 or more), those of the highest median traded value, close x volume, over the training days
    alone, where a day without trading counts as 0; equal values go by name."""

    def __post_init__(self) -> None:
        given = [name for name in ("tickers", "file", "top") if getattr(self, name) is not None]
        if len(given) > 1:
            raise UserError(f"{KEY} has {' and '.join(given)}: set all but one of them to null")
        if self.top is not None:
            require_range(f"{KEY}.top", self.top, least=1)
        if self.tickers is not None and not self.tickers:
            raise UserError(f"{KEY}.tickers is empty: name one or more, or set it to null for all")
        for name in self.tickers or ():
            if not isinstance(name, str):
                raise UserError(f"{KEY}.tickers has {name!r}, which is not text: write it in quotes")

    def describe(self) -> str:
        """Return in words how columns are chosen."""
        if self.tickers is not None:
            return f"named by {KEY}.tickers"
        if self.file is not None:
            return f"named in {self.file}"
        if self.top is not None:
            return f"top {self.top} by median traded value of the training days"
        return "every ticker"


def resolve(universe: Universe, panel: MarketPanel) -> list[int]:
    """Return the investable columns, ascending; nothing after the training days has a part in it.

    Raises:
        UserError: when the file cannot be read or names nothing, a name is unknown or an indicator's, or there are too
            few columns or no volumes to choose the top ones.
    """
    tickers = [column for column, name in enumerate(panel.tickers) if name not in panel.indicators]
    if universe.top is not None:
        return _top(universe.top, tickers, panel)
    if universe.tickers is not None:
        key, names = f"{KEY}.tickers", universe.tickers
    elif universe.file is not None:
        key, names = f"{KEY}.file {universe.file!r}", read_tickers(universe.file)
    else:
        return tickers
    check_known(key, names, panel.tickers)
    indicators = sorted(set(names) & set(panel.indicators))
    if indicators:
        raise UserError(
            f"{key} has {indicators[0]!r}, which data.indicators declares an indicator: take it out of one of them"
        )
    return [column for column in tickers if panel.tickers[column] in set(names)]


def read_tickers(path: str | Path) -> list[str]:
    """Read names of tickers, each once: one a line, or the column `ticker` of a file whose name ends with .csv.

    Empty lines do not count, nor does what follows a # at the start of a line or after a space.

    Raises:
        UserError: when the file cannot be read, is not text, lacks the column or names no ticker.
    """
    where = f"{KEY}.file {str(path)!r}"
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{where} cannot be read ({error.strerror or error}): name a file of tickers") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not text: write one ticker a line") from error
    lines = [re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines()]
    names = [line for line in lines if line]
    if Path(path).suffix.lower() == ".csv" and names:
        header, *rows = csv.reader(names, skipinitialspace=True)
        folded = [name.strip().lower() for name in header]
        if "ticker" not in folded:
            raise UserError(f"{where} has the columns {', '.join(header)}: call the one with the tickers ticker")
        column = folded.index("ticker")
        names = [row[column].strip() for row in rows if len(row) > column and row[column].strip()]
    if not names:
        raise UserError(f"{where} names no ticker: write one ticker a line")
    return list(dict.fromkeys(names))


def _top(count: int, tickers: list[int], panel: MarketPanel) -> list[int]:
    if count > len(tickers):
        raise UserError(
            f"{KEY}.top is {count}, but there are {len(tickers)} tickers to choose from: lower it, or set it to null"
            " for all of them"
        )
    value = panel.traded_value[tickers]
    if not value.any():
        raise UserError(
            f"{KEY}.top ranks columns by close x volume, but none has any volume on half of the"
            f" {len(panel.splits.train)} training days: bring a file with volumes, or name {KEY}.tickers"
        )
    # columns stand in the order of their names, which a stable sort keeps
    order = np.argsort(-value, kind="stable")[:count]
    if not value[order].all():
        log.warning(
            "%s.top is %d, but only %d tickers traded on half of the training days or more: the others go by name",
            KEY,
            count,
            np.sum(value > 0),
        )
    return sorted(tickers[i] for i in order)
