"""Operators: elitism, crossover, mutation, injection of a learner."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool

from eigen2.core.networks import StackedNetwork
from eigen2.erl.evolution.operator import AgentRows, EvolutionContext, Operator, Parents, Ranking
from eigen2.errors import require_range


def require(settings: object, *names: str, least: float = 0, most: float | None = None, whole: bool = False) -> None:
    """Refuse, by a UserError with its full name, an attribute outside its range; None is in every range."""
    for name in names:
        if (value := vars(settings)[name]) is not None:
            require_range(f"{type(settings).__name__}.{name}", value, least=least, most=most, whole=whole)


@dataclass
class Elitism(Operator):
    """Keep the fittest agents, as their training after the evaluation left them."""

    name: ClassVar[str] = "elite"

    share: float = 0.5
    """Share of the evolving agents that is kept (0 to 1, at least one agent)."""

    def __post_init__(self) -> None:
        require(self, "share", most=1)

    def kept(self, evolving: int) -> int:
        """Return how many of the fittest agents are kept."""
        return max(1, round(self.share * evolving))

    def rows(self, ranking: Ranking, context: EvolutionContext, taken: Collection[int]) -> Sequence[int]:
        """Return none: elites are not replaced."""
        return ()


@dataclass
class TournamentCrossover(Operator):
    """Replace agents by blends of two parents, each the winner of a tournament over all agents that evolve."""

    name: ClassVar[str] = "offspring"

    share: float = 0.375
    """Share of the evolving agents that is replaced (0 to 1)."""
    tournament_size: int = 3
    """Agents drawn for a tournament, of which the fittest becomes a parent (1 or more; larger is greedier)."""

    def __post_init__(self) -> None:
        require(self, "share", most=1)
        require(self, "tournament_size", least=1, whole=True)

    def rows(self, ranking: Ranking, context: EvolutionContext, taken: Collection[int]) -> Sequence[int]:
        """Return the agents to replace; none where there are no two parents."""
        return super().rows(ranking, context, taken) if len(ranking.eligible) > 1 else ()

    def parents(self, ranking: Ranking, generator: np.random.Generator) -> Parents:
        """Choose two different parents and the first one's weight, uniform in 0 to 1."""
        winners: list[int] = []
        for _ in range(2):
            candidates = [row for row in ranking.eligible if row not in winners]
            drawn = generator.choice(candidates, size=min(self.tournament_size, len(candidates)), replace=False)
            winners.append(min(map(int, drawn), key=ranking.eligible.index))
        return Parents((winners[0], winners[1]), float(generator.uniform()))


@dataclass
class MagnitudeMutation(Operator):
    """Replace agents by copies of elites with Gaussian noise in units of the weights' own size."""

    name: ClassVar[str] = "mutant"

    share: float | None = None
    """Share of the evolving agents that is replaced (0 to 1); null replaces all that other operators leave."""
    fraction: float = 0.1
    """Share of a mutant's actor weights that change (0 to 1)."""
    scale: float = 0.1
    """Standard deviation of a change, in units of the root mean square of the weights of the same tensor (>= 0); one
    that is all 0 does not change."""

    def __post_init__(self) -> None:
        require(self, "share", "fraction", most=1)
        require(self, "scale")

    def parents(self, ranking: Ranking, generator: np.random.Generator) -> Parents:
        """Choose an elite, uniformly; without elites, any agent that has not failed."""
        candidates = ranking.elites or ranking.eligible
        return Parents((int(candidates[int(generator.integers(len(candidates)))]),))

    def apply(
        self, agent: AgentRows, parents: AgentRows, context: EvolutionContext, generator: np.random.Generator
    ) -> None:
        """Add the noise to the actor and its target."""
        actor = agent["actor"]
        chosen = torch.from_numpy(self.changed(context.actor_network, generator))
        gaussian = torch.from_numpy(generator.standard_normal(len(actor), dtype=np.float32))
        pieces = torch.split(actor, context.actor_network.sizes)
        sizes = torch.cat([piece.square().mean().sqrt().expand(len(piece)) for piece in pieces]).cpu()
        noise = torch.where(chosen, gaussian * sizes * self.scale, torch.zeros(())).to(actor.device)
        actor += noise
        if "actor_target" in agent:
            agent["actor_target"].add_(noise)

    def changed(self, network: StackedNetwork, generator: np.random.Generator) -> Bool[np.ndarray, " weights"]:
        """Return which weights change."""
        return generator.random(network.num_weights, dtype=np.float32) < self.fraction


@dataclass
class FineMutation(MagnitudeMutation):
    """Replace agents by copies of elites with a little Gaussian noise, to refine what large mutations have found."""

    name: ClassVar[str] = "fine_mutant"

    fraction: float = 1.0
    """Share of a mutant's actor weights that change (0 to 1)."""


@dataclass
class Injection(Operator):
    """Replace the least fit agent by the learner's actor, where one agent alone learns (model.learners)."""

    name: ClassVar[str] = "injected"

    every: int = 1
    """Generations from one injection to the next (1 or more)."""

    def __post_init__(self) -> None:
        require(self, "every", least=1, whole=True)

    def rows(self, ranking: Ranking, context: EvolutionContext, taken: Collection[int]) -> Sequence[int]:
        """Return the least fit agent that is no elite, and has not failed, when an injection is due."""
        due = (context.generation + 1) % self.every == 0 and ranking.learner is not None
        free = [row for row in ranking.eligible[len(ranking.elites) :] if row not in taken]
        return free[-1:] if due else ()

    def parents(self, ranking: Ranking, generator: np.random.Generator) -> Parents:
        """Return the learner."""
        assert ranking.learner is not None
        return Parents((ranking.learner,))
