"""A population as a batch: every weight of every agent is one row of a matrix."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from eigen2.erl.randomness import Role, torch_seed
from eigen2.errors import UserError

logger = logging.getLogger(__name__)

Inputs = dict[str, Tensor]
"""What networks see: named tensors whose leading axis is the agent's, of size 1 where all agents see the same."""

NetworkFactory = Callable[[], nn.Module]


class StackedNetwork:
    """One plain `nn.Module` run with the weights of many agents at once.

    The module's `forward` is written for one agent and a batch of inputs. Here its weights are the rows of a matrix,
    and one vectorised call (`torch.func.vmap`) runs all rows. A module that vmap has no rule for, such as an LSTM,
    runs row by row with the same result.

    Args:
        network: the template; its weights are not used, and it is put in evaluation mode.

    Raises:
        UserError: the module has buffers (batch normalisation), which rows cannot hold.
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
        self.vectorized = True

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
        if self.vectorized:
            try:
                return self._call_vectorized(rows, inputs)
            except RuntimeError as error:
                if "Batching rule not implemented" not in str(error):
                    raise
                self.vectorized = False
                logger.info("%s runs agent by agent: %s", type(self.network).__name__, str(error).split(". ")[0])
        return self._call_looped(rows, inputs)

    def _call_one(self, weights: dict[str, Tensor], *inputs: Inputs | Tensor) -> Tensor:
        output: Tensor = torch.func.functional_call(self.network, weights, inputs)
        return output

    def _call_vectorized(self, rows: Tensor, inputs: tuple[Inputs | Tensor, ...]) -> Tensor:
        arguments, axes = zip(*(_split_shared(value, len(rows)) for value in inputs), strict=True)
        output: Tensor = torch.func.vmap(self._call_one, in_dims=(0, *axes))(self.weights(rows), *arguments)
        return output

    def _call_looped(self, rows: Tensor, inputs: tuple[Inputs | Tensor, ...]) -> Tensor:
        weights = self.weights(rows)
        outputs = []
        for row in range(len(rows)):
            own = {name: weight[row] for name, weight in weights.items()}
            outputs.append(self._call_one(own, *(_of_agent(value, row) for value in inputs)))
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


class Population(nn.Module):
    """All agents' actors, critics and targets as rows, and the champion beside them.

    Args:
        size: agents, >= 1.
        make_actor: builds one actor, `forward(inputs) -> (batch, *action_shape)` in [-1, 1].
        make_critic: builds one critic, `forward(inputs, action) -> (batch,)`.
        seed: of the initial weights; agent i's depend on (seed, i) alone.
        noise: initial standard deviation of every agent's exploration noise, in action units of [-1, 1].

    Attributes:
        actor, critic: parameters (agents, weights).
        actor_target, critic_target: their slow copies (agents, weights).
        noise: (agents,) exploration noise of each.
        champion_actor, champion_critic: (1, weights) copy of the best validated agent.
        champion_fitness: its validation fitness, -inf before the first.
        champion_generation: the generation it was found in, -1 before the first.
    """

    actor_target: Tensor
    critic_target: Tensor
    noise: Tensor
    champion_actor: Tensor
    champion_critic: Tensor
    champion_fitness: Tensor
    champion_generation: Tensor

    def __init__(
        self, size: int, make_actor: NetworkFactory, make_critic: NetworkFactory, seed: int, noise: float
    ) -> None:
        super().__init__()
        actors, critics = [], []
        for agent in range(size):
            with torch_seed(seed, Role.WEIGHTS, agent):
                actor, critic = make_actor(), make_critic()
            actors.append(nn.utils.parameters_to_vector(actor.parameters()).detach())
            critics.append(nn.utils.parameters_to_vector(critic.parameters()).detach())
        self.actor_network = StackedNetwork(actor)
        self.critic_network = StackedNetwork(critic)
        self.actor = nn.Parameter(torch.stack(actors))
        self.critic = nn.Parameter(torch.stack(critics))
        self.register_buffer("actor_target", self.actor.detach().clone())
        self.register_buffer("critic_target", self.critic.detach().clone())
        self.register_buffer("noise", torch.full((size,), noise))
        self.register_buffer("champion_actor", self.actor.detach()[:1].clone())
        self.register_buffer("champion_critic", self.critic.detach()[:1].clone())
        self.register_buffer("champion_fitness", torch.tensor(-torch.inf, dtype=torch.float64))
        self.register_buffer("champion_generation", torch.tensor(-1))
        self.agents = tuple(DDPGAgent(self, row) for row in range(size))
        self.champion = DDPGAgent(self, None)

    @property
    def size(self) -> int:
        """Agents, the champion not counted."""
        return len(self.actor)

    @property
    def weights_per_agent(self) -> int:
        """Weights of one actor and one critic."""
        return self.actor_network.num_weights + self.critic_network.num_weights

    @property
    def nbytes(self) -> int:
        """Bytes of all weights, targets, champion and scalars; gradients and optimizer state apart."""
        tensors = [*self.parameters(), *self.buffers()]
        return sum(tensor.nbytes for tensor in tensors)

    def rows(self) -> list[Tensor]:
        """Every tensor with a row an agent, weights and scalars, without gradients."""
        return [self.actor.detach(), self.critic.detach(), self.actor_target, self.critic_target, self.noise]

    def act(self, inputs: Inputs) -> Tensor:
        """Every agent's action, (agents, batch, *action_shape) in [-1, 1]."""
        return self.actor_network(self.actor, inputs)

    def crown(self, row: int, fitness: float, generation: int) -> None:
        """Copy agent `row` into the champion."""
        self.champion_actor.copy_(self.actor.detach()[row : row + 1])
        self.champion_critic.copy_(self.critic.detach()[row : row + 1])
        self.champion_fitness.fill_(fitness)
        self.champion_generation.fill_(generation)


class DDPGAgent:
    """One agent: the handle of a row of the population, or of the champion. It owns no weights.

    Args:
        population: whose row it is.
        row: which; None for the champion.
    """

    def __init__(self, population: Population, row: int | None) -> None:
        # a plain attribute of a plain object: nn.Module does not see it, so nothing is saved or counted twice
        self._population = population
        self.row = row

    @property
    def actor(self) -> Float[Tensor, "1 weights"]:
        """The actor's weights, a view."""
        if self.row is None:
            return self._population.champion_actor
        return self._population.actor.detach()[self.row : self.row + 1]

    @property
    def critic(self) -> Float[Tensor, "1 weights"]:
        """The critic's weights, a view."""
        if self.row is None:
            return self._population.champion_critic
        return self._population.critic.detach()[self.row : self.row + 1]

    def act(self, inputs: Inputs) -> Tensor:
        """The agent's action for a batch, (1, batch, *action_shape) in [-1, 1]."""
        own = {name: value if len(value) == 1 else value[self.row or 0][None] for name, value in inputs.items()}
        return self._population.actor_network(self.actor, own)

    def actor_weights(self) -> Mapping[str, Tensor]:
        """The actor's named weights, loadable with `load_state_dict` into the plain network."""
        return {name: weight[0] for name, weight in self._population.actor_network.weights(self.actor).items()}
