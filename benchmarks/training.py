"""A training step of the whole population against a loop over separate modules and optimizers."""

from collections.abc import Callable

import torch
from torch import nn

from benchmarks.timing import Row, median_ratio
from eigen2.erl import ddpg
from eigen2.erl.population import Inputs, Population
from eigen2.market.networks import PORTFOLIO, ColumnActor, ColumnCritic

AGENTS, BATCH, COLUMNS, WIDTH = 16, 16, 30, 100
"""A training step of configs/erl.yaml with 30 columns and a context of 504 days."""


def rows(runs: int) -> list[Row]:
    """Milliseconds of a training step of 16 agents."""
    batch = make_batch(torch.Generator().manual_seed(0))
    ours, loop, ratio = median_ratio(population_step(batch), looped_step(batch), runs)
    return [Row("training_step", "training step of 16 agents, ms", 1e3 * ours, 1e3 * loop, ratio)]


def make_batch(generator: torch.Generator) -> ddpg.Batch:
    """Random transitions for every agent, of the shapes that the market gives."""

    def inputs() -> Inputs:
        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(AGENTS, BATCH, *shape, generator=generator)

        return {"columns": draw(COLUMNS, WIDTH), "portfolio": draw(COLUMNS, PORTFOLIO), "market": draw(WIDTH + 1)}

    return ddpg.Batch(
        inputs=inputs(),
        next_inputs=inputs(),
        action=torch.rand(AGENTS, BATCH, COLUMNS, 2, generator=generator) * 2 - 1,
        reward=torch.randn(AGENTS, BATCH, generator=generator),
        terminated=torch.zeros(AGENTS, BATCH, dtype=torch.bool),
    )


def population_step(batch: ddpg.Batch) -> Callable[[], None]:
    """One training step of all agents at once."""
    population = Population(AGENTS, lambda: ColumnActor(WIDTH, WIDTH + 1), lambda: ColumnCritic(WIDTH, WIDTH + 1), 0, 0)
    optimizer = torch.optim.Adam([population.actor, population.critic])

    def run() -> None:
        optimizer.zero_grad(set_to_none=False)
        losses = ddpg.losses(population, batch, 0.95)
        (losses.actor + losses.critic).sum().backward()  # type: ignore[no-untyped-call]
        ddpg.step(population, optimizer, 1.0)
        ddpg.update_targets(population, 0.01)

    return run


def looped_step(batch: ddpg.Batch) -> Callable[[], None]:
    """The same step by separate modules and optimizers, agent by agent."""
    agents = []
    for _ in range(AGENTS):
        nets: list[nn.Module] = [ColumnActor(WIDTH, WIDTH + 1), ColumnCritic(WIDTH, WIDTH + 1)]
        nets += [ColumnActor(WIDTH, WIDTH + 1), ColumnCritic(WIDTH, WIDTH + 1)]
        agents.append((nets, [torch.optim.Adam(net.parameters()) for net in nets[:2]]))

    def run() -> None:
        for row, (nets, optimizers) in enumerate(agents):
            one_agent_step(batch, row, nets, optimizers)

    return run


def one_agent_step(batch: ddpg.Batch, row: int, nets: list[nn.Module], optimizers: list[torch.optim.Optimizer]) -> None:
    """A plain DDPG step of agent `row`: actor, critic and their targets in `nets`."""
    actor, critic, slow_actor, slow_critic = nets
    now = {name: value[row] for name, value in batch.inputs.items()}
    then = {name: value[row] for name, value in batch.next_inputs.items()}
    with torch.no_grad():
        target = batch.reward[row] + 0.95 * slow_critic(then, slow_actor(then))

    def apply(loss: torch.Tensor, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        net.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()

    apply((critic(now, batch.action[row]) - target).square().mean(), critic, optimizers[1])
    apply(-critic(now, actor(now)).mean(), actor, optimizers[0])
    with torch.no_grad():
        for net, slow in ((actor, slow_actor), (critic, slow_critic)):
            for weight, old in zip(net.parameters(), slow.parameters(), strict=True):
                old.lerp_(weight, 0.01)
