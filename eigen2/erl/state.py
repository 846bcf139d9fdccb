"""The state of the generation in progress."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from eigen2.erl.exploration import Draws
from eigen2.erl.learners import Losses
from eigen2.erl.quarantine import Quarantine

CRITIC_LOSSES = slice(1, 3)
"""Losses that are known where actors skip a step."""


@dataclass
class LossSums:
    """Sums of each agent's losses over a generation, and how many were finite."""

    sums: Float[Tensor, "losses agents"]
    counts: Float[Tensor, "losses agents"]

    @classmethod
    def zeros(cls, agents: int, device: torch.device | str = "cpu") -> "LossSums":
        """Return sums of nothing."""
        sums = torch.zeros(len(Losses._fields), agents, device=device)
        return cls(sums, torch.zeros_like(sums))

    def add(self, values: Tensor, finite: Tensor, trains_actor: bool) -> None:
        """Add a micro-batch.

        Args:
            values: (losses, learners), 0 where not finite.
            finite: (learners,) whether all of an agent's losses are.
            trains_actor: whether actors have losses.
        """
        learners = values.shape[1]
        self.sums[:, :learners] += values
        self.counts[slice(None) if trains_actor else CRITIC_LOSSES, :learners] += finite


@dataclass
class GenerationState:
    """What a generation has computed so far."""

    generation: int
    fitness: Float[Tensor, " agents"]
    """Of all agents, float64; NaN for those that failed."""
    validation: Float[Tensor, " agents"]
    """Validation fitness of all agents, float64; NaN for those not validated."""
    losses: LossSums
    quarantine: Quarantine
    slots: Tensor | None = None
    """Replay slots of every micro-batch, (micro-batches, learners, batch); None where nothing is trained."""
    noise: Draws | None = None
    """Noise of the learner, where it uses any."""
    evolution: dict[str, float] = field(default_factory=dict)
    """Statistics of the generation's evolution."""

    @classmethod
    def begin(cls, generation: int, agents: range, total: int, device: torch.device | str = "cpu") -> "GenerationState":
        """Return the state at the start of a generation.

        Args:
            generation: its number.
            agents: numbers of this process's agents.
            total: agents of the whole population.
            device: of the population.
        """
        unknown = torch.full((total,), torch.nan, dtype=torch.float64)
        losses = LossSums.zeros(len(agents), device)
        return cls(generation, unknown, unknown.clone(), losses, Quarantine(agents, device))
