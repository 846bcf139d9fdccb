"""A generation in numbers: the scalars that TensorBoard, metrics.csv and callbacks get."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from eigen2.distributed.communicator import Communicator
from eigen2.erl.population import Population
from eigen2.erl.state import GenerationState

LOSS_METRICS = ("actor_loss", "critic_loss", "q_mean", "action_saturation")  # names of the fields of `Losses`


def generation_metrics(
    state: GenerationState, population: Population, summary: Mapping[str, Tensor], communicator: Communicator
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Return scalars of the generation just validated by full name, NaN if unknown so far, and all agents' summary.

    Averages of fitness, in the workload's unit, are over agents with a finite fitness.
    """
    fitness, validation = _finite(state.fitness), _finite(state.validation)
    agents = communicator.gather(
        {
            **{f"summary {name}": values for name, values in summary.items()},
            "sums": state.loss_sums.T,
            "counts": state.loss_counts.T,
            "quarantined": state.quarantine.affected,
            "failed": state.quarantine.failed,
            "noise": population.noise,
        },
        "metrics",
    )
    champion = int(population.champion_generation)
    losses = (agents["sums"].sum(0) / agents["counts"].sum(0)).tolist()  # 0 / 0 is NaN: nothing was trained yet
    metrics = {
        "fitness/mean": float(fitness.mean()),
        "fitness/max": float(fitness.max()),
        "fitness/min": float(fitness.min()),
        **{f"fitness/q{percent}": float(fitness.quantile(percent / 100)) for percent in (25, 50, 75)},
        "fitness/std": float(fitness.std(correction=0)),
        "fitness/reliability": state.reliability,
        "champion/validation_fitness": float(population.champion_fitness) if champion >= 0 else math.nan,
        "champion/generation": float(champion) if champion >= 0 else math.nan,
        "validation/mean": float(validation.mean()),
        "validation/max": float(validation.max()),
        "validation/elite_mean": state.mean_validation,
        **{f"train/{name}": value for name, value in zip(LOSS_METRICS, losses, strict=True)},
        "population/quarantined": float(agents["quarantined"].sum()),
        "population/failed": float(agents["failed"].sum()),
        **state.evolution,
        "train/noise": float(agents["noise"].mean()),
    }
    return metrics, {name: agents[f"summary {name}"] for name in summary}


def _finite(values: Tensor) -> Tensor:
    """Return the finite values; a NaN if there is none."""
    finite = values[torch.isfinite(values)]
    return finite if len(finite) else values.new_full((1,), torch.nan)
