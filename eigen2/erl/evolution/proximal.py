"""Mutation that changes what an actor does by the same amount, whichever of its weights change.

Bodnar, Day and Lio, "Proximal Distilled Evolutionary Reinforcement Learning", 2020, divide each weight's change by the
sensitivity of the actions to it, sqrt(sum over actions k of (sum over states of d a_k / d w)^2), the SM-G-SUM of Lehman
et al., "Safe Mutations for Deep and Recurrent Neural Networks through Output Gradients", 2018. Here squares are taken
state by state, and means in place of sums: sqrt(mean over states and actions k of (d a_k / d w)^2).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from eigen2.core.networks import Inputs, StackedNetwork
from eigen2.core.randomness import Role, generator
from eigen2.errors import require_range

if TYPE_CHECKING:
    from eigen2.erl.module import ERLModule

MOST_DRAWN = 10_000


@dataclass
class Proximal:
    """Mutants whose actions change by about model.evolution.mutation_scale, in action units of [-1, 1].

    That is the root mean square change over observations and action numbers, as far as actions are linear in the change
    of the weights. Each weight's share of it is even: its change is divided by the sensitivity of the actions to it.
    """

    probes: int = 64
    """Observations drawn from the replay buffer on which a parent's sensitivity is measured (1 to 10,000)."""
    projections: int = 8
    """Backward passes that it is estimated from (1 to 10,000), to a relative error of about 1 / sqrt(2 projections)."""
    floor: float = 0.1
    """Least sensitivity that counts, in units of the root mean square of all weights' (above 0, at most 1). Lower ones
    spread the change more evenly, and let weights of little effect move so far that it is no longer linear."""

    def __post_init__(self) -> None:
        for name in ("probes", "projections"):
            require_range(f"model.evolution.proximal.{name}", getattr(self, name), least=1, most=MOST_DRAWN)
        require_range("model.evolution.proximal.floor", self.floor, above=0, most=1)


class Probe(NamedTuple):
    """What parents are asked to measure their sensitivity."""

    inputs: Inputs
    """What networks see, (1, probes, ...)."""
    signs: Float[Tensor, "projections 1 probes ..."]
    """1 or -1 for every projection, observation and action number."""


def probe_inputs(module: "ERLModule", chance: np.random.Generator, count: int) -> Inputs | None:
    """What networks see of observations drawn from the replay buffer, (1, count, ...); None if it is empty."""
    buffer = module.data.buffer
    if not len(buffer):
        return None
    slots = torch.from_numpy(chance.integers(len(buffer), size=(1, count))).to(module.device)
    stored = buffer.gather(slots)
    return module.data.network_inputs({name: stored[name] for name in module.data.eval_env.observation_fields})


def draw_probe(module: "ERLModule", settings: Proximal) -> Probe | None:
    """The generation's probe, the same for all parents; None if nothing is stored."""
    chance = generator(module.seed, Role.SENSITIVITY, module.current_epoch)
    inputs = probe_inputs(module, chance, settings.probes)
    if inputs is None:
        return None
    shape = (settings.projections, 1, settings.probes, *module.data.eval_env.action_shape)
    signs = torch.from_numpy(2.0 * chance.integers(2, size=shape, dtype=np.int8) - 1.0).float()
    return Probe(inputs, signs.to(module.device))


def sensitivity(network: StackedNetwork, row: Float[Tensor, " weights"], probe: Probe) -> Float[Tensor, " weights"]:
    """Estimate of sqrt(mean over observations and action numbers of (d action / d weight)^2), for each weight.

    Actions may be hundreds and each would need a backward pass, so random sums of them are differentiated: with
    independent signs e the expectation of (sum of e_i d a_i / d w)^2 is the sum of (d a_i / d w)^2, as products of
    different signs are 0 in the mean. Signs differ between observations too: summed over states before they are
    squared, as in SM-G-SUM, gradients of opposite signs would cancel and a weight of much effect seem to have none.
    """
    leaf = row.detach()[None].clone().requires_grad_()
    with torch.enable_grad():
        actions = network(leaf, probe.inputs).float()
        squares = torch.zeros_like(leaf)
        for signs in probe.signs:
            (gradient,) = torch.autograd.grad((actions * signs).sum(), leaf, retain_graph=True)
            squares += gradient.detach().square()
    return (squares[0] / (len(probe.signs) * actions.numel())).sqrt()


def proximal_scale(
    sensitive: Float[Tensor, " weights"], chosen: Bool[Tensor, " weights"], floor: float
) -> Float[Tensor, " weights"] | None:
    """Deviation of each weight's change for which the actions' root mean square change is expected to be 1.

    Args:
        sensitive: what `sensitivity` returned.
        chosen: the weights that change.
        floor: least sensitivity that counts, in units of the root mean square of all.

    Returns:
        None where there is no such deviation: the actions depend on none of the weights that change, or on all of
        them so little that no number is large enough.
    """
    exact = sensitive.double()
    counted = exact.clamp(min=floor * float(exact.square().mean().sqrt()))
    change = float((exact / counted)[chosen].square().sum().sqrt())
    if not 0 < change < float("inf"):
        return None
    scale = (1 / (counted * change)).to(sensitive.dtype)
    return scale if bool(scale.isfinite().all()) else None
