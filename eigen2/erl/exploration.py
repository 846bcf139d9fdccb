"""Exploration noise on actions, each agent's from a generator of its own."""

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from eigen2.core.randomness import Role, generator

BLOCK_BYTES = 2**20
"""Bytes of the draws of several steps, which are made together: one step alone has few."""


class Draws:
    """Standard normal numbers, step by step through one generation, each agent's from a generator of its own.

    Args:
        role: purpose of the numbers.
        agents: numbers of the agents in the whole population.
        shape: of one agent's numbers in a step.
        seed: the run's seed.
        generation: the generation in progress.
    """

    def __init__(self, role: Role, agents: range, shape: tuple[int, ...], seed: int, generation: int) -> None:
        self._generators = [generator(seed, role, generation, agent) for agent in agents]
        steps = max(1, BLOCK_BYTES // max(1, 4 * len(agents) * math.prod(shape)))
        self._block = torch.empty(len(agents), steps, *shape)
        self._drawn = steps

    def next(self) -> Float[Tensor, "agents ..."]:
        """Return the next step's numbers, a view that later draws overwrite."""
        if self._drawn == self._block.shape[1]:
            for own, chance in zip(self._block, self._generators, strict=True):
                chance.standard_normal(dtype=np.float32, out=own.numpy())
            self._drawn = 0
        self._drawn += 1
        return self._block[:, self._drawn - 1]


class ExplorationNoise:
    """Noise of one generation's exploration windows, the last ones; fitness windows have none.

    Args:
        scale: (agents,) standard deviation of each agent's noise, in action units of [-1, 1].
        windows: number of exploration windows.
        action_shape: of one agent in one window.
        agents: numbers of the agents in the whole population.
        seed: the run's seed.
        generation: the generation in progress.
        uniform: whether to replace the agents' actions by uniform ones in [-1, 1].
    """

    def __init__(
        self,
        scale: Float[Tensor, " agents"],
        windows: int,
        action_shape: tuple[int, ...],
        agents: range,
        seed: int,
        generation: int,
        uniform: bool = False,
    ) -> None:
        self._scale = scale.reshape(-1, *[1] * (1 + len(action_shape)))
        self._windows = windows
        self._uniform = uniform
        self._draws = Draws(Role.EXPLORATION, agents, (windows, *action_shape), seed, generation)

    def add(self, action: Tensor) -> Tensor:
        """Add noise to the last windows of actions (agents, windows, *action_shape), clipped to [-1, 1]."""
        if self._windows == 0:
            return action
        drawn = self._draws.next().to(action.device)
        first = action.shape[1] - self._windows
        noisy = action[:, first:]
        # erf of a normal number over sqrt(2) is uniform in [-1, 1]
        own = torch.erf(drawn / math.sqrt(2)) if self._uniform else (noisy + drawn * self._scale).clamp(-1, 1)
        return torch.cat([action[:, :first], own], dim=1) if first else own
