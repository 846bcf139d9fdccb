"""The best placement of fuel breaks by mixed-integer programming, to check `eigen2.fire.simulation.optimum`."""

import time

import numpy as np
from jaxtyping import Bool, Float64, Int32, Int64
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, milp
from scipy.sparse import csgraph

from eigen2.fire.simulation.optimum import Optimum
from eigen2.fire.simulation.spread import FireModel

PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0)  # of a whole break on a path, as shares of the duration
CLOSED = 1e9  # minutes for a break, so that no path leads through one if another does not
ROUNDS = 8  # relaxations solved before the program itself


def solve(model: FireModel, budget: int, ignitions: Int64[np.ndarray, " fires"], seconds: float = 60.0) -> Optimum:
    """Return the placement of at most `budget` breaks that saves most of the fires, by HiGHS.

    A binary variable says whether a cell is a break, and another how much of a pair (fire, cell it burns) is saved: no
    more than the breaks on any path by which the fire reaches the cell within its duration. Such rows are added where a
    solution breaks them: first for the relaxation, by fastest paths on which a break costs minutes; then for whole
    solutions, by simulation, until one saves what the program says or `seconds` are over.
    """
    ends = time.monotonic() + seconds
    program = _Program(model, budget, ignitions)
    program.add(np.zeros(model.cells), np.ones(program.pairs), CLOSED)
    for _ in range(ROUNDS):
        result = program.solve(integer=False, seconds=seconds)
        found = [program.add(*program.split(result), penalty * model.duration) for penalty in PENALTIES]
        if not any(found):
            break
    best, bound = Optimum([], 0, program.pairs), program.pairs
    while (left := ends - time.monotonic()) > 0:
        result = program.solve(integer=True, seconds=left)
        bound = min(bound, int(-result.mip_dual_bound + 1e-6))
        if result.x is None:
            break
        breaks, saved = program.split(result)
        cells = np.flatnonzero(breaks > 0.5).tolist()
        simulated = program.pairs - int(model.start(ignitions, cells).burns.sum())
        if simulated > best.saved:
            best = Optimum(cells, simulated, bound)
        if best.saved >= bound or not program.add(np.round(breaks), saved, CLOSED):
            break
    return best._replace(bound=max(bound, best.saved))


class _Program:
    """Columns: the cells, then the pairs of a fire and a cell that it burns. Rows: paths, and the budget."""

    def __init__(self, model: FireModel, budget: int, ignitions: Int64[np.ndarray, " fires"]) -> None:
        self.model, self.budget, self.ignitions = model, budget, ignitions
        self.burns: Bool[np.ndarray, "fires cells"] = np.isfinite(model.start(ignitions).arrival)
        self.pairs = int(self.burns.sum())
        self.minutes = model.graph.toarray()
        self.rows = sparse.csr_array((0, model.cells + self.pairs))

    def split(self, result: OptimizeResult) -> tuple[Float64[np.ndarray, " cells"], Float64[np.ndarray, " pairs"]]:
        """Return the breaks and what is saved."""
        return result.x[: self.model.cells].clip(0, 1), result.x[self.model.cells :]

    def solve(self, integer: bool, seconds: float) -> OptimizeResult:
        """Solve the program, or its relaxation."""
        cells, whole = self.model.cells, self.model.cells + self.pairs
        of_cells = np.arange(whole) < cells
        rows = sparse.vstack([self.rows, sparse.csr_array(of_cells[None].astype(float))])
        most = np.append(np.zeros(self.rows.shape[0]), self.budget)
        return milp(
            -1.0 * ~of_cells,
            constraints=LinearConstraint(rows, -np.inf, most),
            bounds=Bounds(0, np.append(self.model.burnable, np.ones(self.pairs))),
            integrality=of_cells & integer,
            options={"time_limit": seconds, "mip_rel_gap": 1e-6},
        )

    def add(self, breaks: Float64[np.ndarray, " cells"], saved: Float64[np.ndarray, " pairs"], penalty: float) -> int:
        """Add a row for each pair that is saved more than breaks lie on its path; return their number.

        Paths are the fastest ones where a break takes `penalty` more minutes.
        """
        graph = self.model.graph.copy()
        graph.data += penalty * breaks[graph.indices]
        _, before = csgraph.dijkstra(graph, indices=self.ignitions, return_predecessors=True)
        paths, minutes = self._paths(before)
        broken = (minutes <= self.model.duration) & (paths @ breaks < saved - 1e-4)
        pairs = sparse.eye_array(self.pairs, format="csr")
        self.rows = sparse.vstack([self.rows, sparse.hstack([-1 * paths, pairs], format="csr")[broken]], format="csr")
        return int(broken.sum())

    def _paths(
        self, before: Int32[np.ndarray, "fires cells"]
    ) -> tuple[sparse.csr_array, Float64[np.ndarray, " pairs"]]:
        """Return the cells on the path of each pair (pairs, cells), and the minutes it takes."""
        fire, at = np.nonzero(self.burns)
        pair, minutes, entries = np.arange(self.pairs), np.zeros(self.pairs), []
        while pair.size:
            entries.append((pair, at))
            previous = before[fire[pair], at]
            goes_on = previous >= 0
            minutes[pair] += np.where(goes_on, self.minutes[previous.clip(0), at], 0)
            pair, at = pair[goes_on], previous[goes_on]
        of, cells = map(np.concatenate, zip(*entries, strict=True))
        return sparse.csr_array((np.ones(of.size), (of, cells)), shape=(self.pairs, self.model.cells)), minutes
