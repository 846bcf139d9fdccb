"""Choose the columns of a panel that agents may buy."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from eigen2.errors import UserError, require_range
from eigen2.market.data.panel import MarketPanel
from eigen2.market.data.panel_rows import check_known

log = logging.getLogger(__name__)

KEY = "data.investable"


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
            require_range(f"{KEY}.top", self.top, least=1)
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
    context = {*panel.indicators, benchmark}
    tickers = [column for column, name in enumerate(panel.tickers) if name not in context]
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
