"""Estimate the memory a fit will take, from the sizes of its owners and from one agent that acts and learns."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from eigen2.core.datamodule import RolloutDataModule
from eigen2.core.networks import Inputs
from eigen2.core.shared_replay import CHUNK_BYTES
from eigen2.distributed.communicator import Communicator
from eigen2.erl.learners import Batch, Learner
from eigen2.erl.population import Population
from eigen2.errors import UserError
from eigen2.memory.estimate import LivePeak, PeakEstimate

EXCHANGE_COPIES = 6  # of transitions on their way: chosen, packed, received, unpacked, in order, and the batch
TOGETHER_BYTES = 64_000_000  # temporary tensors of a training step; more did not make one faster


def workspace_bytes(
    data: RolloutDataModule,
    learner: Learner,
    device: torch.device,
    make_actor: Callable[[], nn.Module],
    make_critic: Callable[[], nn.Module],
    precision: Callable[[], AbstractContextManager[None]],
) -> tuple[int, int]:
    """Return the bytes of temporary tensors an agent needs to act in all windows, and to learn from a micro-batch.

    Nothing is kept and no random numbers are drawn; `data.eval_env` is reset.
    """
    one_of_two = Communicator(2, world=2)  # an agent beside others takes more than a lone one
    agent = Population(one_of_two, make_actor, make_critic, seed=0, noise=0.0).to(device)
    observation, _ = data.eval_env.reset(options=data.training_options(0, seed=0))
    first = {name: values[:1].to(device) for name, values in observation.items()}
    size = data.batch_size
    stored = {name: values[:, :1].expand(1, size, *values.shape[2:]) for name, values in first.items()}
    with LivePeak() as acting, precision(), torch.inference_mode():
        action = agent.act(data.network_inputs(first)).float()
    windows = next(iter(first.values())).shape[1]
    if action.shape != (expected := (1, windows, *data.eval_env.action_shape)):
        raise UserError(
            f"model.actor {type(agent.actor_network.network).__name__} returns {tuple(action.shape[1:])} for a batch "
            f"of {windows}; it must return {expected[1:]}"
        )
    if (largest := float(action.abs().max())) > 1:
        raise UserError(
            f"model.actor {type(agent.actor_network.network).__name__} returns {largest:.3g}, and actions are -1 to 1; "
            "end it with tanh"
        )
    with LivePeak() as learning, precision():
        flags = torch.zeros(1, size, device=device)
        actions = torch.zeros(1, size, *data.eval_env.action_shape, device=device)
        inputs, following = data.network_inputs(stored), data.network_inputs(stored)
        noise = actions if learner.uses_noise else None
        _check_critic(agent, inputs, actions)
        losses = learner.losses(
            agent, Batch(inputs, following, actions, flags, flags.bool(), discount=1.0, noise=noise)
        )
        torch.autograd.backward([losses.actor.sum(), losses.critic.sum()])
    return acting.peak, learning.peak


@torch.no_grad()
def _check_critic(agent: Population, inputs: Inputs, actions: Tensor) -> None:
    """Raise a UserError if the critic does not return a value, or one of each of several critics, for an action."""
    network, batch = agent.critic_network, actions.shape[1]
    shape = tuple(network(agent.critic, inputs, actions).shape[1:])
    if shape[:1] != (batch,) or len(shape) > 2:
        name = type(network.network).__name__
        raise UserError(f"model.critic {name} returns {shape} for a batch of {batch}; it must return {(batch,)}")


def batches_together(accumulate: int, tensor_bytes: int) -> int:
    """Return how many of `accumulate` micro-batches, of `tensor_bytes` each, are best computed at once: a divisor.

    Few large operations are faster than many small ones, until their tensors leave the caches of a processor.
    """
    most = min(accumulate, max(1, TOGETHER_BYTES // max(1, tensor_bytes)))
    return next(number for number in range(most, 0, -1) if accumulate % number == 0)


def require_fit(
    memory: PeakEstimate,
    data: RolloutDataModule,
    communicator: Communicator,
    actor: int,
    critic: int,
    learners: int,
    micro_batches: int,
    together: int,
    head: int | None,
    again: bool,
) -> None:
    """Add to an estimate what a fit holds beside its environments; `actor` and `critic` are bytes of their weights.

    Where one agent learns alone, only that one has these, and every agent what evolves, of `head` bytes. `learners` are
    the agents of this process that learn. If it fits `again`, population and, if alike, replay buffer are there
    already.
    """
    agents, transition = len(communicator.rows), data.transition_bytes
    trained = (actor + critic) * (agents if head is None else 1)
    evolving = 0 if head is None else head * agents + critic  # with the champion's critic
    needed = {
        "population": 2 * trained + evolving + 2 * actor,  # with targets, champion and elites' mean
        "optimizer": 3 * trained,  # gradients and two moments
        "replay": math.ceil(data.replay_capacity / communicator.world) * transition,
        "samples": 8 * (learners + 1) * micro_batches * data.batch_size,  # slots, and one learner's beside them
    }
    for name, there in {"population": again, "replay": data.buffer_bytes == needed["replay"]}.items():
        needed[name] *= not there
    if communicator.world > 1:
        logged = agents * data.eval_env.windows * data.longest_episode * transition
        drawn = learners * micro_batches * data.batch_size * transition
        at_once = max(min(CHUNK_BYTES, max(logged, drawn)), learners * together * data.batch_size * transition)
        needed["exchange"] = logged + EXCHANGE_COPIES * at_once
    memory.require(needed)
