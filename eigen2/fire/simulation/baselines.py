"""Ways to choose fuel breaks without learning, from chance to search, and what they save.

Each is a function of a landscape's model, the budget, a generator and the ignitions that it may look at; it returns the
cells in the order in which they become breaks.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float64, Int
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import linalg

from eigen2.errors import UserError, require_range
from eigen2.fire.simulation.spread import FireModel

SMALL = 64
"""Nodes up to which all eigenvalues are computed, rather than the lowest one by iteration."""


Placement = Callable[..., list[int]]
"""Called with a landscape's `FireModel`, the budget, a generator for those that draw, and the ignitions for those that
let fires burn, of which None are all cells that burn. It returns the numbers of different cells that burn: as many as
the budget, or all, if there are fewer."""


def random(
    model: FireModel, budget: int, rng: np.random.Generator, ignitions: Int[np.ndarray, " fires"] | None = None
) -> list[int]:
    """By lot."""
    cells: list[int] = rng.permutation(np.flatnonzero(model.burnable))[:budget].tolist()
    return cells


def domirank(
    model: FireModel, budget: int, rng: np.random.Generator, ignitions: Int[np.ndarray, " fires"] | None = None
) -> list[int]:
    """The cells of highest DomiRank in the graph whose weights are log(1 + spread rate), with sigma 1 - cells**-1.5."""
    return _highest(model, domirank_scores(log_rates(model), 1 - model.cells**-1.5), budget)


def in_degree(
    model: FireModel, budget: int, rng: np.random.Generator, ignitions: Int[np.ndarray, " fires"] | None = None
) -> list[int]:
    """The cells into which fire spreads fastest: with the highest sum of log(1 + spread rate) over incoming edges."""
    return _highest(model, log_rates(model).sum(0), budget)


def downstream(
    model: FireModel, budget: int, rng: np.random.Generator, ignitions: Int[np.ndarray, " fires"] | None = None
) -> list[int]:
    """The cells through which most cells burn while there are no breaks."""
    return _highest(model, model.start(ignitions, trees=True).downstream, budget)


def adaptive_downstream(
    model: FireModel, budget: int, rng: np.random.Generator, ignitions: Int[np.ndarray, " fires"] | None = None
) -> list[int]:
    """One by one the cell through which most cells burn, given the breaks before it."""
    fires = model.start(ignitions, trees=True)
    chosen: list[int] = []
    for _ in range(min(budget, int(model.burnable.sum()))):
        chosen += _highest(model, np.where(fires.breaks, -1, fires.downstream), 1)
        fires.add_break(chosen[-1])
    return chosen


def greedy(
    model: FireModel,
    budget: int,
    rng: np.random.Generator,
    ignitions: Int[np.ndarray, " fires"] | None = None,
    candidates: int | None = 24,
) -> list[int]:
    """One by one the cell whose break saves most, given the breaks before it: every candidate is tried.

    Candidates are tried in order of how many cells burn through them. As a break saves no more than that, the search
    ends as soon as the next candidate could not beat the best so far: with `candidates` None the choice is exact.

    Args:
        model: of the landscape.
        budget: breaks to place.
        rng: not used.
        ignitions: cells in which fires start; None takes every cell that burns.
        candidates: tried at most for a break (1 or more); None tries as many as it takes.
    """
    fires = model.start(ignitions, trees=True)
    chosen: list[int] = []
    for _ in range(min(budget, int(model.burnable.sum()))):
        bound = np.where(model.burnable & ~fires.breaks, fires.downstream, -1)
        order = np.argsort(-bound, kind="stable")[:candidates]
        best, most = int(order[0]), -1
        for cell in order.tolist():
            if bound[cell] <= most:
                break
            saved = fires.saved(cell)
            if saved > most:
                best, most = cell, saved
        chosen.append(best)
        fires.add_break(best)
    return chosen


PLACEMENTS: dict[str, Placement] = {
    "random": random,
    "domirank": domirank,
    "in_degree": in_degree,
    "downstream": downstream,
    "adaptive_downstream": adaptive_downstream,
    "greedy": greedy,
}
"""All of them, by name."""


def evaluate(
    placement: Placement,
    model: FireModel,
    budget: int,
    rng: np.random.Generator,
    ignitions: Int[np.ndarray, " fires"] | None = None,
) -> float:
    """The part of the burned area that a placement saves, over fires from every cell that burns (0 to 1).

    Args:
        placement: one of `PLACEMENTS`, or one's own.
        model: of the landscape.
        budget: breaks to place (0 or more).
        rng: for placements that draw.
        ignitions: those that the placement may look at; None takes every cell that burns.

    Raises:
        UserError: nothing burns.
    """
    require_range("budget", budget, least=0)
    return reduction(model, placement(model, budget, rng, ignitions))


def reduction(model: FireModel, breaks: list[int]) -> float:
    """The part of the burned area that breaks save, over fires from every cell that burns (0 to 1).

    Raises:
        UserError: nothing burns.
    """
    before = model.start().burned
    if before == 0:
        raise UserError("nothing burns in the landscape; look at its fuel and the moistures")
    return 1 - model.start(breaks=breaks).burned / before


def log_rates(model: FireModel) -> sparse.csr_array:
    """From cell to neighbour (cells, cells): log(1 + the rate in m/min at which fire spreads into the neighbour)."""
    graph = model.graph.copy()
    graph.data = np.log1p(model.cell_size / graph.data)
    return graph


def domirank_scores(adjacency: sparse.csr_array, sigma: float) -> Float64[np.ndarray, " nodes"]:
    """DomiRank (Engsig et al. 2024): a node scores high where it has many strong edges to nodes that score low.

    The scores psi solve `(s A + I) psi = s A 1`, with s = sigma / -(lowest eigenvalue of A).

    Args:
        adjacency: weights from node to node (nodes, nodes), 0 or more.
        sigma: how much nodes compete (at least 0, below 1); near 0 the scores are those of the weighted out-degree.

    Returns:
        One score a node; all 0 where there are no edges, or none go both ways.

    Raises:
        UserError: sigma is outside its range.
    """
    if not 0 <= sigma < 1:
        raise UserError(f"sigma is {sigma}; it must be at least 0 and below 1")
    lowest = _lowest_eigenvalue(adjacency)
    if lowest > -1e-12:
        return np.zeros(adjacency.shape[0])
    scaled = adjacency * (sigma / -lowest)
    system = (scaled + sparse.eye_array(adjacency.shape[0])).tocsc()
    scores: Float64[np.ndarray, " nodes"] = linalg.spsolve(system, scaled.sum(1))
    return scores


def _lowest_eigenvalue(adjacency: sparse.csr_array) -> float:
    """The smallest real part."""
    nodes = adjacency.shape[0]
    if nodes <= SMALL:
        return float(np.linalg.eigvals(adjacency.toarray()).real.min())
    found = linalg.eigs(adjacency, k=1, which="SR", v0=np.ones(nodes), return_eigenvectors=False)
    return float(found[0].real)


def _highest(model: FireModel, scores: NDArray[np.generic], count: int) -> list[int]:
    """The cells that burn with the highest scores; of equal ones, the first."""
    order = np.argsort(-np.where(model.burnable, scores, -np.inf), kind="stable")
    cells: list[int] = order[: min(count, int(model.burnable.sum()))].tolist()
    return cells
