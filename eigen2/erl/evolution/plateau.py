"""What evolution does differently while validation finds no better champion."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from eigen2.errors import require_range

if TYPE_CHECKING:
    from eigen2.erl.evolution.selection import Evolution
    from eigen2.erl.population import Population


@dataclass
class AdaptiveMutation:
    """Mutation that grows on a validation plateau, and is the configured one again after a new champion."""

    patience: int = 5
    """Validations without a new champion after which the mutation grows, and after as many more again (1 or more)."""
    factor: float = 1.5
    """What model.evolution.mutation_scale is multiplied by each time (1 or more)."""
    most: float = 10.0
    """Largest multiple of the configured scale (1 or more)."""

    def __post_init__(self) -> None:
        for name in ("patience", "factor", "most"):
            require_range(f"model.evolution.adaptive_mutation.{name}", getattr(self, name), least=1)

    def multiple(self, validations: int) -> float:
        """What the configured scale is multiplied by.

        Args:
            validations: since the last champion was found.
        """
        times = validations // self.patience
        beyond = times * math.log(self.factor) >= math.log(self.most)  # a power might overflow
        return self.most if beyond else self.factor**times


def adapted(settings: "Evolution", population: "Population") -> "Evolution":
    """The settings as they are at this length of the plateau."""
    if settings.adaptive_mutation is None:
        return settings
    multiple = settings.adaptive_mutation.multiple(int(population.validations_since_champion))
    return replace(settings, mutation_scale=settings.mutation_scale * multiple)


def reinjects(settings: "Evolution", population: "Population", validated: bool) -> bool:
    """Whether the champion goes back into the population in this evolution.

    Args:
        settings: how long a plateau it takes.
        population: with its champion, if there is one.
        validated: whether the generation before validated: a plateau is acted on once.
    """
    if settings.reinject_after is None or not validated or int(population.champion_generation) < 0:
        return False
    length = int(population.validations_since_champion)
    return length > 0 and length % settings.reinject_after == 0


def plateau_metrics(settings: "Evolution", population: "Population") -> dict[str, float]:
    """The length of the plateau in an evolution and the scale of its mutation, each where it is of effect.

    Args:
        settings: as they were adapted.
        population: as it was when they were.
    """
    found: dict[str, float] = {}
    if settings.adaptive_mutation is not None or settings.reinject_after is not None:
        found["plateau/validations"] = float(population.validations_since_champion)
    if settings.adaptive_mutation is not None:
        found["plateau/mutation_scale"] = settings.mutation_scale
    return found
