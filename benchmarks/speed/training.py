"""An optimizer step of the population, against a loop over agents and against the machine's matrix rate."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.harness import Row
from benchmarks.speed.full_scale import FullScale
from benchmarks.speed.timing import at_least, median_ratio, median_seconds
from eigen2.erl.learners import DDPG, Batch
from eigen2.erl.learners.gradients import clip_and_check, step, update_targets
from eigen2.erl.population import Population

SIDE = 1024  # rows and columns of the matrices whose product measures the machine's rate


def training_step(full: FullScale, runs: int) -> list[Row]:
    """Compare the milliseconds of an optimizer step, which averages the gradients of `accumulate` micro-batches."""
    population = full.population()
    batches = [full.batch(slots) for slots in full.slots()]
    agents = [PlainAgent(full, population, row) for row in range(population.size)]
    ours, loop, ratio = median_ratio(
        population_step(full, population, batches), looped_step(full, agents, batches), runs
    )
    shape = batches[0].reward.shape
    what = f"optimizer step of {shape[0]} agents, {len(batches) * shape[1]} transitions each, ms"
    return [at_least("training_step", what, 1e3 * ours, 1e3 * loop, ratio, bound=1.8)]


def population_step(
    full: FullScale, population: Population, batches: Sequence[Batch] | None = None
) -> Callable[[], None]:
    """Return a function that makes a step of all agents at once; without `batches` it also gathers them."""
    optimizer, settings, slots = full.optimizer(population), full.module.hparams, full.slots()

    def run() -> None:
        for batch in batches or map(full.batch, slots):
            losses = full.module.learner.losses(population, batch)
            ((losses.actor + losses.critic).sum() / len(slots)).backward()
        clip_and_check(population, settings["max_grad_norm"])
        step(population, optimizer.step)
        update_targets(population, settings["tau"])

    return run


class PlainAgent:
    """Agent with its own modules and optimizers, and the weights of one row of a population."""

    def __init__(self, full: FullScale, population: Population, row: int) -> None:
        data, self.row = full.data, row
        assert isinstance(full.module.learner, DDPG)
        self.learner = full.module.learner
        actor, critic = (rows[row : row + 1] for rows in (population.actor, population.critic))
        self.actor, self.target_actor = (_network(data.make_actor(), actor) for _ in range(2))
        self.critic, self.target_critic = (_network(data.make_critic(), critic) for _ in range(2))
        hparams, networks = full.module.hparams, {"actor_lr": self.actor, "critic_lr": self.critic}
        self.optimizers = [torch.optim.Adam(net.parameters(), lr=hparams[name]) for name, net in networks.items()]

    def learn(self, batch: Batch, weight: float) -> None:
        """Accumulate the gradients of both losses of a micro-batch, times `weight`."""
        inputs, target = self._row(batch.inputs), batch.reward[self.row]
        if batch.next_inputs is not None:
            next_inputs = self._row(batch.next_inputs)
            with torch.no_grad():
                next_value = self.target_critic(next_inputs, self.target_actor(next_inputs))
                target = target + batch.discount * torch.where(batch.terminated[self.row], 0.0, next_value)
        critic_loss = (self.critic(inputs, batch.action[self.row]) - target).square().mean()
        assert batch.outcomes is not None
        error = (self.critic.forecast(inputs) - batch.outcomes[self.row]).square().nanmean(1).nan_to_num(0.0).mean()
        critic_loss = critic_loss + self.learner.forecast_weight * error
        (weight * critic_loss).backward(inputs=list(self.critic.parameters()))
        action = self.actor(inputs)
        penalty = self.learner.saturation_penalty * torch.atanh(action).square().mean()
        actor_loss = penalty - self.critic(inputs, action).mean()
        (weight * actor_loss).backward(inputs=list(self.actor.parameters()))

    def step(self, max_grad_norm: float, tau: float) -> None:
        """Clip both gradients, step both optimizers and move the targets."""
        networks = (self.actor, self.target_actor), (self.critic, self.target_critic)
        for (net, target), optimizer in zip(networks, self.optimizers, strict=True):
            nn.utils.clip_grad_norm_(net.parameters(), max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for weight, slow in zip(net.parameters(), target.parameters(), strict=True):
                    slow.lerp_(weight, tau)

    def _row(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: value[self.row if len(value) > 1 else 0].float() for name, value in inputs.items()}


def looped_step(full: FullScale, agents: list[PlainAgent], batches: Sequence[Batch]) -> Callable[[], None]:
    """Return a function that makes the same step agent by agent."""
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


def limit(full: FullScale, runs: int) -> Row:
    """Measure the floating-point rate of a whole step, from replay slots to targets, and the machine's matrix rate."""
    a, b = torch.randn(2, SIDE, SIDE)
    rate = 2 * SIDE**3 / median_seconds(lambda: a @ b, runs)
    run = population_step(full, full.population())
    with FlopCounterMode(display=False) as counter:
        run()
    operations, seconds = counter.get_total_flops(), median_seconds(run, runs)
    return {
        "matrix_gflops_per_s": rate / 1e9,
        "operations_gflop": operations / 1e9,
        "step_ms": 1e3 * seconds,
        "step_gflops_per_s": operations / seconds / 1e9,
        "share_of_rate": operations / seconds / rate,
    }
