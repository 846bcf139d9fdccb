"""Report on price files: what was found and changed for each defect, as a table or JSON."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from eigen2.market.data.checks import steps_line
from eigen2.market.data.cleaning.inputs import Inputs
from eigen2.market.data.cleaning.levels import Mask
from eigen2.market.data.cleaning.policy import MEANINGS, CleaningPolicy
from eigen2.market.data.panel_rows import some
from eigen2.market.data.source import PRICE_COLUMNS

# first rows of a defect, and files named in the text; the JSON names all files
EXAMPLES, SHOWN_INPUTS = 3, 5
CRSP_FACTORS = ("cfacpr", "cfacshr")  # that adjust its prices and volumes for splits


class Report:
    """Sums over blocks of whole tickers; `str` gives the report as a table of one line a defect.

    `bars` is the number of intraday bars that the rows were made of, if they were.

    Attributes:
        counts: rows and tickers of the files.
        findings: for each defect its action, the rows and tickers that have it, the rows changed for it, and the first
            rows as examples (None where empty). A repaired split changes all rows before it.
        prepared: result of cleaning: rows, usable rows (with an open or a close) and their tickers, and rows by action.
    """

    def __init__(self, inputs: Inputs, days: np.ndarray, policy: CleaningPolicy, bars: int | None = None) -> None:
        self._inputs: list[dict[str, Any]] = [
            {"path": str(source.path), "layout": source.layout, "left_out": source.left_out} for source in inputs.files
        ]
        self._skipped = inputs.skipped
        self._days, self._bars = days, bars
        self.counts = {"rows": 0, "tickers": 0}
        self.findings: dict[str, dict[str, Any]] = {
            name: {"action": action, "rows": 0, "tickers": 0, "changed": 0, "examples": []}
            for name, action in asdict(policy).items()
        }
        self.prepared = {"rows": 0, "usable": 0, "masked": 0, "dropped": 0, "repaired": 0, "tickers": 0}

    def add(self, block: pd.DataFrame, found: Mapping[str, Mask], cleaned: pd.DataFrame, changes: pd.DataFrame) -> None:
        """Add a block, its defects and the result of cleaning it."""
        _sum(self.counts, rows=len(block), tickers=block["ticker"].nunique())
        for name, mask in found.items():
            rows, finding = block[mask], self.findings[name]
            changed = int((changes["defect"] == name).sum())
            _sum(finding, rows=len(rows), tickers=rows["ticker"].nunique(), changed=changed)
            finding["examples"] += _records(rows.head(EXAMPLES - len(finding["examples"])))
        usable = cleaned[["open", "close"]].notna().any(axis=1)
        tickers = cleaned["ticker"][usable].nunique()
        _sum(self.prepared, rows=len(cleaned), usable=int(usable.sum()), tickers=tickers)
        for word, action in (("masked", "mask"), ("dropped", "drop"), ("repaired", "repair")):
            self.prepared[word] += len(changes[changes["action"] == action].drop_duplicates(["date", "ticker"]))

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values; empty cells are None."""
        span = {"days": len(self._days), "first_day": str(self._days[0]), "last_day": str(self._days[-1])}
        inputs = {"inputs": self._inputs, "skipped": self._skipped, "bars": self._bars}
        return {**inputs, **self.counts, **span, "defects": self.findings, "prepared": self.prepared}

    def result(self) -> str:
        """Return the result of cleaning in one line."""
        text = "{usable:,} usable rows ({masked:,} masked, {dropped:,} dropped, {repaired:,} repaired)"
        return text.format(**self.prepared)

    def __str__(self) -> str:
        lines = ["{path}: {layout}".format(**each) for each in self._inputs[:SHOWN_INPUTS]]
        if len(self._inputs) > SHOWN_INPUTS:
            lines.append(f"and {len(self._inputs) - SHOWN_INPUTS:,} more files")
        if self._skipped:
            total = len(self._inputs) + len(self._skipped)
            lines += [f"skipped {len(self._skipped):,} of {total:,} files:"]
            lines += [f"  {reason}" for reason in self._skipped[:SHOWN_INPUTS]]
        left_out = sorted({name for each in self._inputs for name in each["left_out"] if name.strip()})
        if factors := [name for name in left_out if name.strip().lower() in CRSP_FACTORS]:
            lines.append(f"left out {some(factors)}: divide prices by cfacpr and multiply volumes by cfacshr first")
        if joined := [name for name in left_out if name not in factors]:
            lines.append(f"left out {some(joined)}: join them to the result by date and ticker")
        if self._bars is not None:
            lines.append(f"{self._bars:,} intraday bars made into daily ones")
        span = f"{len(self._days):,} days, {self._days[0]} to {self._days[-1]}"
        lines.append("{rows:,} rows, {tickers:,} tickers, ".format(**self.counts) + span)
        if line := steps_line(self._days):
            lines.append(line)
        present = {name: finding for name, finding in self.findings.items() if finding["rows"] or finding["changed"]}
        if not present:
            return "\n".join([*lines, "no defects"])
        lines.append(f"{'rows':>9} {'changed':>9}  {'action':<6}  defect")
        for name, each in present.items():
            lines.append(f"{each['rows']:>9,} {each['changed']:>9,}  {each['action']:<6}  {name}: {MEANINGS[name]}")
        return "\n".join(lines)

    def examples(self) -> str:
        """Return the first rows of each defect as text."""
        lines = ["first rows: open/high/low/close, volume"]
        for name, finding in self.findings.items():
            for row in finding["examples"]:
                prices = "/".join(_number(row[price], ".6g") for price in PRICE_COLUMNS)
                lines.append(f"  {name}  {row['ticker']} {row['date']}  {prices}  {_number(row['volume'], ',.0f')}")
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
