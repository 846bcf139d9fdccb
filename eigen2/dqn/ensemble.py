"""Several networks that act as one, by the mean of their values."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class Ensemble(nn.Module):
    """Networks of the same shape; the values of actions are the mean of theirs.

    Networks that start and train apart err apart: the mean of their values has less error than each (Wiering and van
    Hasselt, "Ensemble algorithms in reinforcement learning", 2008).
    """

    def __init__(self, networks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def __getitem__(self, number: int) -> nn.Module:
        """Return one network."""
        return self.networks[number]

    def forward(self, observation: Tensor) -> Tensor:
        """Return the mean values of all actions, (batch, actions)."""
        return torch.stack([network(observation) for network in self.networks]).mean(0)
