"""Sort batches of rows into blocks of whole tickers, through a spill file, in memory bounded by a block.

An external sort. Batches are gathered into runs; each run is sorted by ticker and appended to the file. When the inputs
end, the tickers are known: the rows of a range of them are one stretch of each run, and are sorted again by (ticker,
date). Both sorts are stable, so that duplicates keep the order of the inputs.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import pandas as pd
import pyarrow as pa
from jaxtyping import Int64, Shaped

from eigen2.files import Folder
from eigen2.market.data.source import VALUES, listed_tickers
from eigen2.memory.limits import require_room

# seconds since 1970-01-01; tickers numbered in order of first appearance
ROW = np.dtype([("ticker", np.int32), ("time", np.int64), *((name, np.float64) for name in VALUES)])
DAY_SECONDS = 24 * 60 * 60
# seconds of all years to 9999 are fewer than 2 ** 39
TIME_BITS = 39
RUN_ROWS = 1_000_000
SPILL_FILE = "rows.bin"
# of memory, while a block is sorted and cleaned; 300 measured for the first, 900 where most rows are changed
BYTES_PER_ROW = 500


@dataclass(frozen=True)
class Calendar:
    """Days of all inputs (datetime64[D], ascending), and the rows and `listed_tickers` on each, indicators left out.

    Duplicates count as rows.
    """

    days: Shaped[np.ndarray, " days"]
    rows: Int64[np.ndarray, " days"]
    listed: Int64[np.ndarray, " days"]


class SortedRows:
    """All rows of the inputs, sorted on disk, to be read as blocks of whole tickers any number of times.

    Memory holds one run of a million rows and a few numbers for each ticker and run; later, one block. `tickers` are
    all names, sorted by code point; `count` is the number of rows.

    Args:
        batches: rows with `source.COLUMNS`, dates with times of day; duplicates keep their order.
        folder: an existing folder for the spill file, 52 bytes a row; it must last as long as blocks are read.
        block_rows: most rows of a block, at least 1; a ticker that has more is a block of its own.
        indicators: tickers that are series such as a rate, not prices, and not counted in the calendar.

    Raises:
        OSError: when the spill file cannot be written.
        UserError: when a block does not fit into memory.
    """

    def __init__(
        self,
        batches: Iterable[pd.DataFrame],
        folder: Folder,
        block_rows: int = 2_000_000,
        indicators: Sequence[str] = (),
    ) -> None:
        self._path = draft = folder.make() / SPILL_FILE
        self._block_rows = block_rows
        self._codes: dict[str, int] = {}
        # for each run the rows by ticker, and by day those of tickers that are no indicators
        self._runs: list[pd.Series] = []
        self._day_rows: list[pd.Series] = []
        with draft.open("wb") as file:
            pending: list[pd.DataFrame] = []
            for batch in batches:
                pending.append(batch)
                if sum(map(len, pending)) >= RUN_ROWS:
                    self._write_run(pending, indicators, file)
            if pending:
                self._write_run(pending, indicators, file)
        self.tickers = tuple(sorted(self._codes))
        codes = [self._codes[name] for name in self.tickers]
        self._ranks = np.argsort(codes)
        # rows of each run and ticker, in the order of the file
        counts = pd.concat(self._runs, axis=1).reindex(codes).fillna(0)
        self._counts = counts.to_numpy(np.int64).T
        self.count = int(self._counts.sum())
        most = min(self.count, max(block_rows, int(self._counts.sum(axis=0).max())))
        remedy = "free memory, or prepare fewer rows of a ticker at a time"
        require_room(f"blocks of whole tickers have up to {most:,} rows", most, BYTES_PER_ROW, remedy)
        self.calendar = self._make_calendar([self._codes[name] for name in set(indicators) & self._codes.keys()])

    def blocks(self) -> Iterator[pd.DataFrame]:
        """Yield all rows of some tickers, with `source.COLUMNS`, by (ticker, time), duplicates in the inputs' order."""
        for rows in self._sorted_rows():
            yield pd.DataFrame(
                {
                    "date": rows["time"].astype("datetime64[s]"),
                    "ticker": pd.Series(self.tickers, dtype="str").array.take(self._ranks[rows["ticker"]]),
                    **{name: rows[name] for name in VALUES},
                }
            )

    def _sorted_rows(self) -> Iterator[np.ndarray]:
        """Yield the rows of each block as an array of type `ROW`."""
        edges = np.append(0, np.cumsum(self._counts.sum(axis=0)))
        # where each run's rows of each ticker start in the file, in rows
        starts = np.cumsum(self._counts).reshape(self._counts.shape) - self._counts
        first = 0
        while first < len(self.tickers):
            last = max(int(np.searchsorted(edges, edges[first] + self._block_rows, side="right")) - 1, first + 1)
            yield self._read(starts[:, first], self._counts[:, first:last].sum(axis=1))
            # Arrow keeps freed memory: blocks would add up
            pa.default_memory_pool().release_unused()
            first = last

    def _read(self, starts: Int64[np.ndarray, " runs"], counts: Int64[np.ndarray, " runs"]) -> np.ndarray:
        places = zip((starts * ROW.itemsize).tolist(), counts.tolist(), strict=True)
        rows = np.concatenate([np.fromfile(self._path, ROW, count, offset=start) for start, count in places])
        if len(rows) < counts.sum():
            raise OSError(f"{str(self._path)!r} is shorter than what was written to it")
        rank = self._ranks[rows["ticker"]]
        # one number for ticker and time, ascending as the pairs are
        return rows[np.argsort((rank << TIME_BITS) + rows["time"], kind="stable")]

    def _write_run(self, pending: list[pd.DataFrame], indicators: Sequence[str], file: BinaryIO) -> None:
        """Write batches as a run, sorted by the names of its tickers, and forget them."""
        run = pd.concat(pending, ignore_index=True)
        pending.clear()
        local, names = pd.factorize(run["ticker"], sort=True)
        order = np.argsort(local, kind="stable")
        codes = np.array([self._codes.setdefault(name, len(self._codes)) for name in names], np.int32)
        rows = np.empty(len(run), ROW)
        rows["ticker"] = codes[local][order]
        rows["time"] = run["date"].to_numpy("datetime64[s]").astype(np.int64)[order]
        for name in VALUES:
            rows[name] = run[name].to_numpy()[order]
        rows.tofile(file)
        self._runs.append(pd.Series(rows["time"]).groupby(rows["ticker"]).size())
        counted = ~names.isin(list(indicators))
        self._day_rows.append(pd.Series(counted[local][order]).groupby(rows["time"] // DAY_SECONDS).sum())
        # Arrow keeps freed memory
        pa.default_memory_pool().release_unused()

    def _make_calendar(self, indicators: list[int]) -> Calendar:
        rows = pd.concat(self._day_rows).groupby(level=0).sum()
        days = rows.index.to_numpy()
        listed = np.zeros(len(days), np.int64)
        for block in self._sorted_rows():
            of_ticker = block[~np.isin(block["ticker"], indicators)]
            day = np.searchsorted(days, of_ticker["time"] // DAY_SECONDS)
            listed += listed_tickers(of_ticker["ticker"], day, len(days))
        return Calendar(days.astype("datetime64[D]"), rows.to_numpy(np.int64), listed)
