"""Samples that a generation trains on, drawn from the replay buffer."""

import numpy as np
import torch
from torch import Tensor

from eigen2.core.datamodule import RolloutDataModule
from eigen2.core.networks import Inputs
from eigen2.core.randomness import Role
from eigen2.core.replay import sample_slots
from eigen2.erl.exploration import Draws
from eigen2.erl.learners import Batch, Learner
from eigen2.erl.state import GenerationState


def draw_samples(
    state: GenerationState, learner: Learner, data: RolloutDataModule, learners: range, steps: int, seed: int
) -> None:
    """Draw into the state what a generation of `steps` micro-batches trains on: replay slots, and the learner's noise.

    `learners` are the numbers of this process's agents that learn.
    """
    state.slots = sample_slots(len(data.buffer), steps, data.batch_size, learners, seed, state.generation)
    if learner.uses_noise:
        shape = (data.batch_size, *data.eval_env.action_shape)
        state.noise = Draws(Role.TARGET, learners, shape, seed, state.generation)


def sample_inputs(
    data: RolloutDataModule, device: torch.device, generator: np.random.Generator, count: int
) -> Inputs | None:
    """Return network inputs (1, count, ...) of observations drawn from the replay buffer; None while it is empty."""
    if not len(data.buffer):
        return None
    slots = torch.from_numpy(generator.integers(len(data.buffer), size=(1, count))).to(device)
    stored = data.buffer.gather(slots)
    return data.network_inputs({name: stored[name] for name in data.eval_env.observation_fields})


def make_batch(
    state: GenerationState, data: RolloutDataModule, slots: Tensor, gamma: float, reward_scale: float
) -> Batch:
    """Return the transitions in replay slots (learners, batch) as network inputs and targets."""
    stored = data.buffer.gather(slots)
    names = data.eval_env.observation_fields
    return Batch(
        inputs=data.network_inputs({name: stored[name] for name in names}),
        next_inputs=data.network_inputs({name: stored[f"next_{name}"] for name in names}),
        action=stored["action"].float(),
        reward=stored["reward"] * reward_scale,
        terminated=stored["terminated"],
        discount=gamma,
        noise=None if state.noise is None else state.noise.next().to(slots.device),
    )
