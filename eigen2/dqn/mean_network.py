"""Several networks as one, by the mean of their values."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

MOST_NETWORKS = 100


class MeanNetwork(nn.Module):
    """Networks of the same actions; its values are the mean of theirs.

    The squared error of a mean is at most the mean of the squared errors, and the less the more the networks differ
    (Krogh and Vedelsby, "Neural network ensembles, cross validation, and active learning", 1995).
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
