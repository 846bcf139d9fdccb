"""A generation in numbers: the scalars that TensorBoard, metrics.csv and callbacks get."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eigen2.distributed.communicator import Communicator
from eigen2.erl.evolution.hyperparameters import exploration_noise, hyperparameter_metrics, own_values
from eigen2.erl.evolution.statistics import diversity_metrics
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
    and as a share of capacity; population in agents; with several processes, of process 0 what it received in MB.
    """
    fitness, validation = _finite(module.fitness), _finite(module.validation)
    share, data, buffer = module.share, module.data, module.data.buffer
    summary = data.eval_env.get_episode_summary(data.fitness_windows)
    own, quarantine = own_values(module), module.quarantine
    agents = share.gather(
        {
            **{f"summary {name}": values for name, values in summary.items()},
            **{f"own {name}": values for name, values in own.items()},
            "sums": module.train_sums.T,
            "counts": module.train_count.T,
            "quarantined": quarantine.agents,
            "failed": quarantine.failed,
            "noise": exploration_noise(module.population),
        },
        "metrics",
    )
    losses = (agents["sums"].sum(0) / agents["counts"].sum(0)).tolist()  # 0 / 0 is NaN: nothing was trained yet
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
        "population/quarantined": float(agents["quarantined"].sum()),
        "population/failed": float(agents["failed"].sum()),
        **module.operators,
        **diversity_metrics(module),
        "train/noise": float(agents["noise"].mean()),
        **hyperparameter_metrics({name: agents[f"own {name}"] for name in own}),
        **data.episode_metrics({name: agents[f"summary {name}"] for name in summary}),
        "replay/size": float(len(buffer)),
        "replay/utilization": len(buffer) / buffer.capacity,
        "replay/added": float(buffer.added),
        **_exchanged(share),
        **{f"time/{phase}_s": module.clock.seconds[phase] for phase in (*PHASES, "generation")},
    }


def _exchanged(share: Communicator) -> dict[str, float]:
    """What a process has heard of the others since the generation began, and the time it took; nothing alone."""
    if share.world == 1:
        return {}
    return {"exchange/received_mb": share.received_bytes / 1e6, "time/exchange_s": share.seconds}


def _finite(values: Tensor) -> Tensor:
    """The finite ones; NaN alone if there is none."""
    finite = values[torch.isfinite(values)]
    return finite if len(finite) else values.new_full((1,), torch.nan)
