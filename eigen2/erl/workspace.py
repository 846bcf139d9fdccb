"""The memory a fit will take: of its owners by their sizes; of acting and learning by letting one agent do both."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch
from torch import nn

from eigen2.core.datamodule import RolloutDataModule
from eigen2.erl.learners import ddpg
from eigen2.erl.population import Population
from eigen2.memory.estimate import LivePeak, PeakEstimate, checkpoint_bytes

if TYPE_CHECKING:
    from eigen2.erl.module import ERLModule

REMEDY = (
    "lower data.replay_capacity, data.batch_size, model.population_size, model.gradient_steps or the number of windows"
)


def workspace_bytes(
    data: RolloutDataModule,
    device: torch.device,
    make_actor: Callable[[], nn.Module],
    make_critic: Callable[[], nn.Module],
    precision: Callable[[], AbstractContextManager[None]],
) -> int:
    """Bytes of the tensors an agent needs for a moment: to act in all windows, or to learn from a micro-batch.

    All agents need that much each, as they act and learn together. Nothing is kept and no random numbers are drawn.

    Args:
        data: after `build`; its `eval_env` is reset.
        device: where networks run.
        make_actor: builds one actor.
        make_critic: builds one critic.
        precision: context in which networks run.
    """
    agent = Population(1, make_actor, make_critic, seed=0, noise=0.0).to(device)
    observation, _ = data.eval_env.reset(options=data.training_options(0, seed=0))
    seen = {name: values[:1] for name, values in observation.items()}
    with LivePeak() as acting, torch.inference_mode(), precision():
        agent.act(data.network_inputs(seen)).float()
    size = data.batch_size
    stored = {name: values[:, :1].expand(1, size, *values.shape[2:]) for name, values in seen.items()}
    with LivePeak() as learning, precision():
        flags = torch.zeros(1, size, device=device)
        actions = torch.zeros(1, size, *data.eval_env.action_shape, device=device)
        inputs, following = data.network_inputs(stored), data.network_inputs(stored)
        batch = ddpg.Batch(inputs, following, actions, flags, flags.bool())
        losses = ddpg.losses(agent, batch, gamma=1.0)
        torch.autograd.backward([losses.actor.sum(), losses.critic.sum()])
    peaks: tuple[int, int] = acting.peak, learning.peak
    return max(peaks)


def require_fit(
    module: "ERLModule",
    memory: PeakEstimate,
    weights: int,
    make_actor: Callable[[], nn.Module],
    make_critic: Callable[[], nn.Module],
) -> None:
    """Add what a fit takes beside its environments to an estimate.

    Args:
        module: that will fit, its data built.
        memory: knows what there is.
        weights: bytes of an actor and a critic.
        make_actor: builds one actor.
        make_critic: builds one critic.

    Raises:
        UserError: it does not fit.
    """
    data, trainer = module.data, module.trainer
    agents = len(module.share.rows)
    # weights and targets; gradients and two moments
    memory.require({"population": 2 * weights * agents})
    memory.require({"optimizer": 3 * weights * agents})
    memory.require({"replay": data.replay_bytes})
    if module.share.world > 1:
        memory.require({"journal": agents * data.eval_env.windows * data.most_steps * data.transition_bytes})
    memory.require({"draws": data.draw_bytes(agents, module.micro_batches)})
    device, precision = trainer.strategy.root_device, trainer.precision_plugin.forward_context
    each = workspace_bytes(data, device, make_actor, make_critic, precision)
    memory.require_temporary(agents * each, checkpoint_bytes(trainer))
