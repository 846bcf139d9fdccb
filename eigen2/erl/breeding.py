"""A plan of evolution carried out on a population: its rows, and the optimizer's that go with them."""

from typing import TYPE_CHECKING

import torch

from eigen2.erl.ddpg import row_moments
from eigen2.erl.evolution import Child, Evolution, inherit, mutation_noise
from eigen2.erl.hyperparameters import perturb
from eigen2.erl.proximal import Probe, draw_probe, sensitivity
from eigen2.erl.randomness import Role, generator

if TYPE_CHECKING:
    from eigen2.erl.module import ERLModule


@torch.no_grad()
def breed(module: "ERLModule", children: list[Child], settings: Evolution) -> None:
    """Overwrite rows, with targets, critics, moments and scalars, by those of their parents, and mutate the mutants.

    Args:
        module: whose population is replaced, and the optimizer over it.
        children: of `evolution.plan`.
        settings: of mutation.
    """
    population, optimizer = module.population, module.optimizer
    born = [child for child in children if child.kind in ("offspring", "mutant")]
    moments = row_moments(population, optimizer)
    for rows in (*population.rows(), *moments):
        inherit(rows, born)
    # only the actor: what does not learn has no use for a critic, and must have no momentum
    inherit(population.actor.detach(), [child for child in children if child.kind == "injected"])
    probe = draw_probe(module, settings.proximal) if settings.proximal else None
    for child in children:
        if child.kind == "mutant":
            _mutate(module, child.row, settings, probe)
        if child.kind == "reinjected":
            population.reinject(child.row)
            for rows in moments:
                rows[child.row] = 0.0


def _mutate(module: "ERLModule", row: int, settings: Evolution, probe: Probe | None) -> None:
    population, network = module.population, module.population.actor_network
    sensitive = None if probe is None else sensitivity(network, population.actor[row], probe)
    chance = generator(module.seed, Role.MUTATION, module.current_epoch, row)
    change = mutation_noise(population.actor[row], network.sizes, settings, chance, sensitive)
    population.actor[row] += change
    population.actor_target[row] += change
    if settings.hyperparameters and population.hyperparameters is not None:
        chance = generator(module.seed, Role.HYPERPARAMETERS, module.current_epoch, row)
        perturb(population.hyperparameters[row], settings.hyperparameters, chance)
