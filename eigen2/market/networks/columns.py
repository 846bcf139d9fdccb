"""The default actor and critic: one token per column with weights shared by all columns, and a context across columns.

Modules are written for one agent; as `Linear` counts axes from the last, they also accept a leading agent axis.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from eigen2.core.networks import DESCRIBED, FORECAST, Inputs, Linear, Sizes, preactivation, require_width
from eigen2.errors import UserError
from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.rules import TradingRules

PORTFOLIO = {
    "orders": ("orderable", "held", "held_days", "gain", "target", "coefficient", "cash", "room"),
    "weights": ("tradable", "weight", "cash"),
}
"""Numbers per column in the input `portfolio`, by the mode of the rules; the first is 1 if it can be traded, else 0."""
HELD, HELD_DAYS, COEFFICIENT, ROOM = map(PORTFOLIO["orders"].index, ("held", "held_days", "coefficient", "room"))
DRAWS = "draws"  # name of the input that breaks ties between orders
RIDGE = "ridge"  # name of the input with the forecasts of a ridge regression
NEVER = -1e9  # below every pre-activation
RIDGE_WEIGHT = 3.5  # initial weight of the ridge forecasts in an actor's sizes or scores, before the tanh
# initial take-profits before the tanh, at 88 % of their range: positions run until agents learn better
TAKE_PROFIT_BIAS = 1.0
FORECAST_UNIT = 30.0  # of the ridge forecasts' weight in a critic, which optimizer steps of 0.001 else move too slowly


@dataclass(frozen=True)
class TradeModel:
    """What an action trades, so that a critic judges what the environment does: orders, or target weights."""

    rules: TradingRules = field(default_factory=TradingRules)
    account: AccountRules = field(default_factory=AccountRules)
    """Rules and money of the environment."""

    def taken(self, action: Tensor, portfolio: Tensor) -> Tensor:
        """Return what a critic sees of an action: orders as they are, of scores the weights x number of columns."""
        if self.rules.mode == "orders":
            return action.to(portfolio.dtype)
        weights = self.rules.target_weights(action[..., 0].float(), portfolio[..., 0] > 0)
        return (weights * weights.shape[-1])[..., None].to(portfolio.dtype)

    def weights(self, action: Tensor, portfolio: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Return how much each column counts in an action of `taken`, and the position that it adds to the column.

        Both are the target weights; or the stakes of orders and of closed positions, and those of orders less those of
        closed positions, these in proportion to the days left to them. Short sales add negative positions.
        """
        if self.rules.mode == "weights":
            target = action[..., 0] / action.shape[-2]
            return target, target
        coefficient = self.coefficient(action)
        ordered = self.ordered_stakes(action, coefficient, portfolio, draws)
        added = torch.where(coefficient < 0, -ordered, ordered) if self.rules.allow_short else ordered
        if not self.rules.early_close:
            return ordered, added
        closed = self.closed_stakes(coefficient, portfolio, draws)
        return ordered + closed, added - self._side(portfolio) * (1 - portfolio[..., HELD_DAYS]) * closed

    def reward_per_percent(self, columns: int) -> float:
        """Return the reward of a gain of 1 percent in a column of which an action adds 1, see `weights`."""
        if self.rules.mode == "weights":
            return 100 * self.account.max_leverage
        unit = 1 if self.rules.reward == "shaped" else 100 * self.account.unit_share
        return unit * self.rules.max_coefficient * self._orders(columns)

    def coefficient(self, action: Tensor) -> Tensor:
        """Return the sizes (..., columns), `coefficient` in the environment, of orders (..., columns, 2) in [-1, 1]."""
        return self.rules.native_action(action)[..., 0]

    def ordered_stakes(self, action: Tensor, coefficient: Tensor, portfolio: Tensor, draws: Tensor) -> Tensor:
        """Return the stakes of the columns that are ordered, as parts of a day's largest; 0 for all other columns.

        Orders are those of the environment, see `TradingEnvironment`. Rewards are in proportion to stakes: where little
        money is left, several orders earn no more than one. What is ordered has no gradient, so that of a softmax
        replaces it (the straight-through estimator of Bengio, Léonard and Courville, 2013): over the pre-activations of
        sizes, artanh(size), as among sizes near their bound, which are those that lead, it would see no differences.

        Stakes are those before `AccountRules.whole_shares`: how many shares they buy depends on the price of the fill,
        so an order that buys none is judged as if it had filled.
        """
        orderable = portfolio[..., 0] > 0
        largest = self.rules.max_coefficient * self._orders(action.shape[-2])
        # room and orders in units of the size; an order has at least 1
        room = portfolio[..., ROOM] * (self.account.max_leverage / self.account.unit_share)
        asked = coefficient.abs() * self.ordered(coefficient.detach(), orderable, draws)
        stakes = asked * (room / asked.sum(-1, keepdim=True).clamp(min=1)).clamp(max=1) / largest
        if not torch.is_grad_enabled():
            return stakes
        size = action[..., 0].abs() if self.rules.allow_short else action[..., 0]
        soft = torch.softmax(torch.where(orderable, preactivation(size), NEVER), dim=-1)
        soft = soft * (room / largest).clamp(max=1)
        return stakes + (soft - soft.detach())

    def closed_stakes(self, coefficient: Tensor, portfolio: Tensor, draws: Tensor) -> Tensor:
        """Return the stakes of the positions that are closed, as `ordered_stakes`; 0 for all other columns.

        The gradient is that of a sigmoid of the size for each position that may be closed.
        """
        stake = portfolio[..., COEFFICIENT].abs() / self._orders(coefficient.shape[-1])
        closed = self.closed(coefficient.detach(), portfolio, draws)
        if not torch.is_grad_enabled():
            return stake * closed
        low, high = self.rules.action_range
        below = 2 * (1 - coefficient * self._side(portfolio)) / (high[0] - low[0])
        # a sigmoid; unlike torch.sigmoid, tanh has the same bits wherever an agent's numbers lie in the tensor
        soft = 0.5 + 0.5 * torch.tanh(below)
        return stake * (closed + (soft - soft.detach()))

    def ordered(self, coefficient: Tensor, orderable: Tensor, draws: Tensor) -> Tensor:
        """Return whether each column is ordered, by sizes (..., columns)."""
        size = coefficient.abs() if self.rules.allow_short else coefficient
        size = torch.where(orderable & (size >= 1), size, 0)
        chosen, place = torch.zeros_like(size, dtype=torch.bool), torch.arange(size.shape[-1], device=size.device)
        for _ in range(self._orders(size.shape[-1])):
            largest = size.amax(-1, keepdim=True)
            first = torch.where(size == largest, draws, -2).argmax(-1, keepdim=True)
            chosen = chosen | ((place == first) & (largest > 0))
            size = size.masked_fill(chosen, 0)
        return chosen

    def closed(self, coefficient: Tensor, portfolio: Tensor, draws: Tensor) -> Tensor:
        """Return whether the position in each column is closed by sizes (..., columns), where rules let it."""
        return (coefficient * self._side(portfolio) < 1) & (portfolio[..., HELD] > 0) & (draws >= 0)

    def _orders(self, columns: int) -> int:
        return min(self.rules.max_opens_per_day, columns)

    def _side(self, portfolio: Tensor) -> Tensor | int:
        """Return -1 where a column is sold short, else 1."""
        return torch.where(portfolio[..., COEFFICIENT] < 0, -1, 1) if self.rules.allow_short else 1


