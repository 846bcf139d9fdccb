"""Hyper-parameters that belong to an agent, go with its weights and evolve with them.

Jaderberg et al., "Population Based Training of Neural Networks", 2017, inherit and perturb them; Bäck and Schwefel, "An
Overview of Evolutionary Algorithms for Parameter Optimization", 1993, are the source of the log-normal factor.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from eigen2.errors import UserError, require_range

if TYPE_CHECKING:
    from eigen2.erl.module import ERLModule
    from eigen2.erl.population import Population

Name = Literal["actor_lr", "critic_lr", "noise", "gamma"]
NAMES: tuple[Name, ...] = ("actor_lr", "critic_lr", "noise", "gamma")
"""The columns of `Population.hyperparameters`."""
MOST_REACH = 1e6


@dataclass
class Hyperparameters:
    """Which of model.actor_lr, critic_lr, noise and gamma each agent has of its own.

    An agent's value is the configured one (of noise, the decayed one) times a factor, 1 at first; of gamma, the factor
    is on the horizon 1 / (1 - gamma). Children inherit factors with the weights: offspring the geometric mean of both
    parents', weighted as the weights are; a mutant's are each multiplied by a log-normal number.
    """

    names: list[Name] = field(default_factory=lambda: list(NAMES))
    """Those that evolve: actor_lr, critic_lr, noise, gamma; the others stay as configured."""
    scale: float = 0.2
    """Standard deviation of the logarithm of the number that a mutant's factor is multiplied by (0 or more)."""
    reach: float = 10.0
    """Bound on factors: they stay from 1 / reach to reach (1 to 1e6); gamma does not fall below 0 either."""

    def __post_init__(self) -> None:
        given: object = self.names  # null gets past the command line
        if not isinstance(given, list) or not set(given) <= set(NAMES):
            raise UserError(
                f"model.evolution.hyperparameters.names is {given}; it must be a list of any of {', '.join(NAMES)}"
            )
        require_range("model.evolution.hyperparameters.scale", self.scale, least=0)
        require_range("model.evolution.hyperparameters.reach", self.reach, least=1, most=MOST_REACH)


def perturb(
    logarithms: Float[Tensor, " hyperparameters"], settings: Hyperparameters, generator: np.random.Generator
) -> None:
    """Change a mutant's factors, in place.

    Args:
        logarithms: of its factors, by `NAMES`.
        settings: which of them change, how much, and their bounds.
        generator: of this child alone.
    """
    drawn = torch.from_numpy(generator.standard_normal(len(NAMES))).to(logarithms.device)
    evolving = torch.tensor([name in settings.names for name in NAMES], device=logarithms.device)
    bound = math.log(settings.reach)
    changed = (logarithms + settings.scale * drawn).clamp(-bound, bound)
    logarithms.copy_(torch.where(evolving, changed, logarithms))


def rate_factors(population: "Population") -> tuple[Float[Tensor, " agents"], ...]:
    """What each agent's learning rates are in units of the configured ones: of the actors, then of the critics."""
    logarithms = population.hyperparameters
    assert logarithms is not None
    actor, critic, _, _ = logarithms.exp().unbind(1)
    return actor, critic


def exploration_noise(population: "Population") -> Float[Tensor, " agents"]:
    """Standard deviation of each agent's exploration noise, in action units of [-1, 1]."""
    logarithms = population.hyperparameters
    if logarithms is None:
        return population.noise
    return (population.noise * logarithms[:, NAMES.index("noise")].exp()).to(population.noise.dtype)


def discount(population: "Population", gamma: float) -> float | Float[Tensor, "agents 1"]:
    """The discount of each agent that learns; a number, the configured `gamma`, where it is that of all."""
    logarithms = population.hyperparameters
    if logarithms is None:
        return gamma
    return _gammas(population.learning(logarithms), gamma)[:, None]


def _gammas(logarithms: Float[Tensor, "agents hyperparameters"], gamma: float) -> Float[Tensor, " agents"]:
    horizon = logarithms[:, NAMES.index("gamma")].exp()  # in units of the configured one
    return (1 - (1 - gamma) / horizon).clamp(min=0).float()


def own_values(module: "ERLModule") -> dict[str, Float[Tensor, " agents"]]:
    """The agents' own values here; nothing where all have what is configured.

    Learning rates, noise in action units of [-1, 1], gamma a step.
    """
    population = module.population
    if population.hyperparameters is None:
        return {}
    actor, critic = rate_factors(population)
    return {
        "actor_lr": module.actor_lr * actor,
        "critic_lr": module.critic_lr * critic,
        "noise": exploration_noise(population),
        "gamma": _gammas(population.hyperparameters, module.gamma),
    }


def hyperparameter_metrics(values: Mapping[str, Float[Tensor, " agents"]]) -> dict[str, float]:
    """Mean, least and most of the agents' own values.

    Args:
        values: `own_values` of all agents.
    """
    found: dict[str, float] = {}
    for name, value in values.items():
        found[f"hyperparameters/{name}"] = float(value.mean())
        found[f"hyperparameters/{name}_min"] = float(value.min())
        found[f"hyperparameters/{name}_max"] = float(value.max())
    return found
