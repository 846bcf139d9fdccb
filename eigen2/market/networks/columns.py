"""The default actor and critic: a token a column, the same weights for every column, and a context across columns.

What is learned on one column serves all, and the order of columns does not matter. The modules are written for one
agent; as `Linear` counts axes from the last, a leading agent axis of weights and inputs passes through them.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from eigen2.core.networks import DESCRIBED, Inputs, Linear, Sizes, require_width
from eigen2.errors import UserError, require_range

PORTFOLIO = 5
"""Numbers an observation holds of a position, the first of which says whether there is one."""
MOST_SHARPNESS = 1e6
"""A softmax over coefficients in [-1, 1] that is sharper has no gradient left."""
NEVER = -10.0
"""Below every coefficient."""


@dataclass(frozen=True)
class Choice:
    """Which columns an action orders, as far as a critic needs to know."""

    orders: int = 1
    """Columns an agent may order a day (1 or more): data.rules.max_opens_per_day."""
    short_sales: bool = False
    """Whether coefficients count by their size: data.rules.allow_short."""
    sharpness: float = 2.0
    """Of the softmax over coefficients in [-1, 1] through which the gradient of the choice passes (0 to 1e6; 0: none
    passes)."""

    def __post_init__(self) -> None:
        require_range("choice.orders", self.orders, least=1)
        require_range("choice.sharpness", self.sharpness, least=0, most=MOST_SHARPNESS)

    def pool(self, tokens: Tensor, coefficient: Tensor, portfolio: Tensor) -> Tensor:
        """Tokens (..., columns, hidden) pooled evenly, and over the columns that are ordered, side by side.

        As in the environment these are the highest of the coefficients (..., columns) in [-1, 1] among columns that are
        not held, the lower column of equal ones; so a critic judges what would happen. As a choice has no gradient,
        that of a softmax takes its place (the straight-through estimator; Bengio, Léonard and Courville, "Estimating or
        propagating gradients through stochastic neurons for conditional computation", 2013): it says what would change
        if a column were preferred.
        """
        size = coefficient.abs() if self.short_sales else coefficient
        held = portfolio[..., 0] > 0
        size = torch.where(held, NEVER, size)
        soft = torch.softmax(self.sharpness * size, dim=-1)
        if self.orders == 1:
            first = size.argmax(-1, keepdim=True)
        else:  # unlike topk it takes the lower of equal ones
            first = torch.sort(size, dim=-1, descending=True, stable=True).indices[..., : self.orders]
        chosen = torch.zeros_like(soft).scatter(-1, first, 1 / first.shape[-1])
        chosen = torch.where(held, 0.0, chosen)  # where all are held none is ordered
        weight = (chosen + (soft - soft.detach())).to(tokens.dtype)
        weights = torch.stack([torch.full_like(weight, 1 / weight.shape[-1]), weight], dim=-2)
        return (weights @ tokens).flatten(-2)


ONE_ORDER = Choice()


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
        choice: which columns an action orders.
    """

    over_agents: Literal["broadcast"] = "broadcast"

    def __init__(self, sizes: Sizes, hidden: int = 32, choice: Choice = ONE_ORDER) -> None:
        super().__init__()
        require_averages(sizes, self)
        self.choice = choice
        self.trunk = _ColumnTrunk(sizes, 2, hidden)
        self.pool = Linear(2 * hidden, hidden)
        self.head = Linear(hidden, 1)

    def describe(self, inputs: Inputs) -> Tensor:
        """What does not depend on the action, (batch, columns, hidden)."""
        return self.trunk.describe(inputs)

    def forward(self, inputs: Inputs, action: Tensor) -> Tensor:
        """Values (batch,)."""
        tokens = self.trunk(inputs, join(inputs["portfolio"], action))
        pooled = self.choice.pool(tokens, action[..., 0], inputs["portfolio"])
        value: Tensor = self.head(self.pool(pooled).relu_())[..., 0]
        return value


def join(portfolio: Tensor, action: Tensor) -> Tensor:
    """A position's numbers and what is asked of it, (..., columns, 7); either may be shared by all agents."""
    leading = torch.broadcast_shapes(portfolio.shape[:-1], action.shape[:-1])  # type: ignore[no-untyped-call]
    return torch.cat([part.expand(*leading, -1) for part in (portfolio, action.to(portfolio.dtype))], dim=-1)


def require_averages(sizes: Sizes, network: nn.Module) -> None:
    """Refuse a network that reads averages where there are none.

    Raises:
        UserError: `data.encoding` is another one.
    """
    if "columns" not in sizes.inputs:
        raise UserError(f"{type(network).__name__} reads averages: set data.encoding to averages")
