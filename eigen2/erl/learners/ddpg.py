"""DDPG for a whole population: losses, gradient clipping and targets, row by row independent.

Lillicrap et al., "Continuous control with deep reinforcement learning", 2016: equation 5 is the critic's loss,
equation 6 the actor's gradient, algorithm 1 the targets. Fujimoto et al., "Addressing function approximation error in
actor-critic methods", 2018, algorithm 1, is what TD3 adds.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn

from eigen2.core.networks import DESCRIBED, Inputs
from eigen2.erl.population import Population
from eigen2.errors import require_range

Discount = float | Float[Tensor, "agents 1"]
Optimizer = torch.optim.Optimizer | LightningOptimizer

PARTS = (
    *("actor loss", "critic loss", "actor gradient", "critic gradient"),
    *("actor weights", "critic weights", "actor target", "critic target", "actor moments", "critic moments"),
)
"""What of an agent must be finite for it to take a step."""
LONGEST = 1e15
"""Gradients with larger numbers are scaled down to it before their squares are summed, which float32 holds to 3e38."""


@dataclass
class TD3:
    """What twin delayed DDPG adds: a second critic, of which the lower value counts, a delay and noise on targets."""

    policy_delay: int = 2
    """Optimizer steps of the critics for each of the actor and all targets (1 or more)."""
    target_noise: float = 0.2
    """Standard deviation of the noise on the target actor's action, in action units of [-1, 1] (0 or more)."""
    target_noise_clip: float = 0.5
    """That noise is clipped to this distance from 0 (0 or more)."""

    def __post_init__(self) -> None:
        require_range("model.td3.policy_delay", self.policy_delay, least=1)
        for name in ("target_noise", "target_noise_clip"):
            require_range(f"model.td3.{name}", getattr(self, name), least=0)

    def smoothing(self, drawn: Tensor) -> Tensor:
        """Noise for targets, from standard normal numbers."""
        return (drawn * self.target_noise).clamp(-self.target_noise_clip, self.target_noise_clip)


