"""Best forecasts of a synthetic market's returns, and the gain that a position is then expected to make."""

import numpy as np
from jaxtyping import Float, Float32

from eigen2.market.simulation.policies import CLOSE, OPEN
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.synthetic.generator import SyntheticMarket


def filtered_drift(
    market: SyntheticMarket, prices: Float32[np.ndarray, "days columns 4"]
) -> tuple[Float[np.ndarray, "days columns"], Float[np.ndarray, "days columns"]]:
    """Estimate mean and variance of each column's drift[t], as log returns, from its own intraday returns up to day t.

    The Kalman filter of log(close / open), which knows the market's settings; other columns, which share some of the
    noise, would add a little. Prices are NaN on days without a row.
    """
    # variances of the intraday noise and of the drift's innovation, in units of the squared volatility
    noise, innovation, phi = 1 - market.gap**2, market.signal**2 * (1 - market.phi**2), market.phi
    seen = np.log(prices[..., CLOSE].astype(np.float64) / prices[..., OPEN]) / market.volatility
    estimate, variance = np.zeros_like(seen), np.full_like(seen, market.signal**2)
    # day 0's return holds no drift
    for day in range(1, len(seen)):
        mean, spread = estimate[day - 1], variance[day - 1]
        gain = np.where(np.isnan(seen[day]), 0.0, spread / np.maximum(spread + noise, np.finfo(np.float64).tiny))
        estimate[day] = phi * (mean + gain * (np.nan_to_num(seen[day]) - mean))
        variance[day] = phi**2 * (1 - gain) * spread + innovation
    return estimate * market.volatility, variance * market.volatility**2


def expected_gain_pct(
    market: SyntheticMarket,
    rules: TradingRules,
    drift: Float[np.ndarray, "days columns"],
    variance: Float[np.ndarray, "..."],
    *,
    short: bool = False,
) -> Float[np.ndarray, "days columns"]:
    """Return the expected percent gain, net of costs, of a position ordered now and held for `max_holding_days`.

    With A(h) = 1 + phi + ... + phi^(h-1), the log return of h days has the mean A(h) drift. Its variance is that of h
    days' noise (at `next_open` without the first gap), of the innovations to come, each of which moves the drift for
    the days left, and of the error of the drift (`variance`, where it is an estimate). The gain is that of a normal log
    return, for a short sale relative to what was received; sale targets, delistings and a window's end are left out.
    """
    days = rules.max_holding_days
    noise = days - (market.gap**2 if rules.execution == "next_open" else 0)
    reach = np.cumsum(market.phi ** np.arange(days))
    to_come = market.signal**2 * (1 - market.phi**2) * (reach[:-1] ** 2).sum()
    log_variance = market.volatility**2 * (noise + to_come) + reach[-1] ** 2 * variance
    ratio: Float[np.ndarray, "days columns"] = np.exp(reach[-1] * drift + log_variance / 2)
    kept = (1 - rules.side_cost) / (1 + rules.side_cost)
    return 100 * (1 - ratio / kept) if short else 100 * (ratio * kept - 1)
