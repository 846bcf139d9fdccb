"""Multilayer perceptrons over any observation."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from eigen2.core.networks import Inputs, Linear, Sizes, require_width


class _Perceptron(nn.Module):
    """`Linear` layers with ReLU between them, over the concatenated inputs; hidden widths are 1 or more."""

    over_agents = "broadcast"

    def __init__(self, sizes: Sizes, hidden: Sequence[int], further_inputs: int, out: int) -> None:
        super().__init__()
        for width in hidden:
            require_width("hidden", width)
        self.inputs, self.action = dict(sizes.inputs), sizes.action
        widths = [sum(map(math.prod, sizes.inputs.values())) + further_inputs, *hidden, out]
        self.layers = nn.ModuleList(Linear(*pair) for pair in pairwise(widths))

    def flatten(self, inputs: Inputs) -> Tensor:
        """Return the inputs concatenated, (..., features)."""
        flat = [_flatten(inputs[name], shape) for name, shape in self.inputs.items()]
        return flat[0] if len(flat) == 1 else torch.cat(flat, -1)

    def run(self, x: Tensor) -> Tensor:
        """Return the last layer's output, (..., out)."""
        *hidden, last = self.layers  # a slice would be a new module
        for layer in hidden:
            x = layer(x).relu_()
        out: Tensor = last(x)
        return out


def _flatten(values: Tensor, shape: Sequence[int]) -> Tensor:
    """Return values (..., *shape) as (..., features), one feature for a shape of ()."""
    return values.flatten(values.dim() - len(shape)) if shape else values[..., None]


class MLPActor(_Perceptron):
    """Multilayer perceptron from observation to action, with a tanh output.

    Args:
        sizes: shapes of observation and action.
        hidden: width of each hidden layer (1 or more each).
    """

    def __init__(self, sizes: Sizes, hidden: Sequence[int] = (256, 256)) -> None:
        super().__init__(sizes, hidden, 0, math.prod(sizes.action))
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
        flat = _flatten(action, self.action).to(seen.dtype)
        if seen.shape[:-1] != flat.shape[:-1]:
            leading = torch.broadcast_shapes(seen.shape[:-1], flat.shape[:-1])  # type: ignore[no-untyped-call]
            seen, flat = seen.expand(*leading, -1), flat.expand(*leading, -1)
        return self.run(torch.cat([seen, flat], -1)).squeeze(-1)
