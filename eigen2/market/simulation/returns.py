"""What a position in each column would have earned beside the others: known of all, as agents do not move prices."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from eigen2.market.data.panel_rows import orderable
from eigen2.market.data.source import CLOSE, OPEN
from eigen2.market.simulation.bars import halted, market_table
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.simulate import Prices

# a delisting return that changes no price: one of 0 tells `market_table` to mark no delistings
NO_DELISTING_LOSS = 1e-12
MOST_LOST = -0.9  # delisting return in place of lower ones, as all that is lost has no logarithm


def relative_returns(
    prices: Prices, rules: TradingRules, stops: Sequence[int] = ()
) -> Float[np.ndarray, "days columns"]:
    """Return the percent log return of a position ordered on each day less the mean over columns; NaN if unknown.

    It runs from the fill of the order to the close `TradingRules.holding_days` later, before costs; of a column that
    was delisted meanwhile, to its last close and the return of a delisting, as in `market_table` with these `stops`, of
    which no more than 90 % is lost. Columns that cannot be ordered on a day have none.
    """
    delisting_return, held = max(rules.delisting_return, MOST_LOST) or NO_DELISTING_LOSS, rules.holding_days
    bars = market_table(prices, delisting_return, stops).swapaxes(0, 1)
    closed = ~halted(bars) & (bars[CLOSE] > 0)
    log_open = np.log(bars[OPEN].astype(np.float64))
    log_close = np.log(bars[CLOSE].astype(np.float64), where=closed, out=np.full(closed.shape, np.nan))
    returns = np.full(closed.shape, np.nan)
    stop = max(len(closed) - held, 0)
    entry = log_open[1 : stop + 1] if rules.execution == "next_open" else log_close[:stop]
    returns[:stop] = 100 * (log_close[held:] - entry)
    returns[~orderable(prices)] = np.nan
    known = np.isfinite(returns)
    mean = np.where(known, returns, 0).sum(1) / known.sum(1).clip(1)
    return returns - mean[:, None]
