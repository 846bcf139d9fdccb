"""Gradient steps of a whole population, row by row independent, without the agents whose numbers are not finite."""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from eigen2.erl.population import Population


@runtime_checkable
class Optimizer(Protocol):
    """What is used of an optimizer, torch's own or Lightning's wrapper of it."""

    @property
    def state(self) -> Any:
        """Return the state of each parameter."""

    def step(self) -> Any:
        """Step the parameters that have a gradient."""


PARTS = (
    *("actor loss", "critic loss", "actor gradient", "critic gradient"),
    *("actor weights", "critic weights", "actor target", "critic target", "actor moments", "critic moments"),
)
"""Parts of an agent that must be finite for it to take a step."""
LARGEST = 1e15
"""Larger gradients are scaled down to it before their squares are summed, which float32 holds to 3e38."""


def clip_rows(gradient: Float[Tensor, "agents weights"], max_norm: float) -> Float[Tensor, " agents"]:
    """Scale each agent's gradient to a norm of at most `max_norm`, in place; return the norms before.

    A row with a number that is not finite is zeroed, and its norm is not finite; other rows are not affected. A finite
    row whose squares overflow float32 is clipped like any other.
    """
    largest = gradient.abs().amax(1)
    finite = torch.isfinite(largest)
    shrunk = (LARGEST / largest).clamp(max=1.0)
    norms: Tensor = torch.linalg.vector_norm(gradient.mul_(shrunk[:, None]), dim=1)
    _scale_rows(gradient, norms, max_norm)
    gradient[~finite] = 0.0
    return torch.where(finite, (norms / shrunk).clamp(max=torch.finfo(norms.dtype).max), largest)


def _scale_rows(gradient: Tensor, norms: Tensor, max_norm: float) -> None:
    if max_norm < math.inf:
        gradient.mul_((max_norm / (norms + 1e-6)).clamp(max=1.0)[:, None])


def moments(population: Population, optimizer: Optimizer) -> list[Tensor]:
    """Return the optimizer's state that has a row an agent; empty before the first step."""
    return [moment for rows in (population.actor, population.critic) for moment in _moments(rows, optimizer)]


def _moments(rows: Tensor, optimizer: Optimizer) -> list[Tensor]:
    return [value for value in optimizer.state.get(rows, {}).values() if value.shape == rows.shape]


def state_faults(population: Population, optimizer: Optimizer) -> Bool[Tensor, "parts agents"]:
    """Return where weights, targets or moments are not finite, by `PARTS` without losses and gradients."""
    none = torch.zeros_like(population.noise, dtype=torch.bool)
    return torch.stack([sum(map(_faulty, tensors), none) for tensors in _state(population, optimizer)])


def _faulty(rows: Float[Tensor, "agents weights"]) -> Bool[Tensor, " agents"]:
    suspect = ~torch.isfinite(rows.sum(1))
    suspect[suspect.clone()] = ~torch.isfinite(rows[suspect]).all(1)  # a sum may overflow
    return suspect


def state_is_finite(population: Population, optimizer: Optimizer) -> Tensor:
    """Return whether all weights, targets and moments are finite, by their sums: false alarms only beyond 1e30."""
    sums = [rows.sum() for tensors in _state(population, optimizer) for rows in tensors]
    return torch.isfinite(torch.stack(sums).sum())


def _state(population: Population, optimizer: Optimizer) -> list[list[Tensor]]:
    targets = population.actor_target, population.critic_target
    networks = population.actor.detach(), population.critic.detach()
    moments = _moments(population.actor, optimizer), _moments(population.critic, optimizer)
    return [*([rows] for rows in networks), *([rows] for rows in targets), *moments]


@contextmanager
def _held(tensors: list[Tensor], agents: Bool[Tensor, " agents"]) -> Iterator[None]:
    """Restore these agents' rows afterwards."""
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
    train_actor: bool = True,
) -> Bool[Tensor, "parts agents"] | None:
    """Clip each agent's gradients and step the optimizer, except for agents with a number that is not finite.

    Those keep weights and moments bit for bit: even with a zero gradient Adam's momentum would move them.

    Args:
        population: with gradients.
        optimizer: Adam over its actors and critics.
        max_grad_norm: largest norm of one agent's actor or critic gradient.
        loss: the step's actor and critic losses of each agent; None counts as finite.
        train_actor: whether actors take the step too.

    Returns:
        Where a part is not finite, by `PARTS`; None if everything is finite.
    """
    networks = [population.actor, population.critic]
    gradients = [_gradient(rows) for rows in networks]
    norms = [torch.linalg.vector_norm(gradient, dim=1) for gradient in gradients]
    if loss is None:
        loss = torch.zeros_like(torch.stack(norms))
    finite = torch.isfinite(torch.stack([*loss, *norms])).all() & state_is_finite(population, optimizer)
    if bool(finite):  # the one synchronization with the device in a step
        for gradient, norm in zip(gradients, norms, strict=True):
            _scale_rows(gradient, norm, max_grad_norm)
        _step(optimizer, None if train_actor else population.actor)
        return None
    norms = [clip_rows(gradient, max_grad_norm) for gradient in gradients]
    faults = torch.cat([~torch.isfinite(torch.stack([*loss, *norms])), state_faults(population, optimizer)])
    broken = faults.any(0)
    for gradient in gradients:
        gradient[broken] = 0.0  # so that moments created by the first step are zero
    with _held([*networks, *moments(population, optimizer)], broken):
        _step(optimizer, None if train_actor else population.actor)
    return faults


def _step(optimizer: Optimizer, waiting: Tensor | None) -> None:
    """Step the optimizer without the parameter `waiting`: even with a zero gradient its momentum would move it."""
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
    """Zero the gradients in place, without the checks and hooks of the optimizer's own `zero_grad`."""
    for rows in (population.actor, population.critic):
        _gradient(rows).zero_()


@torch.no_grad()
def update_targets(population: Population, tau: float, broken: Bool[Tensor, " agents"] | None = None) -> None:
    """Move every target by `tau` (0 to 1) of the way to its network, except those of `broken` agents."""
    targets = [population.actor_target, population.critic_target]
    with nullcontext() if broken is None else _held(targets, broken):
        for target, rows in zip(targets, (population.actor, population.critic), strict=True):
            target.lerp_(rows.detach(), tau)
