"""A generation in numbers: the scalars that TensorBoard, metrics.csv and callbacks get."""

from typing import TYPE_CHECKING

from eigen2.runtime.phases import PHASES

if TYPE_CHECKING:
    from eigen2.erl.module import ERLModule

LOSS_NAMES = ("actor_loss", "critic_loss", "q_mean", "action_saturation")


def generation_metrics(module: "ERLModule") -> dict[str, float]:
    """Scalars of the generation that just validated, by full name; NaN for what has no value yet.

    Units: fitness in rewards a window, averages over agents; time in seconds; replay in transitions and as a share of
    capacity.
    """
    fitness, validation = module.fitness, module.validation
    counted = slice(0, module.data.windows_per_generation)
    buffer = module.data.buffer
    losses = (module.train_sums / module.train_count).tolist()  # 0 / 0 is NaN: nothing was trained yet
    return {
        "fitness/mean": float(fitness.mean()),
        "fitness/max": float(fitness.max()),
        "fitness/min": float(fitness.min()),
        "fitness/std": float(fitness.std(correction=0)),
        "champion/validation_fitness": float(module.population.champion_fitness),
        "champion/generation": float(module.population.champion_generation),
        "validation/mean": float(validation.mean()),
        "validation/max": float(validation.max()),
        **{f"train/{name}": value for name, value in zip(LOSS_NAMES, losses, strict=True)},
        "train/noise": float(module.population.noise.mean()),
        **module.data.episode_metrics(module.data.eval_env.get_episode_summary(counted)),
        "replay/size": float(len(buffer)),
        "replay/utilization": len(buffer) / buffer.capacity,
        **{f"time/{phase}_s": module.clock.seconds[phase] for phase in (*PHASES, "generation")},
    }
