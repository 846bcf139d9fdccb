"""A synthetic market with a known signal: prices driven by a hidden drift that persists for a while."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Bool, Float, Float32

from eigen2.errors import UserError, require_range
from eigen2.market.data.source import LARGEST_PRICE, PRICE_COLUMNS, SMALLEST_PRICE
from eigen2.runtime.files import draft_folder, move_into_place

FIRST_DAY = np.datetime64("2000-01-03")
COLUMNS_PER_BLOCK = 64  # columns drawn at once: 15,000 days of them take about 0.2 GB
NUMBERS = dict.fromkeys((*PRICE_COLUMNS, "volume"), pa.float64())
SCHEMA = pa.schema({"date": pa.timestamp("ms"), "ticker": pa.string(), **NUMBERS})
# address of each kind of draw, so that changing one setting leaves the other draws alone
DRIFT, START, GAP, MARKET, OWN, HIGH, LOW, VOLUME, MISSING, SECTOR, TAIL, REGIME, LIFETIME, HALT = range(14)


BOUNDS: dict[str, dict[str, float]] = {
    "days": {"least": 2, "most": 250_000},
    "columns": {"least": 1, "most": 100_000},
    "seed": {"least": 0},
    "volatility": {"above": 0, "most": 0.5},
    "signal": {"least": 0, "most": 10},
    "half_life_days": {"above": 0},
    "sectors": {"least": 0, "most": 100_000},
    "tail_df": {"above": 2, "most": 1000},
    "turbulence": {"least": 1, "most": 20},
    "halts": {"least": 0, "most": 1000},
    **{name: {"least": 0, "below": 1} for name in ("missing", "delisting_fall")},
    **{name: {"least": 1, "most": 1e6} for name in ("calm_days", "turbulent_days", "halt_days")},
    **{n: {"least": 0, "most": 1} for n in ("market_share", "gap", "sector_share", "late_listings", "delistings")},
}
"""Range of every setting, see `require_range`."""


@dataclass
class SyntheticMarket:
    """Settings of the synthetic market.

    Prices. With close[-1] the starting price and drift[-1] = 0, day t of every column is, in logarithms,

        open[t] = close[t-1] + gap[t]    and    close[t] = open[t] + drift[t-1] + noise[t].

    The effect of drift[t] on day t+1 is settled at the close of day t, and an order filled at the open of day t+1 still
    earns all of it. The drift is an AR(1) process, drift[t] = phi drift[t-1] + innovation with phi =
    0.5^(1 / half_life_days), started in its stationary normal distribution of standard deviation signal x volatility.
    High and low lie outside open and close by half-normal distances. All draws are independent of each other and,
    except for the drift, from day to day.

    Noise. gap[t] is normal; noise[t] is the sum of a factor of the market, one of the column's sector and the column's
    own, with the fractions `market_share`, `sector_share` and the rest of its variance. Each of them is normal or
    Student's t with `tail_df` degrees of freedom, scaled to the same variance; their sum has the excess kurtosis
    6 / (tail_df - 4) x the sum of the squared fractions (tail_df above 4). Gap and noise together have the standard
    deviation v[t], common to all columns: `volatility`, or with regimes, in the turbulent state of a two-state Markov
    chain, `turbulence` times that of the calm state, where the mean of v[t]^2 is volatility^2 in the long run.

    Rows. Days on which a column is not listed, halted or missing are left out of the table; the price moves on unseen.
    The first column is listed and trades every day, so that no day is empty.

    Predictability. The correlation of drift[t] with the next day's log return, the information coefficient, is
    signal / sqrt(1 + signal^2) in the long run, and nothing else predicts its mean but the fall at a delisting; regimes
    make the size of returns predictable, not their sign. From prices alone the drift can only be estimated:
    `market.synthetic.forecast` computes both. Without a signal the mean log return is 0, so the mean percent gain of a
    day is still about 50 volatility^2, half the variance.

    Every path is addressed by the seed, the kind of draw and the column: more columns or days leave existing prices
    unchanged (days on which columns are listed or halted depend on the number of days).
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
    tail_df: float | None = None
    """Degrees of freedom of Student's t noise, scaled to the volatility; above 2 (fattest) to 1000; null: normal."""
    turbulence: float = 1.0
    """Volatility of turbulent days relative to calm ones; 1 (no regimes) to 20."""
    calm_days: float = 120.0
    """Mean length of a calm stretch, in days; 1 to 1e6."""
    turbulent_days: float = 20.0
    """Mean length of a turbulent stretch, in days; 1 to 1e6."""
    late_listings: float = 0.0
    """Fraction of columns whose first day is drawn from all days but the market's first; 0 to 1."""
    delistings: float = 0.0
    """Fraction of columns whose last day is drawn from all days from their first to the last but one; 0 to 1."""
    delisting_fall: float = 0.0
    """Fraction of its price that a column loses on the day of its delisting; 0 to below 1."""
    halts: float = 0.0
    """Expected number of trading halts of a column over all days, at random days; 0 to 1000."""
    halt_days: float = 5.0
    """Mean length of a halt, in days, geometrically distributed; 1 to 1e6."""

    def __post_init__(self) -> None:
        for name, bounds in BOUNDS.items():
            value = getattr(self, name)
            if not (name == "tail_df" and value is None):
                require_range(f"{name} of the synthetic market", value, **bounds)
        if self._own_share < -1e-9:
            raise UserError(
                f"market_share {self.market_share} and sector_share {self.sector_share} of the synthetic market add up "
                "to more than 1: lower one of them"
            )

    @property
    def phi(self) -> float:
        """Return the fraction of a drift that is left on the next day."""
        return float(0.5 ** (1 / self.half_life_days))

    @property
    def tickers(self) -> list[str]:
        """Return the names of the columns, which sort by number."""
        width = max(4, len(str(self.columns - 1)))
        return [f"S{column:0{width}d}" for column in range(self.columns)]

    def drift(self) -> Float[np.ndarray, "days columns"]:
        """Return the hidden drift: row t is the expected log return of day t+1, settled at day t's close."""
        return self._drift(range(self.columns)).T

    def turbulent(self) -> Bool[np.ndarray, " days"]:
        """Return which days are turbulent; without effect where `turbulence` is 1."""
        leave = (1 / self.calm_days, 1 / self.turbulent_days)
        state = False
        states = np.zeros(self.days, dtype=np.bool_)
        for day, chance in enumerate(self._rng(REGIME).random(self.days).tolist()):
            # the first day is drawn from the chain's stationary distribution
            state = state ^ (chance < leave[state]) if day else chance < self._turbulent_share
            states[day] = state
        return states

    def prices(self) -> Float32[np.ndarray, "days columns 4"]:
        """Return open, high, low and close as the panel holds them: NaN on days without a row. Refuses as `blocks`."""
        prices = np.full((self.days, self.columns, len(PRICE_COLUMNS)), np.nan, dtype=np.float32)
        for columns in self._column_blocks(COLUMNS_PER_BLOCK):
            kept = self._kept_rows(columns).T
            for i, values in enumerate(self._bars(columns).values()):
                prices[:, columns.start : columns.stop, i][kept] = values.T[kept]
        return prices

    def blocks(self, columns_per_block: int = COLUMNS_PER_BLOCK) -> Iterator[pd.DataFrame]:
        """Draw the market a few columns at a time; the tables together are what `generate` returns.

        Args:
            columns_per_block: columns of a table, at least 1; memory depends on it, the draws do not.

        Raises:
            UserError: columns_per_block is too small, or prices leave the float32 range.
        """
        require_range("columns_per_block", columns_per_block, least=1)
        dates = np.busday_offset(FIRST_DAY, np.arange(self.days)).astype("datetime64[s]")
        tickers = pd.Series(self.tickers, dtype="str")
        for columns in self._column_blocks(columns_per_block):
            kept = self._kept_rows(columns)
            volume = np.round(1e6 * np.exp(self._normals(VOLUME, columns) / 2))
            names = tickers.iloc[columns.start : columns.stop].repeat(kept.sum(axis=1))
            yield pd.DataFrame(
                {
                    "date": np.broadcast_to(dates, kept.shape)[kept],
                    "ticker": names.reset_index(drop=True),
                    **{name: values[kept] for name, values in self._bars(columns).items()},
                    "volume": volume[kept],
                }
            )

    def generate(self) -> pd.DataFrame:
        """Return the market as `market.data.source.read_prices` would, sorted by (ticker, date). See `blocks`."""
        return pd.concat(self.blocks(), ignore_index=True)

    @property
    def _own_share(self) -> float:
        return 1 - self.market_share - (self.sector_share if self.sectors > 1 else 0)

    @property
    def _turbulent_share(self) -> float:
        return self.turbulent_days / (self.calm_days + self.turbulent_days)

    def _column_blocks(self, columns_per_block: int) -> Iterator[range]:
        columns = range(self.columns)
        return (columns[start : start + columns_per_block] for start in columns[::columns_per_block])

    def _drift(self, columns: range) -> Float[np.ndarray, "columns days"]:
        if self.signal == 0:
            return np.zeros((len(columns), self.days))
        drift = self._normals(DRIFT, columns) * (self.signal * self.volatility)
        # the first day is already a stationary draw; each later one keeps phi of its predecessor
        drift[:, 1:] *= np.sqrt(1 - self.phi**2)
        for day in range(1, self.days):
            drift[:, day] += self.phi * drift[:, day - 1]
        return drift

    def _bars(self, columns: range) -> dict[str, Float[np.ndarray, "columns days"]]:
        """Return open, high, low and close of every day, with a row or not, in the order of `PRICE_COLUMNS`."""
        volatility = self._daily_volatility()
        intraday = self._noise(columns) * (volatility * np.sqrt(1 - self.gap**2))
        intraday[:, 1:] += self._drift(columns)[:, :-1]
        for row, column in enumerate(columns if self.delisting_fall else ()):
            if (last := self._lifetime(column)[1]) < self.days - 1:
                intraday[row, last] += np.log1p(-self.delisting_fall)
        move = self._normals(GAP, columns) * (self.gap * volatility) + intraday
        start = [self._rng(START, column).uniform(np.log(10), np.log(200)) for column in columns]
        log_close = np.array(start)[:, None] + np.cumsum(move, axis=1)
        with np.errstate(over="ignore", under="ignore"):
            open_, close = np.exp(log_close - intraday), np.exp(log_close)
            high = np.maximum(open_, close) * np.exp(np.abs(self._normals(HIGH, columns)) * (volatility / 2))
            low = np.minimum(open_, close) / np.exp(np.abs(self._normals(LOW, columns)) * (volatility / 2))
        if not (low.min() > SMALLEST_PRICE and high.max() < LARGEST_PRICE):
            raise UserError(
                f"prices of the synthetic market leave the float32 range with volatility {self.volatility}, signal "
                f"{self.signal} and half_life_days {self.half_life_days} over {self.days} days: lower one of them"
            )
        return dict(zip(PRICE_COLUMNS, (open_, high, low, close), strict=True))

    def _daily_volatility(self) -> Float[np.ndarray, " days"]:
        if self.turbulence == 1:
            return np.full(self.days, self.volatility)
        calm = float(self.volatility / np.sqrt(1 + self._turbulent_share * (self.turbulence**2 - 1)))
        return np.where(self.turbulent(), self.turbulence * calm, calm)

    def _noise(self, columns: range) -> Float[np.ndarray, "columns days"]:
        """Return noise of unit variance on every day."""
        noise = np.stack([self._shocks(OWN, column) for column in columns])
        noise *= np.sqrt(max(self._own_share, 0))
        noise += self._shocks(MARKET, 0) * np.sqrt(self.market_share)
        if self.sectors > 1:
            sector = np.array(columns) % self.sectors
            for number in np.unique(sector).tolist():
                noise[sector == number] += self._shocks(SECTOR, number) * np.sqrt(self.sector_share)
        return noise

    def _shocks(self, role: int, number: int) -> Float[np.ndarray, " days"]:
        """Return one factor's draws; Student's t is a normal draw over the root of an independent chi-squared one."""
        normal = self._rng(role, number).standard_normal(self.days)
        if self.tail_df is None:
            return normal
        return normal * np.sqrt((self.tail_df - 2) / self._rng(TAIL, role, number).chisquare(self.tail_df, self.days))

    def _lifetime(self, column: int) -> tuple[int, int]:
        """Return the first and last day on which the column is listed."""
        late, early, first_share, last_share = self._rng(LIFETIME, column).random(4).tolist()
        first, last = 0, self.days - 1
        if column > 0 and late < self.late_listings:
            first = 1 + int(first_share * (self.days - 1))
        if column > 0 and early < self.delistings:
            last = first + int(last_share * (self.days - 1 - first))
        return first, last

    def _kept_rows(self, columns: range) -> Bool[np.ndarray, "columns days"]:
        kept = np.ones((len(columns), self.days), dtype=np.bool_)
        if self.missing or self.halts or self.late_listings or self.delistings:
            # the first column keeps every day, so that rows of drift() and of the panel agree
            for column in range(max(columns.start, 1), columns.stop):
                self._leave_out(kept[column - columns.start], column)
        return kept

    def _leave_out(self, kept: Bool[np.ndarray, " days"], column: int) -> None:
        if self.missing:
            kept &= self._rng(MISSING, column).random(self.days) >= self.missing
        halt = self._rng(HALT, column)
        count = halt.poisson(self.halts)
        starts, lengths = halt.integers(0, self.days, count), halt.geometric(1 / self.halt_days, count)
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            kept[start : start + length] = False
        first, last = self._lifetime(column)
        kept[first] = True
        if last < self.days - 1:
            kept[last] = True
        kept[:first] = False
        kept[last + 1 :] = False

    def _rng(self, *address: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=address))

    def _normals(self, role: int, columns: range) -> Float[np.ndarray, "columns days"]:
        return np.stack([self._rng(role, column).standard_normal(self.days) for column in columns])


