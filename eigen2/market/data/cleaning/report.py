"""What was found in price files: counts and first examples, for people and for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool
from rich.console import Console

from eigen2.market.data.source import PRICE_COLUMNS

EXAMPLES = 3
"""First rows of a defect that a report shows, in the order of tickers and days."""
LONGEST_HOLES = 3
SHOWN_INPUTS = 5
"""Files named to people; machines get them all."""


@dataclass
class Finding:
    """How often a defect occurs."""

    action: str
    """What the policy does about it."""
    rows: int = 0
    """Rows that have it."""
    tickers: int = 0
    """Tickers with such a row."""
    examples: list[dict[str, Any]] = field(default_factory=list)
    """The first rows: ticker, date, open, high, low, close, volume (None where empty)."""


@dataclass
class Holes:
    """Market days inside a ticker's life on which it has no row."""

    count: int = 0
    """Holes, each of one or more market days in a row."""
    days: int = 0
    """Market days in them."""
    tickers: int = 0
    """Tickers with one."""
    longest: list[dict[str, Any]] = field(default_factory=list)
    """The longest: ticker, first (the first missing day), days."""


@dataclass
class Prepared:
    """What the policy makes of the files."""

    rows: int = 0
    """Rows of the clean table."""
    usable: int = 0
    """Those with prices."""
    masked: int = 0
    """Rows whose prices were emptied."""
    dropped: int = 0
    """Rows removed."""
    repaired: int = 0
    """Rows whose values were changed."""
    tickers: int = 0
    """Tickers with a usable row."""


class Report:
    """Adds up what is found in blocks of whole tickers.

    Args:
        inputs: path and layout of every file read.
        days: sorted market days, datetime64[D].
        policy: action by defect, in the order in which the report shows them.
    """

    def __init__(self, inputs: Sequence[tuple[str, str]], days: np.ndarray, policy: Mapping[str, str]) -> None:
        self.inputs = list(inputs)
        self.days = days
        self.rows = self.tickers = self.complete_tickers = 0
        self.findings = {name: Finding(action) for name, action in policy.items()}
        self.holes = Holes()
        self.prepared = Prepared()

    def add(
        self,
        block: pd.DataFrame,
        found: Mapping[str, Bool[np.ndarray, " rows"]],
        holes: pd.DataFrame,
        cleaned: pd.DataFrame,
        changes: pd.DataFrame,
    ) -> None:
        """Add a block and what became of it."""
        days_of_ticker = block.groupby("ticker", sort=False)["date"].nunique()
        self.rows += len(block)
        self.tickers += len(days_of_ticker)
        self.complete_tickers += int((days_of_ticker >= len(self.days)).sum())
        for name, mask in found.items():
            self._add_finding(self.findings[name], block, mask)
        self.holes.count += len(holes)
        self.holes.days += int(holes["days"].sum())
        self.holes.tickers += int(holes["ticker"].nunique())
        longest = pd.DataFrame([*self.holes.longest, *_records(holes)])
        if len(longest):
            order = longest.sort_values("days", ascending=False, kind="stable")
            self.holes.longest = _records(order.head(LONGEST_HOLES))
        usable = cleaned[list(PRICE_COLUMNS)].notna().all(axis=1)
        self.prepared.rows += len(cleaned)
        self.prepared.usable += int(usable.sum())
        self.prepared.tickers += int(cleaned["ticker"][usable].nunique())
        done = changes["action"].value_counts()
        self.prepared.masked += int(done.get("mask", 0))
        self.prepared.dropped += int(done.get("drop", 0))
        self.prepared.repaired += int(done.get("repair", 0))

    @staticmethod
    def _add_finding(finding: Finding, block: pd.DataFrame, mask: Bool[np.ndarray, " rows"]) -> None:
        rows = block[mask]
        finding.rows += len(rows)
        finding.tickers += int(rows["ticker"].nunique())
        finding.examples += _records(rows.head(EXAMPLES - len(finding.examples)))

    def as_dict(self) -> dict[str, Any]:
        """Everything, in plain values for JSON; empty cells are None."""
        return {
            "inputs": [{"path": path, "layout": layout} for path, layout in self.inputs],
            "rows": self.rows,
            "tickers": self.tickers,
            "days": len(self.days),
            "first_day": str(self.days[0]),
            "last_day": str(self.days[-1]),
            "tickers_on_all_days": self.complete_tickers,
            "holes": asdict(self.holes),
            "defects": {name: asdict(finding) for name, finding in self.findings.items()},
            "prepared": asdict(self.prepared),
        }

    def show(self, console: Console) -> None:
        """Print it for people."""
        for path, layout in self.inputs[:SHOWN_INPUTS]:
            self._line(console, f"{path}: {layout}")
        if len(self.inputs) > SHOWN_INPUTS:
            self._line(console, f"and {len(self.inputs) - SHOWN_INPUTS:,} more files")
        self._line(
            console,
            f"{self.rows:,} rows, {self.tickers:,} tickers ({self.complete_tickers:,} on all days), "
            f"{len(self.days):,} days, {self.days[0]} to {self.days[-1]}",
        )
        if self.holes.count:
            longest = self.holes.longest[0]
            self._line(
                console,
                f"{self.holes.count:,} holes of {self.holes.days:,} market days inside the lives of "
                f"{self.holes.tickers:,} tickers, the longest {longest['ticker']} from {longest['first']}, "
                f"{longest['days']:,} days; they stay holes",
            )
        present = {name: finding for name, finding in self.findings.items() if finding.rows}
        if not present:
            self._line(console, "no defects")
            return
        width = max(len(name) for name in present)
        self._line(console, f"{'defect':<{width}}  {'rows':>11}  {'tickers':>7}  prepare")
        self._line(console, "  first examples: open/high/low/close, volume")
        for name, finding in present.items():
            self._line(console, f"{name:<{width}}  {finding.rows:>11,}  {finding.tickers:>7,}  {finding.action}")
            for row in finding.examples:
                self._line(console, f"  {_example(row)}")

    def verdict(self) -> str:
        """What the policy makes of the files, in a sentence."""
        made = self.prepared
        return (
            f"{made.usable:,} usable rows of {made.tickers:,} tickers: {made.masked:,} rows masked, "
            f"{made.dropped:,} dropped, {made.repaired:,} repaired"
        )

    @staticmethod
    def _line(console: Console, text: str) -> None:
        console.print(text, markup=False, highlight=False)


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows in plain values: dates as text, empty and infinite cells as JSON can hold them."""
    return [{str(name): _plain(value) for name, value in row.items()} for row in frame.to_dict("records")]


def _plain(value: Any) -> Any:
    if isinstance(value, pd.Timestamp):
        return f"{value:%Y-%m-%d}"
    if isinstance(value, np.datetime64):
        return str(value.astype("datetime64[D]"))
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None if np.isnan(value) else str(value)
    return value


def _example(row: Mapping[str, Any]) -> str:
    prices = "/".join(_number(row[name]) for name in PRICE_COLUMNS)
    return f"{row['ticker']} {row['date']}  {prices}  {_number(row['volume'], ',.0f')}"


def _number(value: Any, form: str = ".6g") -> str:
    return "-" if value is None else f"{value:{form}}" if isinstance(value, float) else str(value)
