"""Run a plain network of one agent with the weights of many, or several networks as one."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from eigen2 import compat
from eigen2.errors import UserError, require_range

logger = logging.getLogger(__name__)

Inputs = dict[str, Tensor]  # named network inputs with a leading agent axis, of size 1 where all agents see the same
Weights = dict[str, Tensor]  # weights by name; those of many agents have a leading agent axis
ATTENTION = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
LARGEST = 1 - 1e-6  # absolute output of a tanh up to which its pre-activation is known, at 7.25
MOST_MEMBERS = 100  # of an ensemble that trains
MOST_WIDTH = 16_384  # widest layer; two such layers have a GB of weights between them
DESCRIBED, FORECAST = "described", "forecast"  # names of the inputs that hold what `describe` and `forecast` returned


@dataclass(frozen=True)
class Sizes:
    """Shapes that a network is built for."""

    inputs: Mapping[str, tuple[int, ...]]  # shape of each input without the axes of agents and batch
    action: tuple[int, ...]  # shape of an action
    context: int = 1  # past steps, the current one included, that a network of time series may read


NetworkFactory = Callable[[Sizes], nn.Module]  # build one agent's network


class Linear(nn.Linear):
    """`torch.nn.Linear` whose weights may be (agents, out, in): (agents or 1, ..., in) goes to (agents, ..., out)."""

    def forward(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """Apply the linear map to the last axis of `x`, and add `plus` if given."""
        weight: Tensor = self.weight
        bias: Tensor | None = self.bias
        if weight.dim() == 2:
            return super().forward(x) if plus is None else super().forward(x) + plus
        if len(weight) < len(x):  # all agents share it; a product for each has the same bits beside any others
            weight = weight.expand(len(x), -1, -1)
            bias = None if bias is None else bias.expand(len(x), -1)
        agents, features = weight.shape[:2]
        rows, start = x.flatten(1, -2), None if bias is None else bias[:, None]
        if plus is not None:
            start = plus.flatten(1, -2) if start is None else plus.flatten(1, -2) + start
        # MKL takes a single product with a vector by another routine, which sums in another order
        doubled = agents == 1 and 1 in weight.shape[1:]
        if doubled:
            weight, start = weight.expand(2, -1, -1), None if start is None else start.expand(2, -1, -1)
        if len(rows) != len(weight):
            rows = rows.expand(len(weight), -1, -1)  # what all agents share is not copied
        # adding inside the product saves a pass over the output
        out = torch.bmm(rows, weight.mT) if start is None else torch.baddbmm(start, rows, weight.mT)
        return compat.reshape_fresh(out[:1] if doubled else out, (agents, *x.shape[1:-1], features))


def trainable(network: nn.Module) -> nn.Module:
    """Return a network whose weights can all be trained and evolved; raise a UserError of another."""
    name, weights = f"network {type(network).__name__}", dict(network.named_parameters())
    if lazy := [each for each, weight in weights.items() if isinstance(weight, nn.UninitializedParameter)]:
        raise UserError(f"{name} has weights without a shape ({', '.join(lazy)}); give its lazy modules their sizes")
    if frozen := [each for each, weight in weights.items() if not weight.requires_grad]:
        raise UserError(
            f"{name} has frozen weights ({', '.join(frozen)}), which evolution would change; let them train, or make "
            "constants in forward, on the device of its inputs"
        )
    return network


def with_tied(network: nn.Module, weights: Weights) -> Weights:
    """Return named weights with a weight that a network holds in several places under the names of all of them."""
    names = {id(weight): name for name, weight in network.named_parameters()}
    places = network.named_parameters(remove_duplicate=False)
    tied = {name: weights[names[id(weight)]] for name, weight in places if names[id(weight)] in weights}
    return {**weights, **tied}


class StackedNetwork:
    """Plain `nn.Module`, written for one agent and a batch of inputs, run with the weights of many agents at once.

    Weights are rows of a matrix. The module's class attribute `over_agents` chooses how they are run:

    - `vmap` (the default): one vectorised call of `torch.func.vmap`; where it cannot run the module, such as an LSTM,
      as `loop`.
    - `broadcast`: one call of `forward` with a leading agent axis on weights and inputs, for modules whose layers are
      `Linear` of this file or count axes from the last.
    - `loop`: agent by agent, in the memory of one.

    A critic may have a method `describe(inputs) -> Tensor` for the part that does not depend on the action. Its
    `forward` then reads `inputs["described"]`, or calls `describe` where that is missing, so that the values of two
    actions on the same inputs share it. It may also have a method `forecast(inputs) -> Tensor`, read from
    `inputs["forecast"]`, for what is known afterwards of every possible action, whichever was taken; learners train it
    on `Batch.outcomes`. One that returns several values may have a method `first_value(inputs, action) -> Tensor` for
    the first of them alone, which trains the actor.

    The module is a template, put into evaluation mode. One with buffers, as batch normalisation, is refused.

    Args:
        network: the module.
        single_agent: whether to run one agent's weights as the plain module does, which is faster. It rounds
            differently, so only networks that never run several agents at once may.
    """

    def __init__(self, network: nn.Module, single_agent: bool = False) -> None:
        name = f"network {type(network).__name__}"
        if buffers := [buffer for buffer, _ in network.named_buffers()]:
            raise UserError(
                f"{name} has buffers ({', '.join(buffers)}); a population has weights only: use LayerNorm in place of "
                "BatchNorm, and make constants in forward, on the device of its inputs"
            )
        self.network = network.eval().requires_grad_(False)
        self.shapes = {name: weight.shape for name, weight in network.named_parameters()}
        self.names = list(self.shapes)  # of the weights in a row
        self.sizes = [shape.numel() for shape in self.shapes.values()]
        self.num_weights = sum(self.sizes)
        self.single_agent = single_agent
        self.over_agents: Literal["vmap", "broadcast", "loop"] = getattr(network, "over_agents", "vmap")
        if self.over_agents not in ("vmap", "broadcast", "loop"):
            raise UserError(f"{name} has over_agents {self.over_agents!r}; set vmap, broadcast or loop")
        # in evaluation mode their inference kernels, which have no gradients, would take the place of others
        self._attends = any(isinstance(module, ATTENTION) for module in network.modules())
        self._describe: Callable[..., Tensor] | None = getattr(network, "describe", None)
        self._forecast: Callable[..., Tensor] | None = getattr(network, "forecast", None)
        self._first_value: Callable[..., Tensor] = getattr(network, "first_value", network)
        names = {id(weight): name for name, weight in network.named_parameters()}
        # every place that holds a weight: tied weights have several
        self._places = [
            (module, name, names[id(weight)], weight)
            for module in network.modules()
            for name, weight in module.named_parameters(recurse=False)
        ]

    def weights(self, rows: Float[Tensor, "agents weights"]) -> Weights:
        """Return named weights of shape (agents, *shape), as views of the rows."""
        pieces = torch.split(rows, self.sizes, dim=1)  # one split: its backward is one concatenation
        named = zip(self.shapes.items(), pieces, strict=True)
        return {name: piece.reshape(len(rows), *shape) for (name, shape), piece in named}

    def __call__(self, rows: Float[Tensor, "agents weights"] | Weights, *inputs: Inputs | Tensor) -> Tensor:
        """Return outputs (agents, ...), from weights as rows or by name and inputs with a leading agent axis or 1."""
        return self._run(self.network, rows, inputs)

    def described(self, rows: Float[Tensor, "agents weights"] | Weights, inputs: Inputs) -> Inputs:
        """Return the inputs with what `describe` and `forecast` return among them, of a network that has them."""
        for name, method in ((DESCRIBED, self._describe), (FORECAST, self._forecast)):
            if method is not None:
                inputs = {**inputs, name: self._run(method, rows, (inputs,))}
        return inputs

    def first_value(self, weights: Weights, inputs: Inputs, action: Tensor) -> Tensor:
        """Return the value by which a critic trains the actor, all values of a critic without `first_value`."""
        return self._run(self._first_value, weights, (inputs, action))

    def _run(self, function: Callable[..., Tensor], rows: Tensor | Weights, inputs: tuple[Any, ...]) -> Tensor:
        weights = self.weights(rows) if isinstance(rows, Tensor) else rows
        agents = max(map(len, weights.values()))
        if self.single_agent and agents == 1:  # on plain tensors layers are faster
            own = {name: weight.squeeze(0) for name, weight in weights.items()}
            return self._call(function, own, *(_map_tensors(value, lambda part: part[0]) for value in inputs))[None]
        if self.over_agents == "broadcast":
            output = self._call(function, weights, *inputs)
            # an output that depends on no weight has no agent axis of its own
            return output if len(output) == agents else output.expand(agents, *output.shape[1:])
        if self.over_agents == "vmap":
            # an input of size 1 among several agents is not expanded
            axes = [_map_tensors(value, lambda part: None if len(part) == 1 < agents else 0) for value in inputs]
            parts = [_map_tensors(value, lambda part: part[0] if len(part) == 1 < agents else part) for value in inputs]
            try:
                run = torch.func.vmap(partial(self._call, function), in_dims=(0, *axes))
                return run(weights, *parts)
            except RuntimeError as error:
                message = str(error)
                cannot = "Batching rule not implemented" in message or message.startswith("vmap:")
                if not cannot or "random" in message:  # what a network draws no resume repeats
                    raise
                self.over_agents = "loop"
                logger.info("%s runs agent by agent: %s", type(self.network).__name__, str(error).split(". ")[0])
        outputs = []
        for row in range(agents):
            row_inputs = [_map_tensors(value, lambda part: part[row if len(part) > 1 else 0]) for value in inputs]  # noqa: B023
            outputs.append(self._call(function, {name: weight[row] for name, weight in weights.items()}, *row_inputs))
        return torch.stack(outputs)

    def _call(self, function: Callable[..., Tensor], weights: Weights, *inputs: Inputs | Tensor) -> Tensor:
        """Call the network's function with other weights: `torch.func.functional_call` at a tenth of its cost."""
        fast = self._attends and torch.backends.mha.get_fastpath_enabled()
        try:
            if fast:
                torch.backends.mha.set_fastpath_enabled(False)
            for module, name, source, _ in self._places:
                compat.replace_parameter(module, name, weights[source])
            return function(*inputs)
        finally:
            if fast:
                torch.backends.mha.set_fastpath_enabled(True)
            for module, name, _, original in self._places:
                compat.replace_parameter(module, name, original)


