"""Actors and critics that read the last days of the panel themselves, where the default ones read averages of them.

Two families: `Convolution*`, dilated causal convolutions over the days of the columns agents may buy, beside the means
of all columns; and `CnnLstm*`, which looks at every column, day by day. They differ in how they describe a day
(`DilatedTree`, `MarketSequence`); what they make of a description, a portfolio and an action is the same.

All columns share weights and are pooled, never flattened, so that their order does not matter.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from eigen2.core.networks import DESCRIBED, Inputs, Sizes, require_width
from eigen2.errors import UserError
from eigen2.market.networks.columns import ONE_ORDER, Choice

MEANS = 2
"""Means over columns that accompany each column: of all columns, and of those agents may not buy."""

STRIDES = (2, 2, 2)
"""Of the CNN's layers; eight days a step of the market's sequence."""

KERNEL = 4
"""Steps that a layer of the CNN looks at; more than its stride, so that neighbours overlap."""


def rows_of(day: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Rows of the panel that the windows ending on `day` (batch,) consist of.

    Returns:
        rows (batch, context), 0 where a window starts before the panel, and which of them are in it, bool.
    """
    rows = day.long()[:, None] + torch.arange(1 - context, 1, device=day.device)
    return rows.clamp(min=0), rows >= 0


def pairs(series: Tensor) -> Tensor:
    """Neighbours side by side: (..., steps, features) to (..., ceil(steps / 2), 2 x features), no copy if even.

    The last pair ends with the last step; a first step without a neighbour is preceded by zeros.
    """
    if series.shape[-2] % 2:
        series = functional.pad(series, (0, 0, 1, 0))
    return series.reshape(*series.shape[:-2], -1, 2 * series.shape[-1])


