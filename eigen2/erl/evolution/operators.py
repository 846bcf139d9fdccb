"""Operators: elitism, crossover, mutation, injection of a learner, reinjection of the champion."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from eigen2.core.networks import StackedNetwork
from eigen2.erl.evolution.operator import AgentRows, EvolutionContext, Operator, Parents, Ranking
from eigen2.errors import require_range


def require(settings: object, *names: str, least: float = 0, most: float | None = None) -> None:
    """Refuse, by a UserError with its full name, an attribute outside its range; None is in every range."""
    for name in names:
        if (value := vars(settings)[name]) is not None:
            require_range(f"{type(settings).__name__}.{name}", value, least=least, most=most)


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
        require(self, "tournament_size", least=1)

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
class PlateauGrowth:
    """Mutation that grows while validation finds no better champion, and is the configured one after a new one."""

    patience: int = 5
    """Validations without a new champion after which the mutation grows, and after as many more again (1 or more)."""
    factor: float = 1.5
    """Factor on the mutation's scale each time (1 or more)."""
    most: float = 10.0
    """Largest multiple of the configured scale (1 or more)."""

    def __post_init__(self) -> None:
        require(self, "patience", "factor", "most", least=1)

    def multiple(self, validations: int) -> float:
        """Return the factor on the scale, `validations` after the last champion."""
        times = validations // self.patience
        beyond = times * math.log(self.factor) >= math.log(self.most)  # a power might overflow
        return self.most if beyond else self.factor**times


@dataclass
class MagnitudeMutation(Operator):
    """Replace agents by copies of elites with Gaussian noise in units of the weights' own size."""

    name: ClassVar[str] = "mutant"

    share: float | None = None
    """Share of the evolving agents that is replaced (0 to 1); null replaces all that other operators leave."""
    fraction: float = 0.1
    """Share of a mutant's actor weights that change (0 to 1)."""
    scale: float = 0.1
    """Standard deviation of a change, in units of the root mean square of the weights of the same tensor (>= 0)."""
    growth: PlateauGrowth | None = None
    """How the scale grows while there is no better champion; null keeps it."""

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
        actor, network = agent["actor"], context.actor_network
        chosen = torch.from_numpy(self.changed(network, generator))
        gaussian = torch.from_numpy(generator.standard_normal(len(actor), dtype=np.float32))
        changes = gaussian * self.deviation(actor, chosen, network) * self._scale(context)
        noise = torch.where(chosen, changes, torch.zeros(())).to(actor.device)
        actor += noise
        if "actor_target" in agent:
            agent["actor_target"].add_(noise)

    def changed(self, network: StackedNetwork, generator: np.random.Generator) -> Bool[np.ndarray, " weights"]:
        """Return which weights change."""
        return generator.random(network.num_weights, dtype=np.float32) < self.fraction

    def deviation(self, actor: Float[Tensor, " weights"], chosen: Tensor, network: StackedNetwork) -> Tensor:
        """Return the standard deviation of each weight's change at a scale of 1: its tensor's root mean square."""
        pieces = torch.split(actor, network.sizes)
        return torch.cat([piece.square().mean().sqrt().expand(len(piece)) for piece in pieces]).cpu()

    def metrics(self, context: EvolutionContext) -> dict[str, float]:
        """Return the plateau's length and the scale, where it grows."""
        if self.growth is None:
            return {}
        plateau = float(context.validations_since_champion)
        return {"plateau/validations": plateau, "plateau/mutation_scale": self._scale(context)}

    def _scale(self, context: EvolutionContext) -> float:
        multiple = 1.0 if self.growth is None else self.growth.multiple(context.validations_since_champion)
        return self.scale * multiple


@dataclass
class Injection(Operator):
    """Replace the least fit agent's actor by the fittest learner's, where only some agents learn (model.learners).

    Only the actor is inherited: an agent that does not learn has no use for a critic, and must have no momentum.
    """

    name: ClassVar[str] = "injected"
    inherits: ClassVar[Sequence[str] | None] = ("actor",)

    every: int = 1
    """Generations from one injection to the next (1 or more)."""

    def __post_init__(self) -> None:
        require(self, "every", least=1)

    def rows(self, ranking: Ranking, context: EvolutionContext, taken: Collection[int]) -> Sequence[int]:
        """Return the least fit agent when an injection is due."""
        due = (context.generation + 1) % self.every == 0 and ranking.fittest_learner is not None
        return ranking.least_fit(taken) if due else ()

    def parents(self, ranking: Ranking, generator: np.random.Generator) -> Parents:
        """Return the fittest learner."""
        assert ranking.fittest_learner is not None
        return Parents((ranking.fittest_learner,))


@dataclass
class Reinjection(Operator):
    """Replace the least fit agent by the champion, which is no agent, after a plateau of validation."""

    name: ClassVar[str] = "reinjected"

    patience: int = 5
    """Validations without a better champion until it is put back, and again after as many more (1 or more)."""

    def __post_init__(self) -> None:
        require(self, "patience", least=1)

    def rows(self, ranking: Ranking, context: EvolutionContext, taken: Collection[int]) -> Sequence[int]:
        """Return the least fit agent at the end of each plateau, once."""
        plateau = context.validations_since_champion
        due = context.validated and context.has_champion and plateau > 0 and plateau % self.patience == 0
        return ranking.least_fit(taken) if due else ()

    def apply(
        self, agent: AgentRows, parents: AgentRows, context: EvolutionContext, generator: np.random.Generator
    ) -> None:
        """Copy the champion, its targets as its networks, with zero moments; exploration noise stays."""
        for name, rows in context.champion.items():
            for copied in {name, f"{name}_target"} & agent.keys():
                agent[copied].copy_(rows[0])
        for name, rows in agent.items():
            if name.startswith("moment"):
                rows.zero_()

    def metrics(self, context: EvolutionContext) -> dict[str, float]:
        """Return the length of the plateau."""
        return {"plateau/validations": float(context.validations_since_champion)}
