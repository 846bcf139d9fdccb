"""Carry out a plan of evolution on the rows of a population and of its optimizer."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from eigen2.core.randomness import Role, generator
from eigen2.distributed.communicator import Communicator
from eigen2.erl.evolution.operator import Child, EvolutionContext, Operator
from eigen2.erl.evolution.selection import plan, ranking_of
from eigen2.erl.evolution.statistics import bred_origins, operator_metrics, parents_fitness
from eigen2.erl.population import Population
from eigen2.errors import UserError


class _Rows(dict[str, Tensor]):
    """An agent's rows, which change in place: a tensor put in the place of one would be lost."""

    def __setitem__(self, name: str, value: Tensor) -> None:
        if value is not self[name]:  # as it is after agent[name] *= 2
            raise UserError(f"an operator's apply puts a new tensor in the place of {name!r}; change it in place")


def parents_of(children: Iterable[Child]) -> list[int]:
    """Return the agents that children come from, each once, in ascending order."""
    return sorted({parent for child in children for parent in child.parents})


def inherit(rows: Tensor, children: Sequence[Child], parents: Tensor, first_row: int = 0) -> None:
    """Overwrite the children's rows of a tensor (agents, ...) with the blend of their parents' rows, in place.

    A child with blend 1 is its first parent's exact copy. `rows` are of the agents from `first_row` on, to which all
    children belong; `parents` are copies of the rows of `parents_of(children)`, which other processes may own.
    """
    if not children:
        return
    place = {row: i for i, row in enumerate(parents_of(children))}
    first, second = (parents[[place[child.parents[i]] for child in children]] for i in (0, -1))
    blend = torch.tensor([child.blend for child in children], dtype=rows.dtype, device=rows.device)
    # where() keeps copies exact: 1 x first + 0 x second is NaN for an infinite second
    weight = blend.reshape(-1, *[1] * (rows.dim() - 1)).expand_as(first)
    blended = torch.where(weight == 1, first, weight * first + (1 - weight) * second)
    rows[[child.row - first_row for child in children]] = blended


@torch.no_grad()
def breed(
    rows: Mapping[str, Tensor],
    children: Sequence[Child],
    context: EvolutionContext,
    communicator: Communicator,
) -> None:
    """Overwrite the rows of replaced agents with the blend of their parents' rows, then apply the operators.

    `rows` holds this process's agents, by the names of `AgentRows`; `children` are those of all processes.
    """
    by_process = [[c for c in children if communicator.owner(c.row) == rank] for rank in range(communicator.world)]
    own, wanted = by_process[communicator.rank], [parents_of(bred) for bred in by_process]
    fetched = communicator.fetch(rows, wanted, "parents")  # copies, before any row is overwritten
    place = {row: i for i, row in enumerate(wanted[communicator.rank])}
    for name, values in fetched.items():
        inherit(rows[name], own, values, communicator.rows.start)
    for child in own:
        agent = {name: values[child.row - communicator.rows.start] for name, values in rows.items()}
        those = [place[row] for row in child.parents]
        parents = {name: values[those] for name, values in fetched.items()}
        rng = generator(context.seed, Role.MUTATION, context.generation, child.row)
        child.operator.apply(_Rows(agent), parents, context, rng)


@torch.no_grad()
def evolve(
    fitness: Tensor,
    population: Population,
    moments: Sequence[Tensor],
    operators: Sequence[Operator],
    context: EvolutionContext,
    communicator: Communicator,
) -> dict[str, float]:
    """Replace agents by the operators' children, and return statistics of the generation's evolution.

    `fitness` is that of all agents, NaN for those that failed; `moments` are of this process's optimizer.
    """
    ranking = ranking_of(fitness.numpy(), operators, context.first_evolving)
    children = plan(ranking, operators, context, generator(context.seed, Role.SELECTION, context.generation))
    rows = population.rows()
    if population.heads is None:
        rows |= {f"moment {i}": values for i, values in enumerate(moments)}
    breed(rows, children, context, communicator)
    if ranking.elites:
        population.average(ranking.elites, communicator)
    survived = bred_origins(communicator.total, children, operators, context.first_evolving)
    origin, parents = population.origin.cpu(), population.parents_fitness.cpu()
    metrics = operator_metrics(origin, parents, fitness, survived, operators, context.first_evolving)
    population.origin.copy_(survived)
    population.parents_fitness.copy_(parents_fitness(fitness, children))
    return metrics
