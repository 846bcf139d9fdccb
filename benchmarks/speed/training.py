"""An optimizer step of the whole population against a loop over separate modules and optimizers."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.speed.full_scale import FullScale
from benchmarks.timing import Row, median_ratio
from eigen2.erl.learners import ddpg
from eigen2.erl.module import ERLModule
from eigen2.erl.population import Population

BOUND = 1.8


def rows(full: FullScale, runs: int) -> list[Row]:
    """Milliseconds of an optimizer step, which averages the gradients of `accumulate` micro-batches."""
    population = full.population()
    batches = [full.batch(slots) for slots in full.slots()]
    reference = [PlainAgent(full, population, row) for row in range(population.size)]
    ours, loop, ratio = median_ratio(
        population_step(full.module, population, batches), looped_step(full.module, reference, batches), runs
    )
    agents, batch = batches[0].reward.shape
    what = f"optimizer step of {agents} agents, {len(batches)} micro-batches of {batch}, ms"
    return [Row("training_step", what, 1e3 * ours, 1e3 * loop, ratio, BOUND)]


def population_step(settings: ERLModule, population: Population, batches: list[ddpg.Batch]) -> Callable[[], None]:
    """One optimizer step of all agents at once."""
    optimizer = torch.optim.Adam(
        [
            {"params": [population.actor], "lr": settings.actor_lr},
            {"params": [population.critic], "lr": settings.critic_lr},
        ]
    )

    def run() -> None:
        for batch in batches:
            losses = ddpg.losses(population, batch, settings.gamma)
            ((losses.actor + losses.critic).sum() / len(batches)).backward()  # type: ignore[no-untyped-call]
        ddpg.step(population, optimizer, settings.max_grad_norm)
        optimizer.zero_grad(set_to_none=False)
        ddpg.update_targets(population, settings.tau)

    return run


class PlainAgent:
    """Separate modules and optimizers for one agent of a population, with its weights.

    Args:
        full: whose networks and learning rates.
        population: whose weights are copied.
        row: which agent of it.
    """

    def __init__(self, full: FullScale, population: Population, row: int) -> None:
        data, agent, self.row = full.data, population.agents[row], row
        self.actor, self.slow_actor = (_network(data.make_actor(), agent.actor) for _ in range(2))
        self.critic, self.slow_critic = (_network(data.make_critic(), agent.critic) for _ in range(2))
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=full.module.actor_lr)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=full.module.critic_lr)

    def learn(self, batch: ddpg.Batch, gamma: float, share: float) -> None:
        """Add a micro-batch's gradients: of the critic's loss to the critic, of the actor's to the actor."""
        now, then = self._own(batch.inputs), self._own(batch.next_inputs)
        with torch.no_grad():
            next_value = self.slow_critic(then, self.slow_actor(then))
            target = batch.reward[self.row] + gamma * torch.where(batch.terminated[self.row], 0.0, next_value)
        critic_loss = (self.critic(now, batch.action[self.row]) - target).square().mean()
        (share * critic_loss).backward(inputs=list(self.critic.parameters()))
        actor_loss = -self.critic(now, self.actor(now)).mean()
        (share * actor_loss).backward(inputs=list(self.actor.parameters()))

    def step(self, max_grad_norm: float, tau: float) -> None:
        """Clip both gradients, use them, and move the targets."""
        for net, slow, optimizer in (
            (self.actor, self.slow_actor, self.actor_optimizer),
            (self.critic, self.slow_critic, self.critic_optimizer),
        ):
            nn.utils.clip_grad_norm_(net.parameters(), max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for weight, old in zip(net.parameters(), slow.parameters(), strict=True):
                    old.lerp_(weight, tau)

    def _own(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: value[self.row if len(value) > 1 else 0].float() for name, value in inputs.items()}


def looped_step(settings: ERLModule, agents: list[PlainAgent], batches: list[ddpg.Batch]) -> Callable[[], None]:
    """The same step agent by agent."""

    def run() -> None:
        for agent in agents:
            for batch in batches:
                agent.learn(batch, settings.gamma, 1 / len(batches))
            agent.step(settings.max_grad_norm, settings.tau)

    return run


def _network(network: nn.Module, weights: Tensor) -> nn.Module:
    network = network.to(weights.device)
    nn.utils.vector_to_parameters(weights[0].clone(), network.parameters())
    return network
