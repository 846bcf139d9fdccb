"""Episodes in several environments side by side, whose steps go into the replay buffer."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

from eigen2.core.replay import Field, ReplayBuffer
from eigen2.dqn.losses import Batch, discounted

Actions = Int64[np.ndarray, " environments"]
Info = Mapping[str, np.ndarray]
"""What a vector environment says beside its observations, (environments, ...) each."""


@runtime_checkable
class VectorEnvironment(Protocol):
    """Environments stepped together, without automatic resets, as Gymnasium's `SyncVectorEnv` and `AsyncVectorEnv`."""

    num_envs: int

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start episodes in all environments, or in those of the option `reset_mask`."""

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Return next observations, rewards, terminated, truncated and info."""

    def close(self) -> None:
        """End the environments."""


class ObservationCodec(ABC):
    """Packs observations for the replay buffer and restores them.

    Attributes:
        fields: what is stored of an observation.
    """

    fields: Mapping[str, Field]

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Return the bytes of what all observations share."""

    @abstractmethod
    def pack(self, observation: UInt8[np.ndarray, "batch ..."], info: Info) -> dict[str, Tensor]:
        """Return what is stored of observations and their info."""

    @abstractmethod
    def unpack(self, stored: Mapping[str, Tensor]) -> UInt8[Tensor, "batch ..."]:
        """Return the observations that were stored."""

    @abstractmethod
    def allowed(self, observation: UInt8[Tensor, "batch ..."]) -> Bool[Tensor, "batch actions"]:
        """Return the actions that are allowed."""


def replay_fields(codec: ObservationCodec) -> dict[str, Field]:
    """Return what a step stores; its next observation is what the next step of the same environment stores."""
    step = {"action": torch.int64, "reward": torch.float32, "terminated": torch.bool}
    return {**codec.fields, **{name: Field((), dtype) for name, dtype in step.items()}}


class Collector:
    """Plays environments side by side; each of their steps adds one transition an environment to the buffer.

    Args:
        learned_rewards: from the info before and after a step and the environments' rewards, the rewards to learn from.

    Attributes:
        observation, info: the current ones, uint8 (environments, ...) and arrays (environments, ...) by name.
    """

    def __init__(
        self,
        environments: VectorEnvironment,
        codec: ObservationCodec,
        buffer: ReplayBuffer,
        learned_rewards: Callable[[Info, Info, np.ndarray], np.ndarray],
    ) -> None:
        self.environments, self.codec, self.buffer, self.learned_rewards = environments, codec, buffer, learned_rewards
        self.observation: UInt8[np.ndarray, "environments ..."] = np.empty(0, np.uint8)
        self.info: dict[str, np.ndarray] = {}
        self._ended = np.zeros(environments.num_envs, bool)

    @property
    def allowed(self) -> Bool[np.ndarray, "environments actions"]:
        """Return the actions that are allowed now."""
        found: Bool[np.ndarray, "environments actions"] = self.codec.allowed(torch.from_numpy(self.observation)).numpy()
        return found

    def begin(self, seeds: Sequence[int]) -> None:
        """Start an episode in every environment, each from its seed."""
        self.observation, self.info = self.environments.reset(seed=list(seeds))
        self._ended[:] = False

    def step(self, actions: Actions) -> Float[np.ndarray, " environments"]:
        """Take an allowed action in each environment and return the environments' rewards."""
        stored, before = self.codec.pack(self.observation, self.info), self.info
        self.observation, rewards, terminated, _, self.info = self.environments.step(actions)
        learned = self.learned_rewards(before, self.info, rewards)
        self._ended = terminated.copy()
        step = {"action": actions.astype(np.int64), "reward": learned.astype(np.float32), "terminated": self._ended}
        self.buffer.add({**stored, **{name: torch.from_numpy(values) for name, values in step.items()}})
        earned: Float[np.ndarray, " environments"] = rewards
        return earned

    def restart_ended(self) -> None:
        """Start another episode where one ended before those of other environments."""
        if self._ended.any():
            self.observation, fresh = self.environments.reset(options={"reset_mask": self._ended})
            self.info = {name: value.copy() for name, value in self.info.items()}
            for name, value in self.info.items():
                value[self._ended] = fresh[name][self._ended]
            self._ended[:] = False


def draw_slots(
    buffer: ReplayBuffer, environments: int, steps: int, batch_size: int, generator: np.random.Generator
) -> Int64[Tensor, "steps_and_next batch"]:
    """Draw slots of transitions, uniformly with replacement, and of those that followed them in the same environment.

    The `environments` add to the buffer together, one after the other; the newest `steps` (1 or more) of each are not
    followed by so many yet, and are not drawn.

    Returns:
        In row k the slots of what was stored k steps later; in the last row, of the observation after all `steps`.
    """
    newest = environments * steps
    age = generator.integers(newest, len(buffer), size=batch_size)  # 0 is the newest transition
    first = torch.from_numpy((buffer.position - 1 - age) % buffer.capacity)
    later = environments * torch.arange(steps + 1)[:, None]
    slots: Tensor = (first + later) % buffer.capacity
    return slots


def draw_batch(
    buffer: ReplayBuffer, codec: ObservationCodec, slots: Int64[Tensor, "steps batch"], gamma: float, scale: float
) -> Batch:
    """Return the transitions of the slots of `draw_slots`, with rewards discounted by `gamma` and scaled."""
    first, last = buffer.gather(slots[0]), buffer.gather(slots[-1])
    following = codec.unpack(last)
    reward, terminated = discounted(buffer["reward"][slots[:-1]], buffer["terminated"][slots[:-1]], gamma)
    return Batch(
        observation=codec.unpack(first),
        action=first["action"],
        reward=reward * scale,
        next_observation=following,
        next_allowed=codec.allowed(following),
        terminated=terminated,
        discount=torch.full_like(reward, gamma ** (len(slots) - 1)),
    )
