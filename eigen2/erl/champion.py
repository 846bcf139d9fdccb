"""The champion and its population as policies, for whoever plays them outside of a fit."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from eigen2.core.datamodule import Act, Observation, Trained, play
from eigen2.core.export import describe
from eigen2.erl.population import DDPGAgent
from eigen2.errors import UserError

if TYPE_CHECKING:
    from eigen2.erl.module import ERLModule


def validation_fitness(module: "ERLModule", fittest: int) -> Tensor:
    """Validation fitness of every agent, or of the fittest alone if no other is validated: (all agents,) float64.

    Args:
        module: in training.
        fittest: number of the agent that may become champion.
    """
    data, place = module.data, module.share.local_index(fittest)
    own = torch.full((module.population.size,), torch.nan, dtype=torch.float64)
    if place is not None:
        data.watch(place)
    if data.validates_all:
        own = play(data.val_env, module.policy(), data.validation_options()).mean(1).cpu()
    elif place is not None:
        act = module.policy(module.population.agents[place])
        own[place] = play(data.val_env, act, data.validation_options())[0].mean()
    return module.share.gather({"fitness": own}, "validation fitness")["fitness"]


def keep_record(module: "ERLModule", fittest: int) -> None:
    """Let the data module record the new champion's episodes; process 0 plays them again if another one has.

    Args:
        module: whose champion is new.
        fittest: number of the agent that became champion.
    """
    data = module.data
    if module.share.rank == 0 and module.share.local_index(fittest) is None:
        data.watch(0)
        play(data.val_env, module.policy(module.population.champion), data.validation_options())
    data.keep_record(module.current_epoch)


def come_to(module: "ERLModule") -> Trained:
    """What the run behind a module has come to.

    Raises:
        UserError: it has no champion.
    """
    population = module.population
    generation = int(population.champion_generation)
    if generation < 0:
        raise UserError("the checkpoint has no champion: none was validated before it was written")
    return Trained(
        champion=act_of(module, population.champion),
        agents=[act_of(module, agent) for agent in population.agents],
        generation=generation,
        tried=module.generations_run * module.population_size,
        seed=module.seed,
    )


def how_to_act(module: "ERLModule", factory: object | None) -> dict[str, Any]:
    """What it takes to act as an agent of the module does beside its weights, as plain values.

    Args:
        module: after `setup`.
        factory: of its actors; None for the workload's own.
    """
    data = module.data
    return {
        **describe(module.population.actor_network, factory, data.sizes),
        "workload": data.workload,
        "data": data.acting(),
    }


def act_of(module: "ERLModule", agent: DDPGAgent) -> Act:
    """What one agent does, on the CPU, wherever its network is."""
    policy, data = module.population.policy(agent), module.data

    @torch.inference_mode()
    def act(observation: Observation) -> Tensor:
        there = {name: part.to(module.device) for name, part in observation.items()}
        with module.trainer.precision_plugin.forward_context():
            action: Tensor = policy(data.network_inputs(there)).float().cpu()
        return action

    return act