@dataclass(frozen=True)
class MarketSizes(Sizes):
    """Shapes that a network is built for, and what an action trades."""

    trade_model: TradeModel = field(default_factory=TradeModel)


class _ColumnTrunk(nn.Module):
    """A token for each column, from its description, the market's and its position, mixed with the mean of all."""

    def __init__(self, sizes: Sizes, extra: int, hidden: int) -> None:
        super().__init__()
        # each sum needs a single bias, which the smallest of its parts has
        self.column = Linear(sizes.inputs["columns"][-1], hidden, bias=False)
        self.market = Linear(sizes.inputs["market"][-1], hidden)
        self.position = Linear(sizes.inputs["portfolio"][-1] + extra, hidden, bias=False)
        self.mix = Linear(hidden, hidden, bias=False)
        self.context = Linear(hidden, hidden)

    def forward(self, described: Tensor, _: Inputs, position: Tensor) -> Tensor:
        """Return tokens (batch, columns, hidden)."""
        own: Tensor = self.position(position, described).relu_()
        others = self.context(own.sum(-2) / own.shape[-2]).unsqueeze(-2)
        return self.mix(own).add_(others).relu_()


def _ridge_layer(sizes: Sizes, weights: list[float]) -> Linear | None:
    """Return a layer that adds the ridge forecasts, by these weights, to a column's numbers; None without forecasts."""
    if RIDGE not in sizes.inputs:
        return None
    layer = Linear(1, len(weights), bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weights)[:, None])
    return layer


