"""Multilayer perceptrons over whatever an environment shows."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from eigen2.core.networks import Inputs, Linear, Sizes, require_width


class _Layers(nn.Module):
    """Layers of `Linear` with rectifiers between them."""

    over_agents = "broadcast"

    def __init__(self, features: int, hidden: Sequence[int], out: int) -> None:
        super().__init__()
        for width in hidden:
            require_width("hidden", width)
        widths = [features, *hidden, out]
        self.layers = nn.ModuleList(Linear(*pair) for pair in pairwise(widths))

    def run(self, x: Tensor) -> Tensor:
        """The last layer's output, (..., out)."""
        *hidden, last = self.layers  # a slice would be a new module
        for layer in hidden:
            x = layer(x).relu_()
        out: Tensor = last(x)
        return out


def _row(inputs: Inputs, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> Tensor:
    """The inputs side by side, (..., features)."""
    flat = [inputs[name].flatten(inputs[name].dim() - len(shape)) for name, shape in zip(names, shapes, strict=True)]
    return flat[0] if len(flat) == 1 else torch.cat(flat, -1)


class MLPActor(_Layers):
    """Observation to action, by a multilayer perceptron with a hyperbolic tangent at its end.

    Args:
        sizes: what it is built for.
        hidden: width of each hidden layer (1 or more each).
    """

    def __init__(self, sizes: Sizes, hidden: Sequence[int] = (256, 256)) -> None:
        self.names, self.shapes = zip(*sizes.inputs.items(), strict=True)
        self.action = sizes.action
        super().__init__(sum(map(math.prod, self.shapes)), hidden, math.prod(sizes.action))

    def forward(self, inputs: Inputs) -> Tensor:
        """Actions in [-1, 1], (batch, *action)."""
        out = self.run(_row(inputs, self.names, self.shapes)).tanh()
        return out.reshape(*out.shape[:-1], *self.action)


class MLPCritic(_Layers):
    """Observation and action to value, by a multilayer perceptron.

    Args:
        sizes: what it is built for.
        hidden: width of each hidden layer (1 or more each).
    """

    def __init__(self, sizes: Sizes, hidden: Sequence[int] = (256, 256)) -> None:
        self.names, self.shapes = zip(*sizes.inputs.items(), strict=True)
        self.action = sizes.action
        super().__init__(sum(map(math.prod, self.shapes)) + math.prod(sizes.action), hidden, 1)

    def forward(self, inputs: Inputs, action: Tensor) -> Tensor:
        """Values, (batch,)."""
        seen = _row(inputs, self.names, self.shapes)
        flat = action.flatten(action.dim() - len(self.action)).to(seen.dtype)
        parts = [seen, flat]
        if seen.shape[:-1] != flat.shape[:-1]:
            leading = torch.broadcast_shapes(seen.shape[:-1], flat.shape[:-1])  # type: ignore[no-untyped-call]
            parts = [part.expand(*leading, -1) for part in parts]
        return self.run(torch.cat(parts, -1)).squeeze(-1)
