"""Placement of fuel breaks that saves most, by branch and bound, with what may be missing where it was stopped."""

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from eigen2.fire.simulation.spread import FireModel, Fires


class Optimum(NamedTuple):
    """Best placement found, which is optimal if `saved` is `bound`."""

    cells: list[int]  # breaks, fewer than the budget if more would save nothing
    saved: int  # cells that they save, summed over fires
    bound: int  # most that any placement can save


class _Branch(NamedTuple):
    """Placements that hold the `chosen` breaks and, besides, only cells of `order`, from `first` on."""

    chosen: tuple[int, ...]
    saved: int  # by the chosen breaks alone
    order: Int64[np.ndarray, " candidates"]  # by decreasing `gains`
    gains: Int64[np.ndarray, " candidates"]  # most that a break in each cell can save besides
    first: int = 0

    def bound(self, left: int) -> int:
        """Return the most that any placement of the branch saves, with `left` breaks to place."""
        return self.saved + int(self.gains[self.first : self.first + left].sum())


def optimum(
    model: FireModel,
    budget: int,
    ignitions: Int64[np.ndarray, " fires"] | None = None,
    start: Sequence[int] = (),
    nodes: int = 100_000,
) -> Optimum:
    """Return the placement of at most `budget` breaks that saves most; `nodes` limits the simulated partial placements.

    Fires start in the cells of `ignitions`; None ignites every cell that burns.

    What a set of breaks saves beyond those already placed is at most the sum of the cells that burn through each of
    them, given those already placed: a cell can only be saved if a break lies on its fastest path. Branches are
    searched in order of this bound. A good placement to `start` from prunes more of them. Raises ValueError if that has
    more breaks than the budget.
    """
    if len(start) > budget:
        raise ValueError(f"start has {len(start)} breaks, more than the budget of {budget}")
    unbroken = model.start(ignitions, trees=True)
    before = unbroken.lost
    best = Optimum(list(start), before - model.start(ignitions, start).lost, before)
    root, ties = _branch((), unbroken, 0, np.flatnonzero(model.burnable)), count()
    heap = [(-root.bound(budget), next(ties), root)]
    while heap and nodes > 0 and -heap[0][0] > best.saved:
        _, _, parent = heappop(heap)
        left = budget - len(parent.chosen)
        later = parent._replace(first=parent.first + 1)
        if later.first < later.order.size:
            heappush(heap, (-later.bound(left), next(ties), later))
        chosen = (*parent.chosen, int(parent.order[parent.first]))
        fires = model.start(ignitions, chosen, trees=left > 1)
        nodes -= 1
        saved = before - fires.lost
        if saved > best.saved:
            best = best._replace(cells=[*chosen], saved=saved)
        if left > 1 and later.first < later.order.size:
            child = _branch(chosen, fires, saved, later.order[later.first :])
            heappush(heap, (-child.bound(left - 1), next(ties), child))
    return best._replace(bound=max(best.saved, -heap[0][0]) if heap else best.saved)


def _branch(chosen: tuple[int, ...], fires: Fires, saved: int, cells: Int64[np.ndarray, " candidates"]) -> _Branch:
    gains = fires.downstream[cells]
    by_gain = np.argsort(-gains, kind="stable")
    return _Branch(chosen, saved, cells[by_gain], gains[by_gain])
