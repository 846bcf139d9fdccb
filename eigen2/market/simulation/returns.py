"""What a position in each column would have earned beside the others: known of all, as agents do not move prices."""

import numpy as np
from jaxtyping import Float

from eigen2.market.data.panel_rows import members
from eigen2.market.simulation.policies import CLOSE, OPEN
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.simulate import Prices


def relative_returns(prices: Prices, rules: TradingRules) -> Float[np.ndarray, "days columns"]:
    """Return the percent log return of a position ordered on each day less the mean over columns; NaN if unknown.

    It runs from the fill of the order to the close `TradingRules.holding_days` later, before costs. Columns that are no
    members on the day of the order have none.
    """
    log, held = np.log(prices[..., [OPEN, CLOSE]].astype(np.float64)), rules.holding_days
    returns = np.full(prices.shape[:2], np.nan)
    stop = max(len(log) - held, 0)
    entry = log[1 : stop + 1, :, 0] if rules.execution == "next_open" else log[:stop, :, 1]
    returns[:stop] = 100 * (log[held:, :, 1] - entry)
    returns[~members(prices)] = np.nan
    known = np.isfinite(returns)
    mean = np.where(known, returns, 0).sum(1) / known.sum(1).clip(1)
    relative: np.ndarray = returns - mean[:, None]
    return relative
