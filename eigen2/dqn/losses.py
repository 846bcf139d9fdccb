"""Deep Q-learning with masked actions: targets, loss, action selection and target network updates.

Mnih et al., "Human-level control through deep reinforcement learning", 2015: algorithm 1. van Hasselt, Guez and Silver,
"Deep reinforcement learning with double Q-learning", 2016: the online network chooses the next action, the target
network values it.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor, nn
from torch.nn import functional


class Batch(NamedTuple):
    """Sample of transitions; `next_observation` is arbitrary where `terminated`."""

    observation: UInt8[Tensor, "batch planes height width"]
    action: Int64[Tensor, " batch"]
    reward: Float[Tensor, " batch"]
    next_observation: UInt8[Tensor, "batch planes height width"]
    next_allowed: Bool[Tensor, "batch actions"]
    terminated: Bool[Tensor, " batch"]


class Loss(NamedTuple):
    """Means over the batch: loss with gradients, value of the chosen actions, and its distance from the target."""

    loss: Float[Tensor, ""]
    q_mean: Float[Tensor, ""]
    error: Float[Tensor, ""]


def best_actions(
    values: Float[Tensor, "batch actions"], allowed: Bool[Tensor, "batch actions"]
) -> Int64[Tensor, " batch"]:
    """Return each row's first allowed action of the highest value, finite or not; 0 where none is allowed."""
    lowest = torch.finfo(values.dtype).min
    return torch.where(allowed, values.clamp(min=lowest), -torch.inf).argmax(1)


@torch.no_grad()
def td_targets(online: nn.Module, target: nn.Module, batch: Batch, gamma: float) -> Float[Tensor, " batch"]:
    """Return reward + gamma x Q'(s', a') with a' = the best allowed action by Q (double Q-learning).

    The second term is 0 where the episode terminated or no action is allowed any more.
    """
    actions = best_actions(online(batch.next_observation), batch.next_allowed)
    values = target(batch.next_observation).gather(1, actions[:, None])[:, 0]
    over = batch.terminated | ~batch.next_allowed.any(1)
    return batch.reward + gamma * torch.where(over, 0.0, values)


def loss(online: nn.Module, target: nn.Module, batch: Batch, gamma: float) -> Loss:
    """Return the Huber loss of the chosen actions' values against `td_targets`, for the online network alone."""
    goal = td_targets(online, target, batch, gamma)
    value = online(batch.observation).gather(1, batch.action[:, None])[:, 0]
    error = (value.detach() - goal).abs().mean()
    return Loss(functional.huber_loss(value, goal), value.detach().mean(), error)


def epsilon_greedy(
    values: Float[Tensor, "batch actions"],
    allowed: Bool[np.ndarray, "batch actions"],
    epsilon: float,
    generator: np.random.Generator,
) -> Int64[np.ndarray, " batch"]:
    """Choose an action for each row: any allowed one with probability `epsilon`, else the allowed one of highest value.

    Two numbers a row are drawn whatever epsilon is, so that later draws do not depend on it. ValueError if a row allows
    no action.
    """
    counts = allowed.sum(1)
    if not counts.all():
        raise ValueError(f"no action is allowed in row {int(np.argmin(counts))}")
    greedy = best_actions(values.detach(), torch.from_numpy(allowed).to(values.device)).cpu().numpy()
    explore, which = generator.random((2, len(allowed)))
    ranks = np.minimum((which * counts).astype(np.int64), counts - 1)
    random_actions = (np.cumsum(allowed, 1) > ranks[:, None]).argmax(1)  # the action with `rank` allowed ones before it
    return np.where(explore < epsilon, random_actions, greedy)


@torch.no_grad()
def update_target(target: nn.Module, online: nn.Module, tau: float) -> None:
    """Move each weight of the target network a share `tau` (0 to 1) of the way to the online one's (Polyak)."""
    for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
        slow.lerp_(fast, tau)
