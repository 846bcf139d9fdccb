"""The default actor and critic: one small network shared by all columns, so that what is learned on one serves all.

Plain modules for one agent and a batch; `StackedNetwork` runs them for a population.
"""

import torch
from torch import Tensor, nn

from eigen2.erl.population import Inputs

PORTFOLIO = 5
"""Numbers an observation holds of a position."""


class _ColumnTrunk(nn.Module):
    """Two layers over each column's own numbers and the market's, the same weights for every column."""

    def __init__(self, width: int, market: int, extra: int, hidden: int) -> None:
        super().__init__()
        self.column = nn.Linear(width, hidden)
        self.position = nn.Linear(PORTFOLIO + extra, hidden, bias=False)
        self.market = nn.Linear(market, hidden, bias=False)
        self.mix = nn.Linear(hidden, hidden)

    def forward(self, inputs: Inputs, position: Tensor) -> Tensor:
        """Features (batch, columns, hidden)."""
        shared = self.market(inputs["market"])[:, None]
        first = torch.relu(self.column(inputs["columns"]) + self.position(position) + shared)
        return torch.relu(self.mix(first))


class ColumnActor(nn.Module):
    """Coefficient and sale target of every column.

    Args:
        width: numbers that describe a column's market.
        market: numbers that describe the whole market and the time left.
        hidden: units a layer.
    """

    def __init__(self, width: int, market: int, hidden: int = 32) -> None:
        super().__init__()
        self.trunk = _ColumnTrunk(width, market, 0, hidden)
        self.head = nn.Linear(hidden, 2)
        nn.init.uniform_(self.head.weight, -0.05, 0.05)
        nn.init.zeros_(self.head.bias)

    def forward(self, inputs: Inputs) -> Tensor:
        """Actions (batch, columns, 2) in [-1, 1]."""
        return torch.tanh(self.head(self.trunk(inputs, inputs["portfolio"])))


class ColumnCritic(nn.Module):
    """Value of an action in all columns.

    Columns are pooled twice: evenly, and by a softmax of their coefficients, since the environment opens the highest.
    So the gradient with respect to a coefficient says what would change if its column were preferred.

    Args:
        width: numbers that describe a column's market.
        market: numbers that describe the whole market and the time left.
        hidden: units a layer.
        sharpness: of the softmax over coefficients in [-1, 1]; 0 pools evenly.
    """

    def __init__(self, width: int, market: int, hidden: int = 32, sharpness: float = 5.0) -> None:
        super().__init__()
        self.sharpness = sharpness
        self.trunk = _ColumnTrunk(width, market, 2, hidden)
        self.market = nn.Linear(market, hidden, bias=False)
        self.pool = nn.Linear(2 * hidden, hidden)
        self.head = nn.Linear(hidden, 1)

    def forward(self, inputs: Inputs, action: Tensor) -> Tensor:
        """Values (batch,)."""
        action = action.to(inputs["portfolio"].dtype)
        features = self.trunk(inputs, torch.cat([inputs["portfolio"], action], dim=-1))
        weight = torch.softmax(self.sharpness * action[..., 0], dim=-1)[..., None]
        pooled = torch.cat([features.mean(1), (weight * features).sum(1)], dim=-1)
        hidden: Tensor = torch.relu(self.pool(pooled) + self.market(inputs["market"]))
        value: Tensor = self.head(hidden)[..., 0]
        return value
