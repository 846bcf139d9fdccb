"""Deep Q-learning over maps: targets, loss, the choice of cells, and what moves the target network.

Mnih et al., "Human-level control through deep reinforcement learning", 2015: algorithm 1. van Hasselt, Guez and Silver,
"Deep reinforcement learning with double Q-learning", 2016: the online network chooses the next action, the target
network values it. Sutton and Barto, "Reinforcement learning", 2018, chapter 7: returns of n steps.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor, nn
from torch.nn import functional

from eigen2.errors import require_range

UNIT = 30.0
"""`relative_reward` of a break after which 1/e of what burned still burns; breaks earn about 1 each."""


class Batch(NamedTuple):
    """A sample of transitions of one or several steps each."""

    observation: UInt8[Tensor, "batch planes height width"]
    action: Int64[Tensor, " batch"]
    """The cell that was chosen, 0 to cells - 1 in row-major order."""
    reward: Float[Tensor, " batch"]
    """Of a transition of several steps: their discounted sum, as `discounted` gives it."""
    next_observation: UInt8[Tensor, "batch planes height width"]
    """After the last of the steps; where `terminated`, anything."""
    next_allowed: Bool[Tensor, "batch cells"]
    """Cells that may be chosen there."""
    terminated: Bool[Tensor, " batch"]
    """Whether the episode ended within the steps, by itself: nothing comes after."""
    discount: Float[Tensor, " batch"]
    """What a value after the last of the steps counts for, 0 to 1: gamma to the power of the number of steps."""


class Loss(NamedTuple):
    """Means over the batch; only `loss` carries gradients, and they go to the online network alone."""

    loss: Float[Tensor, ""]
    q_mean: Float[Tensor, ""]
    """Of the chosen cells' values."""
    error: Float[Tensor, ""]
    """Distance between those values and their targets."""


def best_cells(values: Float[Tensor, "batch cells"], allowed: Bool[Tensor, "batch cells"]) -> Int64[Tensor, " batch"]:
    """The allowed cell of the highest value in each row; of several the first; 0 where none is allowed.

    Values that are not finite cannot make a cell win that is not allowed.
    """
    lowest = torch.finfo(values.dtype).min
    return torch.where(allowed, values.clamp(min=lowest), -torch.inf).argmax(1)


@torch.no_grad()
def td_targets(online: nn.Module, target: nn.Module, batch: Batch) -> Float[Tensor, " batch"]:
    """Reward + discount x Q'(s', a') with a' = the best allowed cell by Q (double Q-learning).

    The second term is 0 where the episode terminated or no cell is allowed any more.

    Args:
        online: Q, observations to values (batch, cells).
        target: Q', likewise.
        batch: the transitions.
    """
    cells = best_cells(online(batch.next_observation), batch.next_allowed)
    values = target(batch.next_observation).gather(1, cells[:, None])[:, 0]
    over = batch.terminated | ~batch.next_allowed.any(1)
    return batch.reward + batch.discount * torch.where(over, 0.0, values)


def loss(online: nn.Module, target: nn.Module, batch: Batch, delta: float = 1.0) -> Loss:
    """Huber loss of the chosen cells' values against `td_targets`.

    Args:
        online: the network that learns, observations to values (batch, cells).
        target: the one that values what comes next.
        batch: the transitions.
        delta: error beyond which the loss grows linearly, > 0, in units of the reward.
    """
    goal = td_targets(online, target, batch)
    value = online(batch.observation).gather(1, batch.action[:, None])[:, 0]
    error = (value.detach() - goal).abs().mean()
    return Loss(functional.huber_loss(value, goal, delta=delta), value.detach().mean(), error)


def select(
    values: Float[Tensor, "batch cells"],
    allowed: Bool[np.ndarray, "batch cells"],
    epsilon: float,
    generator: np.random.Generator,
) -> Int64[np.ndarray, " batch"]:
    """Choose a cell for each row: with probability `epsilon` any allowed one, else the allowed one of highest value.

    It draws two numbers a row whatever it does with them, so what is drawn later does not depend on epsilon.

    Args:
        values: of the cells.
        allowed: cells that may be chosen, at least one a row.
        epsilon: 0 (greedy) to 1 (random).
        generator: of the exploration.

    Raises:
        ValueError: a row allows no cell.
    """
    counts = allowed.sum(1)
    if not counts.all():
        raise ValueError(f"no cell is allowed in row {int(np.argmin(counts))}")
    greedy = best_cells(values.detach(), torch.from_numpy(allowed).to(values.device)).cpu().numpy()
    explore, which = generator.random((2, len(allowed)))
    ranks = np.minimum((which * counts).astype(np.int64), counts - 1)
    anywhere = (np.cumsum(allowed, 1) > ranks[:, None]).argmax(1)  # the cell with `rank` allowed ones before it
    return np.where(explore < epsilon, anywhere, greedy)


def relative_reward(before: float, after: float, cells: int) -> float:
    """What a break saves of what still burned: `UNIT` times the logarithm of their ratio.

    Points saved get fewer with every break, as there is less left to save; these rewards stay of one size all through
    an episode, and still sum to a number that depends on the first and the last burned share alone.

    Args:
        before: the break, the burned share (0 to 1).
        after: the break, the burned share (0 to `before`).
        cells: of the map (1 or more); one burned cell a fire is as little as counts.
    """
    return UNIT * math.log(max(before, 1 / cells) / max(after, 1 / cells))


def epsilon_at(step: int, steps: int, initial: float = 1.0, least: float = 0.05, fraction: float = 0.3) -> float:
    """Share of random choices, falling on a straight line and then staying.

    Args:
        step: environment steps taken so far, >= 0.
        steps: of the whole run, >= 1.
        initial: at step 0, 0 to 1.
        least: from `fraction` of the run on, 0 to 1.
        fraction: of the run over which it falls, 0 to 1.
    """
    require_range("steps", steps, least=1)
    fallen = min(1.0, step / (fraction * steps)) if fraction > 0 else 1.0
    return initial + fallen * (least - initial)


def discounted(
    rewards: Float[Tensor, "steps batch"], terminated: Bool[Tensor, "steps batch"], gamma: float
) -> tuple[Float[Tensor, " batch"], Bool[Tensor, " batch"]]:
    """Discounted sum of the rewards of several steps until the episode ended, and whether it did.

    Args:
        rewards: of the steps in their order; those after an end are another episode's and do not count.
        terminated: whether the episode ended with the step.
        gamma: discount a step, 0 to 1.
    """
    ends = terminated.int().cumsum(0)
    before = (ends - terminated.int()) > 0  # whether it had ended before the step
    weights = gamma ** torch.arange(len(rewards), dtype=rewards.dtype, device=rewards.device)
    return (weights[:, None] * rewards * ~before).sum(0), ends[-1] > 0


@torch.no_grad()
def update_target(target: nn.Module, online: nn.Module, tau: float) -> None:
    """Move each weight of the target network a share `tau` (0 to 1) of the way to the online one's (Polyak)."""
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), tau)
