"""Rank agents by fitness, and plan which of them are replaced by children of which others."""

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from eigen2.erl.evolution.operator import Child, EvolutionContext, Operator, Parents, Ranking
from eigen2.errors import UserError


def check_operators(operators: Sequence[Operator]) -> None:
    """Refuse a list of operators that cannot fill a population, by a UserError that names the remedy."""
    ((name, count),) = Counter(operator.name for operator in operators).most_common(1) or [("", 0)]
    if count > 1:
        raise UserError(f"model.evolution lists two operators named {name}; leave one out, or give it another name")
    if operators and all(type(operator).kept is Operator.kept for operator in operators):
        raise UserError(
            "model.evolution keeps no agent, so that the fittest would be lost before it is validated; add "
            "eigen2.erl.evolution.Elitism"
        )
    for operator in operators:
        if type(operator).kept is Operator.kept and type(operator).parents is Operator.parents:
            raise UserError(f"model.evolution has {operator!r}, which has no `parents`: it could not make a child")
    # an operator of the default `rows` chooses by its share
    if not any(operator.share is None and type(operator).rows is Operator.rows for operator in operators):
        raise UserError(
            "model.evolution has no operator that fills the rest of the population; give one, such as "
            "MagnitudeMutation, a share of null"
        )
    shares = {operator.name: operator.share for operator in operators if operator.share is not None}
    if sum(shares.values()) > 1 + 1e-9:  # sums of decimal fractions round
        parts = " + ".join(f"{name} {share}" for name, share in shares.items())
        raise UserError(f"the shares of model.evolution exceed 1 ({parts}); lower one of them")


def rank(fitness: Float[np.ndarray, " agents"]) -> list[int]:
    """Return agents from the fittest to the least fit; ties by number, those without a finite fitness last."""
    return [int(row) for row in np.argsort(-np.where(np.isfinite(fitness), fitness, -np.inf), kind="stable")]


def ranking_of(fitness: Float[np.ndarray, " agents"], operators: Sequence[Operator], first_evolving: int) -> Ranking:
    """Rank agents and divide them into those that are kept and those to be replaced.

    Agents before `first_evolving`, the learner or none, do not evolve. ValueError if all others failed.
    """
    finite, order = np.isfinite(fitness), rank(fitness)
    evolving = [row for row in order if row >= first_evolving]
    eligible = [row for row in evolving if finite[row]]
    if not eligible:
        raise ValueError("no agent has a finite fitness: there is no parent")
    elites = eligible[: sum(operator.kept(len(evolving)) for operator in operators)]
    replaced = sorted(evolving[len(elites) :])
    return Ranking(fitness, evolving, eligible, elites, replaced, 0 if first_evolving and finite[0] else None)


def plan(
    ranking: Ranking, operators: Sequence[Operator], context: EvolutionContext, generator: np.random.Generator
) -> list[Child]:
    """Return the children of a generation, in the order of the agents they replace.

    Operators choose whom they replace in their order, then the parents of each child in the order of the rows.
    """
    taken: dict[int, Operator] = {}
    for operator in operators:
        for row in operator.rows(ranking, context, taken):
            taken.setdefault(row, operator)
    chosen = [(row, taken[row]) for row in ranking.replaced if row in taken]
    return [Child(row, operator, *_parents(operator, ranking, generator)) for row, operator in chosen]


def idle(operators: Sequence[Operator], agents: int, context: EvolutionContext) -> list[Operator]:
    """Return the operators that keep and replace none of `agents` agents, even if all are due and none has failed.

    Those that choose by rules of their own, which may depend on the generation, are not among them.
    """
    operators = copy.deepcopy(operators)  # a user's own may have a state
    ranking = ranking_of(np.arange(agents, dtype=np.float64), operators, context.first_evolving)
    # in generation -1, all that are due every so many generations are
    children = plan(ranking, operators, replace(context, generation=-1), np.random.default_rng(0))
    used = {child.operator.name for child in children}
    known = [each for each in operators if type(each).rows.__module__.startswith("eigen2.")]
    return [each for each in known if each.name not in used and not each.kept(len(ranking.evolving))]


def _parents(operator: Operator, ranking: Ranking, generator: np.random.Generator) -> Parents:
    """Return what an operator chooses; raise a UserError if a user's own gives what are no parents."""
    chosen = operator.parents(ranking, generator)
    agents = range(len(ranking.fitness))
    if not (
        isinstance(chosen, Parents)
        and chosen.rows
        and all(row in agents for row in chosen.rows)
        and 0 <= chosen.blend <= 1
    ):
        raise UserError(
            f"{type(operator).__name__}.parents returns {chosen!r}; return Parents of one or more of the agents 0 to "
            f"{agents[-1]}, with a blend of 0 to 1"
        )
    return chosen
