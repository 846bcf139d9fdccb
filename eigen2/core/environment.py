"""The environment protocol, and the loop that plays an episode with all agents."""

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from eigen2.core.credit import CreditedSteps
from eigen2.core.replay import Field, ReplayBuffer, stored_action

Observation = dict[str, Tensor]
Policy = Callable[[Observation], Tensor]
"""Map an observation, tensors (agents or 1, windows, ...), to actions (agents, windows, ...) in [-1, 1]."""


@runtime_checkable
class Environment(Protocol):
    """Steps all agents in several windows at once; tensors that it has returned do not change later.

    Tensors have the leading axes (agents, windows); observations may have 1 for agents where all see the same.
    """

    agents: int
    windows: int
    observation_fields: dict[str, Field]
    credit_steps: int
    """Largest number of steps between earning a reward and receiving it; above 0, `info["credit"]` of every step is a
    `Credit`."""

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Return the shape of one agent's action in one window."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Observation, dict[str, Any]]:
        """Start a new episode in every window.

        The option `playing`, bool (agents, windows), marks the episodes that count; others need not be stepped.
        """

    def step(self, action: Tensor) -> tuple[Observation, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Return the next observation, reward, terminated, truncated and info."""

    def native_action(self, unit: Tensor) -> Tensor:
        """Scale actions from [-1, 1] to the environment's own units."""

    def get_episode_summary(self, windows: slice = ...) -> dict[str, Tensor]:
        """Return statistics of the episodes since `reset` by name, (agents,) each."""


@torch.no_grad()
def play(
    env: Environment,
    policy: Policy,
    options: dict[str, Any],
    buffer: ReplayBuffer | None = None,
    after_step: Callable[[], None] = lambda: None,
) -> Tensor:
    """Play one episode in every window and return the undiscounted returns, (agents, windows) float64.

    A return is NaN where an action was not finite, whatever the environment made of it.

    Args:
        env: reset here; afterwards it holds the episode's summary.
        policy: maps observations to actions in [-1, 1].
        options: passed to `env.reset`; `playing` (agents, windows), where present, selects the episodes to play.
        buffer: gets every transition up to the end of its episode, with the rewards that the step earned, except those
            with an observation, action or reward that is not finite: they would break every agent.
        after_step: called after every step of the environment.
    """
    observation, _ = env.reset(options=options)
    observation_finite = _finite(observation.values())
    alive = options.get("playing", torch.ones(env.agents, env.windows, dtype=torch.bool))
    returns = torch.zeros(env.agents, env.windows, dtype=torch.float64)
    credited = None
    if buffer is not None and env.credit_steps:
        credited = CreditedSteps(buffer, env.agents * env.windows, env.credit_steps)
    while bool(alive.any()):
        action = policy(observation)
        following, reward, terminated, truncated, info = env.step(env.native_action(action))
        alive, returns = alive.to(reward.device), returns.to(reward.device)
        action_finite = _finite([action])
        earned = reward if action_finite is None else torch.where(action_finite, reward, torch.nan)
        if buffer is not None:
            following_finite = _finite(following.values())
            stored = alive
            for finite in (observation_finite, following_finite, _finite([earned])):
                stored = stored if finite is None else stored & finite
            ends = {"action": stored_action(action), "reward": reward, "terminated": terminated, "truncated": truncated}
            transition = {**observation, **{f"next_{name}": value for name, value in following.items()}, **ends}
            rows = _rows(transition, stored)
            if credited is None:
                buffer.add(rows)
            else:
                credited.record(stored)
                buffer.add(rows)
                credited.move(info["credit"])
            observation_finite = following_finite
        returns += torch.where(alive, earned, 0.0)
        alive = alive & ~(terminated | truncated)
        observation = following
        after_step()
    return returns


def _finite(values: Iterable[Tensor]) -> Tensor | None:
    """Return where all floating values (agents or 1, windows, ...) are finite, (agents or 1, windows); None if all."""
    floats = [value for value in values if value.is_floating_point()]
    if all(math.isfinite(float(value.sum())) for value in floats):
        return None  # a sum that overflows is looked at closely
    masks = [value.reshape(*value.shape[:2], -1).isfinite().all(2) for value in floats]
    return functools.reduce(torch.logical_and, masks)


def _rows(transition: dict[str, Tensor], chosen: Tensor) -> dict[str, Tensor]:
    """Return the chosen transitions (agents, windows) as rows, agent by agent; shared values are repeated."""
    agents = len(chosen)
    rows = {
        name: (value if len(value) == agents else value.expand(agents, *value.shape[1:])).flatten(0, 1)
        for name, value in transition.items()
    }
    return rows if bool(chosen.all()) else {name: value[chosen.flatten()] for name, value in rows.items()}
