"""An operator of a user's own."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from eigen2.erl.evolution import AgentRows, EvolutionContext, Operator, Parents, Ranking


@dataclass
class SignFlip(Operator):
    """Replace agents by the fittest one, with the signs of some of its actor's weights flipped."""

    name: ClassVar[str] = "flipped"

    share: float = 0.25
    """Share of the evolving agents that is replaced (0 to 1)."""
    rate: float = 0.5
    """Part of the weights whose sign is flipped (0 to 1)."""

    def parents(self, ranking: Ranking, generator: np.random.Generator) -> Parents:
        """Return the fittest agent."""
        return Parents((ranking.eligible[0],))

    def apply(
        self, agent: AgentRows, parents: AgentRows, context: EvolutionContext, generator: np.random.Generator
    ) -> None:
        """Flip the sign of some weights of the actor, and of its target."""
        chosen = generator.random(len(agent["actor"])) < self.rate
        for name in ("actor", "actor_target"):
            if name in agent:
                agent[name][chosen] *= -1.0
