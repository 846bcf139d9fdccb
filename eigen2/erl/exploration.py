"""Exploration noise: Gaussian, per agent, from addressed generators."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from eigen2.erl.randomness import Role, generator


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

    def add(self, action: Tensor) -> Tensor:
        """Actions (agents, windows, *action_shape) in [-1, 1] with noise on the last windows, clipped to [-1, 1]."""
        windows = self._shape[0]
        if windows == 0:
            return action
        draws = np.stack([g.standard_normal(self._shape, dtype=np.float32) for g in self._generators])
        noise = torch.from_numpy(draws).to(action.device) * self._scale
        quiet, noisy = torch.split(action, [action.shape[1] - windows, windows], dim=1)
        return torch.cat([quiet, (noisy + noise).clamp(-1, 1)], dim=1)
