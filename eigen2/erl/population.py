"""A population as a batch: every weight of every agent is one row of a matrix."""

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from eigen2.erl.networks import Inputs, StackedNetwork
from eigen2.erl.randomness import Role, torch_seed


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
        self,
        size: int,
        make_actor: Callable[[], nn.Module],
        make_critic: Callable[[], nn.Module],
        seed: int,
        noise: float,
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
