"""Exploration noise: Gaussian, per agent, from addressed generators."""

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from eigen2.erl.randomness import Role, generator

BLOCK_BYTES = 2**20
"""About what the draws of several steps take, which are made together: a step alone has hardly any."""


class ExplorationNoise:
    """Noise for one generation's exploration windows; fitness windows are played without.

    Args:
        scale: (agents,) standard deviation of each agent's noise, in action units of [-1, 1].
        windows: how many of the last windows are explored.
        action_shape: of one agent in one window.
        seed: the run's.
        generation: the current one.
    """

    def __init__(
        self,
        scale: Float[Tensor, " agents"],
        windows: int,
        action_shape: tuple[int, ...],
        seed: int,
        generation: int,
    ) -> None:
        self._scale = scale.reshape(-1, *[1] * (1 + len(action_shape)))
        self._shape = (windows, *action_shape)
        self._generators = [generator(seed, Role.EXPLORATION, generation, agent) for agent in range(len(scale))]
        steps = max(1, BLOCK_BYTES // max(1, 4 * len(scale) * math.prod(self._shape)))
        self._block = torch.empty(len(scale), steps, *self._shape)
        self._drawn = steps

    def add(self, action: Tensor) -> Tensor:
        """Actions (agents, windows, *action_shape) in [-1, 1] with noise on the last windows, clipped to [-1, 1]."""
        windows = self._shape[0]
        if windows == 0:
            return action
        if self._drawn == self._block.shape[1]:
            for own, chance in zip(self._block, self._generators, strict=True):
                chance.standard_normal(dtype=np.float32, out=own.numpy())
            self._drawn = 0
        noise = self._block[:, self._drawn].to(action.device) * self._scale
        self._drawn += 1
        quiet, noisy = torch.split(action, [action.shape[1] - windows, windows], dim=1)
        return torch.cat([quiet, (noisy + noise).clamp(-1, 1)], dim=1)
