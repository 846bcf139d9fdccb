"""Copies of a Gymnasium environment, stepped together: one for each agent in each window."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation
from jaxtyping import Float32
from torch import Tensor

from eigen2.core.replay import Field
from eigen2.errors import UserError, install_hint, is_shortage, one_line


@contextmanager
def _errors_named(env_id: str, settings: Mapping[str, Any]) -> Iterator[None]:
    """Turn whatever an environment raises, unless memory ran out, into a UserError of one line."""
    try:
        yield
    except Exception as error:
        if is_shortage(error):
            raise
        missing = isinstance(error, gymnasium.error.DependencyNotInstalled)
        hint = f"; MuJoCo: {install_hint('control')}" if missing and "MuJoCo" in str(error) else ""
        given = f" with data.env_settings {dict(settings)}" if settings else ""
        raise UserError(f"data.env_id {env_id}{given}: {one_line(error, None)}{hint}") from error


def make(env_id: str, settings: Mapping[str, Any], max_episode_steps: int | None) -> gymnasium.Env[Any, Any]:
    """Make one environment with flat observations; raise UserError if it does not exist or does not suit agents."""
    if "max_episode_steps" in settings:
        raise UserError("data.env_settings has max_episode_steps; give it as data.max_episode_steps")
    with _errors_named(env_id, settings):
        made = gymnasium.make(env_id, max_episode_steps=max_episode_steps, disable_env_checker=True, **settings)
    action, observation = made.action_space, made.observation_space
    fault = None
    if not isinstance(action, spaces.Box) or not np.issubdtype(action.dtype, np.floating):
        fault = f"actions {action}; agents give continuous ones, a Box of floats"
    elif not _is_bounded(action):
        fault = f"unbounded actions {action}; register it with a wrapper that bounds them, such as TransformAction"
    elif made.spec is None or made.spec.max_episode_steps is None:
        fault = "episodes without end; set data.max_episode_steps"
    elif 0 in action.shape:
        fault = f"actions {action}, of no numbers"
    elif not observation.is_np_flattenable:
        fault = f"observations {observation}, which no vector of numbers can hold"
    if fault is not None:
        raise UserError(f"data.env_id {env_id} has {fault}")
    flat = isinstance(observation, spaces.Box) and len(observation.shape) == 1
    return made if flat else FlattenObservation(made)


def _is_bounded(space: spaces.Box) -> bool:
    """Return whether float32 can hold the bounds and the distance between them, by which actions are scaled."""
    with np.errstate(over="ignore", invalid="ignore"):
        span = space.high.astype(np.float32) - space.low.astype(np.float32)
    return bool(np.isfinite(span).all())


def _require_shapes(observations: Iterable[Any], shape: tuple[int, ...], reward: Any) -> None:
    """Raise a ValueError if observations are of another shape than their space, or a reward is not one number."""
    for found in map(np.shape, observations):
        if found != shape:
            raise ValueError(f"observations of shape {found}, where its observation space has {shape}")
    pay = np.asarray(reward)
    if pay.size != 1 or pay.dtype.kind not in "biuf":
        raise ValueError(f"a reward of {reward!r}, where one number is due")


class ControlEnvironment:
    """A copy of the environment for each agent in each window; a window's copies all begin in the same state.

    A copy whose episode has ended waits for the next `reset`, so no transition leads from one episode to another.
    Observations have one field, `state`, flattened to float32. `copies` are ordered by agent, then by window.
    """

    credit_steps = 0

    def __init__(
        self,
        env_id: str,
        agents: int,
        windows: int,
        settings: Mapping[str, Any] | None = None,
        max_episode_steps: int | None = None,
    ) -> None:
        self.agents, self.windows, self._made_with = agents, windows, (env_id, settings or {})
        self.copies = [make(env_id, settings or {}, max_episode_steps) for _ in range(agents * windows)]
        first = self.copies[0]
        space, shape = first.action_space, first.observation_space.shape
        assert isinstance(space, spaces.Box) and shape is not None  # noqa: PT018
        assert first.spec is not None and first.spec.max_episode_steps is not None  # noqa: PT018
        self.max_episode_steps = first.spec.max_episode_steps
        self.observation_fields = {"state": Field(shape, torch.float32)}
        low, high = (torch.from_numpy(bound.astype(np.float32)) for bound in (space.low, space.high))
        self.action_space, self._low, self._span = space, low, high - low
        self.action_shape = tuple(low.shape)
        count = len(self.copies)
        self._state, self._reward = np.zeros((count, *shape), np.float32), np.zeros(count, np.float32)
        self._length = np.zeros(count, np.int64)
        self._terminated, self._truncated = np.ones(count, bool), np.zeros(count, bool)
        with _errors_named(*self._made_with):  # some settings fail only here
            before, _ = first.reset(seed=0)
            after, reward, *_ = first.step((space.low / 2 + space.high / 2).astype(space.dtype))
            _require_shapes((before, after), shape, reward)

    def native_action(self, unit: Tensor) -> Tensor:
        """Scale actions from [-1, 1], to which they are clipped, to the environment's own units."""
        return self._low + (unit.clamp(-1, 1) + 1) / 2 * self._span

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Start an episode in every copy, seeded by the option `seeds`, one per window, or by `seed`, `seed` + 1, ...

        With the option `playing`, bool (agents, windows), all other copies count as truncated from the start.
        """
        options = options or {}
        seeds = list(options.get("seeds", ())) if seed is None else [seed + i for i in range(self.windows)]
        if len(seeds) != self.windows:
            raise ValueError(f"{len(seeds)} seeds for {self.windows} windows")
        with _errors_named(*self._made_with):
            for i, copy in enumerate(self.copies):
                self._state[i], _ = copy.reset(seed=int(seeds[i % self.windows]))
        for each in (self._reward, self._terminated, self._truncated, self._length):
            each[:] = 0
        if "playing" in options:
            self._truncated[:] = ~options["playing"].numpy().reshape(-1)
        return {"state": self._tensor(self._state)}, {}

    def step(
        self, action: Float32[Tensor, "agents windows ..."]
    ) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        """Step the copies whose episode has not ended; the others keep their last state, with reward 0.

        A NaN in an action, which no space holds, becomes 0 or the bound next to it. Raises a UserError for whatever the
        environment raises.
        """
        space = self.action_space
        native = action.numpy().astype(space.dtype).reshape(len(self.copies), *self.action_shape)
        native[np.isnan(native)] = 0
        native = native.clip(space.low, space.high)  # float32 may round beyond a bound
        self._reward[:] = 0
        with _errors_named(*self._made_with):
            for i in np.flatnonzero(~(self._terminated | self._truncated)):
                self._state[i], pay, self._terminated[i], self._truncated[i], _ = self.copies[i].step(native[i])
                self._reward[i] = np.asarray(pay).item()  # it may be an array of one number
                self._length[i] += 1
        reward, terminated, truncated = map(self._tensor, (self._reward, self._terminated, self._truncated))
        return {"state": self._tensor(self._state)}, reward, terminated, truncated, {}

    def get_episode_summary(self, windows: slice = slice(None)) -> dict[str, Tensor]:
        """Return each agent's sums of `steps` and `terminated` episodes over windows, since `reset`."""
        parts = {"steps": self._length, "terminated": self._terminated}
        return {name: self._tensor(part)[:, windows].sum(1) for name, part in parts.items()}

    def close(self) -> None:
        """Close the copies."""
        for copy in self.copies:
            copy.close()

    def _tensor(self, values: np.ndarray) -> Tensor:
        """Return a copy, (agents, windows, ...), that later steps do not change."""
        shape = self.agents, self.windows, *values.shape[1:]
        return torch.from_numpy(values.reshape(shape).copy())
