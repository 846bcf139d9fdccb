"""The control workload as a data module: a Gymnasium environment, its episodes and networks."""

from typing import Any

import gymnasium
import torch
from torch import Tensor

from eigen2.control.environment import ControlEnvironment
from eigen2.control.networks import MLPActor, MLPCritic
from eigen2.core.datamodule import RolloutDataModule, TestResult, TrainedPolicies
from eigen2.core.environment import Observation, play
from eigen2.core.networks import Inputs, Sizes
from eigen2.core.randomness import Role, generator
from eigen2.errors import require_range

TEST_EPISODES = 100
SEEDS = 2**31  # environments are seeded with whole numbers below this


class ControlDataModule(RolloutDataModule):
    """Episodes of a Gymnasium environment with continuous actions.

    Args:
        env_id: Gymnasium id of the environment, such as Pendulum-v1; `module:id` imports a module first.
        env_settings: keyword arguments of the environment's class.
        max_episode_steps: steps after which an episode is truncated (1 or more); null keeps the environment's limit.
        windows_per_generation: episodes per generation whose mean return is an agent's fitness, with the same seeds for
            every agent (0 or more; with 0, fitness is that of the exploration windows, noise included).
        exploration_windows: further episodes per generation, played with exploration noise to fill the replay buffer
            and not counted in fitness (0 or more).
        validation_windows: episodes that choose the champion, the same in every generation (1 or more).
        replay_capacity: transitions the shared replay buffer holds (1 or more).
        replay_min_size: transitions in the buffer before training starts (batch_size to replay_capacity).
        batch_size: transitions per micro-batch; each agent draws its own sample (1 or more).
    """

    workload = "control"
    table_columns = (("steps", "control/episode_steps", 1.0), ("ended %", "control/terminated", 100.0))
    validates_every_agent = False
    eval_env: ControlEnvironment
    val_env: ControlEnvironment

    def __init__(
        self,
        env_id: str = "Pendulum-v1",
        env_settings: dict[str, Any] = {},  # noqa: B006 - read, never changed
        max_episode_steps: int | None = None,
        windows_per_generation: int = 1,
        exploration_windows: int = 1,
        validation_windows: int = 4,
        replay_capacity: int = 200_000,
        replay_min_size: int = 5_000,
        batch_size: int = 256,
    ) -> None:
        super().__init__(windows_per_generation, exploration_windows, replay_capacity, replay_min_size, batch_size)
        require_range("data.validation_windows", validation_windows, least=1, whole=True)
        if max_episode_steps is not None:
            require_range("data.max_episode_steps", max_episode_steps, least=1, whole=True)
        self.env_id, self.env_settings, self.max_episode_steps = env_id, dict(env_settings), max_episode_steps
        self.validation_windows = validation_windows
        self._made: list[ControlEnvironment] = []

    def build(self, agents: int, device: torch.device) -> None:
        """Make one copy of the environment per agent and window, and one per validation window, all on the CPU.

        Gymnasium steps there: only what networks read and the actions that they return go to the `device` and back.
        """
        windows = self.windows_per_generation + self.exploration_windows
        self.eval_env = self._make(agents, windows)
        self.val_env = self._make(1, self.validation_windows)  # the fittest agent plays alone

    def _make(self, agents: int, windows: int) -> ControlEnvironment:
        settings, limit = self.env_settings, self.max_episode_steps
        self._made.append(ControlEnvironment(self.env_id, agents, windows, settings, limit))
        return self._made[-1]

    @property
    def longest_episode(self) -> int:
        """Return the steps after which an episode is truncated."""
        return self.eval_env.max_episode_steps

    def network_inputs(self, observation: Observation) -> Inputs:
        """Return the observation unchanged."""
        return {"state": observation["state"]}

    @property
    def sizes(self) -> Sizes:
        """Return the shapes of an observation and an action."""
        return Sizes({"state": self.eval_env.observation_fields["state"].shape}, self.eval_env.action_shape)

    def make_actor(self) -> MLPActor:
        """Build a perceptron with two hidden layers of 256."""
        return MLPActor(self.sizes)

    def make_critic(self) -> MLPCritic:
        """Build a perceptron with two hidden layers of 256."""
        return MLPCritic(self.sizes)

    def training_options(self, generation: int, seed: int) -> dict[str, Any]:
        """Return the seeds of a generation's windows."""
        return _seeds(self.windows_per_generation + self.exploration_windows, seed, Role.WINDOWS, generation)

    def validation_options(self) -> dict[str, Any]:
        """Return the seeds of the validation windows, which do not depend on the run's seed."""
        return _seeds(self.validation_windows, 0, Role.VALIDATION)

    def test(self, policies: TrainedPolicies) -> TestResult:
        """Play the champion in episodes from start states that fit has not seen."""
        env = self._make(1, TEST_EPISODES)
        returns = play(env, policies.champion, _seeds(TEST_EPISODES, policies.seed, Role.TEST))[0]
        mean, deviation = float(returns.mean()), float(returns.std())
        return TestResult(
            {"test/return": mean, "test/return_std": deviation},
            f"champion     of generation {policies.generation}\n"
            f"episodes     {TEST_EPISODES}, with starts that fit has not seen\n"
            f"return       {mean:.1f} +- {deviation:.1f}, least {returns.min():.1f}, most {returns.max():.1f}",
        )

    def episode_metrics(self, summary: dict[str, Tensor], fitness: Tensor) -> dict[str, float]:
        """Return the mean length of an episode, and the share of episodes that terminated before a truncation."""
        windows = self.windows_per_generation or self.exploration_windows
        return {
            "control/episode_steps": float(summary["steps"].double().mean()) / windows,
            "control/terminated": float(summary["terminated"].double().mean()) / windows,
        }

    def describe(self) -> dict[str, str]:
        """Return what to print at the start of a run, by name."""
        return {
            "environment": f"{self.env_id}, {len(self.eval_env.copies)} copies",
            "window": f"an episode of {self.longest_episode} steps at most",
            "validation": f"{self.validation_windows} episodes",
        }

    @property
    def _environment(self) -> dict[str, Any]:
        return {"env_id": self.env_id, "env_settings": self.env_settings, "max_episode_steps": self.max_episode_steps}

    def settings(self) -> dict[str, Any]:
        """Return the settings of every workload, and the environment's."""
        further = {"validation_windows": self.validation_windows, "gymnasium": gymnasium.__version__}
        return super().settings() | self._environment | further

    def inference_spec(self) -> dict[str, Any]:
        """Return the environment's id and settings, and `low` and `high`, the bounds to which actions are scaled."""
        space = self.eval_env.action_space
        return self._environment | {"low": space.low.tolist(), "high": space.high.tolist()}

    def teardown(self, stage: str) -> None:
        """Close the environments."""
        while self._made:
            self._made.pop().close()


def _seeds(count: int, *address: Any) -> dict[str, Any]:
    """Return the reset options of episodes whose seeds are drawn at an address."""
    return {"seeds": generator(*address).integers(SEEDS, size=count).tolist()}
