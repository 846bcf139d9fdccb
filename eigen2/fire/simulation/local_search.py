"""Improvement of a placement of fuel breaks by swaps: iterated local search, which can be stopped at any time."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from eigen2.fire.simulation.spread import FireModel, Fires

CANDIDATES = 12  # cells tried in place of a break
KICK = 5  # most breaks moved at random to leave a local optimum
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

    Swaps a break for the cell that saves most in its place until no swap helps; then moves up to KICK random breaks of
    the result, or of the best one so far, to random cells that burn, and begins again. Fires start in `fires` random
    cells, or, if there are not more, in all that burn.
    """
    limit = limit or Limit(EVALUATIONS)
    ignitions = None if fires >= model.burnable.sum() else model.draw(fires, rng)
    best, least = list(start), int(model.start(ignitions, start).burns.sum())
    cells = list(start)
    while start and not limit.reached():
        now = model.start(ignitions, cells, trees=True)
        limit.used += 1
        while any(_swap(now, cells, place, limit) for place in rng.permutation(len(cells)).tolist()):
            pass
        if now.burns.sum() <= least:
            best, least = [*cells], int(now.burns.sum())
        cells = _kick(best if rng.random() < 0.5 else cells, model, rng)
    return best


def _swap(fires: Fires, cells: list[int], place: int, limit: Limit) -> bool:
    """Move a break to the cell that saves most in its place, of CANDIDATES; return whether it moved."""
    if limit.reached():
        return False
    burned, old = int(fires.burns.sum()), cells[place]
    fires.remove_break(old)
    most = int(fires.burns.sum()) - burned
    bound = np.where(fires.model.burnable & ~fires.breaks, fires.downstream, -1)
    for cell in np.argsort(-bound, kind="stable")[:CANDIDATES].tolist():
        if bound[cell] <= most or limit.reached():  # a break saves no more than burns through its cell
            break
        limit.used += 1
        if (saved := fires.saved(cell)) > most:
            cells[place], most = cell, saved
    fires.add_break(cells[place])
    limit.used += 2
    return cells[place] != old


def _kick(cells: Sequence[int], model: FireModel, rng: np.random.Generator) -> list[int]:
    """Return the breaks with up to KICK of them moved to random cells that burn."""
    free = np.setdiff1d(np.flatnonzero(model.burnable), cells)
    count = min(int(rng.integers(1, KICK + 1)), len(cells), free.size)
    moved = np.array(cells)
    moved[rng.choice(len(cells), count, replace=False)] = rng.choice(free, count, replace=False)
    kicked: list[int] = moved.tolist()
    return kicked
