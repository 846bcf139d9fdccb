"""`make bench`: ratios against references kept here, each pair measured in one process, medians of alternating runs."""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from eigen2.erl import ddpg
from eigen2.erl.population import Inputs, Population
from eigen2.erl.replay import Field, transition_fields
from eigen2.market.networks import PORTFOLIO, ColumnActor, ColumnCritic

AGENTS, BATCH, COLUMNS, WIDTH = 16, 16, 30, 100
"""A training step of configs/erl.yaml with 30 columns and a context of 504 days."""


def median_ratio(ours: Callable[[], None], reference: Callable[[], None], runs: int) -> tuple[float, float, float]:
    """Median seconds of both and the median of reference over ours, in alternating runs after a warm-up each."""
    ours(), reference()
    pairs = []
    for _ in range(runs):
        seconds = []
        for run in (ours, reference):
            begun = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - begun)
        pairs.append(seconds)
    return (
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        statistics.median(b / a for a, b in pairs),
    )


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


def replay_bytes(columns: int = 108, days: int = 504, all_columns: int = 669, features: int = 9) -> tuple[int, int]:
    """Bytes a transition takes here, and as two dense float32 windows with their action."""
    positions = {"held_days": 1, "target": 1, "coefficient": 1}
    fields = {
        "day": Field((), torch.int32),
        "days_left": Field((), torch.int16),
        "gain": Field((columns,), torch.float16),
    }
    fields |= {name: Field((columns,), torch.uint8) for name in positions}
    compact = sum(field.nbytes for field in transition_fields(fields, (columns, 2)).values())
    dense = 2 * days * all_columns * features * 4 + columns * 2 * 4 + 6
    return compact, dense


def main() -> None:
    """Print the table, or JSON with `--json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="figures with machine and threads, for machines")
    parser.add_argument("--runs", type=int, default=30, help="alternating runs of each pair (default 30)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    batch = make_batch(torch.Generator().manual_seed(0))
    ours, loop, ratio = median_ratio(population_step(batch), looped_step(batch), arguments.runs)
    compact, dense = replay_bytes()
    figures = {
        "machine": platform.machine(),
        "torch": torch.__version__,
        "threads": arguments.threads,
        "training_step_ms": 1e3 * ours,
        "training_step_loop_ms": 1e3 * loop,
        "training_step_ratio": ratio,
        "replay_bytes": compact,
        "replay_dense_bytes": dense,
        "replay_ratio": dense / compact,
    }
    if arguments.json:
        print(json.dumps(figures, indent=2))
        return
    print(f"{'what':<42}{'eigen2':>12}{'reference':>14}{'ratio':>9}")
    print(f"{'training step of 16 agents, ms':<42}{1e3 * ours:>12.2f}{1e3 * loop:>14.2f}{ratio:>9.1f}")
    print(f"{'replay, bytes a transition, 108 columns':<42}{compact:>12,}{dense:>14,}{dense / compact:>9,.0f}")


if __name__ == "__main__":
    main()
