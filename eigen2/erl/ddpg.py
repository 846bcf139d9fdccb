"""DDPG for a whole population: losses, gradient clipping and targets, row by row independent.

Lillicrap et al., "Continuous control with deep reinforcement learning", 2016: equation 5 is the critic's loss,
equation 6 the actor's gradient, algorithm 1 the targets.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor

from eigen2.erl.networks import DESCRIBED, Inputs
from eigen2.erl.population import Population

Optimizer = torch.optim.Optimizer | LightningOptimizer


class Batch(NamedTuple):
    """A sample of transitions for every agent, (agents, batch, ...) each; rewards already scaled."""

    inputs: Inputs
    next_inputs: Inputs
    action: Tensor
    reward: Float[Tensor, "agents batch"]
    terminated: Tensor


class Losses(NamedTuple):
    """Per-agent means over the batch; only `actor` and `critic` carry gradients."""

    actor: Float[Tensor, " agents"]
    critic: Float[Tensor, " agents"]
    q_mean: Float[Tensor, " agents"]
    action_saturation: Float[Tensor, " agents"]


def td_target(population: Population, batch: Batch, gamma: float) -> Float[Tensor, "agents batch"]:
    """Reward + gamma x Q'(s', mu'(s')), without the second term where the episode terminated; truncation bootstraps."""
    with torch.no_grad():
        next_action = population.actor_network(population.actor_target, batch.next_inputs)
        next_value = population.critic_network(population.critic_target, batch.next_inputs, next_action)
        return batch.reward + gamma * torch.where(batch.terminated, 0.0, next_value.float())


def losses(population: Population, batch: Batch, gamma: float) -> Losses:
    """Critic's mean squared TD error and minus the critic's value of the actor's own action.

    The actor's loss uses the critic's weights detached, so one backward pass of both fills each gradient from its own
    loss alone.
    """
    target = td_target(population, batch, gamma)
    critic = population.critic_network
    weights = critic.weights(population.critic)
    inputs = critic.described(weights, batch.inputs)
    value = critic(weights, inputs, batch.action)
    action = population.act(batch.inputs)
    fixed = {name: part.detach() if name == DESCRIBED else part for name, part in inputs.items()}
    own_value = critic({name: weight.detach() for name, weight in weights.items()}, fixed, action)
    return Losses(
        actor=-own_value.float().mean(1),
        critic=(value.float() - target).square().mean(1),
        q_mean=value.detach().float().mean(1),
        action_saturation=(action.detach().abs() > 0.98).float().flatten(1).mean(1),
    )


def clip_rows(gradient: Float[Tensor, "agents weights"], max_norm: float) -> Float[Tensor, " agents"]:
    """Scale each agent's gradient to a norm of at most `max_norm`, in place; return the norms before.

    A row whose norm is not finite is zeroed: the others do not notice.
    """
    norms: Tensor = torch.linalg.vector_norm(gradient, dim=1)
    finite = torch.isfinite(norms)
    gradient.mul_((max_norm / (norms + 1e-6)).clamp(max=1.0)[:, None])
    gradient.masked_fill_(~finite[:, None], 0.0)
    return norms


def row_moments(population: Population, optimizer: Optimizer) -> list[Tensor]:
    """The optimizer's state that has a row an agent; empty before the first step."""
    return [
        value
        for rows in (population.actor, population.critic)
        for value in optimizer.state.get(rows, {}).values()
        if value.shape == rows.shape
    ]


@torch.no_grad()
def step(population: Population, optimizer: Optimizer, max_grad_norm: float) -> None:
    """Clip each agent's gradients and let the optimizer use them.

    An agent with a gradient that is not finite keeps its weights and moments: a zero gradient alone would still let
    Adam's momentum move it.
    """
    gradients = [rows.grad for rows in (population.actor, population.critic) if rows.grad is not None]
    norms = torch.stack([clip_rows(gradient, max_grad_norm) for gradient in gradients])
    skipped = ~torch.isfinite(norms).all(0)
    frozen = [population.actor, population.critic, *row_moments(population, optimizer)] if bool(skipped.any()) else []
    kept = [rows[skipped] for rows in frozen]
    optimizer.step()
    for rows, before in zip(frozen, kept, strict=True):
        rows[skipped] = before


@torch.no_grad()
def update_targets(population: Population, tau: float) -> None:
    """Move every target a share `tau` (0 to 1) of the way to its network."""
    population.actor_target.lerp_(population.actor.detach(), tau)
    population.critic_target.lerp_(population.critic.detach(), tau)
