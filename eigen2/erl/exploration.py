"""Noise on actions, per agent, from addressed generators."""

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from eigen2.core.randomness import Role, generator

BLOCK_BYTES = 2**20
"""About what the draws of several steps take, which are made together: a step alone has hardly any."""


class Draws:
    """Standard normal numbers, step by step through one generation, for each agent from a generator of its own.

    Args:
        role: what they are for.
        agents: how many there are.
        shape: of what one agent draws in a step.
        seed: the run's.
        generation: the current one.
        first: number of the first of them.
    """

    def __init__(
        self, role: Role, agents: int, shape: tuple[int, ...], seed: int, generation: int, first: int = 0
    ) -> None:
        self._generators = [generator(seed, role, generation, first + agent) for agent in range(agents)]
        steps = max(1, BLOCK_BYTES // max(1, 4 * agents * math.prod(shape)))
        self._block = torch.empty(agents, steps, *shape)
        self._drawn = steps

    def next(self) -> Float[Tensor, "agents ..."]:
        """The next step's; a view, which later draws overwrite."""
        if self._drawn == self._block.shape[1]:
            for own, chance in zip(self._block, self._generators, strict=True):
                chance.standard_normal(dtype=np.float32, out=own.numpy())
            self._drawn = 0
        self._drawn += 1
        return self._block[:, self._drawn - 1]


class ExplorationNoise:
    """Noise for one generation's exploration windows; fitness windows are played without.

    Args:
        scale: (agents,) standard deviation of each agent's noise, in action units of [-1, 1].
        windows: how many of the last windows are explored.
        action_shape: of one agent in one window.
        seed: the run's.
        generation: the current one.
        uniform: whether to play actions that are even between -1 and 1 in place of the agents' own with noise.
        first: number of the first agent.
    """

    def __init__(
        self,
        scale: Float[Tensor, " agents"],
        windows: int,
        action_shape: tuple[int, ...],
        seed: int,
        generation: int,
        uniform: bool = False,
        first: int = 0,
    ) -> None:
        self._scale = scale.reshape(-1, *[1] * (1 + len(action_shape)))
        self._windows = windows
        self._uniform = uniform
        self._draws = Draws(Role.EXPLORATION, len(scale), (windows, *action_shape), seed, generation, first)

    def add(self, action: Tensor) -> Tensor:
        """Actions (agents, windows, *action_shape) in [-1, 1] with noise on the last windows, clipped to [-1, 1]."""
        if self._windows == 0:
            return action
        drawn = self._draws.next().to(action.device)
        first = action.shape[1] - self._windows
        noisy = action[:, first:]
        # a normal number's place in its distribution is even
        own = torch.erf(drawn / math.sqrt(2)) if self._uniform else (noisy + drawn * self._scale).clamp(-1, 1)
        return torch.cat([action[:, :first], own], dim=1) if first else own
