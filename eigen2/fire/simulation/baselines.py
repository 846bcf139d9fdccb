"""Placements of fuel breaks without learning, from random cells to search, and what they save."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import linalg

from eigen2.fire.simulation.local_search import improve
from eigen2.fire.simulation.spread import FireModel

SMALL = 64  # nodes up to which all eigenvalues are computed, rather than the lowest one by iteration
CANDIDATES = 24  # cells that `greedy` tries for a break
Placement = Callable[[FireModel, int, np.random.Generator], list[int]]
"""Function that returns distinct cells that burn, in the order in which they become breaks: the budget, or all."""


def random(model: FireModel, budget: int, rng: np.random.Generator) -> list[int]:
    """Choose random cells."""
    return rng.permutation(np.flatnonzero(model.burnable))[:budget].tolist()


def domirank(model: FireModel, budget: int, rng: np.random.Generator) -> list[int]:
    """Choose the cells of highest DomiRank in the graph of log(1 + spread rate), with sigma 1 - cells**-1.5."""
    return _highest(model, domirank_scores(log_rates(model), 1 - model.cells**-1.5), budget)


def in_degree(model: FireModel, budget: int, rng: np.random.Generator) -> list[int]:
    """Choose the cells into which fire spreads fastest, by the sum of log(1 + spread rate) over incoming edges."""
    return _highest(model, log_rates(model).sum(0), budget)


def downstream(model: FireModel, budget: int, rng: np.random.Generator) -> list[int]:
    """Choose the cells through which most cells burn while there are no breaks."""
    return _highest(model, model.start(trees=True).downstream, budget)


def adaptive_downstream(model: FireModel, budget: int, rng: np.random.Generator) -> list[int]:
    """Choose one by one the cell through which most cells burn, given the breaks before it."""
    return greedy(model, budget, rng, candidates=1)


def greedy(
    model: FireModel,
    budget: int,
    rng: np.random.Generator,
    candidates: int | None = CANDIDATES,
    ignitions: Int64[np.ndarray, " fires"] | None = None,
) -> list[int]:
    """Choose one by one the cell whose break saves most of `candidates`, given the breaks before it.

    Candidates are tried in order of how many cells burn through them. As a break saves no more than that, the search
    ends as soon as the next candidate cannot beat the best so far: with `candidates` None the choice is exact.
    """
    fires = model.start(ignitions, trees=True)
    chosen: list[int] = []
    for _ in range(min(budget, int(model.burnable.sum()))):
        bound = np.where(model.burnable & ~fires.breaks, fires.downstream, -1)
        order = np.argsort(-bound, kind="stable")[:candidates]
        best, most = int(order[0]), -1
        for cell in order.tolist() if order.size > 1 else ():  # one candidate needs no comparison
            if bound[cell] <= most:
                break
            saved = fires.saved(cell)
            if saved > most:
                best, most = cell, saved
        chosen.append(best)
        fires.add_break(best)
    return chosen


def local_search(model: FireModel, budget: int, rng: np.random.Generator) -> list[int]:
    """Choose as `adaptive_downstream`, and improve the choice by moves of breaks."""
    return improve(model, adaptive_downstream(model, budget, rng), rng)


PLACEMENTS: dict[str, Placement] = {
    place.__name__: place
    for place in (random, domirank, in_degree, downstream, adaptive_downstream, greedy, local_search)
}


def reduction(model: FireModel, breaks: list[int], ignitions: Int64[np.ndarray, " fires"] | None = None) -> float:
    """Return the share of the burned area that breaks save, by default over fires from every cell that burns.

    Raises ValueError if a break or an ignition cannot burn, or nothing burns.
    """
    before = model.start(ignitions).burned
    if before == 0:
        raise ValueError("nothing burns; look at the fuel")
    return 1 - model.start(ignitions, breaks=breaks).burned / before


def log_rates(model: FireModel) -> sparse.csr_array:
    """Return log(1 + the rate in m/min at which fire spreads) from cell to neighbour (cells, cells)."""
    graph = model.graph.copy()
    graph.data = np.log1p(model.cell_size / graph.data)
    return graph


def domirank_scores(adjacency: sparse.csr_array, sigma: float) -> Float64[np.ndarray, " nodes"]:
    """Return the DomiRank of each node (Engsig et al. 2024).

    A node scores high where it has many strong edges to nodes that score low. The scores psi solve
    `(s A + I) psi = s A 1`, with s = sigma / -(lowest eigenvalue of A), sigma at least 0 and below 1, for weights A
    from node to node (nodes, nodes), 0 or more; all are 0 where there are no edges, or none go both ways.
    """
    nodes = adjacency.shape[0]
    if not adjacency.nnz:  # of which ARPACK finds no eigenvalue
        return np.zeros(nodes)
    if nodes <= SMALL:
        eigenvalues = np.linalg.eigvals(adjacency.toarray())
    else:
        eigenvalues = linalg.eigs(adjacency, k=1, which="SR", v0=np.ones(nodes), return_eigenvectors=False)
    lowest = float(eigenvalues.real.min())
    if lowest > -1e-12:
        return np.zeros(nodes)
    scaled = adjacency * (sigma / -lowest)
    system = (scaled + sparse.eye_array(nodes)).tocsc()
    return linalg.spsolve(system, scaled.sum(1))


def _highest(model: FireModel, scores: NDArray[np.generic], count: int) -> list[int]:
    """Return the burning cells of the highest scores; of equal ones, the first."""
    order = np.argsort(-np.where(model.burnable, scores, -np.inf), kind="stable")
    return order[: min(count, int(model.burnable.sum()))].tolist()
