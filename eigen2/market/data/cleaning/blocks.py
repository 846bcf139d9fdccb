"""From batches in any order to blocks of whole tickers, by way of a spill file: memory is bounded by a block.

An external sort. Rows are gathered into runs; each run is sorted by ticker and appended to the file. When the inputs
end, the tickers are known: the rows of a range of them are one stretch of each run, and are sorted again by (ticker,
date). Both sorts are stable, so that duplicates keep the order of the inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pandas as pd
import pyarrow as pa
from jaxtyping import Bool, Int, Int64, Shaped

from eigen2.errors import UserError, require_range
from eigen2.market.data.cleaning.layouts import Input

__all__ = ["Calendar", "Collected", "collect"]

VALUES = ("open", "high", "low", "close", "volume")
# days since 1970-01-01; tickers by the order in which they were first seen
ROW = np.dtype([("ticker", np.int32), ("day", np.int32), *((name, np.float64) for name in VALUES)])
RUN_ROWS = 1_000_000
SPILL_FILE = "rows.bin"
# numpy sorts integers this small by radix
SMALL = np.iinfo(np.int16).max


@dataclass(frozen=True)
class Calendar:
    """The days of all inputs, and how many tickers have a row on each; indicators are not counted.

    A ticker is listed from the day of its first row to that of its last. Duplicates count as rows.
    """

    days: Shaped[np.ndarray, " days"]
    """datetime64[D], ascending, each once; days on which only indicators have rows are among them."""
    rows: Int64[np.ndarray, " days"]
    """Rows on the day."""
    listed: Int64[np.ndarray, " days"]
    """Tickers listed on the day."""


class Collected:
    """All rows of the inputs, on disk, to be read as blocks of whole tickers as often as wanted.

    Attributes:
        calendar: the days of the inputs.
        tickers: all names, sorted by code point, indicators included.
        rows: the number of rows.
    """

    def __init__(self, path: Path, spill: _Spill, block_rows: int) -> None:
        names = list(spill.codes)
        self.tickers = tuple(sorted(names))
        self.calendar = _calendar(spill)
        self._ranks = _ranks(names).astype(np.int64)
        self._counts = np.zeros((len(spill.runs), len(names)), np.int64)
        for counts, run in zip(self._counts, spill.runs, strict=True):
            counts[self._ranks[run.tickers]] = run.counts
        self.rows = int(self._counts.sum())
        self._path = path
        self._block_rows = block_rows

    def blocks(self) -> Iterator[pd.DataFrame]:
        """Read all rows, tickers in ascending order.

        Yields:
            All rows of some tickers, as many as fit into `block_rows` rows, at least one: the columns of
            `source.COLUMNS`, sorted by (ticker, date), duplicates in the order of the inputs, with a RangeIndex.
        """
        ends = np.cumsum(self._counts.sum(axis=0))
        # where each run's rows of each ticker start in the file, in rows
        starts = np.cumsum(self._counts).reshape(self._counts.shape) - self._counts
        first = 0
        while first < len(ends):
            before = int(ends[first - 1]) if first else 0
            last = max(int(np.searchsorted(ends, before + self._block_rows, side="right")), first + 1)
            yield self._block(starts[:, first], self._counts[:, first:last].sum(axis=1))
            # Arrow keeps what it freed: blocks would add up
            pa.default_memory_pool().release_unused()
            first = last

    def _block(self, starts: Int64[np.ndarray, " runs"], counts: Int64[np.ndarray, " runs"]) -> pd.DataFrame:
        rows = np.empty(int(counts.sum()), ROW)
        ends = np.cumsum(counts)
        with self._path.open("rb") as file:
            for start, count, end in zip(starts.tolist(), counts.tolist(), ends.tolist(), strict=True):
                file.seek(start * ROW.itemsize)
                part = rows[end - count : end].view(np.uint8)
                if file.readinto(part.data) != part.nbytes:
                    raise OSError(f"{str(self._path)!r} is shorter than what was written to it")
        rank = self._ranks[rows["ticker"]]
        # one number for both, ascending as the pairs are
        key = (rank << 32) + rows["day"]
        order = np.argsort(key, kind="stable")
        names = pd.Series(self.tickers, dtype="str").array
        return pd.DataFrame(
            {
                "date": rows["day"][order].astype("datetime64[D]").astype("datetime64[s]"),
                "ticker": names.take(rank[order]),
                **{name: rows[name][order] for name in VALUES},
            }
        )


def collect(
    inputs: Sequence[Input], folder: Path, block_rows: int = 2_000_000, context: Sequence[str] = ()
) -> Collected:
    """Read the inputs once and bring their rows in order, on disk.

    Memory holds one batch, one run of a million rows and a few numbers for each ticker and run; later, one block. What
    comes out does not depend on `block_rows`, except where one block ends and the next begins.

    Args:
        inputs: what to read; of duplicates, those of an earlier input come first.
        folder: an existing folder for the spill file, 48 bytes a row; it must last as long as blocks are read.
        block_rows: most rows of a block, at least 1; a ticker that has more is a block of its own.
        context: tickers that are indicators, such as a rate; not counted in the calendar. Names that no input has
            change nothing.

    Raises:
        UserError: when an input cannot be read, `inputs` is empty or `block_rows` is out of range.
        OSError: when the spill file cannot be written.
    """
    require_range("block_rows", block_rows, least=1)
    if not inputs:
        raise UserError("no price files are named: name at least one")
    path = folder / SPILL_FILE
    with path.open("wb") as file:
        spill = _Spill(file, context)
        for one in inputs:
            for batch in one.batches():
                spill.add(batch)
        spill.write_run()
    return Collected(path, spill, block_rows)


@dataclass(frozen=True)
class _Run:
    """What is known of the rows of a run, once they are written."""

    tickers: Int[np.ndarray, " tickers"]
    """In the order in which the run has them."""
    counts: Int[np.ndarray, " tickers"]
    first: Int[np.ndarray, " tickers"]
    last: Int[np.ndarray, " tickers"]
    days: Int[np.ndarray, " days"]
    """Each once, in no order."""
    day_rows: Int[np.ndarray, " days"]


class _Spill:
    """Gathers rows into runs and writes them, each sorted by the names of its tickers."""

    def __init__(self, file: BinaryIO, context: Sequence[str]) -> None:
        self.codes: dict[str, int] = {}
        self.runs: list[_Run] = []
        self._file = file
        self._context = frozenset(context)
        self._rows = np.empty(RUN_ROWS, ROW)
        self._filled = 0

    def add(self, batch: pd.DataFrame) -> None:
        """Take in a batch; write runs as they become full."""
        local, names = pd.factorize(batch["ticker"])
        codes = np.array([self.codes.setdefault(name, len(self.codes)) for name in names], np.int32)
        columns = {
            "ticker": codes[local],
            "day": batch["date"].to_numpy("datetime64[D]").astype(np.int32),
            **{name: batch[name].to_numpy() for name in VALUES},
        }
        done = 0
        while done < len(batch):
            taken = min(len(batch) - done, len(self._rows) - self._filled)
            for name, values in columns.items():
                self._rows[name][self._filled : self._filled + taken] = values[done : done + taken]
            done += taken
            self._filled += taken
            if self._filled == len(self._rows):
                self.write_run()

    def write_run(self) -> None:
        """Write the rows gathered so far, if any."""
        rows = self._rows[: self._filled]
        if not len(rows):
            return
        names = list(self.codes)
        rows = rows[np.argsort(_ranks(names)[rows["ticker"]], kind="stable")]
        rows.tofile(self._file)
        self._filled = 0
        tickers, days = rows["ticker"], rows["day"]
        starts = np.flatnonzero(np.diff(tickers, prepend=-1))
        day, distinct = pd.factorize(days)
        counted = ~self.indicators[tickers]
        self.runs.append(
            _Run(
                tickers=tickers[starts],
                counts=np.diff(starts, append=len(rows)),
                first=np.minimum.reduceat(days, starts),
                last=np.maximum.reduceat(days, starts),
                days=distinct,
                day_rows=np.bincount(day[counted], minlength=len(distinct)),
            )
        )
        # Arrow keeps what it freed
        pa.default_memory_pool().release_unused()

    @property
    def indicators(self) -> Bool[np.ndarray, " tickers"]:
        """Which tickers are indicators, by code."""
        return np.array([name in self._context for name in self.codes], np.bool_)


def _ranks(names: Sequence[str]) -> Int[np.ndarray, " tickers"]:
    """The place of each name among all, sorted by code point."""
    ranks = np.empty(len(names), np.int16 if len(names) <= SMALL else np.int32)
    ranks[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    return ranks


def _calendar(spill: _Spill) -> Calendar:
    days = np.unique(np.concatenate([run.days for run in spill.runs]))
    rows = np.zeros(len(days), np.int64)
    first = np.full(len(spill.codes), np.iinfo(np.int32).max)
    last = np.full(len(spill.codes), np.iinfo(np.int32).min)
    for run in spill.runs:
        rows[np.searchsorted(days, run.days)] += run.day_rows
        first[run.tickers] = np.minimum(first[run.tickers], run.first)
        last[run.tickers] = np.maximum(last[run.tickers], run.last)
    counted = ~spill.indicators
    began = np.bincount(np.searchsorted(days, first[counted]), minlength=len(days))
    ended = np.bincount(np.searchsorted(days, last[counted]), minlength=len(days))
    listed = np.cumsum(began) - np.cumsum(ended) + ended
    return Calendar(days.astype("datetime64[D]"), rows, listed)
