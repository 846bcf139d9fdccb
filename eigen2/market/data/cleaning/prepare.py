"""Inspect price files, or prepare them: one clean Parquet file and a log of every change."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from eigen2.errors import UserError
from eigen2.files import Folder, draft_folder, move_into_place, writing
from eigen2.market.data.cleaning.blocks import SortedRows
from eigen2.market.data.cleaning.clean import LOG_COLUMNS, clean
from eigen2.market.data.cleaning.defects import find
from eigen2.market.data.cleaning.inputs import Inputs
from eigen2.market.data.cleaning.policy import CleaningPolicy, Limits
from eigen2.market.data.cleaning.report import Report
from eigen2.market.data.cleaning.resample import daily_bars
from eigen2.market.data.csv_format import CsvFormat
from eigen2.market.data.source import VALUES, check_daily
from eigen2.market.spreadsheets import without_formulas

SCHEMA = pa.schema([("date", pa.timestamp("ms")), ("ticker", pa.string()), *((name, pa.float64()) for name in VALUES)])
TEXT_OF_LOG = ("date", "ticker", "defect", "action")
LOG_SCHEMA = pa.schema([(name, pa.string() if name in TEXT_OF_LOG else pa.float64()) for name in LOG_COLUMNS])


def inspect(
    paths: Sequence[str | Path],
    policy: CleaningPolicy = CleaningPolicy(),
    limits: Limits = Limits(),
    indicators: Sequence[str] = (),
    form: CsvFormat = CsvFormat(),
    resample: Literal["day"] | None = None,
) -> Report:
    """Report the defects of price files and what `prepare`, with these arguments, would do about them.

    A defect that the policy refuses is only counted. Spill files as large as the inputs go to the system's folder for
    temporary files. Arguments are those of `prepare`.

    Raises:
        UserError: an input cannot be read, or the spill files cannot be written.
    """
    inputs = Inputs(paths, form)
    remedy = "free space there, or set TMPDIR to a folder with as much room as the inputs take"
    with (
        writing(f"the spill files of inspect to {tempfile.gettempdir()}", remedy),
        tempfile.TemporaryDirectory(prefix="eigen2-inspect-") as folder,
    ):
        rows, bars = _sort(inputs, Folder(folder), indicators, resample)
        report = Report(inputs, rows.calendar.days, policy, bars)
        for _ in _clean_blocks(rows, report, policy.lenient(), limits, indicators):
            pass
    return report


def prepare(
    paths: Sequence[str | Path],
    out: str | Path,
    policy: CleaningPolicy = CleaningPolicy(),
    limits: Limits = Limits(),
    indicators: Sequence[str] = (),
    form: CsvFormat = CsvFormat(),
    resample: Literal["day"] | None = None,
    overwrite: bool = False,
) -> Report:
    """Merge and clean price files into one Parquet file, sorted by (ticker, date), and log every change beside it.

    `OUT.parquet` and `OUT.changes.csv` appear complete or not at all. Spill files as large as the inputs lie in a
    hidden folder beside `out` until the end; those left behind by a killed run are removed by the next. `paths` are
    files and folders, as for `Inputs`, and `form` is how text files are written. `indicators` are tickers that are
    series such as a rate, not prices: they may be zero or negative. With `resample` intraday bars are made into daily
    ones first.

    Raises:
        UserError: an input cannot be read, a defect is one that the policy refuses, no usable row is left, or `out`
            cannot be written.
    """
    out = _check_out(Path(out), paths, overwrite)
    inputs = Inputs(paths, form)
    remedy = "free space or choose another folder; spill files as large as the inputs lie beside it"
    with writing(repr(str(out)), remedy), draft_folder(out) as folder:
        rows, bars = _sort(inputs, folder, indicators, resample)
        report = Report(inputs, rows.calendar.days, policy, bars)
        table, log = folder.file("table.parquet"), folder.file("changes.csv")
        with pq.ParquetWriter(table, SCHEMA, compression="zstd") as kept, csv.CSVWriter(log, LOG_SCHEMA) as changes:
            for cleaned, changed in _clean_blocks(rows, report, policy, limits, indicators):
                kept.write_table(pa.Table.from_pandas(cleaned, SCHEMA, preserve_index=False))
                changed = without_formulas(changed.assign(date=changed["date"].dt.strftime("%Y-%m-%d")))
                changes.write_table(pa.Table.from_pandas(changed, LOG_SCHEMA, preserve_index=False))
                # Arrow keeps freed memory: blocks would add up
                pa.default_memory_pool().release_unused()
        if report.prepared["usable"] == 0:
            total = report.counts["rows"]
            raise UserError(f"no usable row is left of {total:,}: inspect the files, or relax the policy")
        move_into_place(log, changes_path(out))
        move_into_place(table, out)
    return report


def changes_path(out: Path) -> Path:
    """Return the path of a prepared file's log."""
    return out.with_suffix(".changes.csv")


def _sort(
    inputs: Inputs, folder: Folder, indicators: Sequence[str], resample: Literal["day"] | None
) -> tuple[SortedRows, int | None]:
    """Sort all inputs into the folder, if asked for as daily bars; return them, and of how many bars they are made."""
    bars = None
    batches = inputs.batches(indicators)
    if resample is not None:
        intraday = SortedRows(batches, folder / "bars")
        bars = intraday.count
        batches = map(daily_bars, intraday.blocks())
    rows = SortedRows(batches, folder, indicators=indicators)
    if unknown := sorted(set(indicators) - set(rows.tickers)):
        raise UserError(f"indicators {', '.join(unknown)} are in no input: give names of tickers in the files")
    return rows, bars


def _clean_blocks(
    rows: SortedRows, report: Report, policy: CleaningPolicy, limits: Limits, indicators: Sequence[str]
) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
    """Yield cleaned blocks and their logs, and add each to the report."""
    for block in rows.blocks():
        check_daily(block, "make daily ones with --resample day")
        block["date"] = block["date"].dt.normalize()
        found = find(block, rows.calendar, limits, indicators)
        cleaned, changes = clean(block, found, policy, limits)
        report.add(block, found.rows, cleaned, changes)
        yield cleaned, changes


def _check_out(out: Path, paths: Sequence[str | Path], overwrite: bool) -> Path:
    if out.suffix != ".parquet":
        raise UserError(f"OUT is {str(out)!r}: name a file that ends in .parquet")
    if not out.parent.is_dir():
        raise UserError(f"OUT is {str(out)!r}, but there is no folder {str(out.parent)!r}: make it first")
    inputs = [path for path in paths if os.path.exists(path)]
    same = [one for one in (out, out.parent) if one.exists()]  # in a folder of inputs the next run would read it
    if any(os.path.samefile(path, one) for path in inputs for one in same):
        raise UserError(f"OUT {str(out)!r} is an input, or in a folder of inputs: name a file elsewhere")
    if (there := next((file for file in (out, changes_path(out)) if file.exists()), None)) and not overwrite:
        raise UserError(f"{str(there)!r} exists: name another file, or give --overwrite")
    return out
