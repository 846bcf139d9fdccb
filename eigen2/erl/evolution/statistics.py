"""Statistics of evolution: what becomes of each operator's agents, and how much agents differ."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eigen2.core.networks import Inputs, StackedNetwork
from eigen2.distributed.communicator import Communicator
from eigen2.erl.evolution.operator import Child, Operator

ELITE = "elite"  # name of agents that no operator replaced
SAMPLED_INPUTS = 64  # stored observations on which agents' actions are compared
MOST_COMPARED = 64  # most agents compared: pairs grow quadratically, and every process receives the rows
COMPARED_AT_ONCE = 4  # agents that act at once, as the inputs of each are many times those of a step


def origins(operators: Sequence[Operator]) -> tuple[str, ...]:
    """Return the names of an agent's possible origins, by the last evolution; their places are `Population.origin`."""
    return ("initial", "learner", ELITE, *(operator.name for operator in operators if operator.name != ELITE))


def bred_origins(
    size: int, children: Sequence[Child], operators: Sequence[Operator], first_evolving: int = 0
) -> Int[Tensor, " agents"]:
    """Return every agent's origin after an evolution of those from `first_evolving` on, a place in `origins`."""
    names = origins(operators)
    places = torch.full((size,), names.index(ELITE))
    places[:first_evolving] = names.index("learner")
    for child in children:
        places[child.row] = names.index(child.operator.name)
    return places


def reliability(fitness: Float[Tensor, "agents windows"]) -> float:
    """Return the share of the variance of agents' mean fitness that other windows would show again; NaN if unknown.

    Cronbach's alpha (1951), 1 - 1 / F of an analysis of variance of agents x windows: 1 if agents differ alike in all
    windows, 0 or less if their differences are those of chance. Agents with a fitness that is not finite are left out.
    """
    fitness = fitness[torch.isfinite(fitness).all(1)]
    agents, windows = fitness.shape
    if min(agents, windows) < 2:
        return math.nan
    means = fitness.mean(1, keepdim=True)
    rest = fitness - means - fitness.mean(0) + fitness.mean()
    between = windows * float(means.var())
    return 1 - float(rest.square().sum()) / ((agents - 1) * (windows - 1)) / between if between > 0 else math.nan


def parents_fitness(fitness: Float[Tensor, " agents"], children: Sequence[Child]) -> Float[Tensor, " agents"]:
    """Return the mean fitness of each agent's parents; an agent's own if it was not replaced."""
    means = fitness.clone()
    for child in children:
        means[child.row] = fitness[list(child.parents)].mean()
    return means


def operator_metrics(
    origin: Int[Tensor, " agents"],
    parents: Float[Tensor, " agents"],
    fitness: Float[Tensor, " agents"],
    survived: Int[Tensor, " agents"],
    operators: Sequence[Operator],
    first_evolving: int,
) -> dict[str, float]:
    """Return, by origin, the share that survives and mean fitness of agents and parents; NaN without such agents.

    `survived` has origins after this generation's evolution, in which an elite has survived. Agents before
    `first_evolving` do not evolve.
    """
    names, metrics = origins(operators), {}
    elite = names.index(ELITE)
    for place, name in enumerate(names[elite:], elite):
        bred = origin == place
        metrics[f"operators/{name}_survival"] = float((survived[bred] == elite).double().mean())
        rows = bred & torch.isfinite(fitness)
        metrics[f"operators/{name}_fitness"] = float(fitness[rows].mean())
        metrics[f"operators/{name}_parents_fitness"] = float(parents[rows].mean())
    metrics["operators/elite_share"] = float((survived[first_evolving:] == elite).double().mean())
    return metrics


def weight_diversity(rows: Float[Tensor, "agents weights"]) -> float:
    """Return the mean distance between two rows, in units of the mean length of a row; 0 for one agent."""
    if len(rows) < 2:
        return 0.0
    distances = torch.nn.functional.pdist(rows.double()).mean()
    return float(distances / torch.linalg.vector_norm(rows.double(), dim=1).mean())


@torch.no_grad()
def diversity_metrics(
    network: StackedNetwork, actor: Tensor, inputs: Inputs | None, communicator: Communicator
) -> dict[str, float]:
    """Return how far all processes' actors lie apart, by weights and by actions on inputs (1, batch, ...).

    For actions this is the standard deviation over agents. In a large population, evenly spaced agents are compared.
    """
    total = communicator.total
    count = min(total, MOST_COMPARED)
    compared = [place * total // count for place in range(count)]
    rows = communicator.fetch({"actor": actor.detach()}, [compared] * communicator.world, "actors to compare")["actor"]
    spread = math.nan
    if inputs is not None:
        actions = torch.cat([network(part, inputs).float() for part in torch.split(rows, COMPARED_AT_ONCE)])
        spread = float(actions.std(0, correction=0).mean())
    return {"diversity/weights": weight_diversity(rows), "diversity/actions": spread}
