"""A plan of evolution carried out on a population: its rows, and the optimizer's that go with them."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eigen2.core.randomness import Role, generator
from eigen2.erl.evolution.hyperparameters import perturb
from eigen2.erl.evolution.proximal import Probe, draw_probe, sensitivity
from eigen2.erl.evolution.selection import Child, Evolution, inherit, mutation_noise, parents_of
from eigen2.erl.learners.ddpg import row_moments

if TYPE_CHECKING:
    from eigen2.erl.module import ERLModule


@torch.no_grad()
def breed(module: "ERLModule", children: list[Child], settings: Evolution) -> None:
    """Overwrite rows, with targets, critics, moments and scalars, by those of their parents, and mutate the mutants.

    Every process writes the rows that are its own; parents' rows travel to the processes that want them.

    Args:
        module: whose population is replaced, and the optimizer over it.
        children: of `evolution.plan`, on all processes.
        settings: of mutation.
    """
    population = module.population
    moments = {f"moment {i}": rows for i, rows in enumerate(row_moments(population, module.optimizer))}
    born = [child for child in children if child.kind in ("offspring", "mutant")]
    _inherit(module, population.rows() | moments, born)
    # only the actor: what does not learn has no use for a critic, and must have no momentum
    _inherit(module, {"actor": population.actor.detach()}, [child for child in children if child.kind == "injected"])
    probe = draw_probe(module, settings.proximal) if settings.proximal else None
    for child in children:
        place = module.share.local_index(child.row)
        if place is None:
            continue
        if child.kind == "mutant":
            _mutate(module, child.row, place, settings, probe)
        if child.kind == "reinjected":
            population.reinject(place)
            for rows in moments.values():
                rows[place] = 0.0


def _inherit(module: "ERLModule", rows: dict[str, Tensor], children: list[Child]) -> None:
    """Overwrite the children's rows here, after their parents' rows have come, from wherever they are."""
    if not children:
        return
    share = module.share
    homes = [[child for child in children if share.owner(child.row) == rank] for rank in range(share.world)]
    parents = share.fetch(rows, [parents_of(own) for own in homes], "parents")
    for name, values in rows.items():
        inherit(values, homes[share.rank], parents[name], share.rows.start)


def _mutate(module: "ERLModule", row: int, place: int, settings: Evolution, probe: Probe | None) -> None:
    population, network = module.population, module.population.actor_network
    sensitive = None if probe is None else sensitivity(network, population.actor[place], probe)
    chance = generator(module.seed, Role.MUTATION, module.current_epoch, row)
    change = mutation_noise(population.actor[place], network.sizes, settings, chance, sensitive)
    population.actor[place] += change
    population.actor_target[place] += change
    if settings.hyperparameters and population.hyperparameters is not None:
        chance = generator(module.seed, Role.HYPERPARAMETERS, module.current_epoch, row)
        perturb(population.hyperparameters[place], settings.hyperparameters, chance)
