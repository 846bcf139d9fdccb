"""Sort batches of rows into blocks of whole tickers, through a spill file, in memory bounded by a block.

An external sort. Batches are gathered into runs; each run is sorted by ticker and appended to the file. When the inputs
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
from jaxtyping import Int64, Shaped

from eigen2.market.data.cleaning.layouts import Input
from eigen2.market.data.source import VALUES, listed_tickers

# days since 1970-01-01; tickers numbered in order of first appearance
ROW = np.dtype([("ticker", np.int32), ("day", np.int32), *((name, np.float64) for name in VALUES)])
RUN_ROWS = 1_000_000
SPILL_FILE = "rows.bin"


@dataclass(frozen=True)
class Calendar:
    """Days of all inputs (datetime64[D], ascending), and the rows and listed tickers on each, indicators left out.

    A ticker is listed from the day of its first row to that of its last. Duplicates count as rows.
    """

    days: Shaped[np.ndarray, " days"]
    rows: Int64[np.ndarray, " days"]
    listed: Int64[np.ndarray, " days"]


class SortedRows:
    """All rows of the inputs, sorted on disk, to be read as blocks of whole tickers any number of times.

    Memory holds one run of a million rows and a few numbers for each ticker and run; later, one block. `tickers` are
    all names, sorted by code point.

    Args:
        inputs: price files, at least one; duplicates keep their order.
        folder: an existing folder for the spill file, 48 bytes a row; it must last as long as blocks are read.
        block_rows: most rows of a block, at least 1; a ticker that has more is a block of its own.
        indicators: tickers that are series such as a rate, not prices, and not counted in the calendar.

    Raises:
        UserError: when an input cannot be read.
        OSError: when the spill file cannot be written.
    """

    def __init__(
        self, inputs: Sequence[Input], folder: Path, block_rows: int = 2_000_000, indicators: Sequence[str] = ()
    ) -> None:
        self._path = folder / SPILL_FILE
        self._block_rows = block_rows
        self._codes: dict[str, int] = {}
        # for each run, by ticker: its rows, first and last day; and by day the rows of tickers that are no indicators
        self._runs: list[pd.DataFrame] = []
        self._day_rows: list[pd.Series] = []
        with self._path.open("wb") as file:
            pending: list[pd.DataFrame] = []
            for batch in (batch for source in inputs for batch in source.batches()):
                pending.append(batch)
                if sum(map(len, pending)) >= RUN_ROWS:
                    self._write_run(pending, indicators, file)
            if pending:
                self._write_run(pending, indicators, file)
        self.tickers = tuple(sorted(self._codes))
        codes = [self._codes[name] for name in self.tickers]
        self._ranks = np.argsort(codes)
        # rows of each run and ticker, in the order of the file
        counts = pd.concat([run["size"] for run in self._runs], axis=1).reindex(codes).fillna(0)
        self._counts = counts.to_numpy(np.int64).T
        self.calendar = self._make_calendar([self._codes[name] for name in set(indicators) & self._codes.keys()])

    def blocks(self) -> Iterator[pd.DataFrame]:
        """Yield all rows of some tickers, with `source.COLUMNS`, by (ticker, date), duplicates in the inputs' order."""
        edges = np.append(0, np.cumsum(self._counts.sum(axis=0)))
        # where each run's rows of each ticker start in the file, in rows
        starts = np.cumsum(self._counts).reshape(self._counts.shape) - self._counts
        first = 0
        while first < len(self.tickers):
            last = max(int(np.searchsorted(edges, edges[first] + self._block_rows, side="right")) - 1, first + 1)
            yield self._block(starts[:, first], self._counts[:, first:last].sum(axis=1))
            # Arrow keeps freed memory: blocks would add up
            pa.default_memory_pool().release_unused()
            first = last

    def _block(self, starts: Int64[np.ndarray, " runs"], counts: Int64[np.ndarray, " runs"]) -> pd.DataFrame:
        places = zip((starts * ROW.itemsize).tolist(), counts.tolist(), strict=True)
        rows = np.concatenate([np.fromfile(self._path, ROW, count, offset=start) for start, count in places])
        if len(rows) < counts.sum():
            raise OSError(f"{str(self._path)!r} is shorter than what was written to it")
        rank = self._ranks[rows["ticker"]]
        # one number for ticker and day, ascending as the pairs are
        order = np.argsort((rank << 32) + rows["day"], kind="stable")
        return pd.DataFrame(
            {
                "date": rows["day"][order].astype("datetime64[D]").astype("datetime64[s]"),
                "ticker": pd.Series(self.tickers, dtype="str").array.take(rank[order]),
                **{name: rows[name][order] for name in VALUES},
            }
        )

    def _write_run(self, pending: list[pd.DataFrame], indicators: Sequence[str], file: BinaryIO) -> None:
        """Write batches as a run, sorted by the names of its tickers, and forget them."""
        run = pd.concat(pending, ignore_index=True)
        pending.clear()
        local, names = pd.factorize(run["ticker"], sort=True)
        order = np.argsort(local, kind="stable")
        codes = np.array([self._codes.setdefault(name, len(self._codes)) for name in names], np.int32)
        rows = np.empty(len(run), ROW)
        rows["ticker"] = codes[local][order]
        rows["day"] = run["date"].to_numpy("datetime64[D]").astype(np.int32)[order]
        for name in VALUES:
            rows[name] = run[name].to_numpy()[order]
        rows.tofile(file)
        days = pd.Series(rows["day"])
        self._runs.append(days.groupby(rows["ticker"]).agg(["size", "min", "max"]))
        counted = ~names.isin(list(indicators))
        self._day_rows.append(pd.Series(counted[local][order]).groupby(rows["day"]).sum())
        # Arrow keeps freed memory
        pa.default_memory_pool().release_unused()

    def _make_calendar(self, indicators: list[int]) -> Calendar:
        rows = pd.concat(self._day_rows).groupby(level=0).sum()
        days = rows.index.to_numpy()
        life = pd.concat(self._runs).groupby(level=0).agg({"min": "min", "max": "max"}).drop(indicators)
        first, last = (np.searchsorted(days, life[edge].to_numpy()) for edge in ("min", "max"))
        return Calendar(days.astype("datetime64[D]"), rows.to_numpy(np.int64), listed_tickers(first, last, len(days)))
