"""What a run looks like from outside: everything that belongs to an agent, copied at the end of every phase."""

from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from eigen2.erl.module import ERLModule

ROWS = ("actor", "critic", "actor_target", "critic_target", "noise")
MOMENTS = ("actor.exp_avg", "actor.exp_avg_sq", "critic.exp_avg", "critic.exp_avg_sq")


def snapshot(module: ERLModule) -> dict[str, Tensor]:
    """Copies of the population's state and, under `actor.exp_avg` and so on, of the optimizer's."""
    state = {name: value.clone() for name, value in module.population.state_dict().items()}
    for name in ("actor", "critic"):
        moments: dict[str, Tensor] = module.trainer.optimizers[0].state.get(getattr(module.population, name), {})
        state.update({f"{name}.{key}": value.clone() for key, value in moments.items()})
    return state


@dataclass
class Recorder(Callback):
    """Keeps a snapshot for every (generation, phase), and the generation's fitness, validation and micro-batches."""

    states: dict[tuple[int, str], dict[str, Tensor]] = field(default_factory=dict)
    order: list[tuple[int, str]] = field(default_factory=list)
    fitness: dict[int, Tensor] = field(default_factory=dict)
    validation: dict[int, Tensor] = field(default_factory=dict)
    drawn: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    """By generation: what every agent drew, (training steps, agents, batch, ...) of each stored field."""
    metrics: dict[int, dict[str, Any]] = field(default_factory=dict)
    pointers: list[tuple[int, ...]] = field(default_factory=list)
    optimizer_steps: int = 0

    def on_before_optimizer_step(self, *_: Any) -> None:
        self.optimizer_steps += 1

    def on_phase_end(self, trainer: Trainer, module: ERLModule, phase: str) -> None:
        generation = trainer.current_epoch
        self.order.append((generation, phase))
        self.states[generation, phase] = snapshot(module)
        if phase == "evaluate":
            self.fitness[generation] = module.state.fitness.clone()
        if phase == "train" and module.state.slots is not None:
            self.drawn[generation] = module.data.buffer.gather(module.state.slots)
        if phase == "validate":
            self.validation[generation] = module.state.validation.clone()
            stored = module.data.buffer.state_dict()["storage"].values()
            owned = [*module.population.state_dict().values(), *stored]
            self.pointers.append(tuple(tensor.data_ptr() for tensor in owned))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.metrics[trainer.current_epoch] = {name: float(value) for name, value in trainer.callback_metrics.items()}

    __hash__ = object.__hash__


def same(left: Tensor, right: Tensor) -> bool:
    """Equal bit for bit, NaN included."""
    return left.shape == right.shape and torch.equal(
        left.contiguous().flatten().view(torch.uint8), right.contiguous().flatten().view(torch.uint8)
    )