class TwinCritic(nn.Module):
    """Two critics of the same kind with weights of their own; values (batch, 2).

    Args:
        make_critic: builds one.
    """

    def __init__(self, make_critic: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = make_critic(), make_critic()
        self.over_agents = getattr(self.first, "over_agents", "vmap")
        if hasattr(self.first, "describe"):
            self.describe = self._both

    def _both(self, inputs: Inputs) -> Tensor:
        """What each describes, side by side in a last axis."""
        critics: list[Any] = [self.first, self.second]
        return torch.stack([critic.describe(inputs) for critic in critics], -1)

    def forward(self, inputs: Inputs, action: Tensor) -> Tensor:
        """Both values."""
        values = []
        for i, critic in enumerate((self.first, self.second)):
            own = {name: part[..., i] if name == DESCRIBED else part for name, part in inputs.items()}
            values.append(critic(own, action))
        return torch.stack(values, -1)


class Batch(NamedTuple):
    """A sample of transitions for every agent that learns, (agents, batch, ...) each; rewards already scaled."""

    inputs: Inputs
    next_inputs: Inputs
    action: Tensor
    reward: Float[Tensor, "agents batch"]
    terminated: Tensor
    smoothing: Tensor | None = None
    """Noise on the target actor's actions; None for none."""


class Losses(NamedTuple):
    """Per-agent means over the batch; only `actor` and `critic` carry gradients."""

    actor: Float[Tensor, " agents"]
    critic: Float[Tensor, " agents"]
    q_mean: Float[Tensor, " agents"]
    action_saturation: Float[Tensor, " agents"]


def td_target(population: Population, batch: Batch, gamma: Discount) -> Float[Tensor, "agents batch"]:
    """Reward + gamma x Q'(s', mu'(s')), without the second term where the episode terminated; truncation bootstraps.

    Of twin critics the lower value counts.
    """
    actor, critic = map(population.learning, (population.actor_target, population.critic_target))
    with torch.no_grad():
        next_action = population.actor_network(actor, batch.next_inputs)
        if batch.smoothing is not None:
            next_action = (next_action + batch.smoothing).clamp(-1, 1)
        next_value = population.critic_network(critic, batch.next_inputs, next_action).float()
        next_value = next_value.amin(-1) if next_value.dim() > 2 else next_value
        return batch.reward + gamma * torch.where(batch.terminated, 0.0, next_value)


def losses(population: Population, batch: Batch, gamma: Discount, actor: bool = True) -> Losses:
    """Critic's mean squared TD error and minus the critic's value of the actor's own action.

    The actor's loss uses the critic's weights detached, so one backward pass of both fills each gradient from its own
    loss alone. Twin critics' errors are added, and the first one judges the actor.

    Args:
        population: the agents that learn are its first `learners`.
        batch: theirs.
        gamma: discount a step, that of all or each agent's own.
        actor: whether the actors learn too; without, their loss and saturation are 0.
    """
    target = td_target(population, batch, gamma)
    critic = population.critic_network
    weights = critic.weights(population.learning(population.critic))
    inputs = critic.described(weights, batch.inputs)
    value = critic(weights, inputs, batch.action).float()
    error = (value - (target if value.dim() == 2 else target[..., None])).square().mean(1)
    each = error if error.dim() == 1 else error.sum(1)
    q_mean = value.detach().mean(1)
    q_mean = q_mean if q_mean.dim() == 1 else q_mean[:, 0]
    if not actor:
        return Losses(torch.zeros_like(q_mean), each, q_mean, torch.zeros_like(q_mean))
    action = population.actor_network(population.learning(population.actor), batch.inputs)
    fixed = {name: part.detach() if name == DESCRIBED else part for name, part in inputs.items()}
    own_value = critic({name: weight.detach() for name, weight in weights.items()}, fixed, action).float()
    return Losses(
        actor=-(own_value if own_value.dim() == 2 else own_value[..., 0]).mean(1),
        critic=each,
        q_mean=q_mean,
        action_saturation=(action.detach().abs() > 0.98).float().flatten(1).mean(1),
    )


def clip_rows(gradient: Float[Tensor, "agents weights"], max_norm: float) -> Float[Tensor, " agents"]:
    """Scale each agent's gradient to a norm of at most `max_norm`, in place; return the norms before.

    A row with a number that is not finite is zeroed, and its norm is not finite either; the others do not notice. A
    finite row whose squares overflow float32 is clipped like any other.
    """
    largest = gradient.abs().amax(1)
    finite = torch.isfinite(largest)
    shrunk = (LONGEST / largest).clamp(max=1.0)
    norms: Tensor = torch.linalg.vector_norm(gradient.mul_(shrunk[:, None]), dim=1)
    _scale_rows(gradient, norms, max_norm)
    gradient[~finite] = 0.0
    return torch.where(finite, (norms / shrunk).clamp(max=torch.finfo(norms.dtype).max), largest)


def _scale_rows(gradient: Tensor, norms: Tensor, max_norm: float) -> None:
    if max_norm < math.inf:
        gradient.mul_((max_norm / (norms + 1e-6)).clamp(max=1.0)[:, None])


def row_moments(population: Population, optimizer: Optimizer) -> list[Tensor]:
    """The optimizer's state that has a row an agent; empty before the first step."""
    return [moment for rows in (population.actor, population.critic) for moment in _moments(rows, optimizer)]


def _moments(rows: Tensor, optimizer: Optimizer) -> list[Tensor]:
    return [value for value in optimizer.state.get(rows, {}).values() if value.shape == rows.shape]


def state_faults(population: Population, optimizer: Optimizer) -> Bool[Tensor, "parts agents"]:
    """Where weights, targets or moments are not finite, by `PARTS` without losses and gradients."""
    none = torch.zeros_like(population.noise, dtype=torch.bool)
    return torch.stack([sum(map(_faulty, tensors), none) for tensors in _state(population, optimizer)])


def _faulty(rows: Float[Tensor, "agents weights"]) -> Bool[Tensor, " agents"]:
    suspect = ~torch.isfinite(rows.sum(1))
    suspect[suspect.clone()] = ~torch.isfinite(rows[suspect]).all(1)  # a sum may overflow
    return suspect


def state_is_finite(population: Population, optimizer: Optimizer) -> Tensor:
    """Whether all weights, targets and moments are finite, from their sums: a false alarm only beyond 1e30."""
    sums = [rows.sum() for tensors in _state(population, optimizer) for rows in tensors]
    return torch.isfinite(torch.stack(sums).sum())


def _state(population: Population, optimizer: Optimizer) -> list[list[Tensor]]:
    targets = population.actor_target, population.critic_target
    networks = population.actor.detach(), population.critic.detach()
    moments = _moments(population.actor, optimizer), _moments(population.critic, optimizer)
    return [*([rows] for rows in networks), *([rows] for rows in targets), *moments]


@contextmanager
def _held(tensors: list[Tensor], agents: Bool[Tensor, " agents"]) -> Iterator[None]:
    """Whatever happens inside, these agents' rows are afterwards what they were."""
    kept = [rows[agents] for rows in tensors]
    yield
    for rows, before in zip(tensors, kept, strict=True):
        rows[agents] = before


@torch.no_grad()
def step(
    population: Population,
    optimizer: Optimizer,
    max_grad_norm: float,
    loss: Float[Tensor, "2 agents"] | None = None,
    actor: bool = True,
) -> Bool[Tensor, "parts agents"] | None:
    """Clip each agent's gradients and let the optimizer use them, but for agents with a number that is not finite.

    Those keep weights and moments, bit for bit: a zero gradient alone would still let Adam's momentum move them.

    Args:
        population: with gradients.
        optimizer: Adam over its actors and critics.
        max_grad_norm: largest norm of one agent's actor or critic gradient.
        loss: the step's actor and critic losses of each agent; none counts as finite.
        actor: whether actors take the step too.

    Returns:
        What is not finite, by `PARTS`; None if everything is finite.
    """
    networks = [population.actor, population.critic]
    gradients = [_gradient(rows) for rows in networks]
    norms = [torch.linalg.vector_norm(gradient, dim=1) for gradient in gradients]
    if loss is None:
        loss = torch.zeros_like(torch.stack(norms))
    finite = torch.isfinite(torch.stack([*loss, *norms])).all() & state_is_finite(population, optimizer)
    if bool(finite):  # the one time a step waits for the device
        for gradient, norm in zip(gradients, norms, strict=True):
            _scale_rows(gradient, norm, max_grad_norm)
        _take(optimizer, None if actor else population.actor)
        return None
    norms = [clip_rows(gradient, max_grad_norm) for gradient in gradients]
    faults = torch.cat([~torch.isfinite(torch.stack([*loss, *norms])), state_faults(population, optimizer)])
    broken = faults.any(0)
    for gradient in gradients:
        gradient[broken] = 0.0  # moments that the first step makes are then zero
    with _held([*networks, *row_moments(population, optimizer)], broken):
        _take(optimizer, None if actor else population.actor)
    return faults


def _take(optimizer: Optimizer, waiting: Tensor | None) -> None:
    """Let the optimizer step, but for the rows that wait: with a gradient of zero their momentum would move them."""
    if waiting is None:
        optimizer.step()
        return
    gradient, waiting.grad = waiting.grad, None
    optimizer.step()
    waiting.grad = gradient


def _gradient(rows: Tensor) -> Tensor:
    if rows.grad is None:
        rows.grad = torch.zeros_like(rows)
    return rows.grad


def clear_gradients(population: Population) -> None:
    """Fill them with zeros in place, without the checks and hooks of the optimizer's own `zero_grad`."""
    for rows in (population.actor, population.critic):
        _gradient(rows).zero_()


@torch.no_grad()
def update_targets(population: Population, tau: float, broken: Bool[Tensor, " agents"] | None = None) -> None:
    """Move every target a share `tau` (0 to 1) of the way to its network, but for those of `broken` agents."""
    targets = [population.actor_target, population.critic_target]
    with nullcontext() if broken is None else _held(targets, broken):
        for target, rows in zip(targets, (population.actor, population.critic), strict=True):
            target.lerp_(rows.detach(), tau)