class ColumnNetwork(nn.Module):
    """Base of all actors and critics: a token for every column, from its description and position.

    Raises UserError for inputs of another encoding and a `hidden` out of range.
    """

    over_agents: Literal["broadcast", "vmap", "loop"] = "broadcast"
    encoding, needs = "averages", "columns"
    """The value of `data.encoding` that the network requires, and an input that only this encoding has."""
    make_trunk: Callable[[Sizes, int, int], nn.Module] = _ColumnTrunk
    trunk: Any

    def __init__(self, sizes: Sizes, extra: int, hidden: int) -> None:
        super().__init__()
        if self.needs not in sizes.inputs:
            raise UserError(f"{type(self).__name__} reads {self.encoding}: set data.encoding to {self.encoding}")
        require_width("hidden", hidden)
        self.trunk = self.make_trunk(sizes, extra, hidden)

    def describe(self, inputs: Inputs) -> Tensor:
        """Return the part of each token that depends on the day and the time left alone, (batch, columns, hidden)."""
        described: Tensor = self.trunk.column(inputs["columns"])
        return described.add_(self.trunk.market(inputs["market"]).unsqueeze(-2))

    def tokens(self, inputs: Inputs, position: Tensor) -> Tensor:
        """Return tokens that depend on all columns, (batch, columns, hidden)."""
        described = inputs[DESCRIBED] if DESCRIBED in inputs else self.describe(inputs)
        return self.trunk(described, inputs, position)


class ColumnActor(ColumnNetwork):
    """Size and take-profit of every column, or its score.

    It starts from the forecasts of a ridge regression, where the encoding has them, and learns what to do beside
    (residual policy learning, Silver and others, 2018; Johannink and others, 2019).

    Args:
        hidden: units per layer.
    """

    head_parameters: tuple[str, ...] = ("head", "ridge")

    def __init__(self, sizes: Sizes, hidden: int = 32) -> None:
        super().__init__(sizes, 0, hidden)
        self.head = Linear(hidden, sizes.action[-1])
        nn.init.uniform_(self.head.weight, -0.05, 0.05)
        nn.init.zeros_(self.head.bias)
        nn.init.constant_(self.head.bias[1:], TAKE_PROFIT_BIAS)
        self.ridge = _ridge_layer(sizes, [RIDGE_WEIGHT] + [0.0] * (sizes.action[-1] - 1))

    def forward(self, inputs: Inputs) -> Tensor:
        """Return actions (batch, columns, 2 or 1) in [-1, 1]."""
        numbers = self.head(self.tokens(inputs, inputs["portfolio"]))
        if self.ridge is not None:
            numbers = self.ridge(inputs[RIDGE][..., None], numbers)
        return torch.tanh(numbers.float())  # in half precision the largest sizes would be equal


