"""What processes send each other in a generation, by the sizes of a run: the formula behind docs/processes.md."""

from dataclasses import dataclass

from eigen2.erl.evolution.statistics import MOST_COMPARED

FLOAT = 4
ROW_TENSORS = 4  # numbers sent of a parent's weight: itself, its target and Adam's two moments


@dataclass(frozen=True)
class Sizes:
    """Sizes that decide how much is sent."""

    agents: int
    actor_weights: int
    critic_weights: int
    transition_bytes: int
    steps: int  # steps of the longest episode that the transition exchange has room for
    transitions: int  # transitions that an agent adds to the replay buffer in a generation
    curve_bytes: int  # bytes of an agent's numbers for the curves

    @property
    def parent_bytes(self) -> int:
        """Return the bytes of one parent, with its exploration noise."""
        return ROW_TENSORS * FLOAT * (self.actor_weights + self.critic_weights) + FLOAT

    @property
    def champion_bytes(self) -> int:
        """Return the bytes of a new champion."""
        return FLOAT * (self.actor_weights + self.critic_weights)


def rows_of(agents: int, rank: int, world: int) -> range:
    """Return the agents of a process."""
    return range(rank * agents // world, (rank + 1) * agents // world)


def received(sizes: Sizes, rank: int, world: int) -> dict[str, int]:
    """Return the bytes that a process receives in every generation, beside parents, champions and checkpoints."""
    most = max(len(rows_of(sizes.agents, other, world)) for other in range(world))
    compared = min(sizes.agents, MOST_COMPARED)
    rows = [place * sizes.agents // compared for place in range(compared)]
    foreign = sum(row not in rows_of(sizes.agents, rank, world) for row in rows)
    others = world - 1
    return {
        "transitions": others * most * sizes.transitions * sizes.transition_bytes + others * 8 * sizes.steps,
        "fitness": others * most * (8 + 1 + 8),  # of the generation, who failed, of validation
        "curves": others * most * sizes.curve_bytes + foreign * FLOAT * sizes.actor_weights,
    }


def expected_parents(children: int, agents: int, world: int) -> float:
    """Return the expected parents from other processes of so many children, each with two evenly drawn ones."""
    elsewhere = agents - agents // world
    # each of the others is wanted unless none of the 2 x children draws finds it
    return float(elsewhere * (1 - (1 - 1 / agents) ** (2 * children)))
