"""Gradient steps of a whole population, independent by row, skipping agents whose numbers are not finite."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.optim import Optimizer

from eigen2.erl.population import Population

PARTS = (
    *("actor loss", "critic loss", "actor gradient", "critic gradient"),
    *("actor weights", "critic weights", "actor target", "critic target", "actor moments", "critic moments"),
)
"""Parts of an agent that must be finite: the first four for it to take a step, all at the end of a generation."""


def moments(population: Population, optimizer: Optimizer) -> list[Tensor]:
    """Return the optimizer's moments, with one row per agent each; empty before the first step."""
    return [moment for rows in (population.actor, population.critic) for moment in _moments(rows, optimizer)]


def _moments(rows: Tensor, optimizer: Optimizer) -> list[Tensor]:
    return [value for value in optimizer.state.get(rows, {}).values() if value.shape == rows.shape]


def state_faults(population: Population, optimizer: Optimizer) -> Bool[Tensor, "parts agents"]:
    """Return where weights, targets or moments are not finite, by `PARTS` from the fifth on."""
    networks = population.actor, population.critic
    targets = population.actor_target, population.critic_target
    state = [*([rows.detach()] for rows in (*networks, *targets)), *(_moments(rows, optimizer) for rows in networks)]
    none = torch.zeros(len(population.actor), dtype=torch.bool, device=population.actor.device)
    return torch.stack([sum(map(_broken, parts), none) for parts in state])


def _broken(rows: Tensor) -> Bool[Tensor, " agents"]:
    """Return which rows are not finite; only those whose sum is not are looked at, which takes memory."""
    broken = ~rows.sum(1).isfinite()
    broken[broken.clone()] = ~rows[broken].isfinite().all(1)
    return broken


@contextmanager
def skipped(population: Population, optimizer: Optimizer, agents: Bool[Tensor, " agents"] | None) -> Iterator[None]:
    """Keep weights, targets and moments of these agents bit for bit while the others take a step."""
    if agents is None:
        yield
        return
    networks, targets = (population.actor, population.critic), (population.actor_target, population.critic_target)
    for network in networks:
        _gradient(network)[agents] = 0.0  # so that moments created by the first step are zero
    # even with a zero gradient Adam's momentum would move weights
    state = [*(network.detach() for network in networks), *targets, *moments(population, optimizer)]
    kept = [(rows, rows[agents]) for rows in state]
    yield
    for rows, before in kept:
        rows[agents] = before


@torch.no_grad()
def clip_and_check(
    population: Population, max_grad_norm: float, loss: Float[Tensor, "2 agents"] | None = None
) -> Bool[Tensor, "4 rows"]:
    """Clip each agent's actor and critic gradients; return which of the step's losses and gradients are finite.

    They are the first four of `PARTS`. If they are finite, so are weights, targets and moments after the step: no
    square of a gradient exceeds the square of the norm, and Adam bounds what it adds to a weight. `loss` holds the
    step's losses of all agents; None counts as finite.
    """
    gradients = [_gradient(rows) for rows in (population.actor, population.critic)]
    norms = torch.stack([torch.linalg.vector_norm(gradient, dim=1) for gradient in gradients])
    finite = torch.isfinite(torch.cat([torch.zeros_like(norms) if loss is None else loss[:, : norms.shape[1]], norms]))
    if max_grad_norm < math.inf:
        for gradient, norm in zip(gradients, norms, strict=True):
            gradient.mul_((max_grad_norm / (norm + 1e-6)).clamp(max=1.0)[:, None])
    return finite


@torch.no_grad()
def step(population: Population, step_optimizer: Callable[[], Any], train_actor: bool = True) -> None:
    """Step the optimizer and zero the gradients; without `train_actor` actors keep weights and moments."""
    gradient = _gradient(population.actor)
    if not train_actor:  # even with a zero gradient its momentum would move it
        population.actor.grad = None
    step_optimizer()
    population.actor.grad = gradient
    clear_gradients(population)


def _gradient(rows: Tensor) -> Tensor:
    rows.grad = torch.zeros_like(rows) if rows.grad is None else rows.grad
    return rows.grad


def clear_gradients(population: Population) -> None:
    """Zero the gradients in place, without the checks and hooks of the optimizer's own `zero_grad`."""
    for rows in (population.actor, population.critic):
        _gradient(rows).zero_()


@torch.no_grad()
def update_targets(population: Population, tau: float) -> None:
    """Move every target by `tau` (0 to 1) of the way to its network."""
    for target, rows in ((population.actor_target, population.actor), (population.critic_target, population.critic)):
        target.lerp_(rows.detach(), tau)
