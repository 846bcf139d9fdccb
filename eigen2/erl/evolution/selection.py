"""Selection, crossover and mutation: a plan from fitness alone, then pure functions on rows.

Rows keep their place: elites are not touched, the other rows are overwritten by children of the rows as they were.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from eigen2.erl.evolution.hyperparameters import Hyperparameters
from eigen2.erl.evolution.plateau import AdaptiveMutation
from eigen2.erl.evolution.proximal import Proximal, proximal_scale
from eigen2.errors import UserError, require_range


@dataclass
class Evolution:
    """How a generation's rows are replaced. The rest after elites and offspring are mutants of elites."""

    elite_fraction: float = 0.5
    """Share of the population, the fittest, that is kept bit for bit (0 to 1, at least one agent)."""
    crossover_fraction: float = 0.375
    """Share of the population replaced by offspring of two parents (0 to 1)."""
    tournament_size: int = 3
    """Agents drawn for each tournament; the fittest of them becomes a parent (1 or more; larger is greedier)."""
    mutation_fraction: float = 0.1
    """Share of a mutant's actor weights that change (0 to 1)."""
    mutation_scale: float = 0.1
    """Standard deviation of a change, in units of the root mean square of the weights of the same tensor (>= 0)."""
    inject_every: int = 1
    """Generations from one injection to the next (1 or more). Of effect where only some agents learn
    (model.learners): the fittest learner's actor then replaces the least fit agent that does not learn."""
    hyperparameters: Hyperparameters | None = None
    """Learning rates, exploration noise and gamma of each agent's own, which evolve; null: all have those configured.
    They are inherited with the weights, so they only evolve among agents that learn."""
    adaptive_mutation: AdaptiveMutation | None = None
    """Mutation that grows while validation finds no better champion; null: mutation_scale holds in all generations."""
    proximal: Proximal | None = None
    """Mutants whose actions all change by about mutation_scale, in action units; null: weights change by their size."""
    reinject_after: int | None = None
    """Validations in a row without a better champion after which the champion replaces the least fit agent that is not
    an elite, and after as many more again (1 or more; null: it never does)."""

    def __post_init__(self) -> None:
        for name in ("elite_fraction", "crossover_fraction", "mutation_fraction"):
            require_range(f"model.evolution.{name}", getattr(self, name), least=0, most=1)
        require_range("model.evolution.tournament_size", self.tournament_size, least=1)
        require_range("model.evolution.inject_every", self.inject_every, least=1)
        require_range("model.evolution.mutation_scale", self.mutation_scale, least=0)
        if self.reinject_after is not None:
            require_range("model.evolution.reinject_after", self.reinject_after, least=1)
        if self.elite_fraction + self.crossover_fraction > 1:
            raise UserError(
                f"model.evolution.elite_fraction {self.elite_fraction} and crossover_fraction "
                f"{self.crossover_fraction} exceed 1 together; lower one of them"
            )


@dataclass(frozen=True)
class Child:
    """What a row becomes: `blend` x first parent + (1 - `blend`) x second parent; the others have one parent.

    An injected row takes over the actor of its parent alone, the others all there is of theirs. The parent of a
    reinjected row is the champion, which is no row: its own stands for it.
    """

    row: int
    kind: Literal["offspring", "mutant", "injected", "reinjected"]
    parents: tuple[int, int]
    blend: float


def rank(fitness: Float[np.ndarray, " agents"]) -> list[int]:
    """Rows from the fittest to the least fit; ties by row, those without a finite fitness last."""
    return [int(row) for row in np.argsort(-np.where(np.isfinite(fitness), fitness, -np.inf), kind="stable")]


