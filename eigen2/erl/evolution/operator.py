"""The interface of evolution operators, and the state of the run that they may depend on."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from eigen2.core.networks import StackedNetwork

AgentRows = Mapping[str, Tensor]
"""An agent's rows by name, as views: `actor`, `critic`, `actor_target`, `critic_target`, `noise` and optimizer moments
`moment 0` to `moment 3` (the actor's two, then the critic's). Where one agent alone learns they are `noise` and
`actor`, which is the head of a shared representation."""


@dataclass(frozen=True)
class EvolutionContext:
    """State of the run that operators may depend on."""

    seed: int
    generation: int
    first_evolving: int  # 1 where the first agent alone learns, and does not evolve; 0 where all learn and evolve
    actor_network: StackedNetwork


@dataclass(frozen=True)
class Ranking:
    """Agents by fitness. An agent without a finite fitness has failed: it is no elite, no parent, and is replaced."""

    fitness: Float[np.ndarray, " agents"]
    evolving: Sequence[int]  # agents that evolve, from the fittest to the least fit, failed ones last
    eligible: Sequence[int]  # those of them that have not failed
    elites: Sequence[int]  # the fittest, which are kept
    replaced: Sequence[int]  # agents to be replaced, ascending
    learner: int | None  # the agent that learns and does not evolve; None if there is none, or it has failed


class Parents(NamedTuple):
    """Parents of a child, and the first one's weight (0 to 1) in its blend with the last."""

    rows: tuple[int, ...]
    blend: float = 1.0


class Operator:
    """One way in which agents are kept or replaced.

    Operators choose the agents they replace in the order of the list model.evolution: a later one leaves what an
    earlier one has taken. Attributes that do not begin with an underscore are its settings.
    """

    name: ClassVar[str]  # names its agents in metrics (`operators/NAME_survival` and others), curves and report
    share: float | None = None  # share of the evolving agents that the operator fills (0 to 1); None fills the rest

    def kept(self, evolving: int) -> int:
        """Return how many of the fittest agents are kept."""
        return 0

    def rows(self, ranking: Ranking, context: EvolutionContext, taken: Collection[int]) -> Sequence[int]:
        """Return the agents to replace: by default the first `share` of those left that have not failed, or the rest.

        `taken` are those of earlier operators. A share is rounded down: rounded up, those of several operators could
        leave nothing to the one that fills the rest.
        """
        if self.share is None:
            return ranking.replaced
        candidates = [row for row in ranking.replaced if np.isfinite(ranking.fitness[row]) and row not in taken]
        return candidates[: int(self.share * len(ranking.evolving) + 1e-9)]  # products of decimal fractions round

    def parents(self, ranking: Ranking, generator: np.random.Generator) -> Parents:
        """Choose one child's parents; children share the generator, in the order of their rows."""
        raise NotImplementedError

    def apply(
        self, agent: AgentRows, parents: AgentRows, context: EvolutionContext, generator: np.random.Generator
    ) -> None:
        """Change a child's rows in place, after it has inherited its parents', by a generator of its own.

        `parents` has copies of theirs, (parents, ...) each.
        """


@dataclass(frozen=True)
class Child:
    """A replacement: the agent it overwrites, the operator that made it, its parents and their blend."""

    row: int
    operator: Operator
    parents: tuple[int, ...]
    blend: float = 1.0  # weight of the first parent: blend x first + (1 - blend) x last
