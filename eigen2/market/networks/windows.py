"""Actors and critics that read the last days of the panel themselves, where the default ones read averages.

`Convolution*` are dilated causal convolutions over the days of the investable columns, beside the means of all columns;
`CnnLstm*` read every column, day by day. All columns share weights and are pooled, so their order does not matter.
"""

from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from eigen2.core.networks import Inputs, Sizes, require_width
from eigen2.errors import UserError
from eigen2.market.networks.columns import ColumnActor, ColumnCritic, ColumnNetwork

MEANS = 2  # means beside each column's features: over all columns, and over those that are not investable
STRIDES = (2, 2, 2)  # strides of the CNN's layers: eight days per step of the market's sequence
KERNEL = 4  # steps that a layer of the CNN sees; more than its stride, so that neighbours overlap


def window_rows(day: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Return the panel's rows (batch, context) of the windows that end on `day`, and a mask of those that exist."""
    rows = day.long()[:, None] + torch.arange(1 - context, 1, device=day.device)
    return rows.clamp(min=0), rows >= 0


def pairs(series: Tensor) -> Tensor:
    """Join neighbouring steps: (..., steps, features) to (..., ceil(steps / 2), 2 x features).

    The last pair ends with the last step; an odd number of steps is padded with zeros at the front, which takes a copy.
    """
    if series.shape[-2] % 2:
        series = functional.pad(series, (0, 0, 1, 0))
    return series.reshape(*series.shape[:-2], -1, 2 * series.shape[-1])


class DilatedConvolutions(nn.Module):
    """Dilated causal convolutions over each column's days, evaluated only where the last day's output needs them.

    Layer l has kernel 2 and dilation 2^l, zeros before the window, a gated linear unit (Dauphin et al., "Language
    modeling with gated convolutional networks", 2017) and, from the second layer on, a residual connection (van den
    Oord et al., "WaveNet", 2016). The last day's output needs layer l at every 2^(l + 1)-th day only, so that each
    layer joins neighbours in pairs: work for 2 x context days instead of context x layers.

    Only investable columns are gathered. The first layer sees the means of these days over all columns, and over those
    that are not investable, too: a column's move means something else when all move.
    """

    def __init__(self, features: int, hidden: int, context: int) -> None:
        super().__init__()
        self.context = context
        self.column = nn.Linear(2 * features, 2 * hidden, bias=False)
        self.means = nn.Linear(2 * MEANS * features, 2 * hidden)  # with the only bias of the sum
        depth = max(1, (context - 1).bit_length())
        self.layers = nn.ModuleList(nn.Linear(2 * hidden, 2 * hidden) for _ in range(depth - 1))
        self.token = nn.Linear(hidden, hidden)

    def forward(self, inputs: Inputs) -> Tensor:
        """Return tokens (batch, columns, hidden)."""
        panel, investable = inputs["panel"], inputs["investable"]
        rows, inside = window_rows(inputs["day"], self.context)
        own = panel[rows[:, None], investable[:, None]].masked_fill(~inside[:, None, :, None], 0)
        # summing all days once serves all agents of a population
        total = panel.sum(1)[rows].masked_fill(~inside[..., None], 0)
        columns, others = panel.shape[1], panel.shape[1] - len(investable)
        rest = (total - own.sum(1)) / others if others else torch.zeros_like(total)
        means = torch.cat([total / columns, rest], dim=-1)
        series = functional.glu(self.column(pairs(own)) + self.means(pairs(means))[:, None], dim=-1)
        for layer in self.layers:
            both = pairs(series)
            late = both[..., both.shape[-1] // 2 :]
            series = late + functional.glu(layer(both), dim=-1)
        return self.token(series[..., 0, :])


class MarketSequence(nn.Module):
    """A CNN over each column's days, attention over columns, an LSTM over the sequence, attention over its steps.

    Strided causal convolutions shorten every column's window to steps of eight days. At each step several heads attend
    to columns by learned queries (Lee et al., "Set Transformer", 2019). An LSTM reads the resulting sequence of the
    market, and its last state attends to all its steps (Luong et al., "Effective approaches to attention-based neural
    machine translation", 2015). A column's token joins its convolution output, last and attended, and the market's.
    """

    def __init__(self, features: int, hidden: int, filters: int, heads: int, context: int) -> None:
        super().__init__()
        require_width("filters", filters)
        require_width("heads", heads)
        if filters % 4:
            raise UserError(f"filters is {filters}; it must be divisible by 4")
        self.context = context
        widths = (features, filters // 4, filters // 2, filters)
        layers = zip(widths[:-1], widths[1:], STRIDES, strict=True)
        self.convolutions = nn.ModuleList(nn.Conv1d(before, after, KERNEL, stride) for before, after, stride in layers)
        self.score = nn.Linear(filters, heads, bias=False)
        width = max(1, hidden // 2)
        self.market = nn.Linear(heads * filters, width)
        self.lstm = nn.LSTM(width, hidden, batch_first=True)
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.token = nn.Linear(2 * filters, hidden)
        self.vector = nn.Linear(2 * hidden, hidden, bias=False)

    def train(self, mode: bool = True) -> "MarketSequence":
        """Set the mode of all parts but the LSTM: cuDNN computes no gradients for an LSTM in evaluation mode."""
        super().train(mode)
        self.lstm.train()  # without dropout the mode changes nothing else
        return self

    def forward(self, inputs: Inputs) -> Tensor:
        """Return tokens (batch, columns, hidden)."""
        # all columns' windows through the CNN, to (batch, steps, all columns, filters)
        rows, inside = window_rows(inputs["day"], self.context)
        window = inputs["panel"][rows].masked_fill(~inside[:, :, None, None], 0)
        series = window.permute(0, 2, 3, 1).flatten(0, 1)
        for convolution, stride in zip(self.convolutions, STRIDES, strict=True):
            days = series.shape[-1]
            before = (-(-days // stride) - 1) * stride + KERNEL - days
            series = torch.relu(convolution(functional.pad(series, (before, 0))))
        columns = series.view(len(window), -1, *series.shape[1:]).permute(0, 3, 1, 2).contiguous()
        weight = torch.softmax(self.score(columns), dim=2).to(columns.dtype)
        pooled = (weight.mT @ columns).flatten(2)  # (batch, steps, heads x filters)
        states, _ = self.lstm(torch.relu(self.market(pooled)))
        last = states[:, -1]
        affinity = (self.key(states) @ last[..., None])[..., 0] / last.shape[-1] ** 0.5
        attention = torch.softmax(affinity, dim=1)[:, None].to(states.dtype)  # (batch, 1, steps)
        market = torch.cat([(attention @ states)[:, 0], last], dim=-1)
        own = columns.index_select(2, inputs["investable"])
        attended = (attention.to(own.dtype) @ own.flatten(2)).view_as(own[:, 0])
        return self.token(torch.cat([own[:, -1], attended], dim=-1)) + self.vector(market)[:, None]


class _Trunk(nn.Module):
    """Tokens of columns from a description of the day, the position and the time left."""

    def __init__(self, sizes: Sizes, extra: int, hidden: int) -> None:
        super().__init__()
        self.position = nn.Linear(sizes.inputs["portfolio"][-1] + extra, hidden, bias=False)
        self.market = nn.Linear(sizes.inputs["market"][-1], hidden, bias=False)
        self.mix = nn.Linear(hidden, hidden, bias=False)
        self.context = nn.Linear(hidden, hidden)

    def forward(self, described: Tensor, inputs: Inputs, position: Tensor) -> Tensor:
        """Return tokens that depend on all columns, (batch, columns, hidden)."""
        own = torch.relu(described + self.position(position) + self.market(inputs["market"])[:, None])
        return torch.relu(self.mix(own) + self.context(own.mean(1))[:, None])


class _WindowNetwork(ColumnNetwork):
    over_agents: Literal["broadcast", "vmap", "loop"] = "vmap"
    encoding, needs = "windows", "panel"
    make_trunk = _Trunk
    describer: nn.Module

    def describe(self, inputs: Inputs) -> Tensor:
        """Return the part of each token that depends only on the day, (batch, columns, hidden)."""
        return self.describer(inputs)


class _ConvolutionNetwork(_WindowNetwork):
    def __init__(self, sizes: Sizes, hidden: int = 32, **kwargs: Any) -> None:
        super().__init__(sizes, hidden=hidden, **kwargs)
        self.describer = DilatedConvolutions(sizes.inputs["panel"][-1], hidden, sizes.context)


class _CnnLstmNetwork(_WindowNetwork):
    """A network run agent by agent, whose description is recomputed in the backward pass instead of stored."""

    over_agents = "loop"

    def __init__(self, sizes: Sizes, hidden: int = 256, filters: int = 128, heads: int = 4, **kwargs: Any) -> None:
        super().__init__(sizes, hidden=hidden, **kwargs)
        self.describer = MarketSequence(sizes.inputs["panel"][-1], hidden, filters, heads, sizes.context)

    def describe(self, inputs: Inputs) -> Tensor:
        """Return the part of each token that depends only on the day, (batch, columns, hidden)."""
        # a population puts an agent's weights into this module only for a call, so the backward pass needs them here
        weights: dict[str, Tensor] = dict(self.describer.named_parameters())
        call = partial(torch.func.functional_call, self.describer, weights)
        return checkpoint(call, (inputs,), use_reentrant=False, preserve_rng_state=False)


class ConvolutionActor(_ConvolutionNetwork, ColumnActor):
    """Size and take-profit of every column, or its score, from dilated convolutions over the days of its window.

    Args:
        hidden: channels of a convolution and units of a layer.
    """


class ConvolutionCritic(_ConvolutionNetwork, ColumnCritic):
    """Value of an action in all columns, from dilated convolutions over the days of their windows.

    Args:
        hidden: channels of a convolution and units of a layer.
    """


class CnnLstmActor(_CnnLstmNetwork, ColumnActor):
    """Size and take-profit of every column, or its score, from a CNN and an LSTM over the days of all columns.

    Args:
        hidden: units of the LSTM and of a layer.
        filters: channels of the last convolution, divisible by 4.
        heads: heads of the attention over columns.
    """


class CnnLstmCritic(_CnnLstmNetwork, ColumnCritic):
    """Value of an action in all columns, from a CNN and an LSTM over the days of all columns.

    Args:
        hidden: units of the LSTM and of a layer.
        filters: channels of the last convolution, divisible by 4.
        heads: heads of the attention over columns.
    """
