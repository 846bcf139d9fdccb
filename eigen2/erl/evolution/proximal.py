"""Mutation that changes an actor's actions by the same amount, whichever of its weights change.

Bodnar, Day and Lio, "Proximal Distilled Evolutionary Reinforcement Learning", 2020, divide each weight's change by the
sensitivity of the actions to it, sqrt(sum over actions k of (sum over states of d a_k / d w)^2), the SM-G-SUM of Lehman
et al., "Safe Mutations for Deep and Recurrent Neural Networks through Output Gradients", 2018. Here squares are taken
state by state, and means in place of sums: sqrt(mean over states and actions k of (d a_k / d w)^2).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from eigen2.core.networks import Inputs, StackedNetwork
from eigen2.core.randomness import Role, generator
from eigen2.erl.evolution.operator import EvolutionContext
from eigen2.erl.evolution.operators import MagnitudeMutation, require
from eigen2.errors import require_range

MOST_DRAWN = 10_000


class Probe(NamedTuple):
    """Network inputs (1, probes, ...) on which sensitivity is measured, with a random sign of each action number."""

    inputs: Inputs
    signs: Float[Tensor, "projections 1 probes ..."]


@dataclass
class ProximalMutation(MagnitudeMutation):
    """Replace agents by copies of elites whose actions change by about `scale`, in action units of [-1, 1].

    The change is the root mean square over observations and action numbers, as far as actions are linear in the
    weights. Every weight contributes the same: its change is divided by the sensitivity of the actions to it.
    """

    probes: int = 64
    """Observations drawn from the replay buffer on which a parent's sensitivity is measured (1 to 10,000)."""
    projections: int = 8
    """Backward passes of the estimate (1 to 10,000); its relative error is about 1 / sqrt(2 projections)."""
    floor: float = 0.1
    """Least sensitivity that counts, in units of the root mean square of all weights' (above 0, at most 1). Lower ones
    spread the change more evenly, and let weights of little effect move so far that it is no longer linear."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "probes", "projections", least=1, most=MOST_DRAWN)
        require_range("ProximalMutation.floor", self.floor, above=0, most=1)
        self._probe: Probe | None = None

    def begin(self, context: EvolutionContext) -> None:
        """Draw the generation's probe, the same for all parents."""
        rng = generator(context.seed, Role.SENSITIVITY, context.generation)
        self._probe = None
        if (inputs := context.sample_inputs(rng, self.probes)) is not None:
            shape = (self.projections, 1, self.probes, *context.action_shape)
            signs = torch.from_numpy(2.0 * rng.integers(2, size=shape, dtype=np.int8) - 1.0).float()
            self._probe = Probe(inputs, signs.to(next(iter(inputs.values())).device))

    def deviation(self, actor: Float[Tensor, " weights"], chosen: Tensor, network: StackedNetwork) -> Tensor:
        """Return the deviation for which actions change by 1; a tensor's root mean square where there is none."""
        if self._probe is not None:
            deviation = proximal_deviation(sensitivity(network, actor, self._probe).cpu(), chosen, self.floor)
            if deviation is not None:
                return deviation
        return super().deviation(actor, chosen, network)


def sensitivity(network: StackedNetwork, row: Float[Tensor, " weights"], probe: Probe) -> Float[Tensor, " weights"]:
    """Estimate sqrt(mean over observations and action numbers of (d action / d weight)^2), for each weight.

    Sums of actions with random signs are differentiated, not single actions: the expectation of the square is the sum
    of squares, as products of different signs are 0 in the mean. Signs differ between observations too.
    """
    leaf = row.detach()[None].clone().requires_grad_()
    with torch.enable_grad():
        actions = network(leaf, probe.inputs).float()
        squares = torch.zeros_like(leaf)
        for signs in probe.signs:
            (gradient,) = torch.autograd.grad((actions * signs).sum(), leaf, retain_graph=True)
            squares += gradient.detach().square()
    return (squares[0] / (len(probe.signs) * actions.numel())).sqrt()


def proximal_deviation(
    sensitive: Float[Tensor, " weights"], chosen: Bool[Tensor, " weights"], floor: float
) -> Float[Tensor, " weights"] | None:
    """Return each weight's deviation for which the actions' root mean square change is expected to be 1.

    None where actions depend on none of the `chosen` weights, or so little that the deviation is not finite.
    """
    precise = sensitive.double()
    floored = precise.clamp(min=floor * float(precise.square().mean().sqrt()))
    change = float((precise / floored)[chosen].square().sum().sqrt())
    if not 0 < change < float("inf"):
        return None
    scale = (1 / (floored * change)).to(sensitive.dtype)
    return scale if bool(scale.isfinite().all()) else None
