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
from eigen2.core.replay import ReplayBuffer, loaded_action
from eigen2.core.shared_replay import SharedReplay
from eigen2.erl.exploration import Draws
from eigen2.erl.learners import Batch, Losses
from eigen2.erl.quarantine import Quarantine

SLOTS, NOISE = "replay slots", "target noise"  # what is drawn for a batch, beside fields of transitions


@dataclass
class GenerationState:
    """Results of the generation in progress."""

    generation: int
    fitness: Float[Tensor, " agents"]  # of all agents, float64; NaN for those that failed
    reliability: float  # of the differences in fitness, see `evolution.statistics.reliability`
    validation: Float[Tensor, " agents"]  # validation fitness of all agents, float64; NaN for those not validated
    loss_sums: Float[Tensor, "losses agents"]  # of finite losses over batches, by the fields of `Losses`
    loss_counts: Float[Tensor, "losses agents"]  # batches in each sum
    quarantine: Quarantine
    mean_validation: float = math.nan  # validation fitness of the elites' mean
    slots: Tensor | None = None  # replay slots (batches, learners, batch size); None without training
    drawn: dict[str, Tensor] = field(default_factory=dict)  # transitions fetched for the next batches
    noise: Draws | None = None  # noise for a learner that uses it
    evolution: dict[str, float] = field(default_factory=dict)  # statistics of the generation's evolution

    @classmethod
    def begin(
        cls,
        generation: int,
        agents: range,
        total: int,
        accumulators: Float[Tensor, "sums agents"],
        learners: int,
    ) -> "GenerationState":
        """Return the state at the start of a generation, for this process's `agents` of a population of `total`.

        The first `learners` of them learn. Losses are summed in `accumulators`, made by `make_accumulators`: recorded
        steps know their address.
        """
        fitness, validation = torch.full((2, total), torch.nan, dtype=torch.float64)
        losses = len(Losses._fields)
        sums, counts, loss = torch.split(accumulators.zero_(), [losses, losses, 2])
        return cls(generation, fitness, torch.nan, validation, sums, counts, Quarantine(agents, loss, learners))

    def draw(self, batch: int, buffer: ReplayBuffer, at_once: int) -> dict[str, Tensor]:
        """Return replay slots of a batch, or its transitions where they lie in other processes, and noise.

        Transitions of `at_once` batches are fetched at once, by processes without learners, too: they hold some.
        """
        assert self.slots is not None
        drawn = {SLOTS: self.slots[batch]}
        if isinstance(buffer, SharedReplay):
            if (place := batch % at_once) == 0:
                self.drawn = buffer.gather(self.slots[batch : batch + at_once])
            drawn = {name: values[place] for name, values in self.drawn.items()}
        return drawn if self.noise is None else {**drawn, NOISE: self.noise.next()}

    def record_losses(self, losses: Losses, train_actor: bool) -> None:
        """Add a batch's losses to the sums; the actors' only if they train."""
        values, finite = self.quarantine.mask_losses(losses)
        learners = values.shape[1]
        self.loss_sums[:, :learners] += values
        # the critic's losses are known where actors skip a step
        self.loss_counts[slice(None) if train_actor else slice(1, 3), :learners] += finite


def make_accumulators(agents: int, device: torch.device | str = "cpu") -> Float[Tensor, "sums agents"]:
    """Allocate the accumulators of losses, for `GenerationState.begin`."""
    return torch.empty(2 * len(Losses._fields) + 2, agents, device=device)


def sample_inputs(
    data: RolloutDataModule, device: torch.device, generator: np.random.Generator, count: int
) -> Inputs | None:
    """Return network inputs (1, count, ...) of observations drawn from the replay buffer; None while it is empty."""
    if not len(data.buffer):
        return None
    stored = data.buffer.gather(torch.from_numpy(generator.integers(len(data.buffer), size=(1, count))).to(device))
    return data.network_inputs({name: stored[name] for name in data.eval_env.observation_fields})


def make_batch(data: RolloutDataModule, drawn: Mapping[str, Tensor], gamma: float, reward_scale: float) -> Batch:
    """Return what `GenerationState.draw` returned, (learners, batch) each, as network inputs and targets."""
    stored = data.buffer.gather(drawn[SLOTS]) if SLOTS in drawn else drawn
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
        noise=drawn.get(NOISE),
    )
