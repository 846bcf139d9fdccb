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
    """Packs observations for the replay buffer and restores them."""

    @property
    @abstractmethod
    def fields(self) -> dict[str, Field]:
        """Return what is stored of an observation."""

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
    return {
        **codec.fields,
        "action": Field((), torch.int64),
        "reward": Field((), torch.float32),
        "terminated": Field((), torch.bool),
    }


class Collector:
    """Plays environments side by side; each of their steps adds one transition an environment to the buffer.

    Args:
        environments: without automatic resets.
        codec: of their observations.
        buffer: that the transitions go to.
        learned_rewards: from the info before and after a step and the environments' rewards, the rewards to learn from.

    Attributes:
        observation: uint8 (environments, ...), the current ones.
        info: of the current observations.
    """

    def __init__(
        self,
        environments: VectorEnvironment,
        codec: ObservationCodec,
        buffer: ReplayBuffer,
        learned_rewards: Callable[[Info, Info, np.ndarray], np.ndarray],
    ) -> None:
        self.environments, self.codec, self.buffer = environments, codec, buffer
        self.learned_rewards = learned_rewards
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
        self.buffer.add(
            {
                **stored,
                "action": torch.from_numpy(actions.astype(np.int64)),
                "reward": torch.from_numpy(learned.astype(np.float32)),
                "terminated": torch.from_numpy(terminated.copy()),
            }
        )
        self._ended = terminated.copy()
        earned: Float[np.ndarray, " environments"] = rewards
        return earned

    def restart_ended(self) -> None:
        """Start another episode where one ended before those of other environments."""
        if self._ended.any():
            before = self.info
            self.observation, fresh = self.environments.reset(options={"reset_mask": self._ended})
            self.info = {name: value.copy() for name, value in before.items()}
            for name, value in self.info.items():
                value[self._ended] = fresh[name][self._ended]
            self._ended[:] = False


def draw_slots(
    buffer: ReplayBuffer, environments: int, steps: int, batch_size: int, generator: np.random.Generator
) -> Int64[Tensor, "steps_and_next batch"]:
    """Draw slots of transitions, and of those that followed them in the same environment.

    Args:
        buffer: to draw from.
        environments: that add to it together, one after the other.
        steps: of a transition, 1 or more; the newest ones of each environment are not followed by so many yet.
        batch_size: transitions to draw, 1 or more, uniformly and with replacement.
        generator: source of randomness.

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
    buffer: ReplayBuffer,
    codec: ObservationCodec,
    slots: Int64[Tensor, "steps_and_next batch"],
    gamma: float,
    scale: float,
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
