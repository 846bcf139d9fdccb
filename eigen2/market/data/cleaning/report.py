"""Report on price files: counts and first examples of what was found, as text or JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool

from eigen2.market.data.source import PRICE_COLUMNS

# first rows of a defect, longest holes, and files named in the text; the JSON names all files
EXAMPLES, LONGEST_HOLES, SHOWN_INPUTS = 3, 3, 5


@dataclass
class Finding:
    """Rows and tickers that have a defect, what the policy does about it, and the first rows (None where empty)."""

    action: str
    rows: int = 0
    tickers: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Holes:
    """Runs of market days inside a ticker's life on which it has no row: their number, days and tickers.

    The `longest` are given by ticker, first (missing day) and days.
    """

    count: int = 0
    days: int = 0
    tickers: int = 0
    longest: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Prepared:
    """What the policy makes of the files: rows of the clean table, those with prices, and rows by what was done.

    `tickers` counts those with a usable row.
    """

    rows: int = 0
    usable: int = 0
    masked: int = 0
    dropped: int = 0
    repaired: int = 0
    tickers: int = 0

    def __str__(self) -> str:
        return (
            f"{self.usable:,} usable rows of {self.tickers:,} tickers: {self.masked:,} rows masked, "
            f"{self.dropped:,} dropped, {self.repaired:,} repaired"
        )


class Report:
    """Sums over blocks of whole tickers; as a string, it is the report for people.

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
            rows, finding = block[mask], self.findings[name]
            finding.rows += len(rows)
            finding.tickers += rows["ticker"].nunique()
            finding.examples += _records(rows.head(EXAMPLES - len(finding.examples)))
        self.holes.count += len(holes)
        self.holes.days += int(holes["days"].sum())
        self.holes.tickers += holes["ticker"].nunique()
        longest = [*self.holes.longest, *_records(holes.nlargest(LONGEST_HOLES, "days"))]
        self.holes.longest = sorted(longest, key=lambda hole: -hole["days"])[:LONGEST_HOLES]
        usable = cleaned[list(PRICE_COLUMNS)].notna().all(axis=1)
        self.prepared.rows += len(cleaned)
        self.prepared.usable += int(usable.sum())
        self.prepared.tickers += cleaned["ticker"][usable].nunique()
        self.prepared.masked += int((changes["action"] == "mask").sum())
        self.prepared.dropped += int((changes["action"] == "drop").sum())
        self.prepared.repaired += int((changes["action"] == "repair").sum())

    def as_dict(self) -> dict[str, Any]:
        """Return everything as values that JSON can hold; empty cells are None."""
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

    def __str__(self) -> str:
        lines = [f"{path}: {layout}" for path, layout in self.inputs[:SHOWN_INPUTS]]
        if len(self.inputs) > SHOWN_INPUTS:
            lines.append(f"and {len(self.inputs) - SHOWN_INPUTS:,} more files")
        lines.append(
            f"{self.rows:,} rows, {self.tickers:,} tickers ({self.complete_tickers:,} on all days), "
            f"{len(self.days):,} days, {self.days[0]} to {self.days[-1]}"
        )
        if self.holes.count:
            longest = self.holes.longest[0]
            lines.append(
                f"{self.holes.count:,} holes of {self.holes.days:,} market days inside the lives of "
                f"{self.holes.tickers:,} tickers, the longest {longest['ticker']} from {longest['first']}, "
                f"{longest['days']:,} days; they stay holes"
            )
        present = {name: finding for name, finding in self.findings.items() if finding.rows}
        if not present:
            return "\n".join([*lines, "no defects"])
        width = max(map(len, present))
        lines.append(f"{'defect':<{width}}  {'rows':>11}  {'tickers':>7}  prepare")
        lines.append("  first examples: open/high/low/close, volume")
        for name, finding in present.items():
            lines.append(f"{name:<{width}}  {finding.rows:>11,}  {finding.tickers:>7,}  {finding.action}")
            lines += [f"  {_example(row)}" for row in finding.examples]
        return "\n".join(lines)


def _records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows as values that JSON can hold: dates as text, infinite cells too, empty ones as None."""

    def plain(value: Any) -> Any:
        if isinstance(value, pd.Timestamp):
            return f"{value:%Y-%m-%d}"
        if isinstance(value, float) and not np.isfinite(value):
            return None if np.isnan(value) else str(value)
        return value

    return [{str(name): plain(value) for name, value in row.items()} for row in rows.to_dict("records")]


def _example(row: Mapping[str, Any]) -> str:
    prices = "/".join(_number(row[name], ".6g") for name in PRICE_COLUMNS)
    return f"{row['ticker']} {row['date']}  {prices}  {_number(row['volume'], ',.0f')}"


def _number(value: Any, form: str) -> str:
    return "-" if value is None else f"{value:{form}}" if isinstance(value, float) else str(value)
