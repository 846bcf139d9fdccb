"""What evolves where one agent alone learns: a head on its trunk, or a whole actor, for each agent."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from eigen2.core.networks import StackedNetwork, Weights
from eigen2.errors import UserError


class Heads(StackedNetwork):
    """A network run with the heads of many agents, as rows, on the trunk of the learner, which they share.

    The class or instance attribute `head_parameters` of the network names the weights of its head, or modules that hold
    them. What a network of `over_agents` broadcast computes from the trunk and from inputs that all agents share alone
    is computed once for all agents.

    Args:
        network: the network of an agent.
        learner: all weights of the learner, (1, weights), of which those of the trunk are read in every call.
        shared: whether there is a trunk; if not, all weights are the head's.
    """

    def __init__(self, network: StackedNetwork, learner: Tensor, shared: bool = True) -> None:
        super().__init__(network.network, network.single_agent)
        name, self._learner = type(self.network).__name__, learner
        named = tuple(getattr(self.network, "head_parameters", ())) if shared else tuple(self.shapes)
        self.names = [each for each in self.shapes if any(f"{each}.".startswith(f"{one}.") for one in named)]
        if not self.names:
            raise UserError(
                f"model.representation is shared, but no weights of {name} are those of a head (head_parameters is "
                f"{named}, weights are {', '.join(self.shapes)}); name some in {name}.head_parameters, or set own"
            )
        chosen = [torch.full((size,), each in self.names) for each, size in zip(self.shapes, self.sizes, strict=True)]
        self.chosen = torch.cat(chosen)  # which of all weights are the head's
        self.sizes = [self.shapes[each].numel() for each in self.names]
        self.num_weights = sum(self.sizes)

    def weights(self, rows: Float[Tensor, "agents weights"]) -> Weights:
        """Return named weights: those of heads (agents, *shape), those of the trunk (1, *shape) if they broadcast."""
        trunk = torch.split(self._learner.detach(), [shape.numel() for shape in self.shapes.values()], dim=1)
        agents = 1 if self.over_agents == "broadcast" else len(rows)
        named = {
            name: piece.reshape(1, *shape).expand(agents, *shape)
            for (name, shape), piece in zip(self.shapes.items(), trunk, strict=True)
        }
        for name, piece in zip(self.names, torch.split(rows, self.sizes, dim=1), strict=True):
            named[name] = piece.reshape(len(rows), *self.shapes[name])
        return named

    def cut(self, rows: Float[Tensor, "agents all"]) -> Float[Tensor, "agents weights"]:
        """Return the heads of rows of all weights."""
        return rows[:, self.chosen.to(rows.device)]

    def join(self, rows: Float[Tensor, "agents weights"]) -> Float[Tensor, "agents all"]:
        """Return all weights of agents with these heads."""
        whole = self._learner.detach().repeat(len(rows), 1)
        whole[:, self.chosen.to(rows.device)] = rows
        return whole


def head_bytes(network: nn.Module, shared: bool) -> int:
    """Return the bytes of the weights of an agent's head."""
    stacked = StackedNetwork(network)
    return 4 * Heads(stacked, torch.empty(1, stacked.num_weights), shared).num_weights
