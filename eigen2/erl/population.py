"""A population as a batch: every weight of every agent is one row of a matrix."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from eigen2.core.networks import Inputs, StackedNetwork, trainable
from eigen2.core.randomness import Role, torch_seed
from eigen2.distributed.communicator import Communicator
from eigen2.erl.heads import Heads

ELITES_AT_ONCE = 64  # elites whose weights are in memory at once while they are averaged
ACTING_AT_ONCE = 256  # agents that act at once: more would only take more memory
# weight of the newest elites in their moving average, tuned on synthetic markets that the docs do not report
ELITE_AVERAGE_RATE = 1 / 12
Agent = int | Literal["champion", "mean"]
"""An agent of this process by its row, the champion, or the mean of the elites."""


class Population(nn.Module):
    """Actors, critics and targets of this process's agents as rows, and the champion beside them.

    The communicator's rows are the agents of this process. With `one_learner`, actor, critic and targets have one row,
    the learner's, which every process holds, and agents are rows of `head`, of which the first is its.

    Args:
        make_actor: builds one actor, `forward(inputs) -> (batch, *action_shape)` in [-1, 1].
        make_critic: builds one critic, `forward(inputs, action) -> (batch,)`.
        seed: of the initial weights; agent i's depend on (seed, i) alone.
        noise: initial standard deviation of every agent's exploration noise, in action units of [-1, 1].
        windows: validation windows.
        one_learner: whether the first agent alone learns by gradients, and the others only evolve.
        shared: whether agents are heads on the trunk of the first agent's actor, which then alone learns.
    """

    head: Tensor  # (agents, weights) what evolves where one learns: heads or, if nothing is shared, whole actors
    actor_target: Tensor  # slow copies (agents, weights)
    critic_target: Tensor
    noise: Tensor  # (agents,) standard deviation of each agent's exploration noise
    origin: Tensor  # (all agents,) how the last evolution made each, a place in `evolution.statistics.origins`
    parents_fitness: Tensor  # (all agents,) fitness of each agent's parents when they were chosen; 0 at first
    mean_actor: Tensor  # (1, weights) moving average of the elites, see `average`; NaN before the first
    champion_actor: Tensor  # (1, weights) copy of the champion, an agent or a mean of elites
    champion_critic: Tensor  # (1, weights) where one learns, its critic when the champion was found
    champion_fitness: Tensor  # its validation fitness, float64, -inf before the first
    champion_windows: Tensor  # (validation windows,) the same by window
    champion_generation: Tensor  # the generation it was found in, -1 before the first

    def __init__(
        self,
        communicator: Communicator,
        make_actor: Callable[[], nn.Module],
        make_critic: Callable[[], nn.Module],
        seed: int,
        noise: float,
        windows: int = 1,
        one_learner: bool = False,
        shared: bool = False,
    ) -> None:
        super().__init__()
        self._rows, one_learner = communicator.rows, one_learner or shared
        self.size = size = len(self._rows)  # agents of this process
        self.learners = int(0 in self._rows) if one_learner else size  # of this process
        alone = communicator.total == 1
        with torch_seed(seed, Role.WEIGHTS, agent=0):
            self.actor_network = StackedNetwork(trainable(make_actor()), single_agent=alone)
            # critics run for learners alone
            self.critic_network = StackedNetwork(trainable(make_critic()), single_agent=alone or one_learner)
        self.weights_per_agent = self.actor_network.num_weights + self.critic_network.num_weights
        rows = 1 if one_learner else size
        self.actor = nn.Parameter(torch.empty(rows, self.actor_network.num_weights))
        self.critic = nn.Parameter(torch.empty(rows, self.critic_network.num_weights))
        self.heads = Heads(self.actor_network, self.actor, shared) if one_learner else None
        evolving = 0 if self.heads is None else self.heads.num_weights
        one = {"head": torch.empty(size, evolving), "champion_critic": torch.empty_like(self.critic[:1])}
        buffers = {
            **(one if one_learner else {}),
            "actor_target": torch.empty_like(self.actor),
            "critic_target": torch.empty_like(self.critic),
            "noise": torch.empty(size),
            "origin": torch.zeros(communicator.total, dtype=torch.int64),
            "parents_fitness": torch.zeros(communicator.total, dtype=torch.float64),
            "mean_actor": torch.empty_like(self.actor[:1]),
            "champion_actor": torch.empty_like(self.actor[:1]),
            "champion_fitness": torch.tensor(0.0, dtype=torch.float64),
            "champion_windows": torch.empty(windows, dtype=torch.float64),
            "champion_generation": torch.tensor(0),
        }
        for name, values in buffers.items():
            self.register_buffer(name, values)
        self.register_load_state_dict_pre_hook(_fit_windows)  # type: ignore[no-untyped-call]
        self.reset_parameters(make_actor, make_critic, seed, noise)

    @property
    def acting_network(self) -> StackedNetwork:
        """Return the network that runs the rows `actor` of `rows`."""
        return self.actor_network if self.heads is None else self.heads

    def rows(self) -> dict[str, Tensor]:
        """Return every tensor with a row for each agent of this process, detached, by its name in `AgentRows`."""
        if self.heads is not None:
            return {"actor": self.head, "noise": self.noise}
        targets = {"actor_target": self.actor_target, "critic_target": self.critic_target}
        networks = {"actor": self.actor.detach(), "critic": self.critic.detach()}
        return networks | targets | {"noise": self.noise}

    def row_names(self) -> tuple[str, ...]:
        """Return the names of the tensors with a row for each agent in a `state_dict`."""
        return tuple(self.rows()) if self.heads is None else ("head", "noise")

    @torch.no_grad()
    def reset_parameters(
        self, make_actor: Callable[[], nn.Module], make_critic: Callable[[], nn.Module], seed: int, noise: float
    ) -> None:
        """Initialize every agent in place, as the constructor with the same arguments does."""

        def made(agent: int) -> dict[str, Tensor]:
            with torch_seed(seed, Role.WEIGHTS, agent):
                networks = {"actor": make_actor(), "critic": make_critic()}
            return {name: nn.utils.parameters_to_vector(each.parameters()) for name, each in networks.items()}

        first = {name: row[None] for name, row in made(0).items()}  # the same in every process
        if self.heads is not None:
            self.actor.copy_(first["actor"])
            self.critic.copy_(first["critic"])
        for place, agent in enumerate(self._rows):
            own = made(agent)
            if self.heads is None:
                self.actor[place], self.critic[place] = own["actor"], own["critic"]
            else:
                self.head[place] = self.heads.cut(own["actor"][None])[0]
        self.actor_target.copy_(self.actor)
        self.critic_target.copy_(self.critic)
        self.noise.fill_(noise)
        self.origin.zero_()
        self.parents_fitness.zero_()
        self._set_champion(first["actor"], torch.full_like(self.champion_windows, -math.inf), -1)
        self.mean_actor.fill_(torch.nan)

    def cleanup_memory(self) -> int:
        """Free the gradients, which the next training step allocates again, and return their bytes."""
        freed = sum(rows.grad.nbytes for rows in self.parameters() if rows.grad is not None)
        self.zero_grad(set_to_none=True)
        return freed

    def act(self, inputs: Inputs) -> Tensor:
        """Return every agent's action, (agents, batch, *action_shape) in [-1, 1]."""
        return self.acting_network(self.rows()["actor"], inputs)

    def policy(self, agent: Agent | None = None, with_mean: bool = False) -> Callable[[Inputs], Tensor]:
        """Return the policy of every agent, or of one, while no weights change.

        `with_mean` adds that of the elites' mean as last row. One agent acts on the first agent's inputs: its actions
        are (1, batch, *action_shape).
        """
        if agent is None and self.heads is not None and with_mean:
            act, mean = self.policy(), self.policy("mean")  # whose trunk is a mean, too
            return lambda inputs: torch.cat([act(_agents(inputs, slice(-1))), mean(_agents(inputs, slice(-1, None)))])
        if agent is None:
            own = self.rows()["actor"]
            rows, network = torch.cat([own, self.mean_actor]) if with_mean else own, self.acting_network
            parts = [slice(first, first + ACTING_AT_ONCE) for first in range(0, len(rows), ACTING_AT_ONCE)]
            acting = [(network.weights(rows[part]), part) for part in parts]
            return lambda inputs: torch.cat([network(own, _agents(inputs, part)) for own, part in acting])
        weights = self.actor_network.weights(self.actor_of(agent))
        return lambda inputs: self.actor_network(weights, _agents(inputs, slice(1)))

    def actor_of(self, agent: Agent) -> Float[Tensor, "1 weights"]:
        """Return all weights of an actor: a view or, of an agent with a shared representation, a copy."""
        if isinstance(agent, str):
            return self.champion_actor if agent == "champion" else self.mean_actor
        return self.whole_actors(self.rows()["actor"][agent : agent + 1])

    @torch.no_grad()
    def average(self, elites: Sequence[int], communicator: Communicator) -> None:
        """Move the exponential average by `ELITE_AVERAGE_RATE` towards the mean of some agents, whoever owns them."""
        rows, chosen = self.rows()["actor"], sorted(elites)
        total = torch.zeros_like(rows[:1])
        for first in range(0, len(chosen), ELITES_AT_ONCE):
            some = chosen[first : first + ELITES_AT_ONCE]
            fetched = communicator.fetch({"actor": rows}, [some] * communicator.world, "elites")
            total += fetched["actor"].sum(0, keepdim=True)
        mean, newest = self.mean_actor, self.whole_actors(total / len(chosen))
        mean.copy_(torch.where(mean.isnan(), newest, torch.lerp(mean, newest, ELITE_AVERAGE_RATE)))

    def set_champion(self, row: int | None, fitness: Tensor, generation: int, communicator: Communicator) -> None:
        """Copy agent `row`, whichever process owns it, or the mean of the elites, into every process's champion.

        `fitness` (validation windows,) is its validation fitness by window.
        """
        actor = self.mean_actor
        if row is not None:
            chosen = communicator.broadcast({"actor": self.rows()["actor"]}, row, "the champion")
            actor = self.whole_actors(chosen["actor"])
        self._set_champion(actor, fitness, generation)

    def whole_actors(self, actors: Tensor) -> Tensor:
        """Return all weights of agents' actors, from rows `actor` of `rows`."""
        return actors if self.heads is None else self.heads.join(actors)

    @torch.no_grad()
    def broadcast_learner(self, moments: Sequence[Tensor], communicator: Communicator) -> None:
        """Give all processes what the only learner has learned, and its head to the first row."""
        if self.heads is None:
            return
        learned = [self.actor, self.critic, self.actor_target, self.critic_target, *moments]
        named = {str(place): rows for place, rows in enumerate(learned)}
        for name, row in communicator.broadcast(named, 0, "what was learned").items():
            named[name].copy_(row)
        self._take_learned_head()

    @torch.no_grad()
    def restore_learner(self, moments: Sequence[Tensor]) -> None:
        """Let the only learner, which failed, go on from the champion, without momentum.

        Second moments stay where they are finite: without them Adam, whose bias correction counts all steps, would take
        steps several times too large.
        """
        for rows, champion in ((self.actor, self.champion_actor), (self.critic, self.champion_critic)):
            rows.copy_(champion)
        self.actor_target.copy_(self.actor)
        self.critic_target.copy_(self.critic)
        for first, second in zip(moments[::2], moments[1::2], strict=True):
            first.zero_()
            second.nan_to_num_(0.0, 0.0, 0.0)
        self._take_learned_head()

    def _take_learned_head(self) -> None:
        if self.heads is not None and self.learners:
            self.head[:1] = self.heads.cut(self.actor)

    def set_champion_fitness(self, fitness: Tensor) -> None:
        """Set the champion's validation fitness, (validation windows,)."""
        self.champion_windows.copy_(fitness)
        self.champion_fitness.copy_(fitness.mean())

    def _set_champion(self, actor: Tensor, fitness: Tensor, generation: int) -> None:
        self.champion_actor.copy_(actor)
        if self.heads is not None:
            self.champion_critic.copy_(self.critic)
        self.set_champion_fitness(fitness)
        self.champion_generation.fill_(generation)


def _agents(inputs: Inputs, agents: slice) -> Inputs:
    """Return the inputs of some agents; inputs that all share, of size 1, unchanged."""
    return {name: value if len(value) == 1 else value[agents] for name, value in inputs.items()}


def _fit_windows(population: Population, saved: dict[str, Any], prefix: str, *_: Any) -> None:
    """Make room for the validation windows of a checkpoint: a test on other prices may have others than the fit."""
    saved_windows, device = saved[f"{prefix}champion_windows"], population.champion_windows.device
    population.champion_windows = torch.empty_like(saved_windows, device=device)
