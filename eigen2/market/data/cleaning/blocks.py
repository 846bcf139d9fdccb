"""Sort batches of rows into blocks of whole tickers, through a spill file, in memory bounded by a block.

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
from jaxtyping import Bool, Int64, Shaped

from eigen2.errors import UserError, require_range
from eigen2.market.data.cleaning.layouts import Input
from eigen2.market.data.source import VALUES

# days since 1970-01-01; tickers by the order in which they were first seen
ROW = np.dtype([("ticker", np.int32), ("day", np.int32), *((name, np.float64) for name in VALUES)])
RUN_ROWS = 1_000_000
SPILL_FILE = "rows.bin"


@dataclass(frozen=True)
class Calendar:
    """Days of all inputs, and the rows and listed tickers on each, indicators left out.

    A ticker is listed from the day of its first row to that of its last. Duplicates count as rows. `days` are
    datetime64[D], ascending, each once, those on which only indicators have rows among them.
    """

    days: Shaped[np.ndarray, " days"]
    rows: Int64[np.ndarray, " days"]
    listed: Int64[np.ndarray, " days"]


class SortedRows:
    """All rows of the inputs, sorted on disk, to be read as blocks of whole tickers as often as wanted.

    Memory holds one batch, one run of a million rows and a few numbers for each ticker and run; later, one block. The
    rows do not depend on `block_rows`, only where one block ends and the next begins.

    Args:
        inputs: what to read; of duplicates, those of an earlier input come first.
        folder: an existing folder for the spill file, 48 bytes a row; it must last as long as blocks are read.
        block_rows: most rows of a block, at least 1; a ticker that has more is a block of its own.
        indicators: tickers that are series such as a rate, not prices, and not counted in the calendar.

    Attributes:
        calendar: the days of the inputs.
        tickers: all names, sorted by code point, indicators included.
        rows: the number of rows.

    Raises:
        UserError: when an input cannot be read, `inputs` is empty or `block_rows` is out of range.
        OSError: when the spill file cannot be written.
    """

    def __init__(
        self, inputs: Sequence[Input], folder: Path, block_rows: int = 2_000_000, indicators: Sequence[str] = ()
    ) -> None:
        require_range("block_rows", block_rows, least=1)
        if not inputs:
            raise UserError("no price files are named: name at least one")
        self._path = folder / SPILL_FILE
        self._block_rows = block_rows
        self._indicators = frozenset(indicators)
        self._codes: dict[str, int] = {}
        # for each run, by ticker: its rows, first and last day; and by day the rows of tickers that are no indicators
        self._runs: list[pd.DataFrame] = []
        self._day_rows: list[pd.Series] = []
        with self._path.open("wb") as file:
            self._write_runs((batch for one in inputs for batch in one.batches()), file)
        self.tickers = tuple(sorted(self._codes))
        self.calendar = self._make_calendar()
        self._ranks = self._rank()
        # rows of each run and ticker, in the order of the file
        counts = pd.concat([run["size"] for run in self._runs], axis=1).reindex(range(len(self.tickers))).fillna(0)
        self._counts = counts.to_numpy(np.int64).T[:, np.argsort(self._ranks)]
        self.rows = int(self._counts.sum())

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
            before = ends[first - 1] if first else 0
            last = max(int(np.searchsorted(ends, before + self._block_rows, side="right")), first + 1)
            yield self._block(starts[:, first], self._counts[:, first:last].sum(axis=1))
            # Arrow keeps what it freed: blocks would add up
            pa.default_memory_pool().release_unused()
            first = last

    def _block(self, starts: Int64[np.ndarray, " runs"], counts: Int64[np.ndarray, " runs"]) -> pd.DataFrame:
        rows = np.empty(counts.sum(), ROW)
        done = 0
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
            part = np.fromfile(self._path, ROW, count, offset=start * ROW.itemsize)
            if len(part) < count:
                raise OSError(f"{str(self._path)!r} is shorter than what was written to it")
            rows[done : done + count] = part
            done += count
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

    def _write_runs(self, batches: Iterator[pd.DataFrame], file: BinaryIO) -> None:
        """Gather rows into runs of `RUN_ROWS`, and write each sorted by the names of its tickers."""
        run, filled = np.empty(RUN_ROWS, ROW), 0
        for batch in batches:
            local, names = pd.factorize(batch["ticker"])
            codes = np.array([self._codes.setdefault(name, len(self._codes)) for name in names], np.int32)
            columns = {"ticker": codes[local], "day": batch["date"].to_numpy("datetime64[D]").astype(np.int32)}
            columns |= {name: batch[name].to_numpy() for name in VALUES}
            done = 0
            while done < len(batch):
                taken = min(len(batch) - done, len(run) - filled)
                for name, values in columns.items():
                    run[name][filled : filled + taken] = values[done : done + taken]
                done += taken
                filled += taken
                if filled == len(run):
                    self._write_run(run, file)
                    filled = 0
        if filled:
            self._write_run(run[:filled], file)

    def _write_run(self, rows: Shaped[np.ndarray, " rows"], file: BinaryIO) -> None:
        rows = rows[np.argsort(self._rank()[rows["ticker"]], kind="stable")]
        rows.tofile(file)
        days = pd.Series(rows["day"])
        self._runs.append(days.groupby(rows["ticker"]).agg(["size", "min", "max"]))
        self._day_rows.append(pd.Series(~self._is_indicator()[rows["ticker"]]).groupby(rows["day"]).sum())
        # Arrow keeps what it freed
        pa.default_memory_pool().release_unused()

    def _is_indicator(self) -> Bool[np.ndarray, " tickers"]:
        """Return which tickers are indicators, by code."""
        return np.array([name in self._indicators for name in self._codes], np.bool_)

    def _rank(self) -> Int64[np.ndarray, " tickers"]:
        """Return the place of each ticker among all, by code, sorted by code point."""
        ranks = np.empty(len(self._codes), np.int64)
        ranks[[self._codes[name] for name in sorted(self._codes)]] = np.arange(len(self._codes))
        return ranks

    def _make_calendar(self) -> Calendar:
        rows = pd.concat(self._day_rows).groupby(level=0).sum()
        days = rows.index.to_numpy()
        life = pd.concat(self._runs).groupby(level=0).agg({"min": "min", "max": "max"})[~self._is_indicator()]
        began, ended = (
            np.bincount(np.searchsorted(days, life[edge].to_numpy()), minlength=len(days)) for edge in ("min", "max")
        )
        listed = np.cumsum(began) - np.cumsum(ended) + ended
        return Calendar(days.astype("datetime64[D]"), rows.to_numpy(np.int64), listed)
