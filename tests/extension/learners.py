"""A learner of a user's own."""

from dataclasses import dataclass

import torch

from eigen2.erl.learners import Batch, Learner, Losses
from eigen2.erl.population import Population


@dataclass
class BehaviourCloning(Learner):
    """Move actors towards stored actions by their reward, and critics towards rewards."""

    temperature: float = 1.0
    """Reward by which the weight of an action grows e-fold (above 0)."""

    def losses(self, population: Population, batch: Batch, train_actor: bool = True) -> Losses:
        """Compute the weighted distance to stored actions, and the critic's squared error against rewards."""
        values = population.critic_network(population.critic, batch.inputs, batch.action)
        weights = torch.softmax(batch.reward / self.temperature, 1)
        distance = (population.actor_network(population.actor, batch.inputs) - batch.action).square().flatten(2).mean(2)
        return Losses(
            actor=(weights * distance).sum(1),
            critic=(values - batch.reward).square().mean(1),
            q_mean=values.detach().mean(1),
            action_saturation=torch.zeros_like(values.detach().mean(1)),
        )
