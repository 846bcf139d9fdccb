"""A population as a batch: every weight of every agent is one row of a matrix."""

import functools
import math
from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from eigen2.core.networks import Inputs, StackedNetwork
from eigen2.core.randomness import Role, torch_seed
from eigen2.distributed.communicator import Communicator
from eigen2.erl.evolution.hyperparameters import NAMES


class Population(nn.Module):
    """Agents' actors, critics and targets as rows, and the champion beside them.

    Args:
        size: agents here, >= 1.
        make_actor: builds one actor, `forward(inputs) -> (batch, *action_shape)` in [-1, 1].
        make_critic: builds one critic, `forward(inputs, action) -> (batch,)`.
        seed: of the initial weights; agent i's depend on (seed, i) alone.
        noise: initial standard deviation of every agent's exploration noise, in action units of [-1, 1].
        learners: agents here that learn by gradients, the first ones (0 to size); None for all.
        own_hyperparameters: whether agents have hyper-parameters of their own.
        share: which agents of a population, spread over processes, are here, and how many it has; None for all.

    Attributes:
        actor, critic: parameters (agents, weights).
        actor_target, critic_target: their slow copies (agents, weights).
        noise: (agents,) exploration noise of each.
        kind: (all agents,) how each came to be what it is, a place in `operators.KINDS`.
        parents_fitness: (all agents,) fitness of those it came from, when they were chosen; 0 for a beginner.
        hyperparameters: (agents, 4) logarithms of the factors on each agent's, by `hyperparameters.NAMES`; None where
            all have what is configured.
        champion_actor, champion_critic: (1, weights) copy of the best validated agent.
        champion_hyperparameters: (1, 4) its logarithms, or None.
        champion_fitness: its validation fitness, -inf before the first.
        champion_generation: the generation it was found in, -1 before the first.
        validations_since_champion: validations since then, or since the start, that found no better one.
    """

    actor_target: Tensor
    critic_target: Tensor
    noise: Tensor
    kind: Tensor
    parents_fitness: Tensor
    hyperparameters: Tensor | None
    champion_actor: Tensor
    champion_critic: Tensor
    champion_hyperparameters: Tensor | None
    champion_fitness: Tensor
    champion_generation: Tensor
    validations_since_champion: Tensor

    def __init__(
        self,
        size: int,
        make_actor: Callable[[], nn.Module],
        make_critic: Callable[[], nn.Module],
        seed: int,
        noise: float,
        learners: int | None = None,
        own_hyperparameters: bool = False,
        share: Communicator | None = None,
    ) -> None:
        super().__init__()
        self.share = share or Communicator(size)
        self.learners = size if learners is None else learners
        with torch_seed(seed, Role.WEIGHTS, agent=0):
            self.actor_network, self.critic_network = StackedNetwork(make_actor()), StackedNetwork(make_critic())
        self.actor = nn.Parameter(torch.empty(size, self.actor_network.num_weights))
        self.critic = nn.Parameter(torch.empty(size, self.critic_network.num_weights))
        self.register_buffer("actor_target", torch.empty_like(self.actor))
        self.register_buffer("critic_target", torch.empty_like(self.critic))
        self.register_buffer("noise", torch.empty(size))
        self.register_buffer("kind", torch.zeros(self.share.total, dtype=torch.int64))
        self.register_buffer("parents_fitness", torch.zeros(self.share.total, dtype=torch.float64))
        own = torch.zeros(size, len(NAMES), dtype=torch.float64) if own_hyperparameters else None
        self.register_buffer("hyperparameters", own)
        self.register_buffer("champion_hyperparameters", None if own is None else own[:1].clone())
        self.register_buffer("champion_actor", torch.empty_like(self.actor[:1]))
        self.register_buffer("champion_critic", torch.empty_like(self.critic[:1]))
        self.register_buffer("champion_fitness", torch.tensor(0.0, dtype=torch.float64))
        self.register_buffer("champion_generation", torch.tensor(0))
        self.register_buffer("validations_since_champion", torch.tensor(0))
        self.reset_memory(make_actor, make_critic, seed, noise)
        self.agents = tuple(DDPGAgent(self, row) for row in range(size))
        self.champion = DDPGAgent(self, None)

    @property
    def size(self) -> int:
        """Agents here, the champion not counted."""
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

    def rows(self) -> dict[str, Tensor]:
        """Every tensor with a row for each agent here by its name, weights and scalars, without gradients."""
        own = {} if self.hyperparameters is None else {"hyperparameters": self.hyperparameters}
        names = "actor", "critic", "actor_target", "critic_target", "noise"
        return {name: getattr(self, name).detach() for name in names} | own

    @torch.no_grad()
    def reset_memory(
        self, make_actor: Callable[[], nn.Module], make_critic: Callable[[], nn.Module], seed: int, noise: float
    ) -> None:
        """Make every agent a beginner, in place: what the constructor, with the same arguments, would give."""
        for place, agent in enumerate(self.share.rows):
            with torch_seed(seed, Role.WEIGHTS, agent):
                actor, critic = make_actor(), make_critic()
            self.actor[place] = nn.utils.parameters_to_vector(actor.parameters())
            self.critic[place] = nn.utils.parameters_to_vector(critic.parameters())
        self.actor_target.copy_(self.actor)
        self.critic_target.copy_(self.critic)
        self.noise.fill_(noise)
        self.kind.zero_()
        self.parents_fitness.zero_()
        if self.hyperparameters is not None:
            self.hyperparameters.zero_()
        self._crown(self._rows_of_champion(slice(0, 1)), -math.inf, -1)

    def cleanup_memory(self) -> int:
        """Free the gradients, which the next training step makes anew, and return their bytes."""
        freed = sum(rows.grad.nbytes for rows in self.parameters() if rows.grad is not None)
        self.zero_grad(set_to_none=True)
        return freed

    def learning(self, rows: Tensor) -> Tensor:
        """Of a tensor with a row an agent, the rows of those that learn."""
        return rows if self.learners == len(rows) else rows[: self.learners]

    def act(self, inputs: Inputs) -> Tensor:
        """Every agent's action, (agents, batch, *action_shape) in [-1, 1]."""
        return self.actor_network(self.actor, inputs)

    def policy(self, agent: "DDPGAgent | None" = None) -> Callable[[Inputs], Tensor]:
        """What acts as every agent does, or as one; for many steps between which no weights change.

        Args:
            agent: alone; its actions are (1, batch, *action_shape).
        """
        if agent is None:
            return functools.partial(self.actor_network, self.actor_network.weights(self.actor.detach()))
        weights = self.actor_network.weights(agent.actor)
        return lambda inputs: self.actor_network(weights, agent.own(inputs))

    def crown(self, row: int, fitness: float, generation: int) -> None:
        """Copy agent `row`, wherever it is, into every process's champion."""
        rows = self._rows_of_champion(slice(None))
        self._crown(self.share.broadcast(rows, row, "the champion"), fitness, generation)

    def _rows_of_champion(self, chosen: slice) -> dict[str, Tensor]:
        """The chosen agents' rows of all that a champion has."""
        names = ("actor", "critic", *(["hyperparameters"] if self.hyperparameters is not None else []))
        return {name: getattr(self, name).detach()[chosen] for name in names}

    def _crown(self, agent: Mapping[str, Tensor], fitness: float, generation: int) -> None:
        for name, values in agent.items():
            getattr(self, f"champion_{name}").copy_(values)
        self.champion_fitness.fill_(fitness)
        self.champion_generation.fill_(generation)
        self.validations_since_champion.zero_()

    @torch.no_grad()
    def reinject(self, row: int) -> None:
        """Make the agent at place `row` here a copy of the champion, its targets as its networks; the noise stays."""
        for rows in (self.actor, self.actor_target):
            rows[row] = self.champion_actor[0]
        for rows in (self.critic, self.critic_target):
            rows[row] = self.champion_critic[0]
        if self.hyperparameters is not None and self.champion_hyperparameters is not None:
            self.hyperparameters[row] = self.champion_hyperparameters[0]


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
        return self._population.actor_network(self.actor, self.own(inputs))

    def own(self, inputs: Inputs) -> Inputs:
        """What the agent sees of what all see, (1, batch, ...); the champion what the first agent sees."""
        return {name: value if len(value) == 1 else value[self.row or 0][None] for name, value in inputs.items()}

    def actor_weights(self) -> Mapping[str, Tensor]:
        """The actor's named weights, loadable with `load_state_dict` into the plain network."""
        return {name: weight[0] for name, weight in self._population.actor_network.weights(self.actor).items()}