def write_parquet(market: SyntheticMarket, path: str | Path, *, columns_per_block: int = COLUMNS_PER_BLOCK) -> int:
    """Write the market as a Parquet file, a block of columns at a time, and return the number of rows.

    The file appears complete or not at all, and replaces an earlier one. What a killed process leaves in a hidden
    folder beside it is removed by the next one that writes the same file. A row group holds `columns_per_block` columns
    (at least 1), which are in memory at once.

    Raises:
        UserError: the path does not end in .parquet, its folder is missing or cannot be written to, another process is
            writing it, the disk is full, or prices leave the float32 range.
    """
    path = Path(path)
    if path.suffix != ".parquet":
        raise UserError(f"the market's file is {str(path)!r}: name one that ends in .parquet")
    if not path.parent.is_dir():
        raise UserError(f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}: make it first")
    if path.is_dir():
        raise UserError(f"{str(path)!r} is a directory: name a file")
    rows = 0
    try:
        with draft_folder(path) as folder:
            draft = folder / "market.parquet"
            with pq.ParquetWriter(draft, SCHEMA, compression="zstd", use_dictionary=["date", "ticker"]) as writer:
                for block in market.blocks(columns_per_block):
                    writer.write_table(pa.Table.from_pandas(block, SCHEMA, preserve_index=False))
                    rows += len(block)
            move_into_place(draft, path)
    except OSError as error:
        raise UserError(
            f"cannot write {str(path)!r} ({error.strerror or error}): name a file in a folder that can be written to,"
            " with enough space"
        ) from error
    return rows
