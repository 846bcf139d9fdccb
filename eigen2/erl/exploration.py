"""Exploration noise on actions, from a separate generator for each agent."""

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from eigen2.core.randomness import Role, generator

BLOCK_BYTES = 2**20  # bytes of numbers drawn at once, for several steps: a single step needs few


class Draws:
    """Standard normal numbers for the steps of one generation; each agent gets numbers of `shape` in every step."""

    def __init__(
        self,
        role: Role,
        agents: range,
        shape: tuple[int, ...],
        seed: int,
        generation: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self._generators = [generator(seed, role, generation, agent) for agent in agents]
        steps = max(1, BLOCK_BYTES // max(1, 4 * len(agents) * math.prod(shape)))
        self._drawn_block = torch.empty(len(agents), steps, *shape)
        self._block = self._drawn_block.to(device)  # the same tensor on the CPU
        self._drawn = steps

    def next(self) -> Float[Tensor, "agents ..."]:
        """Return the next step's numbers, a view that later draws overwrite."""
        self.prepare()
        self._drawn += 1
        return self._block[:, self._drawn - 1]

    def prepare(self) -> None:
        """Draw the next step's numbers, unless they are, so that a GPU computes meanwhile."""
        if self._drawn == self._block.shape[1]:
            for row, rng in zip(self._drawn_block, self._generators, strict=True):
                rng.standard_normal(dtype=np.float32, out=row.numpy())
            self._block.copy_(self._drawn_block)
            self._drawn = 0


def explore(
    action: Tensor, windows: int, draws: Draws, scale: Float[Tensor, " agents"], uniform: bool = False
) -> Tensor:
    """Add noise of each agent's `scale` to the last `windows` of actions (agents, windows, ...), within [-1, 1].

    With `uniform` the actions are replaced by uniform ones in [-1, 1] instead.
    """
    if windows == 0:
        return action
    drawn, first = draws.next().to(action.device), action.shape[1] - windows
    if uniform:
        noisy = torch.erf(drawn / math.sqrt(2))  # erf of a normal number over sqrt(2) is uniform in [-1, 1]
    else:
        scale = scale.to(action.device).reshape(-1, *[1] * (action.dim() - 1))
        noisy = (action[:, first:] + drawn * scale).clamp(-1, 1)
    return torch.cat([action[:, :first], noisy], dim=1) if first else noisy
