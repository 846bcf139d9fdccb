"""Plain networks of one agent, run with the weights of many."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from eigen2.errors import UserError

logger = logging.getLogger(__name__)

Inputs = dict[str, Tensor]
"""What networks see: named tensors whose leading axis is the agent's, of size 1 where all agents see the same."""

DESCRIBED = "described"
"""Name among the inputs of what a network's `describe` returned."""


@dataclass(frozen=True)
class Sizes:
    """What a network is built for."""

    inputs: Mapping[str, tuple[int, ...]]
    """Shape of each input without the axes of agents and batch."""
    action: tuple[int, ...]
    """Shape of an action."""
    context: int = 1
    """Steps that a network may look back on, the current one included; of use to networks that read a series."""


NetworkFactory = Callable[[Sizes], nn.Module]
"""Builds one agent's network."""


class Linear(nn.Linear):
    """`torch.nn.Linear` whose weights may have a leading agent axis.

    With weights (out, in) it is its parent. With weights (agents, out, in) it maps (agents or 1, ..., in) to
    (agents, ..., out), each agent's numbers by its own weights, in one batched matrix product.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The map of `x` with its last axis as features."""
        if self.weight.dim() == 2:
            return super().forward(x)
        if len(x) == 1 < len(self.weight):
            return self._shared(x[0])
        agents, features = self.weight.shape[:2]
        out = torch.bmm(x.flatten(1, -2), self.weight.mT).view(agents, *x.shape[1:-1], features)
        bias: Tensor | None = self.bias
        return out if bias is None else out + bias.view(agents, *(1,) * (x.dim() - 2), features)

    def _shared(self, x: Tensor) -> Tensor:
        """All agents' maps of the same numbers: one product with all their weights side by side."""
        agents, features = self.weight.shape[:2]
        bias: Tensor | None = self.bias
        out = functional.linear(x, self.weight.flatten(0, 1), None if bias is None else bias.flatten())
        return out.view(*x.shape[:-1], agents, features).movedim(-2, 0).contiguous()


class StackedNetwork:
    """One plain `nn.Module` run with the weights of many agents at once.

    The module's `forward` is written for one agent and a batch of inputs. Here its weights are the rows of a matrix.
    How they are run, the module's class says in `over_agents`:

    - `vmap` (also if it says nothing): one vectorised call (`torch.func.vmap`). A module that vmap has no rule for,
      such as an LSTM, is looped over instead, with the same result.
    - `broadcast`: one call of `forward` itself with weights and inputs that have a leading agent axis, without vmap's
      cost for each operation. All its layers must be `Linear` of this file, or count axes from the last.
    - `loop`: agent by agent, which takes the memory of one.

    A module may have a method `describe(inputs) -> Tensor` for what does not depend on the action asked about. Its
    `forward` then takes it from `inputs["described"]`, or calls it if it is not there; so a critic that is asked about
    two actions on the same inputs describes them once.

    Args:
        network: the template; its weights are not used, and it is put in evaluation mode.

    Raises:
        UserError: the module has buffers (batch normalisation), which rows cannot hold, or an unknown `over_agents`.
    """

    def __init__(self, network: nn.Module) -> None:
        buffers = [name for name, _ in network.named_buffers()]
        if buffers:
            raise UserError(
                f"network {type(network).__name__} has buffers ({', '.join(buffers)}); a population has weights only: "
                "use LayerNorm in place of BatchNorm, and plain attributes for constants"
            )
        self.network = network.eval().requires_grad_(False)
        self.shapes = {name: weight.shape for name, weight in network.named_parameters()}
        self.sizes = [shape.numel() for shape in self.shapes.values()]
        self.over_agents: Literal["vmap", "broadcast", "loop"] = getattr(network, "over_agents", "vmap")
        if self.over_agents not in ("vmap", "broadcast", "loop"):
            raise UserError(
                f"network {type(network).__name__} has over_agents {self.over_agents!r}; set vmap, broadcast or loop"
            )
        self._describer = _Describer(network) if hasattr(network, "describe") else None

    @property
    def num_weights(self) -> int:
        """Weights of one agent."""
        return sum(self.sizes)

    def weights(self, rows: Float[Tensor, "agents weights"]) -> dict[str, Tensor]:
        """Named weights of shape (agents, *shape), as views of the rows."""
        pieces = torch.split(rows, self.sizes, dim=1)  # one split: its backward is one concatenation
        return {
            name: piece.reshape(len(rows), *shape)
            for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }

    def __call__(self, rows: Float[Tensor, "agents weights"], *inputs: Inputs | Tensor) -> Tensor:
        """Outputs of shape (agents, ...); each input has a leading agent axis, of size 1 where it is shared."""
        return self._run(self.network, self.weights(rows), inputs)

    def described(self, rows: Float[Tensor, "agents weights"], inputs: Inputs) -> Inputs:
        """The inputs with their description by each agent's network among them; as they are if it has none."""
        if self._describer is None:
            return inputs
        weights = {f"network.{name}": weight for name, weight in self.weights(rows).items()}
        return {**inputs, DESCRIBED: self._run(self._describer, weights, (inputs,))}

    def _run(self, network: nn.Module, weights: dict[str, Tensor], inputs: tuple[Inputs | Tensor, ...]) -> Tensor:
        agents = len(next(iter(weights.values())))
        if self.over_agents == "broadcast":
            output: Tensor = torch.func.functional_call(network, weights, inputs)
            # what depends on no weight has no agent axis of its own
            return output if len(output) == agents else output.expand(agents, *output.shape[1:])
        if self.over_agents == "vmap":
            try:
                return _vectorised(network, weights, inputs, agents)
            except RuntimeError as error:
                if "Batching rule not implemented" not in str(error):
                    raise
                self.over_agents = "loop"
                logger.info("%s runs agent by agent: %s", type(self.network).__name__, str(error).split(". ")[0])
        return _looped(network, weights, inputs, agents)


