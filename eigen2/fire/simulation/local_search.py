"""Improvement of a placement of fuel breaks by moves of ever more of them, which can be stopped at any time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from eigen2.fire.simulation.spread import FireModel, Fires

CANDIDATES = 24  # cells tried in place of a break; of two breaks moved at once, its square for each, and so on
EVALUATIONS = 1000  # simulations that `improve` takes without a limit of its own
FIRES = 256  # most fires it simulates


@dataclass
class Limit:
    """The simulations after which a search stops, and how many it has made; None sets no limit."""

    evaluations: int | None = None
    used: int = 0

    def reached(self) -> bool:
        """Return whether the search must stop."""
        return self.evaluations is not None and self.used >= self.evaluations


def improve(
    model: FireModel, start: Sequence[int], rng: np.random.Generator, limit: Limit | None = None, fires: int = FIRES
) -> list[int]:
    """Return a placement with as many breaks as `start` that saves at least as much of the fires simulated.

    Takes the breaks in random groups of one and moves each group to where it saves most; while no group moves, groups
    grow by a break, as a wall of two may save nothing until both stand. Ends when all breaks at once gain nothing.
    Fires start in `fires` random cells, or, if there are not more, in all that burn.
    """
    limit = limit or Limit(EVALUATIONS)
    ignitions = None if fires >= model.burnable.sum() else model.draw(fires, rng)
    now, cells, size = model.start(ignitions, start, trees=True), list(start), 1
    limit.used += 1
    while size <= len(cells) and not limit.reached():
        places = rng.permutation(len(cells)).tolist()
        moved = [_move(now, cells, places[first : first + size], limit) for first in range(0, len(cells), size)]
        size = 1 if any(moved) else size + 1
    return cells


def _move(fires: Fires, cells: list[int], group: list[int], limit: Limit) -> bool:
    """Move a group of the breaks in `cells`, by its places in there, to where it saves most; return whether it did."""
    if limit.reached():
        return False
    burned = fires.lost
    for place in group:
        fires.remove_break(cells[place])
    free = np.flatnonzero(fires.model.burnable & ~fires.breaks)
    better, _ = _best(fires, free, len(group), fires.lost - burned, CANDIDATES ** len(group), limit)
    for place, cell in zip(group, better or [cells[place] for place in group], strict=True):
        cells[place] = cell
        fires.add_break(cell)
    limit.used += 2 * len(group)
    return bool(better)


def _best(
    fires: Fires, free: Int64[np.ndarray, " free"], count: int, most: int, width: int, limit: Limit
) -> tuple[list[int], int]:
    """Return the `count` free cells whose breaks save most, and what they save; none if that is not above `most`.

    Branch and bound as in `optimum`, depth first: of each break, the `width` cells that most burns through are tried.
    """
    by_gain = np.argsort(-fires.downstream[free], kind="stable")[:width]
    free, best = free[by_gain], list[int]()
    gains, burned = fires.downstream[free], fires.lost
    for number, cell in enumerate(free.tolist()):
        if gains[number : number + count].sum() <= most or limit.reached():
            break
        limit.used += 1
        if count == 1:
            cells, saved = [cell], fires.saved(cell)
        else:
            fires.add_break(cell)
            gained = burned - fires.lost
            others, more = _best(fires, free[number + 1 :], count - 1, most - gained, width, limit)
            cells, saved = ([cell, *others], gained + more) if others else ([], most)
            fires.remove_break(cell)
            limit.used += 1
        if saved > most:
            best, most = cells, saved
    return best, most
