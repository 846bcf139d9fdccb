"""Operators and learners of heads that `python -m benchmarks heads` compares with those of eigen2.

They follow Hao and others, "ERL-Re2", ICLR 2023, and Pourchot and Sigaud, "CEM-RL", ICLR 2019.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from eigen2.core.networks import StackedNetwork, preactivation
from eigen2.erl.evolution import (
    AgentRows,
    EvolutionContext,
    MagnitudeMutation,
    Operator,
    Parents,
    Ranking,
    TournamentCrossover,
)
from eigen2.erl.evolution.selection import rank
from eigen2.erl.learners import DDPG, Batch, Losses
from eigen2.erl.module import ERLModule
from eigen2.erl.population import Population


def outputs(network: StackedNetwork) -> Int[np.ndarray, " weights"]:
    """Return a number for each weight of a row, equal for all weights of an output of a layer."""
    first: dict[str, int] = {}
    numbers, total = [], 0
    for name in network.names:
        shape, layer = network.shapes[name], name.rpartition(".")[0]
        if layer not in first:
            first[layer], total = total, total + shape[0]
        numbers.append(first[layer] + np.repeat(np.arange(shape[0]), shape.numel() // shape[0]))
    return np.concatenate(numbers)


@dataclass
class OutputCrossover(TournamentCrossover):
    """Replace agents by copies of one parent with half of the outputs, on average, of the other."""

    def parents(self, ranking: Ranking, generator: np.random.Generator) -> Parents:
        """Choose two different parents."""
        return Parents(super().parents(ranking, generator).rows)

    def apply(
        self, agent: AgentRows, parents: AgentRows, context: EvolutionContext, generator: np.random.Generator
    ) -> None:
        """Copy outputs of the second parent."""
        of = outputs(context.actor_network)
        chosen = torch.from_numpy((generator.random(of.max() + 1) < 0.5)[of])
        agent["actor"][chosen] = parents["actor"][1][chosen]


@dataclass
class OutputMutation(MagnitudeMutation):
    """Replace agents by copies of elites with Gaussian noise on all weights of some outputs; `fraction` is of these."""

    def changed(self, network: StackedNetwork, generator: np.random.Generator) -> Bool[np.ndarray, " weights"]:
        """Return the weights of the chosen outputs, of one at least."""
        of = outputs(network)
        chosen = generator.random(of.max() + 1) < self.fraction
        chosen[generator.integers(len(chosen))] = True
        return chosen[of]


@dataclass
class CrossEntropy(Operator):
    """Replace agents by draws from a normal distribution with mean and variances of the elites."""

    name: ClassVar[str] = "drawn"

    noise: float = 0.05
    """Standard deviation added to the elites' at first."""
    decay: float = 0.9
    """Factor on it after each generation."""

    def parents(self, ranking: Ranking, generator: np.random.Generator) -> Parents:
        """Return the elites."""
        return Parents(tuple(ranking.elites))

    def apply(
        self, agent: AgentRows, parents: AgentRows, context: EvolutionContext, generator: np.random.Generator
    ) -> None:
        """Draw the actor; elites count by the logarithm of their rank."""
        rows = parents["actor"]
        weights = np.log(1 + len(rows)) - np.log(np.arange(1, len(rows) + 1))
        weight = torch.from_numpy(weights / weights.sum()).float()[:, None]
        mean = (weight * rows).sum(0)
        added = self.noise * self.decay**context.generation
        deviation = ((weight * (rows - mean).square()).sum(0) + added**2).sqrt()
        agent["actor"].copy_(mean + deviation * torch.from_numpy(generator.standard_normal(len(mean), np.float32)))


@dataclass
class HeadsDDPG(DDPG):
    """DDPG whose trunk also learns to raise the value of what other agents' heads do."""

    heads: int = field(default=4, kw_only=True)
    """Heads beside the learner's."""

    def losses(self, population: Population, batch: Batch, train_actor: bool = True) -> Losses:
        """Add the mean loss of the heads to the actor's."""
        losses = super().losses(population, batch, train_actor)
        if not train_actor or population.heads is None:
            return losses
        network = population.critic_network
        weights = {name: part.detach() for name, part in network.weights(population.critic).items()}
        fixed = {name: part.detach() for name, part in network.described(weights, batch.inputs).items()}
        chosen = torch.linspace(1, population.size - 1, self.heads).round().long()
        total: Tensor | float = 0.0
        for row in chosen:
            head = population.heads.join(population.head[row][None])
            whole = torch.where(population.heads.chosen, head, population.actor)
            action = population.actor_network(whole, batch.inputs)
            value = network.first_value(weights, fixed, action).float().reshape(1, action.shape[1], -1)[..., 0]
            penalty = self.saturation_penalty * preactivation(action).square().mean()
            total = total + penalty - value.mean()
        return losses._replace(actor=losses.actor + total / self.heads)


class SoftUpdate(ERLModule):
    """ERL whose learner's head moves towards the mean of the elites' after every generation."""

    share = 0.1  # of the way

    @torch.no_grad()
    def evolve(self) -> None:
        """Evolve, then move the learner's head, and its target's."""
        super().evolve()
        population, heads = self.population, self.population.heads
        assert heads is not None
        evolving = [row for row in rank(self.state.fitness.numpy()) if row > 0]
        mean = population.head[evolving[: len(evolving) // 2]].mean(0)
        for rows in (population.actor, population.actor_target):
            rows[:, heads.chosen] = torch.lerp(rows[:, heads.chosen], mean, self.share)
        population.head[:1] = heads.cut(population.actor)
