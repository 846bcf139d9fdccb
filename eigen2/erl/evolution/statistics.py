"""What becomes of elites, offspring and mutants, and how much agents differ: whether evolution works."""

import math
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eigen2.core.randomness import Role, generator
from eigen2.erl.evolution.proximal import probe_inputs

if TYPE_CHECKING:
    from eigen2.erl.evolution.selection import Child
    from eigen2.erl.module import ERLModule

KINDS = ("beginner", "elite", "offspring", "mutant", "injected", "learner", "reinjected")
"""How an agent came to be what it is, by the last evolution."""
BRED = ("elite", "offspring", "mutant", "injected", "reinjected")
PROBES = 64
"""Stored observations on which agents' actions are compared."""
MOST_COMPARED = 64
"""Agents that are compared, at most: pairs grow with the square, and rows travel to be compared."""


def kinds(size: int, children: "list[Child]", learners: int = 0) -> Int[Tensor, " agents"]:
    """The place in `KINDS` of every row after an evolution.

    Args:
        size: rows.
        children: of the evolution.
        learners: the first rows, if they do not evolve.
    """
    found = torch.full((size,), KINDS.index("elite"))
    found[:learners] = KINDS.index("learner")
    for child in children:
        found[child.row] = KINDS.index(child.kind)
    return found


def parents_fitness(fitness: Float[Tensor, " agents"], children: "list[Child]") -> Float[Tensor, " agents"]:
    """For each row the mean fitness of its parents when they bred it; its own for one that was not replaced.

    The champion has none: it does not play with the others.
    """
    found = fitness.clone()
    for child in children:
        found[child.row] = math.nan if child.kind == "reinjected" else fitness[list(child.parents)].mean()
    return found


def operator_metrics(
    kind: Int[Tensor, " agents"],
    parents: Float[Tensor, " agents"],
    fitness: Float[Tensor, " agents"],
    survived: Int[Tensor, " agents"],
) -> dict[str, float]:
    """By how an agent came to be: how often it survives, and its fitness beside its parents'; NaN where there is none.

    Args:
        kind: of the agents that were evaluated.
        parents: their parents' fitness, of the generation before.
        fitness: their own, of this generation.
        survived: kinds after this generation's evolution: an elite has survived.
    """
    found: dict[str, float] = {}
    for name in BRED:
        rows = (kind == KINDS.index(name)) & torch.isfinite(fitness)
        lives = (survived[rows] == KINDS.index("elite")).double()
        found[f"operators/{name}_survival"] = float(lives.mean())
        found[f"operators/{name}_fitness"] = float(fitness[rows].mean())
        found[f"operators/{name}_parents_fitness"] = float(parents[rows].mean())
    return found


def note_operators(module: "ERLModule", children: "list[Child]", learners: int) -> dict[str, float]:
    """What became of the agents that were evaluated; the population then knows how the next ones came to be.

    Args:
        module: after an evolution.
        children: of it.
        learners: the first rows, if they do not evolve.
    """
    population, fitness = module.population, module.fitness
    survived = kinds(module.share.total, children, learners)
    found = operator_metrics(population.kind.cpu(), population.parents_fitness.cpu(), fitness, survived)
    population.kind.copy_(survived)
    population.parents_fitness.copy_(parents_fitness(fitness, children))
    return found


def weight_diversity(rows: Float[Tensor, "agents weights"]) -> float:
    """Mean distance between two rows, in units of the mean length of a row; 0 for one agent."""
    if len(rows) < 2:
        return 0.0
    distances = torch.nn.functional.pdist(rows.double()).mean()
    return float(distances / torch.linalg.vector_norm(rows.double(), dim=1).mean())


def action_diversity(actions: Float[Tensor, "agents batch ..."]) -> float:
    """Standard deviation over agents of what they do on the same observations, the mean over these, in [0, 1]."""
    return float(actions.float().std(0, correction=0).mean())


@torch.no_grad()
def diversity_metrics(module: "ERLModule") -> dict[str, float]:
    """How far actors lie apart, by their weights and by their actions on observations drawn from the replay buffer.

    Of a population of more than `MOST_COMPARED`, as many that are evenly spaced.
    """
    population, share = module.population, module.share
    count = min(share.total, MOST_COMPARED)
    rows = [place * share.total // count for place in range(count)]
    actors = share.fetch({"actor": population.actor.detach()}, [rows] * share.world, "actors to compare")["actor"]
    inputs = probe_inputs(module, generator(module.seed, Role.PROBE, module.current_epoch), PROBES)
    return {
        "diversity/weights": weight_diversity(actors),
        "diversity/actions": math.nan if inputs is None else action_diversity(population.actor_network(actors, inputs)),
    }
