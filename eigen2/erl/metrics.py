"""A generation in numbers: the scalars that TensorBoard, metrics.csv and callbacks get."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eigen2.erl.hyperparameters import exploration_noise, hyperparameter_metrics
from eigen2.erl.operators import diversity_metrics
from eigen2.runtime.phases import PHASES

if TYPE_CHECKING:
    from eigen2.erl.module import ERLModule

QUARTILES = (25, 50, 75)
"""Of fitness over agents, in percent."""
LOSS_NAMES = ("actor_loss", "critic_loss", "q_mean", "action_saturation")
CRITIC_LOSSES = slice(1, 3)
"""Those of them that are known where actors sit a step out."""


def generation_metrics(module: "ERLModule") -> dict[str, float]:
    """Scalars of the generation that just validated, by full name; NaN for what has no value yet.

    Units: fitness in rewards a window, averages over agents whose own is finite; time in seconds; replay in transitions
    and as a share of capacity; population in agents.
    """
    fitness, validation = _finite(module.fitness), _finite(module.validation)
    counted = module.data.fitness_windows
    buffer = module.data.buffer
    losses = (module.train_sums / module.train_count).tolist()  # 0 / 0 is NaN: nothing was trained yet
    return {
        "fitness/mean": float(fitness.mean()),
        "fitness/max": float(fitness.max()),
        "fitness/min": float(fitness.min()),
        **{f"fitness/q{share}": float(fitness.quantile(share / 100)) for share in QUARTILES},
        "fitness/std": float(fitness.std(correction=0)),
        "champion/validation_fitness": float(module.population.champion_fitness),
        "champion/generation": float(module.population.champion_generation),
        "validation/mean": float(validation.mean()),
        "validation/max": float(validation.max()),
        **{f"train/{name}": value for name, value in zip(LOSS_NAMES, losses, strict=True)},
        "population/quarantined": float(module.quarantine.agents.sum()),
        "population/failed": float(module.quarantine.failed.sum()),
        **module.operators,
        **diversity_metrics(module),
        "train/noise": float(exploration_noise(module.population).mean()),
        **hyperparameter_metrics(module),
        **module.data.episode_metrics(module.data.eval_env.get_episode_summary(counted)),
        "replay/size": float(len(buffer)),
        "replay/utilization": len(buffer) / buffer.capacity,
        "replay/added": float(buffer.added),
        **{f"time/{phase}_s": module.clock.seconds[phase] for phase in (*PHASES, "generation")},
    }


def _finite(values: Tensor) -> Tensor:
    """The finite ones; NaN alone if there is none."""
    finite = values[torch.isfinite(values)]
    return finite if len(finite) else values.new_full((1,), torch.nan)
