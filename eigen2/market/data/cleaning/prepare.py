"""Inspect price files, or prepare them: one clean Parquet file and a log of every change."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from eigen2.errors import UserError
from eigen2.market.data.cleaning.blocks import SortedRows
from eigen2.market.data.cleaning.clean import LOG_COLUMNS, clean
from eigen2.market.data.cleaning.defects import find
from eigen2.market.data.cleaning.layouts import open_inputs
from eigen2.market.data.cleaning.policy import Limits, Policy
from eigen2.market.data.cleaning.report import Report
from eigen2.market.data.source import VALUES
from eigen2.runtime.files import draft_folder, move_into_place

SCHEMA = pa.schema([("date", pa.timestamp("ms")), ("ticker", pa.string()), *((name, pa.float64()) for name in VALUES)])
TEXT_OF_LOG = ("date", "ticker", "defect", "action")
LOG_SCHEMA = pa.schema([(name, pa.string() if name in TEXT_OF_LOG else pa.float64()) for name in LOG_COLUMNS])


def inspect(
    paths: Sequence[str | Path],
    policy: Policy = Policy(),  # noqa: B008 - read, never changed
    limits: Limits = Limits(),  # noqa: B008
    indicators: Sequence[str] = (),
) -> Report:
    """Report the defects of price files and what `prepare`, with these arguments, would do about them.

    A defect that the policy refuses is only counted. Spill files as large as the inputs go to the system's folder for
    temporary files.

    Raises:
        UserError: an input cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="eigen2-inspect-") as folder:
        report, blocks = _clean_inputs(paths, Path(folder), policy, policy.lenient(), limits, indicators)
        for _ in blocks:
            pass
    return report


def prepare(
    paths: Sequence[str | Path],
    out: str | Path,
    policy: Policy = Policy(),  # noqa: B008 - read, never changed
    limits: Limits = Limits(),  # noqa: B008
    indicators: Sequence[str] = (),
    overwrite: bool = False,
) -> Report:
    """Merge and clean price files into one Parquet file, sorted by (ticker, date), and log every change beside it.

    `OUT.parquet` and `OUT.changes.csv` appear complete or not at all. Spill files as large as the inputs lie in a
    hidden folder beside `out` until the end; those left behind by a killed run are removed by the next. `paths` are
    files and folders, as for `open_inputs`; `indicators` are tickers that are series such as a rate, not prices: they
    may be zero or negative.

    Raises:
        UserError: an input cannot be read, a defect is one that the policy refuses, no usable row is left, or `out`
            cannot be written.
    """
    out = _check_out(Path(out), paths, overwrite)
    try:
        with draft_folder(out) as folder:
            report, blocks = _clean_inputs(paths, folder, policy, policy, limits, indicators)
            table, log = folder / "table.parquet", folder / "changes.csv"
            with pq.ParquetWriter(table, SCHEMA, compression="zstd") as rows, csv.CSVWriter(log, LOG_SCHEMA) as changes:
                for cleaned, changed in blocks:
                    rows.write_table(pa.Table.from_pandas(cleaned, SCHEMA, preserve_index=False))
                    changed = changed.assign(date=changed["date"].dt.strftime("%Y-%m-%d"))
                    changes.write_table(pa.Table.from_pandas(changed, LOG_SCHEMA, preserve_index=False))
                    # Arrow keeps freed memory: blocks would add up
                    pa.default_memory_pool().release_unused()
            if report.prepared["usable"] == 0:
                total = report.counts["rows"]
                raise UserError(f"no usable row is left of {total:,}: inspect the files, or relax the policy")
            move_into_place(log, changes_path(out))
            move_into_place(table, out)
    except OSError as error:
        raise UserError(
            f"cannot write {str(out)!r} ({error.strerror or error}): free space or choose another folder; spill files "
            "as large as the inputs lie beside it"
        ) from error
    return report


def changes_path(out: Path) -> Path:
    """Return the path of a prepared file's log."""
    return out.with_suffix(".changes.csv")


def _clean_inputs(
    paths: Sequence[str | Path], folder: Path, shown: Policy, applied: Policy, limits: Limits, indicators: Sequence[str]
) -> tuple[Report, Iterator[tuple[pd.DataFrame, pd.DataFrame]]]:
    """Sort all inputs into the folder; return a report and an iterator of cleaned blocks and logs that fills it."""
    inputs = open_inputs(paths)
    rows = SortedRows(inputs, folder, indicators=indicators)
    if unknown := sorted(set(indicators) - set(rows.tickers)):
        raise UserError(f"indicators {', '.join(unknown)} are in no input: give names of tickers in the files")
    report = Report(inputs, rows.calendar.days, shown)

    def blocks() -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
        for block in rows.blocks():
            found = find(block, rows.calendar, limits, indicators)
            cleaned, changes = clean(block, found, applied, limits)
            report.add(block, found, cleaned, changes)
            yield cleaned, changes

    return report, blocks()


def _check_out(out: Path, paths: Sequence[str | Path], overwrite: bool) -> Path:
    if out.suffix != ".parquet":
        raise UserError(f"OUT is {str(out)!r}: name a file that ends in .parquet")
    if not out.parent.is_dir():
        raise UserError(f"OUT is {str(out)!r}, but there is no folder {str(out.parent)!r}: make it first")
    if os.path.exists(out) and any(os.path.exists(path) and os.path.samefile(out, path) for path in paths):
        raise UserError(f"OUT {str(out)!r} is also an input: name another file, the input stays as it is")
    if out.exists() and not overwrite:
        raise UserError(f"{str(out)!r} exists: name another file, or give --overwrite")
    return out