class _DayTrunk(nn.Module):
    """A token for each column that depends on the day and the time left alone, mixed with the mean of all."""

    def __init__(self, sizes: Sizes, _: int, hidden: int) -> None:
        super().__init__()
        self.column = Linear(sizes.inputs["columns"][-1], 2 * hidden, bias=False)
        self.market = Linear(sizes.inputs["market"][-1], 2 * hidden)
        self.mix = Linear(2 * hidden, hidden, bias=False)
        self.context = Linear(2 * hidden, hidden)

    def forward(self, described: Tensor) -> Tensor:
        """Return tokens (batch, columns, hidden)."""
        own = torch.relu(described)
        others = self.context(own.sum(-2) / own.shape[-2]).unsqueeze(-2)
        return self.mix(own).add_(others)


class DayColumnActor(ColumnActor):
    """Size and take-profit of every column, or its score, by a head on tokens that do not depend on the position.

    They are of the day and the time left, which all agents see alike. Agents with a shared representation compute them
    once for all; an agent adds its position.

    Args:
        hidden: units of the head; the trunk has twice as many.
    """

    head_parameters = ("position", "head", "ridge")
    make_trunk = _DayTrunk

    def __init__(self, sizes: Sizes, hidden: int = 16) -> None:
        super().__init__(sizes, hidden)
        self.position = Linear(sizes.inputs["portfolio"][-1], hidden, bias=False)

    def tokens(self, inputs: Inputs, position: Tensor) -> Tensor:
        """Return tokens (batch, columns, hidden)."""
        return self.position(position, self.trunk(self.describe(inputs))).relu_()


class ColumnCritic(ColumnNetwork):
    """Value of an action in all columns.

    It is the sum of the columns' forecasts, weighted by the positions that the action adds, and of a value of columns
    and action together, which has the rest: costs, take-profits, what is held, and the days to come.

    Args:
        hidden: units per layer.
    """

    def __init__(self, sizes: MarketSizes, hidden: int = 32) -> None:
        super().__init__(sizes, sizes.action[-1], hidden)
        self.trade_model = sizes.trade_model
        self.pool = Linear(2 * hidden, hidden)
        self.head = Linear(hidden, 1)
        self.return_head = Linear(hidden, 1)
        self.ridge = _ridge_layer(sizes, [0.0])

    def forecast(self, inputs: Inputs) -> Tensor:
        """Return what a position in each column is expected to earn beside the others, (batch, columns).

        In units of the rewards in the loss, where it had the weight 1 alone, see `TradeModel.reward_per_percent`.
        """
        described = inputs[DESCRIBED] if DESCRIBED in inputs else self.describe(inputs)
        forecast: Tensor = self.return_head(torch.relu(described))
        if self.ridge is not None:
            forecast = self.ridge(FORECAST_UNIT * inputs[RIDGE][..., None], forecast)
        return forecast[..., 0]

    def forward(self, inputs: Inputs, action: Tensor) -> Tensor:
        """Return values (batch,) of actions (batch, columns, 2 or 1); portfolio or action may be shared by agents."""
        portfolio = inputs["portfolio"]
        action = self.trade_model.taken(action, portfolio)
        leading = torch.broadcast_shapes(portfolio.shape[:-1], action.shape[:-1])  # type: ignore[no-untyped-call]
        parts = [part.expand(*leading, -1) for part in (portfolio, action)]
        if DESCRIBED not in inputs:
            inputs = {**inputs, DESCRIBED: self.describe(inputs)}
        tokens = self.tokens(inputs, torch.cat(parts, dim=-1))
        weight, added = self.trade_model.weights(action, portfolio, inputs[DRAWS])
        means = torch.stack([torch.full_like(weight, 1 / weight.shape[-1]), weight], dim=-2).to(tokens.dtype)
        rest: Tensor = self.head(self.pool((means @ tokens).flatten(-2)).relu_())[..., 0]
        forecast = inputs[FORECAST] if FORECAST in inputs else self.forecast(inputs)
        return rest + (added * forecast).sum(-1)
