"""The interface of algorithms that train a population by gradients."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from eigen2.core.networks import Inputs
from eigen2.erl.population import Population


class Batch(NamedTuple):
    """Sample of transitions for every agent that learns, (agents, batch, ...) each."""

    inputs: Inputs
    next_inputs: Inputs | None  # None where nothing that comes later counts, as `discount` is 0
    action: Tensor
    reward: Float[Tensor, "agents batch"]  # rewards, scaled by model.reward_scale
    terminated: Tensor
    discount: float  # discount per step, 0 to 1
    outcomes: Tensor | None = None  # what critics' `forecast` should return, in units of `reward`; NaN where unknown
    noise: Tensor | None = None  # standard normal numbers of an action's shape, for learners that use noise


class Losses(NamedTuple):
    """Per-agent means over the batch; only `actor` and `critic` carry gradients."""

    actor: Float[Tensor, " agents"]
    critic: Float[Tensor, " agents"]
    q_mean: Float[Tensor, " agents"]
    action_saturation: Float[Tensor, " agents"]  # share of the actor's outputs beyond 0.98 of their bound


class Learner(ABC):
    """Losses of an algorithm that trains actors and critics; gradient steps and targets work alike for all.

    Attributes that do not begin with an underscore are its settings.
    """

    uses_noise: ClassVar[bool] = False  # whether batches carry noise of an action's shape

    def critic_factory(self, make_critic: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        """Return the factory of an agent's critic, from that of the workload's critic."""
        return make_critic

    def trains_actor(self, step: int) -> bool:
        """Return whether actors and targets take part in optimizer step `step`, counted from 0 in each generation."""
        return True

    @abstractmethod
    def losses(self, population: Population, batch: Batch, train_actor: bool = True) -> Losses:
        """Compute the losses of the agents that learn; without `train_actor` actors' loss and saturation are 0."""
