"""A synthetic market with a known signal: prices driven by a hidden drift that persists for a while."""

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Bool, Float, Float32

from eigen2.errors import UserError, require_range
from eigen2.files import replacing, writing
from eigen2.market.data.source import LARGEST_PRICE, PRICE_COLUMNS, SMALLEST_PRICE

FIRST_DAY = np.datetime64("2000-01-03")
COLUMNS_PER_BLOCK = 64  # columns drawn at once: 15,000 days of them take about 0.2 GB
NUMBERS = dict.fromkeys((*PRICE_COLUMNS, "volume"), pa.float64())
PARQUET = {"compression": "zstd", "use_dictionary": ["date", "ticker"]}
SCHEMA = pa.schema({"date": pa.timestamp("ms"), "ticker": pa.string(), **NUMBERS})
# address of each kind of draw, so that changing one setting does not change the other draws
DRIFT, START, GAP, MARKET, OWN, HIGH, LOW, VOLUME, MISSING, SECTOR = range(10)
LIFETIME = 12

BOUNDS: dict[str, dict[str, Any]] = {  # of every setting, see `require_range`
    "days": {"least": 2, "most": 250_000, "whole": True},
    "columns": {"least": 1, "most": 100_000, "whole": True},
    "seed": {"least": 0, "whole": True},
    "volatility": {"above": 0, "most": 0.5},
    "signal": {"least": 0, "most": 10},
    "half_life_days": {"above": 0},
    "sectors": {"least": 0, "most": 100_000, "whole": True},
    "missing": {"least": 0, "below": 1},
    **{key: {"least": 0, "most": 1} for key in ("market_share", "gap", "sector_share", "late_listings", "delistings")},
}


