"""Report on price files: counts and first examples of each defect, as text or JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from eigen2.market.data.cleaning.layouts import Input
from eigen2.market.data.cleaning.levels import Mask
from eigen2.market.data.cleaning.policy import Policy
from eigen2.market.data.source import PRICE_COLUMNS

# first rows of a defect, and files named in the text; the JSON names all files
EXAMPLES, SHOWN_INPUTS = 3, 5


class Report:
    """Sums over blocks of whole tickers; `str` gives the report as text.

    Attributes:
        counts: rows and tickers of the files.
        findings: for each defect its action, rows, tickers, and the first rows as examples (None where empty).
        prepared: result of cleaning: rows, usable rows and their tickers, and rows by action.
    """

    def __init__(self, inputs: Sequence[Input], days: np.ndarray, policy: Policy) -> None:
        self._inputs = [{"path": str(source.path), "layout": source.layout} for source in inputs]
        self._days = days
        self.counts = {"rows": 0, "tickers": 0}
        self.findings: dict[str, dict[str, Any]] = {
            name: {"action": action, "rows": 0, "tickers": 0, "examples": []} for name, action in asdict(policy).items()
        }
        self.prepared = {"rows": 0, "usable": 0, "masked": 0, "dropped": 0, "repaired": 0, "tickers": 0}

    def add(self, block: pd.DataFrame, found: Mapping[str, Mask], cleaned: pd.DataFrame, changes: pd.DataFrame) -> None:
        """Add a block, its defects and the result of cleaning it."""
        _sum(self.counts, rows=len(block), tickers=block["ticker"].nunique())
        for name, mask in found.items():
            rows, finding = block[mask], self.findings[name]
            _sum(finding, rows=len(rows), tickers=rows["ticker"].nunique())
            finding["examples"] += _records(rows.head(EXAMPLES - len(finding["examples"])))
        usable = cleaned[list(PRICE_COLUMNS)].notna().all(axis=1)
        tickers = cleaned["ticker"][usable].nunique()
        _sum(self.prepared, rows=len(cleaned), usable=int(usable.sum()), tickers=tickers)
        for word, action in (("masked", "mask"), ("dropped", "drop"), ("repaired", "repair")):
            self.prepared[word] += int((changes["action"] == action).sum())

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values; empty cells are None."""
        span = {"days": len(self._days), "first_day": str(self._days[0]), "last_day": str(self._days[-1])}
        return {"inputs": self._inputs, **self.counts, **span, "defects": self.findings, "prepared": self.prepared}

    def result(self) -> str:
        """Return the result of cleaning in one line."""
        text = "{usable:,} usable rows ({masked:,} masked, {dropped:,} dropped, {repaired:,} repaired)"
        return text.format(**self.prepared)

    def __str__(self) -> str:
        lines = ["{path}: {layout}".format(**each) for each in self._inputs[:SHOWN_INPUTS]]
        if len(self._inputs) > SHOWN_INPUTS:
            lines.append(f"and {len(self._inputs) - SHOWN_INPUTS:,} more files")
        span = f"{len(self._days):,} days, {self._days[0]} to {self._days[-1]}"
        lines.append("{rows:,} rows, {tickers:,} tickers, ".format(**self.counts) + span)
        present = {name: finding for name, finding in self.findings.items() if finding["rows"]}
        if not present:
            return "\n".join([*lines, "no defects"])
        width = max(map(len, present))
        lines.append(f"{'defect':<{width}}  {'rows':>11}  {'tickers':>7}  prepare")
        lines.append("  first examples: open/high/low/close, volume")
        for name, finding in present.items():
            lines.append(f"{name:<{width}}  {finding['rows']:>11,}  {finding['tickers']:>7,}  {finding['action']}")
            for row in finding["examples"]:
                prices = "/".join(_number(row[price], ".6g") for price in PRICE_COLUMNS)
                lines.append(f"  {row['ticker']} {row['date']}  {prices}  {_number(row['volume'], ',.0f')}")
        return "\n".join(lines)


def _sum(total: dict[str, Any], **more: int) -> None:
    for name, count in more.items():
        total[name] += count


def _records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows as JSON values: dates and infinite cells as text, empty cells as None."""

    def plain(value: Any) -> Any:
        if isinstance(value, pd.Timestamp):
            return f"{value:%Y-%m-%d}"
        if isinstance(value, float) and not np.isfinite(value):
            return None if np.isnan(value) else str(value)
        return value

    return [{str(name): plain(value) for name, value in row.items()} for row in rows.to_dict("records")]


def _number(value: Any, form: str) -> str:
    return "-" if value is None else f"{value:{form}}" if isinstance(value, float) else str(value)