class DilatedTree(nn.Module):
    """Dilated causal convolutions over each column's days, evaluated only where the last day's output needs them.

    Layer l has kernel 2 and dilation 2^l, zeros before the window, a gated linear unit and, from the second layer on, a
    residual connection (van den Oord et al., "WaveNet", 2016; the unit is of Dauphin et al., "Language modeling with
    gated convolutional networks", 2017). The last day's output needs layer l at every 2^(l + 1)-th day, counted from
    the last: each layer joins neighbours in pairs and leaves half as many. That is work for 2 x context days, where a
    convolution over all of them takes context x layers.

    The first layer sees the means over columns too, on the same days: a column's move means something else when all
    move. Only investable columns are gathered; the others enter by their means alone.

    Args:
        features: numbers a column and day.
        hidden: channels a layer.
        context: days of a window, >= 1.
    """

    def __init__(self, features: int, hidden: int, context: int) -> None:
        super().__init__()
        self.context = context
        self.column = nn.Linear(2 * features, 2 * hidden, bias=False)
        self.means = nn.Linear(2 * MEANS * features, 2 * hidden)  # one bias a sum, in its smallest part
        depth = max(1, (context - 1).bit_length())
        self.layers = nn.ModuleList(nn.Linear(2 * hidden, 2 * hidden) for _ in range(depth - 1))
        self.token = nn.Linear(hidden, hidden)

    def forward(self, inputs: Inputs) -> Tensor:
        """Tokens (batch, columns, hidden)."""
        own, means = self._windows(inputs)
        series = functional.glu(self.column(pairs(own)) + self.means(pairs(means))[:, None], dim=-1)
        for layer in self.layers:
            both = pairs(series)
            late = both[..., both.shape[-1] // 2 :]
            series = late + functional.glu(layer(both), dim=-1)
        tokens: Tensor = self.token(series[..., 0, :])
        return tokens

    def _windows(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Features of investable columns (batch, columns, context, features), means (batch, context, 2 x features)."""
        panel, investable = inputs["panel"], inputs["investable"]
        rows, inside = rows_of(inputs["day"], self.context)
        own = panel[rows[:, None], investable[:, None]].masked_fill(~inside[:, None, :, None], 0)
        # all days are summed, which no agent of a population has to do for itself
        total = panel.sum(1)[rows].masked_fill(~inside[..., None], 0)
        columns, others = panel.shape[1], panel.shape[1] - len(investable)
        rest = (total - own.sum(1)) / others if others else torch.zeros_like(total)
        return own, torch.cat([total / columns, rest], dim=-1)


class MarketSequence(nn.Module):
    """A CNN over each column's days, attention over columns, an LSTM over the sequence, attention over its steps.

    Strided causal convolutions shorten every column's window to steps of eight days. At each step several heads attend
    to columns by learned queries (Lee et al., "Set Transformer", 2019), which makes one sequence of the market. An LSTM
    reads it, and its last state attends to all its steps (Luong et al., "Effective approaches to attention-based neural
    machine translation", 2015). An investable column's token is made of its last convolution output, its outputs at the
    steps attended to, and the market's vector.

    Args:
        features: numbers a column and day.
        hidden: units of the LSTM and of a token.
        filters: channels of the last convolution; the first has a quarter and the second half of them.
        heads: of the attention over columns.
        context: days of a window, >= 1.
    """

    def __init__(self, features: int, hidden: int, filters: int, heads: int, context: int) -> None:
        super().__init__()
        require_width("filters", filters)
        require_width("heads", heads)
        if filters % 4:
            raise UserError(f"filters is {filters}; it must be divisible by 4")
        self.context = context
        widths = (features, filters // 4, filters // 2, filters)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(before, after, KERNEL, stride)
            for before, after, stride in zip(widths[:-1], widths[1:], STRIDES, strict=True)
        )
        self.score = nn.Linear(filters, heads, bias=False)
        self.market = nn.Linear(heads * filters, hidden // 2)
        self.lstm = nn.LSTM(hidden // 2, hidden, batch_first=True)
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.token = nn.Linear(2 * filters, hidden)
        self.vector = nn.Linear(2 * hidden, hidden, bias=False)

    def train(self, mode: bool = True) -> "MarketSequence":
        """Set the mode of all parts but the LSTM: cuDNN refuses gradients of one that is evaluated."""
        super().train(mode)
        self.lstm.train()  # without dropout the mode changes nothing else
        return self

    def forward(self, inputs: Inputs) -> Tensor:
        """Tokens (batch, columns, hidden)."""
        columns = self._convolved(inputs["panel"], inputs["day"])
        weight = torch.softmax(self.score(columns), dim=2).to(columns.dtype)
        pooled = (weight.mT @ columns).flatten(2)  # (batch, steps, heads x filters)
        states, _ = self.lstm(torch.relu(self.market(pooled)))
        last = states[:, -1]
        affinity = (self.key(states) @ last[..., None])[..., 0] / last.shape[-1] ** 0.5
        attention = torch.softmax(affinity, dim=1)[:, None].to(states.dtype)  # (batch, 1, steps)
        market = torch.cat([(attention @ states)[:, 0], last], dim=-1)
        own = columns.index_select(2, inputs["investable"])
        attended = (attention.to(own.dtype) @ own.flatten(2)).view_as(own[:, 0])
        tokens: Tensor = self.token(torch.cat([own[:, -1], attended], dim=-1)) + self.vector(market)[:, None]
        return tokens

    def _convolved(self, panel: Tensor, day: Tensor) -> Tensor:
        """All columns' windows after the CNN, (batch, steps, all columns, filters)."""
        rows, inside = rows_of(day, self.context)
        window = panel[rows].masked_fill(~inside[:, :, None, None], 0)
        series = window.permute(0, 2, 3, 1).flatten(0, 1)
        for convolution, stride in zip(self.convolutions, STRIDES, strict=True):
            days = series.shape[-1]
            before = (-(-days // stride) - 1) * stride + KERNEL - days
            series = torch.relu(convolution(functional.pad(series, (before, 0))))
        batch, columns = len(day), panel.shape[1]
        return series.reshape(batch, columns, *series.shape[1:]).permute(0, 3, 1, 2).contiguous()


def recomputed(network: nn.Module, inputs: Inputs) -> Tensor:
    """The network's output, its intermediate results computed anew for the gradients instead of kept until then.

    Its present weights are taken along: a population lends its one module the weights of an agent for a call only, and
    has another's in it, or none, when the gradients are asked for.
    """
    weights: dict[str, Tensor] = {name: weight for name, weight in network.named_parameters()}

    def call(inputs: Inputs) -> Tensor:
        output: Tensor = torch.func.functional_call(network, weights, (inputs,))
        return output

    output: Tensor = checkpoint(call, inputs, use_reentrant=False, preserve_rng_state=False)
    return output


class _Trunk(nn.Module):
    """Tokens of investable columns from what describes the day, the position and the time left."""

    def __init__(self, sizes: Sizes, extra: int, hidden: int) -> None:
        super().__init__()
        require_width("hidden", hidden)
        self.position = nn.Linear(sizes.inputs["portfolio"][-1] + extra, hidden, bias=False)
        self.market = nn.Linear(sizes.inputs["market"][-1], hidden, bias=False)
        self.mix = nn.Linear(hidden, hidden, bias=False)
        self.context = nn.Linear(hidden, hidden)

    def forward(self, described: Tensor, inputs: Inputs, position: Tensor) -> Tensor:
        """Tokens that saw all others, (batch, columns, hidden)."""
        own = torch.relu(described + self.position(position) + self.market(inputs["market"])[:, None])
        tokens: Tensor = torch.relu(self.mix(own) + self.context(own.mean(1))[:, None])
        return tokens


class _WindowNetwork(nn.Module):
    """A network whose tokens start from a description of the day; `describer` is for subclasses to set."""

    describer: nn.Module

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        if "panel" not in sizes.inputs:
            raise UserError(f"{type(self).__name__} reads windows: set data.encoding to windows")

    def describe(self, inputs: Inputs) -> Tensor:
        """What follows from the day alone, (batch, columns, hidden)."""
        described: Tensor = self.describer(inputs)
        return described

    def described(self, inputs: Inputs) -> Tensor:
        """What `describe` returns, taken from the inputs if it is among them."""
        return inputs[DESCRIBED] if DESCRIBED in inputs else self.describe(inputs)


class _WindowActor(_WindowNetwork):
    """Coefficient and sale target of every column."""

    def __init__(self, sizes: Sizes, hidden: int) -> None:
        super().__init__(sizes)
        self.trunk = _Trunk(sizes, 0, hidden)
        self.head = nn.Linear(hidden, sizes.action[-1])
        nn.init.uniform_(self.head.weight, -0.05, 0.05)
        nn.init.zeros_(self.head.bias)

    def forward(self, inputs: Inputs) -> Tensor:
        """Actions (batch, columns, 2) in [-1, 1]."""
        return torch.tanh(self.head(self.trunk(self.described(inputs), inputs, inputs["portfolio"])))


class _WindowCritic(_WindowNetwork):
    """Value of an action in all columns."""

    def __init__(self, sizes: Sizes, hidden: int, choice: Choice) -> None:
        super().__init__(sizes)
        self.choice = choice
        self.trunk = _Trunk(sizes, sizes.action[-1], hidden)
        self.pool = nn.Linear(2 * hidden, hidden)
        self.head = nn.Linear(hidden, 1)

    def forward(self, inputs: Inputs, action: Tensor) -> Tensor:
        """Values (batch,)."""
        portfolio = inputs["portfolio"]
        position = torch.cat([portfolio, action.to(portfolio.dtype)], dim=-1)
        tokens = self.trunk(self.described(inputs), inputs, position)
        hidden = torch.relu(self.pool(self.choice.pool(tokens, action[..., 0], portfolio)))
        value: Tensor = self.head(hidden)[..., 0]
        return value


class ConvolutionActor(_WindowActor):
    """Coefficient and sale target of every column, from dilated convolutions over the days of its window.

    Args:
        sizes: of the panel, of a position and of the context.
        hidden: channels of a convolution and units of a layer.
    """

    over_agents: Literal["vmap"] = "vmap"

    def __init__(self, sizes: Sizes, hidden: int = 32) -> None:
        super().__init__(sizes, hidden)
        self.describer = DilatedTree(sizes.inputs["panel"][-1], hidden, sizes.context)


class ConvolutionCritic(_WindowCritic):
    """Value of an action in all columns, from dilated convolutions over the days of their windows.

    Args:
        sizes: of the panel, of a position, of an action and of the context.
        hidden: channels of a convolution and units of a layer.
        choice: which columns an action orders.
    """

    over_agents: Literal["vmap"] = "vmap"

    def __init__(self, sizes: Sizes, hidden: int = 32, choice: Choice = ONE_ORDER) -> None:
        super().__init__(sizes, hidden, choice)
        self.describer = DilatedTree(sizes.inputs["panel"][-1], hidden, sizes.context)


class CnnLstmActor(_WindowActor):
    """Coefficient and sale target of every column, from a CNN and an LSTM over the days of all columns.

    Args:
        sizes: of the panel, of a position and of the context.
        hidden: units of the LSTM and of a layer.
        filters: channels of the last convolution, divisible by 4.
        heads: of the attention over columns.
    """

    over_agents: Literal["loop"] = "loop"

    def __init__(self, sizes: Sizes, hidden: int = 256, filters: int = 128, heads: int = 4) -> None:
        super().__init__(sizes, hidden)
        self.describer = MarketSequence(sizes.inputs["panel"][-1], hidden, filters, heads, sizes.context)

    def describe(self, inputs: Inputs) -> Tensor:
        """What follows from the day alone, (batch, columns, hidden)."""
        return recomputed(self.describer, inputs)


class CnnLstmCritic(_WindowCritic):
    """Value of an action in all columns, from a CNN and an LSTM over the days of all columns.

    Args:
        sizes: of the panel, of a position, of an action and of the context.
        hidden: units of the LSTM and of a layer.
        filters: channels of the last convolution, divisible by 4.
        heads: of the attention over columns.
        choice: which columns an action orders.
    """

    over_agents: Literal["loop"] = "loop"

    def __init__(
        self, sizes: Sizes, hidden: int = 256, filters: int = 128, heads: int = 4, choice: Choice = ONE_ORDER
    ) -> None:
        super().__init__(sizes, hidden, choice)
        self.describer = MarketSequence(sizes.inputs["panel"][-1], hidden, filters, heads, sizes.context)

    def describe(self, inputs: Inputs) -> Tensor:
        """What follows from the day alone, (batch, columns, hidden)."""
        return recomputed(self.describer, inputs)
