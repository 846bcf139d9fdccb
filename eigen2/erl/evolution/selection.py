"""Rank agents by fitness, and plan which of them are replaced by children of which others."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from eigen2.erl.evolution.operator import Child, EvolutionContext, Operator, Ranking
from eigen2.errors import UserError


def check_operators(operators: Sequence[Operator]) -> None:
    """Refuse a list of operators that cannot fill a population.

    Raises:
        UserError: names the setting, its value and the remedy.
    """
    names = [operator.name for operator in operators]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"model.evolution lists two operators named {twice}; leave one out, or give it another name")
    if all(operator.share is not None or not _fills(operator) for operator in operators):
        raise UserError(
            "model.evolution has no operator that fills the rest of the population; give one, such as "
            "MagnitudeMutation, a share of null"
        )
    shares = {operator.name: operator.share for operator in operators if operator.share is not None}
    if sum(shares.values()) > 1:
        parts = " + ".join(f"{name} {share}" for name, share in shares.items())
        raise UserError(f"the shares of model.evolution exceed 1 ({parts}); lower one of them")


def _fills(operator: Operator) -> bool:
    """Return whether the operator chooses the agents it replaces by its share."""
    return type(operator).rows is Operator.rows


def rank(fitness: Float[np.ndarray, " agents"]) -> list[int]:
    """Return agents from the fittest to the least fit; ties by number, those without a finite fitness last."""
    return [int(row) for row in np.argsort(-np.where(np.isfinite(fitness), fitness, -np.inf), kind="stable")]


def ranking_of(fitness: Float[np.ndarray, " agents"], operators: Sequence[Operator], learners: int) -> Ranking:
    """Rank agents and divide them into those that are kept and those to be replaced.

    Args:
        fitness: of all agents.
        operators: of the run.
        learners: the first agents, which do not evolve; one that failed is replaced all the same. 0 lets all evolve.

    Raises:
        ValueError: no agent that evolves has a finite fitness.
    """
    failed = ~np.isfinite(fitness)
    evolving = [row for row in rank(fitness) if row >= learners]
    eligible = [row for row in evolving if not failed[row]]
    if not eligible:
        raise ValueError("no agent has a finite fitness: there is no parent")
    elites = eligible[: sum(operator.kept(len(evolving)) for operator in operators)]
    replaced = sorted([*evolving[len(elites) :], *(row for row in range(learners) if failed[row])])
    best = max(range(learners), key=lambda row: (not failed[row], fitness[row], -row), default=None)
    fittest_learner = None if best is None or failed[best] else best
    return Ranking(fitness, evolving, eligible, elites, replaced, fittest_learner)


def plan(
    ranking: Ranking, operators: Sequence[Operator], context: EvolutionContext, generator: np.random.Generator
) -> list[Child]:
    """Return the children of a generation, in the order of the agents they replace.

    Args:
        ranking: of the generation's fitness.
        operators: choose whom they replace in this order, then the parents of each child in the order of the rows.
        context: state of the run.
        generator: of this generation.
    """
    taken: dict[int, Operator] = {}
    for operator in operators:
        for row in operator.rows(ranking, context, taken):
            taken.setdefault(row, operator)
    children = []
    for row in ranking.replaced:
        if row in taken:
            parents, blend = taken[row].parents(ranking, generator)
            children.append(Child(row, taken[row], parents, blend))
    return children
