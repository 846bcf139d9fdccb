"""The default actor and critic: a token a column, the same weights for every column, and a context across columns.

What is learned on one column serves all, and the order of columns does not matter. The modules are written for one
agent; as `Linear` counts axes from the last, a leading agent axis of weights and inputs passes through them.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from eigen2.erl.networks import DESCRIBED, Inputs, Linear, Sizes, require_width
from eigen2.errors import UserError, require_range

PORTFOLIO = 5
"""Numbers an observation holds of a position."""
MOST_SHARPNESS = 1e6
"""A softmax over coefficients in [-1, 1] that is sharper has no gradient left."""


class _ColumnTrunk(nn.Module):
    """A token for each column from its own numbers, the market's and its position, then one that saw the others."""

    def __init__(self, sizes: Sizes, extra: int, hidden: int) -> None:
        super().__init__()
        require_width("hidden", hidden)
        # one bias a sum, in its smallest part
        self.column = Linear(sizes.inputs["columns"][-1], hidden, bias=False)
        self.market = Linear(sizes.inputs["market"][-1], hidden)
        self.position = Linear(sizes.inputs["portfolio"][-1] + extra, hidden, bias=False)
        self.mix = Linear(hidden, hidden, bias=False)
        self.context = Linear(hidden, hidden)

    def describe(self, inputs: Inputs) -> Tensor:
        """What the day alone makes of a token, (batch, columns, hidden)."""
        described: Tensor = self.column(inputs["columns"])
        return described.add_(self.market(inputs["market"]).unsqueeze(-2))

    def forward(self, inputs: Inputs, position: Tensor) -> Tensor:
        """Tokens (batch, columns, hidden)."""
        described = inputs[DESCRIBED] if DESCRIBED in inputs else self.describe(inputs)
        own: Tensor = self.position(position, described).relu_()
        others = self.context(own.sum(-2) / own.shape[-2]).unsqueeze(-2)
        tokens: Tensor = self.mix(own).add_(others).relu_()
        return tokens


class ColumnActor(nn.Module):
    """Coefficient and sale target of every column.

    Args:
        sizes: of a column's numbers (`columns`), of the market's (`market`) and of a position (`portfolio`).
        hidden: units a layer.
    """

    over_agents: Literal["broadcast"] = "broadcast"

    def __init__(self, sizes: Sizes, hidden: int = 32) -> None:
        super().__init__()
        require_averages(sizes, self)
        self.trunk = _ColumnTrunk(sizes, 0, hidden)
        self.head = Linear(hidden, 2)
        nn.init.uniform_(self.head.weight, -0.05, 0.05)
        nn.init.zeros_(self.head.bias)

    def forward(self, inputs: Inputs) -> Tensor:
        """Actions (batch, columns, 2) in [-1, 1]."""
        return torch.tanh(self.head(self.trunk(inputs, inputs["portfolio"])))


class ColumnCritic(nn.Module):
    """Value of an action in all columns.

    Args:
        sizes: of a column's numbers (`columns`), of the market's (`market`) and of a position (`portfolio`).
        hidden: units a layer.
        sharpness: of the softmax over coefficients in [-1, 1]; 0 pools evenly.
    """

    over_agents: Literal["broadcast"] = "broadcast"

    def __init__(self, sizes: Sizes, hidden: int = 32, sharpness: float = 5.0) -> None:
        super().__init__()
        require_averages(sizes, self)
        self.sharpness = require_sharpness(sharpness)
        self.trunk = _ColumnTrunk(sizes, 2, hidden)
        self.pool = Linear(2 * hidden, hidden)
        self.head = Linear(hidden, 1)

    def describe(self, inputs: Inputs) -> Tensor:
        """What does not depend on the action, (batch, columns, hidden)."""
        return self.trunk.describe(inputs)

    def forward(self, inputs: Inputs, action: Tensor) -> Tensor:
        """Values (batch,)."""
        tokens = self.trunk(inputs, join(inputs["portfolio"], action))
        pooled = pool_columns(tokens, action[..., 0], self.sharpness)
        value: Tensor = self.head(self.pool(pooled).relu_())[..., 0]
        return value


def join(portfolio: Tensor, action: Tensor) -> Tensor:
    """A position's numbers and what is asked of it, (..., columns, 7); either may be shared by all agents."""
    leading = torch.broadcast_shapes(portfolio.shape[:-1], action.shape[:-1])  # type: ignore[no-untyped-call]
    return torch.cat([part.expand(*leading, -1) for part in (portfolio, action.to(portfolio.dtype))], dim=-1)


def pool_columns(tokens: Tensor, coefficient: Tensor, sharpness: float) -> Tensor:
    """Tokens (..., columns, hidden) pooled evenly and by a softmax of coefficients (..., columns), side by side.

    The environment opens the columns of the highest coefficients. So the gradient with respect to a coefficient says
    what would change if its column were preferred.
    """
    weight = torch.softmax(sharpness * coefficient, dim=-1).to(tokens.dtype)
    weights = torch.stack([torch.full_like(weight, 1 / weight.shape[-1]), weight], dim=-2)
    return (weights @ tokens).flatten(-2)


def require_sharpness(value: float) -> float:
    """The sharpness of a softmax, if it can be one.

    Raises:
        UserError: it is no finite number.
    """
    require_range("sharpness", value, least=-MOST_SHARPNESS, most=MOST_SHARPNESS)
    return value


def require_averages(sizes: Sizes, network: nn.Module) -> None:
    """Refuse a network that reads averages where there are none.

    Raises:
        UserError: `data.encoding` is another one.
    """
    if "columns" not in sizes.inputs:
        raise UserError(f"{type(network).__name__} reads averages: set data.encoding to averages")
