"""Evolution of the population: a list of operators."""

from eigen2.erl.evolution.operator import AgentRows, EvolutionContext, Operator, Parents, Ranking
from eigen2.erl.evolution.operators import (
    Elitism,
    Injection,
    MagnitudeMutation,
    PlateauGrowth,
    Reinjection,
    TournamentCrossover,
)
from eigen2.erl.evolution.proximal import ProximalMutation

__all__ = [
    "AgentRows",
    "Elitism",
    "EvolutionContext",
    "Injection",
    "MagnitudeMutation",
    "Operator",
    "Parents",
    "PlateauGrowth",
    "ProximalMutation",
    "Ranking",
    "Reinjection",
    "TournamentCrossover",
]
