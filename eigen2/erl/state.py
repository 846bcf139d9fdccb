"""The state of the generation in progress, and the samples it trains on, drawn from the replay buffer."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from eigen2.core.datamodule import RolloutDataModule
from eigen2.core.networks import Inputs
from eigen2.core.replay import loaded_action
from eigen2.erl.exploration import Draws
from eigen2.erl.learners import Batch, Losses
from eigen2.erl.quarantine import Quarantine


@dataclass
class GenerationState:
    """Results of the generation in progress."""

    generation: int
    fitness: Float[Tensor, " agents"]  # of all agents, float64; NaN for those that failed
    reliability: float  # of the differences in fitness, see `evolution.statistics.reliability`
    validation: Float[Tensor, " agents"]  # validation fitness of all agents, float64; NaN for those not validated
    loss_sums: Float[Tensor, "losses agents"]  # of finite losses over the training steps, by the fields of `Losses`
    loss_counts: Float[Tensor, "losses agents"]  # training steps in each sum
    quarantine: Quarantine
    mean_validation: float = math.nan  # validation fitness of the elites' mean
    slots: Tensor | None = None  # replay slots (training steps, learners, batch); None without training
    drawn: dict[str, Tensor] = field(default_factory=dict)  # transitions of the next slots, with the same axes
    noise: Draws | None = None  # noise for a learner that uses it
    evolution: dict[str, float] = field(default_factory=dict)  # statistics of the generation's evolution

    @classmethod
    def begin(cls, generation: int, agents: range, total: int, device: torch.device | str = "cpu") -> "GenerationState":
        """Return the state at the start of a generation, for this process's `agents` of a population of `total`."""
        fitness, validation = torch.full((2, total), torch.nan, dtype=torch.float64)
        sums, counts = torch.zeros(2, len(Losses._fields), len(agents), device=device)
        return cls(generation, fitness, torch.nan, validation, sums, counts, Quarantine(agents, device))

    def record_losses(self, losses: Losses, train_actor: bool) -> None:
        """Add a training step's losses, those of actors only if they train."""
        values, finite = self.quarantine.record_losses(losses)
        learners = values.shape[1]
        self.loss_sums[:, :learners] += values
        # the critic's losses are known where actors skip a step
        self.loss_counts[slice(None) if train_actor else slice(1, 3), :learners] += finite


def sample_inputs(
    data: RolloutDataModule, device: torch.device, generator: np.random.Generator, count: int
) -> Inputs | None:
    """Return network inputs (1, count, ...) of observations drawn from the replay buffer; None while it is empty."""
    if not len(data.buffer):
        return None
    stored = data.buffer.gather(torch.from_numpy(generator.integers(len(data.buffer), size=(1, count))).to(device))
    return data.network_inputs({name: stored[name] for name in data.eval_env.observation_fields})


def make_batch(
    state: GenerationState, data: RolloutDataModule, stored: Mapping[str, Tensor], gamma: float, reward_scale: float
) -> Batch:
    """Return transitions (learners, batch) of the replay buffer as network inputs and targets."""
    names = data.eval_env.observation_fields
    observation = {name: stored[name] for name in names}
    outcomes = data.outcomes(observation)
    return Batch(
        inputs=data.network_inputs(observation),
        next_inputs=data.network_inputs({name: stored[f"next_{name}"] for name in names}) if gamma else None,
        action=loaded_action(stored["action"]),
        reward=stored["reward"] * reward_scale,
        terminated=stored["terminated"],
        discount=gamma,
        outcomes=None if outcomes is None else outcomes * reward_scale,
        noise=None if state.noise is None else state.noise.next().to(stored["reward"].device),
    )
