"""Improvement of a placement of fuel breaks by swaps: iterated local search, which can be stopped at any time."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise

import numpy as np
from jaxtyping import Int64

from eigen2.fire.simulation.spread import FireModel, Fires

CANDIDATES = 24  # cells tried in place of a break
PAIRS = 10  # pairs of breaks tried where no single swap helps
KICK = 3  # most breaks moved at random to leave a local optimum
EVALUATIONS = 1000  # simulations that `improve` takes without a limit of its own
FIRES = 256  # most fires it simulates


@dataclass
class Limit:
    """When a search stops: after some simulations, which repeats exactly, or some seconds; None sets no limit."""

    evaluations: int | None = None
    seconds: float | None = None
    used: int = 0
    _started: float = field(default_factory=time.monotonic)

    def reached(self) -> bool:
        """Return whether the search must stop."""
        spent = self.evaluations is not None and self.used >= self.evaluations
        return spent or (self.seconds is not None and time.monotonic() - self._started >= self.seconds)


def improve(
    model: FireModel, start: Sequence[int], rng: np.random.Generator, limit: Limit | None = None, fires: int = FIRES
) -> list[int]:
    """Return a placement with as many breaks as `start` that saves at least as much of the fires simulated.

    Swaps a break for the cell that saves most in its place, or two for the best two, until neither helps; then moves up
    to KICK random breaks of the result, or of the best one so far, to random cells that burn, and begins again. Fires
    start in `fires` random cells, or, if there are not more, in all that burn.
    """
    limit = limit or Limit(EVALUATIONS)
    ignitions = None if fires >= model.burnable.sum() else model.draw(fires, rng)
    best, least = list(start), int(model.start(ignitions, start).burns.sum())
    cells = list(start)
    while start and not limit.reached():
        now = model.start(ignitions, cells, trees=True)
        limit.used += 1
        while _swap_any(now, cells, limit, rng):
            pass
        if now.burns.sum() <= least:
            best, least = [*cells], int(now.burns.sum())
        cells = _kick(best if rng.random() < 0.5 else cells, model, rng)
    return best


def _swap_any(fires: Fires, cells: list[int], limit: Limit, rng: np.random.Generator) -> bool:
    """Swap a break, or, where no such swap helps, a pair of breaks, in place; return whether any swap helped."""
    for place in rng.permutation(len(cells)).tolist():
        if _swap(fires, cells, place, limit):
            return True
    pairs = rng.permutation([*combinations(range(len(cells)), 2)])[:PAIRS].tolist()
    return any(_swap_pair(fires, cells, pair, limit) for pair in pairs)


def _swap(fires: Fires, cells: list[int], place: int, limit: Limit) -> bool:
    """Move a break to the cell that saves most in its place, of CANDIDATES; return whether it moved."""
    if limit.reached():
        return False
    burned = int(fires.burns.sum())
    fires.remove_break(cells[place])
    better, _ = _best_break(fires, int(fires.burns.sum()) - burned, limit)
    cells[place], moved = (cells[place], False) if better is None else (better, True)
    fires.add_break(cells[place])
    limit.used += 2
    return moved


def _swap_pair(fires: Fires, cells: list[int], pair: list[int], limit: Limit) -> bool:
    """Move two breaks to the cells that save most in their place, of CANDIDATES; return whether they moved."""
    if limit.reached():
        return False
    burned = int(fires.burns.sum())
    for place in pair:
        fires.remove_break(cells[place])
    free = int(fires.burns.sum())
    best, most, moved = [cells[place] for place in pair], free - burned, False
    order, bound = _candidates(fires)
    for first, after in pairwise(order):
        if bound[first] + bound[after] <= most or limit.reached():
            break
        fires.add_break(first)
        saved = free - int(fires.burns.sum())
        second, more = _best_break(fires, most - saved, limit)
        if second is not None:
            best, most, moved = [first, second], saved + more, True
        fires.remove_break(first)
        limit.used += 2
    for place, cell in zip(pair, best, strict=True):
        cells[place] = cell
        fires.add_break(cell)
    limit.used += 4
    return moved


def _best_break(fires: Fires, most: int, limit: Limit) -> tuple[int | None, int]:
    """Return the candidate whose break saves most and what it saves, None if none saves more than `most`."""
    best = None
    order, bound = _candidates(fires)
    for cell in order:
        if bound[cell] <= most or limit.reached():
            break
        limit.used += 1
        if (saved := fires.saved(cell)) > most:
            best, most = cell, saved
    return best, most


def _candidates(fires: Fires) -> tuple[list[int], Int64[np.ndarray, " cells"]]:
    """Return the cells through which most cells burn, and the most that a break in each cell saves."""
    bound = np.where(fires.model.burnable & ~fires.breaks, fires.downstream, -1)
    order: list[int] = np.argsort(-bound, kind="stable")[:CANDIDATES].tolist()
    return order, bound


def _kick(cells: Sequence[int], model: FireModel, rng: np.random.Generator) -> list[int]:
    """Return the breaks with up to KICK of them moved to random cells that burn."""
    free = np.setdiff1d(np.flatnonzero(model.burnable), cells)
    count = min(int(rng.integers(1, KICK + 1)), len(cells), free.size)
    moved = np.array(cells)
    moved[rng.choice(len(cells), count, replace=False)] = rng.choice(free, count, replace=False)
    kicked: list[int] = moved.tolist()
    return kicked