def plan(
    fitness: Float[np.ndarray, " agents"],
    settings: Evolution,
    generator: np.random.Generator,
    learners: int = 0,
    inject: bool = False,
    reinject: bool = False,
) -> list[Child]:
    """The children of a generation, one for each row that is not an elite, in order of the rows they replace.

    The least fit rows become offspring and mutants. Offspring's two parents win tournaments over the whole population;
    a mutant's parent is an elite, drawn evenly. A row without a finite fitness is no elite and no parent, and becomes a
    mutant.

    Args:
        fitness: of all rows.
        settings: how many of which.
        generator: of this generation.
        learners: the first rows, which neither evolve nor are parents but by injection; one without a finite fitness
            becomes a mutant all the same. 0 lets all evolve.
        inject: whether the fittest learner replaces the least fit of the others.
        reinject: whether the champion replaces the least fit of those that are then left and no elites.

    Raises:
        ValueError: no row that evolves has a finite fitness.
    """
    failed = ~np.isfinite(fitness)
    ranked = [row for row in rank(fitness) if row >= learners]
    order = [row for row in ranked if not failed[row]]
    if not order:
        raise ValueError("no agent has a finite fitness: there is no parent")
    elites = order[: max(1, round(settings.elite_fraction * len(ranked)))]
    losers = sorted([*ranked[len(elites) :], *(row for row in range(learners) if failed[row])])
    candidates = [row for row in losers if not failed[row]]
    offspring = candidates[: round(settings.crossover_fraction * len(ranked))]
    place = {row: position for position, row in enumerate(order)}
    best = max(range(learners), key=lambda row: (not failed[row], fitness[row], -row), default=0)
    given = _given_away(ranked[len(elites) :], best if inject and learners and not failed[best] else None, reinject)

    def tournament(among: list[int]) -> int:
        drawn = generator.choice(among, size=min(settings.tournament_size, len(among)), replace=False)
        return min((int(row) for row in drawn), key=place.__getitem__)

    children = []
    for row in losers:
        if row in given:
            children.append(given[row])
        elif row in offspring and len(order) > 1:
            first = tournament(order)
            second = tournament([other for other in order if other != first])
            children.append(Child(row, "offspring", (first, second), float(generator.uniform())))
        else:
            parent = int(elites[int(generator.integers(len(elites)))])
            children.append(Child(row, "mutant", (parent, parent), 1.0))
    return children


def _given_away(losers: list[int], learner: int | None, reinject: bool) -> dict[int, Child]:
    """The rows that a learner and the champion take, the least fit ones first.

    Args:
        losers: rows that evolve and are no elites, from the fittest to the least fit.
        learner: whose actor is injected; None if none is.
        reinject: whether the champion takes one.
    """
    given, left = {}, list(losers)
    if learner is not None and left:
        row = left.pop()
        given[row] = Child(row, "injected", (learner, learner), 1.0)
    if reinject and left:
        row = left.pop()
        given[row] = Child(row, "reinjected", (row, row), 1.0)
    return given


def parents_of(children: Iterable[Child]) -> list[int]:
    """The rows that children come from, each once, in ascending order."""
    return sorted({parent for child in children for parent in child.parents})


def inherit(rows: Tensor, children: list[Child], parents: Tensor | None = None, first_row: int = 0) -> None:
    """Overwrite the children's rows of a tensor (agents, ...) with the blend of their parents' rows, in place.

    Parents are read before any row is written, so a row may be parent and be replaced at once. A child with blend 1 is
    its first parent's exact copy.

    Args:
        rows: of the agents from `first_row` on, to which all children belong.
        children: of those rows.
        parents: rows of the agents `parents_of(children)`, which may be others than those; None for all of `rows`.
        first_row: number of the first row.
    """
    if not children:
        return
    numbers = parents_of(children)
    parents = rows[numbers] if parents is None else parents
    place = {row: i for i, row in enumerate(numbers)}
    first, second = (parents[[place[child.parents[i]] for child in children]] for i in (0, 1))
    blend = torch.tensor([child.blend for child in children], dtype=rows.dtype, device=rows.device)
    # where() keeps copies exact: 1 x first + 0 x second is NaN for an infinite second
    weight = blend.reshape(-1, *[1] * (rows.dim() - 1)).expand_as(first)
    blended = torch.where(weight == 1, first, weight * first + (1 - weight) * second)
    rows[[child.row - first_row for child in children]] = blended


def mutation_noise(
    parent: Float[Tensor, " weights"],
    sizes: list[int],
    settings: Evolution,
    generator: np.random.Generator,
    sensitive: Float[Tensor, " weights"] | None = None,
) -> Float[Tensor, " weights"]:
    """Noise to add to a copy of one actor row: Gaussian on a random share of the weights, scaled tensor by tensor.

    Args:
        parent: the row to mutate.
        sizes: weights of each tensor in the row, in order.
        settings: share and scale.
        generator: of this child alone.
        sensitive: how much the parent's actions depend on each weight, by which its noise is then divided; not where
            they depend on none.
    """
    chosen = torch.from_numpy(generator.random(len(parent), dtype=np.float32) < settings.mutation_fraction)
    gaussian = torch.from_numpy(generator.standard_normal(len(parent), dtype=np.float32))
    scale = None
    if sensitive is not None and settings.proximal is not None:
        scale = proximal_scale(sensitive.cpu(), chosen, settings.proximal.floor)
    if scale is None:
        pieces = torch.split(parent, sizes)
        scale = torch.cat([piece.square().mean().sqrt().expand(len(piece)) for piece in pieces]).cpu()
    noise = torch.where(chosen, gaussian * scale * settings.mutation_scale, torch.zeros(()))
    return noise.to(parent.device)
