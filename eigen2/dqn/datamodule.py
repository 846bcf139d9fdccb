"""What a workload of deep Q-learning provides, and what all of them have in common."""

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from jaxtyping import Float, UInt8
from torch import nn

from eigen2.core.datamodule import TestResult, WorkloadDataModule
from eigen2.dqn.collector import Actions, Collector, Info, ObservationCodec, replay_fields
from eigen2.errors import UserError, require_range

Policy = Callable[[UInt8[np.ndarray, "batch ..."]], Actions]
"""Map observations to an allowed action of each."""


class DQNDataModule(WorkloadDataModule):
    """Base of workloads for deep Q-learning: environments to learn in, and cases to validate and test a policy on."""

    remedy: ClassVar[str]  # settings to lower where memory does not suffice
    baselines: ClassVar[tuple[str, ...]] = ()  # names of the policies without learning
    default_baselines: ClassVar[tuple[str, ...]] = ()  # those compared with the agent, without `model.baselines`
    environments: VectorEnv  # played side by side; made by `build`, as are codec and episode_steps
    codec: ObservationCodec
    collector: Collector  # plays the environments into the replay buffer; made by `allocate_replay`
    episode_steps: int  # of every episode

    def __init__(self, num_parallel_envs: int, replay_capacity: int, replay_min_size: int, batch_size: int) -> None:
        require_range("data.num_parallel_envs", num_parallel_envs, least=1, whole=True)
        super().__init__(replay_capacity, replay_min_size, batch_size, least=1)
        if replay_min_size <= num_parallel_envs:
            raise UserError(
                f"data.replay_min_size is {replay_min_size}, with data.num_parallel_envs {num_parallel_envs}: no "
                "transition would have a next step yet; raise data.replay_min_size above it"
            )
        self.num_parallel_envs = num_parallel_envs

    @abstractmethod
    def needed_bytes(self, stage: str) -> dict[str, int]:
        """Return the bytes by owner that `build` will allocate for a stage of the Trainer: fit, validate or test."""

    @abstractmethod
    def build(self, stage: str, device: torch.device) -> None:
        """Make the environments, the codec, and the cases that the stage validates or tests on."""

    @abstractmethod
    def make_network(self, width: int, prior: bool) -> nn.Module:
        """Build the network that maps observations to values (batch, actions), after `build`; see `DQNModule`."""

    @abstractmethod
    def activation_bytes(self, width: int) -> int:
        """Return the bytes of one network's activations for a batch."""

    @abstractmethod
    def learned_rewards(self, before: Info, after: Info, rewards: np.ndarray) -> np.ndarray:
        """Return the rewards to learn from, by the info before and after a step and the environments' rewards."""

    @abstractmethod
    def episode_fitness(self) -> Float[np.ndarray, " environments"]:
        """Return the fitness of the episodes in the environments, as they are now."""

    @abstractmethod
    def validation_fitness(self, policy: Policy) -> Float[np.ndarray, " cases"]:
        """Play a policy on the validation cases, which are never learned from, and return its fitness on each."""

    @abstractmethod
    def baseline_fitness(self, name: str) -> float:
        """Return the mean validation fitness of a policy without learning."""

    @abstractmethod
    def test(self, policy: Policy, generation: int) -> TestResult:
        """Play the champion, found in `generation`, on cases that no fit has used."""

    def save_champion_record(self, generation: int, baselines: tuple[str, ...]) -> None:
        """Save what the policy that was just validated did, which became champion of `generation`."""

    def allocate_replay(self, device: torch.device) -> None:
        """Allocate the replay buffer, which must hold an episode of each environment, and make its collector."""
        least = self.num_parallel_envs * (self.episode_steps + 1)
        if self.replay_capacity < least:
            episodes = f"an episode in each of {self.num_parallel_envs} environments has {least}"
            raise UserError(f"data.replay_capacity is {self.replay_capacity}; {episodes}: raise it to at least that")
        self.allocate_buffer(self.replay_capacity, replay_fields(self.codec), device)
        self.collector = Collector(self.environments, self.codec, self.buffer, self.learned_rewards)

    def memory_owners(self) -> dict[str, object]:
        """Return the objects that hold memory, by owner name, for a memory profiler."""
        return {**super().memory_owners(), "frames": self.codec}
