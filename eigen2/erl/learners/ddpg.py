"""DDPG: Lillicrap et al., "Continuous control with deep reinforcement learning", 2016."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from eigen2.core.networks import DESCRIBED, FORECAST, preactivation
from eigen2.erl.learners.learner import Batch, Learner, Losses
from eigen2.erl.population import Population
from eigen2.errors import require_range

SATURATED = 0.98  # absolute action, in units of its bound, from which an output counts as saturated


@dataclass
class DDPG(Learner):
    """Deep deterministic policy gradient, with actors and targets updated at every optimizer step.

    An agent's critic returns (batch,), or (batch, critics) if it holds several; the first one trains the actor.
    """

    saturation_penalty: float = field(default=0.1, kw_only=True)
    """Weight in the actor's loss of the mean squared pre-activation, artanh(action), which keeps actions away from
    their bounds, where they have no gradient (0 or more; 0 is DDPG as published)."""
    forecast_weight: float = field(default=1.0, kw_only=True)
    """Weight in the critic's loss of the mean squared error of its forecast, where the workload knows the outcomes of
    actions that were not taken (0 or more)."""

    def __post_init__(self) -> None:
        for name in ("saturation_penalty", "forecast_weight"):
            require_range(f"model.learner.{name}", vars(self)[name], least=0)

    def losses(self, population: Population, batch: Batch, train_actor: bool = True) -> Losses:
        """Compute the critic's squared TD error (equation 5) and minus its value of the actor's action (equation 6).

        The error of the forecast is added to the former, the penalty to the latter. The actor's loss uses the critic's
        weights detached: one backward pass of both gives each network its gradient.
        """
        target = self.td_target(population, batch)
        network = population.critic_network
        weights = network.weights(population.critic)
        inputs = network.described(weights, batch.inputs)
        values = _by_critic(network(weights, inputs, batch.action))
        critic = (values - target[..., None]).square().mean(1).sum(1)
        if batch.outcomes is not None and self.forecast_weight:
            critic = critic + self.forecast_weight * _forecast_error(inputs.get(FORECAST), batch.outcomes)
        q_mean = values.detach()[..., 0].mean(1)
        if not train_actor:
            return Losses(torch.zeros_like(q_mean), critic, q_mean, torch.zeros_like(q_mean))
        action = population.actor_network(population.actor, batch.inputs)
        fixed = {name: part.detach() if name in (DESCRIBED, FORECAST) else part for name, part in inputs.items()}
        detached = {name: weight.detach() for name, weight in weights.items()}
        own_values = network.first_value(detached, fixed, action)
        value = _by_critic(own_values)[..., 0].mean(1)
        return Losses(
            actor=self.saturation_penalty * preactivation(action).square().flatten(1).mean(1) - value,
            critic=critic,
            q_mean=q_mean,
            action_saturation=(action.detach().abs() > SATURATED).float().flatten(1).mean(1),
        )

    @torch.no_grad()
    def td_target(self, population: Population, batch: Batch) -> Float[Tensor, "agents batch"]:
        """Return reward + discount x Q'(s', mu'(s')), without the second term where the episode terminated.

        A truncated episode bootstraps; the lowest of several critics counts.
        """
        if batch.next_inputs is None:
            return batch.reward
        action = population.actor_network(population.actor_target, batch.next_inputs)
        action = self.target_action(action, batch)
        all_values = population.critic_network(population.critic_target, batch.next_inputs, action)
        values = _by_critic(all_values).amin(-1)
        return batch.reward + batch.discount * torch.where(batch.terminated, 0.0, values)

    def target_action(self, action: Tensor, batch: Batch) -> Tensor:
        """Return the action that the target critic evaluates, from the target actor's."""
        return action


def _forecast_error(
    forecast: Float[Tensor, "agents batch columns *critics"] | None, outcomes: Float[Tensor, "agents batch columns"]
) -> Float[Tensor, " agents"] | float:
    """Return the mean over transitions of the mean squared error over known outcomes, summed over critics.

    It is 0 of a critic without forecast, and of transitions without a known outcome.
    """
    if forecast is None:
        return 0.0
    known = outcomes.isfinite()
    error = (forecast.float().reshape(*outcomes.shape, -1) - torch.where(known, outcomes, 0.0)[..., None]).square()
    return ((error * known[..., None]).sum((2, 3)) / known.sum(2).clamp(min=1)).mean(1)


def _by_critic(values: Tensor) -> Float[Tensor, "agents batch critics"]:
    return values.float().reshape(*values.shape[:2], -1)