class _Describer(nn.Module):
    """A network's `describe` as the forward of a module, which is what can be called with given weights."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Inputs) -> Tensor:
        described: Tensor = self.network.describe(inputs)  # type: ignore[operator]
        return described


def _vectorised(
    network: nn.Module, weights: dict[str, Tensor], inputs: tuple[Inputs | Tensor, ...], agents: int
) -> Tensor:
    def call(own: dict[str, Tensor], *arguments: Inputs | Tensor) -> Tensor:
        output: Tensor = torch.func.functional_call(network, own, arguments)
        return output

    arguments, axes = zip(*(_split_shared(value, agents) for value in inputs), strict=True)
    outputs: Tensor = torch.func.vmap(call, in_dims=(0, *axes))(weights, *arguments)
    return outputs


def _looped(network: nn.Module, weights: dict[str, Tensor], inputs: tuple[Inputs | Tensor, ...], agents: int) -> Tensor:
    outputs = []
    for row in range(agents):
        own = {name: weight[row] for name, weight in weights.items()}
        outputs.append(torch.func.functional_call(network, own, tuple(_of_agent(value, row) for value in inputs)))
    return torch.stack(outputs)


def _split_shared(value: Inputs | Tensor, agents: int) -> tuple[Any, Any]:
    """The value ready for vmap and its axes: an axis of size 1 among several agents is dropped, not expanded."""
    if isinstance(value, dict):
        parts = {name: _split_shared(part, agents) for name, part in value.items()}
        return {name: part[0] for name, part in parts.items()}, {name: part[1] for name, part in parts.items()}
    return (value.squeeze(0), None) if len(value) == 1 < agents else (value, 0)


def _of_agent(value: Inputs | Tensor, row: int) -> Inputs | Tensor:
    if isinstance(value, dict):
        return {name: part[row if len(part) > 1 else 0] for name, part in value.items()}
    return value[row if len(value) > 1 else 0]


def weight_bytes(network: nn.Module) -> int:
    """Bytes of a network's weights."""
    return sum(weight.nbytes for weight in network.parameters())
