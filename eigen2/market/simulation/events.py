"""Events of a day in the trading environment."""

from typing import NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float32, Float64, Int


class OpenedPositions(NamedTuple):
    """Positions that a step opened, by rank and then by account; coefficients of short sales are negative.

    Cells are indices into the flattened (agents, windows, columns). Prices are before costs, stakes are shares of the
    equity at the decision.
    """

    cell: Int[np.ndarray, " filled"]
    price: Float32[np.ndarray, " filled"]
    coefficient: Float32[np.ndarray, " filled"]
    stake: Float64[np.ndarray, " filled"]


class ClosedPositions(NamedTuple):
    """Positions that a step closed, by account and then by column; reasons are indices into `CLOSE_REASONS`.

    Cells and prices as in `OpenedPositions`, gains are net of costs; the rewards are parts of the accounts' rewards.
    """

    cell: Int[np.ndarray, " closed"]
    price: Float32[np.ndarray, " closed"]
    reason: Int[np.ndarray, " closed"]
    gain_pct: Float64[np.ndarray, " closed"]
    reward: Float64[np.ndarray, " closed"]


NO_FILLS = OpenedPositions(np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros(0, np.float32), np.zeros(0))
NO_CLOSES = ClosedPositions(np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros(0, np.int64), *np.zeros((2, 0)))
Events = TypeVar("Events", OpenedPositions, ClosedPositions)


def events_of_agent(events: Events, agent: int, cells: int) -> Events:
    """Return the events of one agent, which has `cells` cells, as if it were alone."""
    mask = events.cell // cells == agent
    return type(events)(events.cell[mask] - agent * cells, *(values[mask] for values in events[1:]))