class Ensemble(nn.Module):
    """Networks as one, whose output is the mean of theirs.

    The squared error of a mean is at most the mean of the squared errors, and the less the more the networks differ
    (Krogh and Vedelsby, "Neural network ensembles, cross validation, and active learning", 1995).
    """

    def __init__(self, members: Iterable[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def __getitem__(self, number: int) -> nn.Module:
        """Return one network."""
        return self.members[number]

    def forward(self, inputs: Inputs | Tensor) -> Tensor:
        """Return the mean output, of the shape of each."""
        return torch.stack([member(inputs) for member in self.members]).mean(0)


def preactivation(output: Tensor) -> Tensor:
    """Return artanh(output), in single precision: what a network's last tanh was given, within -7.25 and 7.25."""
    output = output.float().clamp(-LARGEST, LARGEST)
    # unlike torch.atanh, logarithms have the same bits wherever an agent's numbers lie in the tensor
    return 0.5 * (torch.log1p(output) - torch.log1p(-output))


def _map_tensors(value: Inputs | Tensor, change: Callable[[Tensor], Any]) -> Any:
    return {name: change(part) for name, part in value.items()} if isinstance(value, dict) else change(value)


def require_width(name: str, value: int) -> None:
    """Refuse, by a UserError, a layer width that is impossible, or would exhaust memory before it is estimated."""
    require_range(name, value, least=1, most=MOST_WIDTH, whole=True)


def weight_bytes(network: nn.Module) -> int:
    """Return the bytes of a network's weights."""
    return sum(weight.nbytes for weight in network.parameters())
