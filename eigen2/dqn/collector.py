"""Episodes in several environments side by side, whose steps go into the replay buffer."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor, nn

from eigen2.core.replay import Field, ReplayBuffer
from eigen2.dqn.losses import Batch

Actions = Int64[np.ndarray, " environments"]
Info = Mapping[str, np.ndarray]
"""The `info` of a vector environment: arrays (environments, ...) by name."""
SEEDS = 2**31  # environments are seeded with whole numbers below this


class ObservationCodec(ABC):
    """Packs observations into the replay buffer's `fields` and restores them."""

    fields: Mapping[str, Field]

    @abstractmethod
    def pack(self, observation: UInt8[np.ndarray, "batch ..."], info: Info) -> dict[str, Tensor]:
        """Return the fields to store for observations and their info."""

    @abstractmethod
    def unpack(self, stored: Mapping[str, Tensor]) -> UInt8[Tensor, "batch ..."]:
        """Return the observations that were stored."""

    @abstractmethod
    def allowed(self, observation: UInt8[Tensor, "batch ..."]) -> Bool[Tensor, "batch actions"]:
        """Return the actions that are allowed."""

    def values(self, network: nn.Module, observation: UInt8[Tensor, "batch ..."]) -> Float[Tensor, "batch actions"]:
        """Return a network's values of all actions, by which to choose one."""
        return network(observation).float()

    def augment(self, batch: Batch, rng: np.random.Generator) -> Batch:
        """Return transitions that are as true, such as mirrored ones; here the same."""
        return batch


def replay_fields(codec: ObservationCodec) -> dict[str, Field]:
    """Return the fields of a step; the next step of the same environment stores the next observation."""
    step = {"action": torch.int64, "reward": torch.float32, "terminated": torch.bool}
    return {**codec.fields, **{name: Field((), dtype) for name, dtype in step.items()}}


class Collector:
    """Plays environments side by side; every step adds one transition per environment to the buffer.

    The environments do not reset by themselves, and all episodes have the same length. `learned_rewards` returns the
    rewards to learn from, given the info before and after a step and the environments' rewards.
    """

    observation: UInt8[np.ndarray, "environments ..."]  # the current one
    info: Info  # beside it

    def __init__(
        self,
        environments: VectorEnv,
        codec: ObservationCodec,
        buffer: ReplayBuffer,
        learned_rewards: Callable[[Info, Info, np.ndarray], np.ndarray],
    ) -> None:
        self.environments, self.codec, self.buffer, self.learned_rewards = environments, codec, buffer, learned_rewards

    def begin(self, generator: np.random.Generator) -> None:
        """Start an episode in every environment, each from a seed of its own."""
        seeds = generator.integers(SEEDS, size=self.environments.num_envs)
        self.observation, self.info = self.environments.reset(seed=seeds.tolist())

    def step(self, actions: Actions) -> Float[np.ndarray, " environments"]:
        """Take an allowed action in each environment and return the environments' rewards."""
        stored, before = self.codec.pack(self.observation, self.info), self.info
        self.observation, rewards, terminated, truncated, self.info = self.environments.step(actions)
        if truncated.any():
            raise ValueError("an episode was truncated, whose next observation is not kept; let it terminate instead")
        learned = self.learned_rewards(before, self.info, rewards).astype(np.float32)
        step = {"action": actions.astype(np.int64), "reward": learned, "terminated": terminated}
        self.buffer.add({**stored, **{name: torch.from_numpy(values) for name, values in step.items()}})
        return np.asarray(rewards)


def draw_slots(
    buffer: ReplayBuffer, environments: int, batch_size: int, generator: np.random.Generator
) -> Int64[Tensor, "2 batch"]:
    """Draw slots of transitions uniformly with replacement, and return them and those of the next steps.

    The newest transition of each environment has no next step yet, and is not drawn.
    """
    age = generator.integers(environments, len(buffer), size=batch_size)  # 0 is the newest transition
    first = torch.from_numpy((buffer.position - 1 - age) % buffer.capacity)
    return torch.stack([first, (first + environments) % buffer.capacity])


def draw_batch(buffer: ReplayBuffer, codec: ObservationCodec, slots: Int64[Tensor, "2 batch"]) -> Batch:
    """Return the transitions of the slots of `draw_slots`."""
    stored = buffer.gather(slots[0])
    following = codec.unpack(buffer.gather(slots[1]))
    return Batch(
        observation=codec.unpack(stored),
        action=stored["action"],
        reward=stored["reward"],
        next_observation=following,
        next_allowed=codec.allowed(following),
        terminated=stored["terminated"],
    )
