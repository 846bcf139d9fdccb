"""TD3: Fujimoto et al., "Addressing function approximation error in actor-critic methods", 2018, algorithm 1."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from eigen2.core.networks import DESCRIBED, FORECAST, Inputs
from eigen2.erl.learners.ddpg import DDPG
from eigen2.erl.learners.learner import Batch
from eigen2.errors import require_range


class TwinCritic(nn.Module):
    """Two critics, built by `make_critic`, with weights of their own; values (batch, 2)."""

    def __init__(self, make_critic: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = make_critic(), make_critic()
        self.over_agents = getattr(self.first, "over_agents", "vmap")
        if hasattr(self.first, "describe"):
            self.describe = self._describe_both
        if hasattr(self.first, "forecast"):
            self.forecast = self._forecast_both

    def _describe_both(self, inputs: Inputs) -> Tensor:
        """Return what each critic's `describe` returns, side by side in a last axis."""
        critics: list[Any] = [self.first, self.second]
        return torch.stack([critic.describe(inputs) for critic in critics], -1)

    def _forecast_both(self, inputs: Inputs) -> Tensor:
        """Return what each critic's `forecast` returns, side by side in a last axis."""
        return torch.stack([critic.forecast(own) for critic, own in self._each(inputs)], -1)

    def forward(self, inputs: Inputs, action: Tensor) -> Tensor:
        """Return both values."""
        return torch.stack([critic(own, action) for critic, own in self._each(inputs)], -1)

    def first_value(self, inputs: Inputs, action: Tensor) -> Tensor:
        """Return the first critic's value."""
        critic, own = next(self._each(inputs))
        return critic(own, action)

    def _each(self, inputs: Inputs) -> Iterator[tuple[Any, Inputs]]:
        """Yield each critic with its part of the inputs."""
        for i, critic in enumerate((self.first, self.second)):
            yield (
                critic,
                {name: part[..., i] if name in (DESCRIBED, FORECAST) else part for name, part in inputs.items()},
            )


@dataclass
class TD3(DDPG):
    """Twin delayed DDPG: two critics, of which the lower value counts, delayed actors and smoothed targets."""

    uses_noise: ClassVar[bool] = True

    policy_delay: int = 2
    """Optimizer steps of the critics for each of the actor and all targets (1 or more)."""
    target_noise: float = 0.2
    """Standard deviation of the noise on the target actor's action, in action units of [-1, 1] (0 or more)."""
    target_noise_clip: float = 0.5
    """Bound on the absolute value of that noise (0 or more)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range("model.learner.policy_delay", self.policy_delay, least=1, whole=True)
        for name in ("target_noise", "target_noise_clip"):
            require_range(f"model.learner.{name}", vars(self)[name], least=0)

    def critic_factory(self, make_critic: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        """Return a factory of twin critics."""
        return partial(TwinCritic, make_critic)

    def trains_actor(self, step: int) -> bool:
        """Return whether actors and targets take part: at every `policy_delay`-th step."""
        return (step + 1) % self.policy_delay == 0

    def target_action(self, action: Tensor, batch: Batch) -> Tensor:
        """Add clipped noise to the target actor's action, within [-1, 1]."""
        if batch.noise is None:
            return action
        noise = (batch.noise * self.target_noise).clamp(-self.target_noise_clip, self.target_noise_clip)
        return (action + noise).clamp(-1, 1)
