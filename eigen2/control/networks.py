"""Multilayer perceptrons over any observation."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from eigen2.core.networks import Inputs, Linear, Sizes, require_width


class _Perceptron(nn.Module):
    """`Linear` layers with ReLU between them, over the concatenated inputs; hidden widths are 1 or more.

    With `skip` the last layer reads the inputs, too.
    """

    over_agents = "broadcast"

    def __init__(self, sizes: Sizes, hidden: Sequence[int], further_inputs: int, out: int, skip: bool = False) -> None:
        super().__init__()
        for width in hidden:
            require_width("hidden", width)
        self.inputs, self.action = dict(sizes.inputs), sizes.action
        widths = [sum(map(math.prod, sizes.inputs.values())) + further_inputs, *hidden, out]
        self.skip = skip and bool(hidden)
        pairs = [*pairwise(widths)]
        pairs[-1] = pairs[-1][0] + widths[0] * self.skip, out
        self.layers = nn.ModuleList(Linear(*pair) for pair in pairs)

    def flatten(self, inputs: Inputs) -> Tensor:
        """Return the inputs concatenated, (..., features)."""
        flat = [_flatten(inputs[name], shape) for name, shape in self.inputs.items()]
        return flat[0] if len(flat) == 1 else torch.cat(flat, -1)

    def run(self, x: Tensor) -> Tensor:
        """Return the last layer's output, (..., out)."""
        *hidden, last = self.layers  # a slice would be a new module
        seen = x
        for layer in hidden:
            x = layer(x).relu_()
        x = _beside(x, seen) if self.skip else x
        # in bfloat16 a return of 500 would be rounded to even numbers
        with torch.autocast(x.device.type, enabled=False):
            return last(x.float())


def _flatten(values: Tensor, shape: Sequence[int]) -> Tensor:
    """Return values (..., *shape) as (..., features), one feature for a shape of ()."""
    return values.flatten(values.dim() - len(shape)) if shape else values[..., None]


def _beside(values: Tensor, others: Tensor) -> Tensor:
    """Return values (..., a) and others (..., b) as (..., a + b); leading axes of one may be lacking or 1."""
    others = others.to(values.dtype)
    if values.shape[:-1] != others.shape[:-1]:
        leading = torch.broadcast_shapes(values.shape[:-1], others.shape[:-1])  # type: ignore[no-untyped-call]
        values, others = values.expand(*leading, -1), others.expand(*leading, -1)
    return torch.cat([values, others], -1)


class MLPActor(_Perceptron):
    """Multilayer perceptron from observation to action, with a tanh output.

    Args:
        sizes: shapes of observation and action.
        hidden: width of each hidden layer (1 or more each).
        skip: whether the last layer reads the observation beside the last hidden layer. With a shared representation
            heads then act by the observation itself while the trunk learns ([control.md](control.md#swimmer)).
    """

    def __init__(self, sizes: Sizes, hidden: Sequence[int] = (256, 256), skip: bool = False) -> None:
        super().__init__(sizes, hidden, 0, math.prod(sizes.action), skip)
        self.head_parameters = (f"layers.{len(hidden)}",)

    def forward(self, inputs: Inputs) -> Tensor:
        """Return actions in [-1, 1], (batch, *action)."""
        out = self.run(self.flatten(inputs)).tanh()
        return out.reshape(*out.shape[:-1], *self.action)


class MLPCritic(_Perceptron):
    """Multilayer perceptron from observation and action to value.

    Args:
        sizes: shapes of observation and action.
        hidden: width of each hidden layer (1 or more each).
    """

    def __init__(self, sizes: Sizes, hidden: Sequence[int] = (256, 256)) -> None:
        super().__init__(sizes, hidden, math.prod(sizes.action), 1)

    def forward(self, inputs: Inputs, action: Tensor) -> Tensor:
        """Return values, (batch,)."""
        seen = self.flatten(inputs)
        return self.run(_beside(seen, _flatten(action, self.action))).squeeze(-1)
