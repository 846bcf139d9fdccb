"""An optimizer step of the whole population against a loop over separate modules and optimizers."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.harness import median_ratio
from benchmarks.speed.comparison import Comparison
from benchmarks.speed.full_scale import FullScale
from eigen2.erl.learners import Batch
from eigen2.erl.learners.gradients import clear_gradients, step, update_targets
from eigen2.erl.population import Population


def training_step(full: FullScale, runs: int) -> list[Comparison]:
    """Compare milliseconds of an optimizer step, which averages the gradients of `accumulate` micro-batches."""
    population = full.population()
    batches = [full.batch(slots) for slots in full.slots()]
    agents = [PlainAgent(full, population, row) for row in range(population.size)]
    ours, loop, ratio = median_ratio(
        population_step(full, population, batches), looped_step(full, agents, batches), runs
    )
    shape = batches[0].reward.shape
    what = f"optimizer step of {shape[0]} agents, {len(batches)} micro-batches of {shape[1]}, ms"
    return [Comparison("training_step", what, 1e3 * ours, 1e3 * loop, ratio, bound=1.8)]


def population_step(full: FullScale, population: Population, batches: list[Batch]) -> Callable[[], None]:
    """Return one optimizer step of all agents at once, by the optimizer that ships."""
    optimizer, settings = full.optimizer(population), full.module.hparams

    def run() -> None:
        for batch in batches:
            losses = full.module.learner.losses(population, batch)
            ((losses.actor + losses.critic).sum() / len(batches)).backward()  # type: ignore[no-untyped-call]
        step(population, optimizer, settings["max_grad_norm"])
        clear_gradients(population)
        update_targets(population, settings["tau"])

    return run


class PlainAgent:
    """Agent with modules and optimizers of its own and the weights of one row of a population."""

    def __init__(self, full: FullScale, population: Population, row: int) -> None:
        data, agent, self.row = full.data, population.agents[row], row
        self.actor, self.slow_actor = (_network(data.make_actor(), agent.actor) for _ in range(2))
        self.critic, self.slow_critic = (_network(data.make_critic(), agent.critic) for _ in range(2))
        actor_lr, critic_lr = full.module.learning_rates()
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=actor_lr)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=critic_lr)

    def learn(self, batch: Batch, weight: float) -> None:
        """Add a micro-batch's gradients of the critic's loss to the critic, of the actor's to the actor."""
        now, then = self._own(batch.inputs), self._own(batch.next_inputs)
        with torch.no_grad():
            next_value = self.slow_critic(then, self.slow_actor(then))
            target = batch.reward[self.row] + batch.discount * torch.where(batch.terminated[self.row], 0.0, next_value)
        critic_loss = (self.critic(now, batch.action[self.row]) - target).square().mean()
        (weight * critic_loss).backward(inputs=list(self.critic.parameters()))
        actor_loss = -self.critic(now, self.actor(now)).mean()
        (weight * actor_loss).backward(inputs=list(self.actor.parameters()))

    def step(self, max_grad_norm: float, tau: float) -> None:
        """Clip both gradients, step both optimizers and move the targets."""
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


def looped_step(full: FullScale, agents: list[PlainAgent], batches: list[Batch]) -> Callable[[], None]:
    """Return the same step, agent by agent."""
    settings = full.module.hparams

    def run() -> None:
        for agent in agents:
            for batch in batches:
                agent.learn(batch, 1 / len(batches))
            agent.step(settings["max_grad_norm"], settings["tau"])

    return run


def _network(network: nn.Module, weights: Tensor) -> nn.Module:
    network = network.to(weights.device)
    nn.utils.vector_to_parameters(weights[0].clone(), network.parameters())
    return network
