"""A plan of evolution carried out on a population: its rows, and the optimizer's that go with them."""

from collections.abc import Callable

import numpy as np
import torch

from eigen2.erl.ddpg import Optimizer, row_moments
from eigen2.erl.evolution import Child, Evolution, inherit, mutation_noise
from eigen2.erl.hyperparameters import perturb
from eigen2.erl.population import Population
from eigen2.erl.randomness import Role


@torch.no_grad()
def breed(
    population: Population,
    optimizer: Optimizer,
    children: list[Child],
    settings: Evolution,
    chance: Callable[[Role, int], np.random.Generator],
) -> None:
    """Overwrite rows, with targets, critics, moments and scalars, by those of their parents, and mutate the mutants.

    Args:
        population: whose rows are replaced.
        optimizer: over its actors and critics.
        children: of `evolution.plan`.
        settings: of mutation.
        chance: the generator of a row's mutation, for each role.
    """
    born = [child for child in children if child.kind != "injected"]
    for rows in (*population.rows(), *row_moments(population, optimizer)):
        inherit(rows, born)
    # only the actor: what does not learn has no use for a critic, and must have no momentum
    inherit(population.actor.detach(), [child for child in children if child.kind == "injected"])
    for child in children:
        if child.kind == "mutant":
            sizes = population.actor_network.sizes
            change = mutation_noise(population.actor[child.row], sizes, settings, chance(Role.MUTATION, child.row))
            population.actor[child.row] += change
            population.actor_target[child.row] += change
            if settings.hyperparameters and population.hyperparameters is not None:
                own = population.hyperparameters[child.row]
                perturb(own, settings.hyperparameters, chance(Role.HYPERPARAMETERS, child.row))