@dataclass
class SyntheticMarket:
    """Settings of the synthetic market.

    With close[-1] the starting price and drift[-1] = 0, day t of every column is, in logarithms,

        open[t] = close[t-1] + gap[t]    and    close[t] = open[t] + drift[t-1] + noise[t].

    An order filled at the open of day t+1 still earns all of drift[t]. The drift is an AR(1) process with phi =
    0.5^(1 / half_life_days), started in its stationary normal distribution of standard deviation signal x volatility.
    noise[t] is the sum of a factor of the market, one of the column's sector and the column's own, with the fractions
    `market_share`, `sector_share` and the rest of its variance. Gap and noise are normal and together have the standard
    deviation `volatility`; high and low lie outside open and close by half-normal distances. On rows left out the price
    still moves; the first column trades every day, so that no day is empty.

    The correlation of drift[t] with the next day's log return is signal / sqrt(1 + signal^2) in the long run, and
    nothing else predicts it. Without a signal the mean percent gain of a day is still about 50 volatility^2, as the
    mean log return is 0.

    Every path is addressed by the seed, the kind of draw and the column: more columns or days leave earlier prices as
    they are (listings and delistings depend on the number of days).
    """

    days: int = 1500
    """Number of business days, from 2000-01-03 on; 2 to 250,000."""
    columns: int = 20
    """Number of tickers, S0000, S0001 and so on; 1 to 100,000."""
    seed: int = 0
    """Seed of every draw; at least 0."""
    volatility: float = 0.02
    """Standard deviation of a day's log return without the drift; above 0, at most 0.5."""
    signal: float = 0.1
    """Standard deviation of the drift relative to the volatility; 0 (nothing to predict) to 10."""
    half_life_days: float = 20.0
    """Days after which half of a drift is left; above 0."""
    market_share: float = 0.3
    """Fraction of the noise variance that all columns have in common; 0 to 1."""
    gap: float = 0.1
    """Standard deviation of the move from a close to the next open, relative to the volatility; 0 to 1."""
    missing: float = 0.0
    """Fraction of rows left out at random (never the first column's, a column's first day, nor the last before a
    delisting); 0 to below 1."""
    sectors: int = 0
    """Number of sectors; column c belongs to sector c modulo `sectors`; 0 or 1: none."""
    sector_share: float = 0.2
    """Fraction of the noise variance that the columns of a sector have in common beyond the market's; 0 to 1, with
    market_share at most 1; without effect where there are no sectors."""
    late_listings: float = 0.0
    """Fraction of columns whose first day is drawn from all days but the market's first; 0 to 1."""
    delistings: float = 0.0
    """Fraction of columns whose last day is drawn from all days from their first to the last but one; 0 to 1."""

    def __post_init__(self) -> None:
        for name, bounds in BOUNDS.items():
            require_range(f"{name} of the synthetic market", getattr(self, name), **bounds)
        if self._own_share < -1e-9:
            shares = f"market_share {self.market_share} and sector_share {self.sector_share}"
            raise UserError(f"{shares} of the synthetic market add up to more than 1: lower one of them")

    @property
    def phi(self) -> float:
        """Return the fraction of a drift that is left on the next day."""
        return float(0.5 ** (1 / self.half_life_days))

    @property
    def _own_share(self) -> float:
        return 1 - self.market_share - (self.sector_share if self.sectors > 1 else 0)

    def drift(self) -> Float[np.ndarray, "days columns"]:
        """Return the hidden drift: row t is the expected log return of day t+1, settled at day t's close."""
        return self._drift(range(self.columns)).T

    def prices(self) -> Float32[np.ndarray, "days columns 4"]:
        """Return open, high, low and close as the panel holds them: NaN on days without a row. Refuses as `blocks`."""
        prices = np.full((self.days, self.columns, len(PRICE_COLUMNS)), np.nan, dtype=np.float32)
        for columns in self._column_blocks():
            kept = self._kept_rows(columns).T
            for i, values in enumerate(self._bars(columns)):
                prices[:, columns.start : columns.stop, i][kept] = values.T[kept]
        return prices

    @property
    def last_day(self) -> datetime.date:
        """Return the date of the last day."""
        return np.busday_offset(FIRST_DAY, self.days - 1).astype(object)

    def blocks(self) -> Iterator[pd.DataFrame]:
        """Draw the market a few columns at a time; a UserError if prices leave the float32 range."""
        dates = np.busday_offset(FIRST_DAY, np.arange(self.days)).astype("datetime64[s]")
        width = max(4, len(str(self.columns - 1)))  # names sort by number
        for columns in self._column_blocks():
            kept = self._kept_rows(columns)
            tickers = pd.Series([f"S{column:0{width}d}" for column in columns], dtype="str").repeat(kept.sum(axis=1))
            table = {"date": np.broadcast_to(dates, kept.shape)[kept], "ticker": tickers.reset_index(drop=True)}
            for name, values in zip(PRICE_COLUMNS, self._bars(columns), strict=True):
                table[name] = values[kept]
            table["volume"] = np.round(1e6 * np.exp(self._normals(VOLUME, columns) / 2))[kept]
            yield pd.DataFrame(table)

    def generate(self) -> pd.DataFrame:
        """Return all `blocks` as one table, as `read_prices` would, sorted by (ticker, date)."""
        return pd.concat(self.blocks(), ignore_index=True)

    def _column_blocks(self) -> Iterator[range]:
        columns = range(self.columns)
        return (columns[start : start + COLUMNS_PER_BLOCK] for start in columns[::COLUMNS_PER_BLOCK])

    def _drift(self, columns: range) -> Float[np.ndarray, "columns days"]:
        if self.signal == 0:
            return np.zeros((len(columns), self.days))
        drift = self._normals(DRIFT, columns) * (self.signal * self.volatility)
        # the first day is already a stationary draw; each later one keeps phi of its predecessor
        drift[:, 1:] *= np.sqrt(1 - self.phi**2)
        for day in range(1, self.days):
            drift[:, day] += self.phi * drift[:, day - 1]
        return drift

    def _bars(self, columns: range) -> tuple[Float[np.ndarray, "columns days"], ...]:
        """Return open, high, low and close of every day, with a row or not."""
        intraday = self._noise(columns) * (self.volatility * np.sqrt(1 - self.gap**2))
        intraday[:, 1:] += self._drift(columns)[:, :-1]
        move = self._normals(GAP, columns) * (self.gap * self.volatility) + intraday
        start = [self._rng(START, column).uniform(np.log(10), np.log(200)) for column in columns]
        log_close = np.array(start)[:, None] + np.cumsum(move, axis=1)
        with np.errstate(over="ignore", under="ignore"):
            open_, close = np.exp(log_close - intraday), np.exp(log_close)
            high = np.maximum(open_, close) * np.exp(np.abs(self._normals(HIGH, columns)) * (self.volatility / 2))
            low = np.minimum(open_, close) / np.exp(np.abs(self._normals(LOW, columns)) * (self.volatility / 2))
        if not (low.min() > SMALLEST_PRICE and high.max() < LARGEST_PRICE):
            raise UserError(
                f"prices of the synthetic market leave the float32 range with volatility {self.volatility}, signal "
                f"{self.signal} and half_life_days {self.half_life_days} over {self.days} days: lower one of them"
            )
        return open_, high, low, close

    def _noise(self, columns: range) -> Float[np.ndarray, "columns days"]:
        """Return noise of unit variance on every day."""
        noise: np.ndarray = self._normals(OWN, columns) * np.sqrt(max(self._own_share, 0))
        noise += self._normals(MARKET, range(1)) * np.sqrt(self.market_share)
        if self.sectors > 1:
            sector = np.array(columns) % self.sectors
            for number in np.unique(sector).tolist():
                noise[sector == number] += self._normals(SECTOR, range(number, number + 1)) * np.sqrt(self.sector_share)
        return noise

    def _kept_rows(self, columns: range) -> Bool[np.ndarray, "columns days"]:
        kept = np.ones((len(columns), self.days), dtype=np.bool_)
        # the first column keeps every day, so that rows of drift() and of the panel agree
        for column in range(max(columns.start, 1), columns.stop):
            row = kept[column - columns.start]
            if self.missing:
                row &= self._rng(MISSING, column).random(self.days) >= self.missing
            late, early, first_share, last_share = self._rng(LIFETIME, column).random(4).tolist()
            end = self.days - 1
            first = 1 + int(first_share * end) if late < self.late_listings else 0
            last = first + int(last_share * (end - first)) if early < self.delistings else end
            # the first day and that of a delisting are kept
            row[first] = True
            row[last] |= last < end
            row[:first] = row[last + 1 :] = False
        return kept

    def _rng(self, *address: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=address))

    def _normals(self, role: int, columns: range) -> Float[np.ndarray, "columns days"]:
        return np.stack([self._rng(role, column).standard_normal(self.days) for column in columns])


def write_parquet(market: SyntheticMarket, path: str | Path) -> None:
    """Write the market as a Parquet file, complete or not at all.

    A row group holds some columns, which are in memory at once. A UserError if the path does not end in .parquet or
    cannot be written, or prices leave the float32 range.
    """
    path = Path(path)
    if path.suffix != ".parquet":
        raise UserError(f"the market's file is {str(path)!r}: name one that ends in .parquet")
    with writing(repr(str(path))), replacing(path) as draft, pq.ParquetWriter(draft, SCHEMA, **PARQUET) as writer:
        for block in market.blocks():
            writer.write_table(pa.Table.from_pandas(block, SCHEMA, preserve_index=False))
