"""A market with a known answer: prices driven by a hidden drift that persists for a while."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from eigen2.errors import UserError
from eigen2.market.source import LARGEST_PRICE, SMALLEST_PRICE

FIRST_DAY = np.datetime64("2000-01-03")
# each kind of draw has its own generator, so that changing one setting leaves the other draws alone
DRIFT, START, GAP, MARKET, OWN, HIGH, LOW, VOLUME, MISSING = range(9)


@dataclass
class SyntheticMarket:
    """Settings of the synthetic market.

    With close[-1] the starting price and drift[-1] = 0, day t of every column is, in logarithms, open[t] =
    close[t-1] + gap[t] and close[t] = open[t] + drift[t-1] + noise[t]: what drift[t] will do to day t+1 is
    settled at the close of day t, and whoever trades at the open of day t+1 still earns all of it. The drift
    is an AR(1) process, drift[t] = phi drift[t-1] + innovation, started in its stationary distribution. Gap,
    noise and innovation are independent normal draws with mean 0; gap and noise together have the standard
    deviation `volatility`. High and low lie outside open and close by independent half-normal distances.
    """

    days: int = 1500
    """Number of business days, from 2000-01-03 on; at least 2."""
    columns: int = 20
    """Number of tickers, S0000, S0001 and so on; at least 1."""
    seed: int = 0
    """Seed of every draw; at least 0."""
    volatility: float = 0.02
    """Standard deviation of a day's log return without the drift; above 0, at most 0.5."""
    signal: float = 0.1
    """Standard deviation of the drift relative to the volatility; 0 (nothing to predict) to 10."""
    half_life_days: float = 20.0
    """Days after which half of a drift is left; above 0."""
    market_share: float = 0.3
    """Share of the noise variance that all columns have in common; 0 to 1."""
    gap: float = 0.1
    """Standard deviation of the move from a close to the next open, relative to the volatility; 0 to 1."""
    missing: float = 0.0
    """Fraction of rows left out, at random (never a column's first day, nor a whole day); 0 to below 1."""

    def __post_init__(self) -> None:
        bounds: dict[str, tuple[bool, str]] = {
            "days": (self.days >= 2, "at least 2"),
            "columns": (self.columns >= 1, "at least 1"),
            "seed": (self.seed >= 0, "at least 0"),
            "volatility": (0 < self.volatility <= 0.5, "above 0 and at most 0.5"),
            "signal": (0 <= self.signal <= 10, "between 0 and 10"),
            "half_life_days": (0 < self.half_life_days < float("inf"), "above 0 and finite"),
            "market_share": (0 <= self.market_share <= 1, "between 0 and 1"),
            "gap": (0 <= self.gap <= 1, "between 0 and 1"),
            "missing": (0 <= self.missing < 1, "at least 0 and below 1"),
        }
        for name, (holds, range_) in bounds.items():
            if not holds:
                raise UserError(f"synthetic market: {name} is {getattr(self, name)}: set it {range_}")

    def drift(self) -> Float[np.ndarray, "days columns"]:
        """Return the hidden drift: row t is the expected log return of day t+1, settled at day t's close."""
        phi = 0.5 ** (1 / self.half_life_days)
        std = self.signal * self.volatility
        drift = self._normal(DRIFT) * std
        # the first row is already a stationary draw; each later one keeps phi of its predecessor
        drift[1:] *= np.sqrt(1 - phi**2)
        for day in range(1, self.days):
            drift[day] += phi * drift[day - 1]
        return drift

    def generate(self) -> pd.DataFrame:
        """Draw the market.

        Returns:
            A long table as `eigen2.market.source.read_prices` returns it, sorted by (ticker, date).

        Raises:
            UserError: when volatility, signal and number of days carry prices out of the float32 range.
        """
        open_, close = self._open_and_close()
        reach = self.volatility / 2
        high = np.maximum(open_, close) * np.exp(np.abs(self._normal(HIGH)) * reach)
        low = np.minimum(open_, close) / np.exp(np.abs(self._normal(LOW)) * reach)
        if not (low.min() > SMALLEST_PRICE and high.max() < LARGEST_PRICE):
            raise UserError(
                f"synthetic market: prices leave the float32 range with volatility {self.volatility}, signal"
                f" {self.signal} and half_life_days {self.half_life_days} over {self.days} days:"
                " lower one of them"
            )
        volume = np.round(1e6 * np.exp(self._normal(VOLUME) / 2))
        kept = self._kept_rows().T
        dates = np.busday_offset(FIRST_DAY, np.arange(self.days)).astype("datetime64[s]")
        width = max(4, len(str(self.columns - 1)))
        tickers = np.array([f"S{column:0{width}d}" for column in range(self.columns)], dtype=object)
        values = {"open": open_, "high": high, "low": low, "close": close, "volume": volume}
        return pd.DataFrame(
            {
                "date": np.broadcast_to(dates, kept.shape)[kept],
                "ticker": pd.Series(np.repeat(tickers, kept.sum(axis=1)), dtype="str"),
                **{name: value.T[kept] for name, value in values.items()},
            }
        )

    def _open_and_close(self) -> tuple[Float[np.ndarray, "days columns"], Float[np.ndarray, "days columns"]]:
        gap = self._normal(GAP) * (self.gap * self.volatility)
        noise = self._normal(OWN) * np.sqrt(1 - self.market_share)
        noise += self._rng(MARKET).standard_normal((self.days, 1)) * np.sqrt(self.market_share)
        intraday = noise * (self.volatility * np.sqrt(1 - self.gap**2))
        intraday[1:] += self.drift()[:-1]
        start = self._rng(START).uniform(np.log(10), np.log(200), self.columns)
        log_close = start + np.cumsum(gap + intraday, axis=0)
        with np.errstate(over="ignore", under="ignore"):
            return np.exp(log_close - intraday), np.exp(log_close)

    def _kept_rows(self) -> Bool[np.ndarray, "days columns"]:
        kept = self._rng(MISSING).random((self.days, self.columns)) >= self.missing
        # every day and every column stays in the table, so that rows of drift() and of the panel agree
        kept[0] = True
        kept[~kept.any(axis=1), 0] = True
        return kept

    def _rng(self, role: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, role])

    def _normal(self, role: int) -> Float[np.ndarray, "days columns"]:
        return self._rng(role).standard_normal((self.days, self.columns))
