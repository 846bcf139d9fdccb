"""Data modules: what a workload provides to an algorithm, and what all workloads have in common."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn

from eigen2.core.config import arguments_of
from eigen2.core.environment import Environment, Observation, Policy
from eigen2.core.networks import Inputs, Sizes
from eigen2.core.replay import Field, ReplayBuffer, transition_fields
from eigen2.core.saved_run import altered_as_user_error
from eigen2.core.shared_replay import SharedReplay, TransitionLog
from eigen2.distributed.communicator import Communicator
from eigen2.errors import UserError, require_range

TableColumns = tuple[tuple[str, str, float], ...]


@dataclass(frozen=True)
class TrainedPolicies:
    """Policies of a trained population, for a test."""

    champion: Policy
    agents: list[Policy]  # the population of the checkpoint
    generation: int  # generation in which the champion was found
    tried: int  # agents evaluated, of all generations together
    seed: int
    others: Sequence[Policy] = ()  # champions of trainings with other seeds
    checks: bool = False  # whether to check too what the result depends on

    def ensemble(self, observation: Observation) -> Tensor:
        """Return the mean of the actions of the champion and of those of the other trainings."""
        return torch.stack([policy(observation) for policy in (self.champion, *self.others)]).mean(0)


@dataclass(frozen=True)
class TestResult:
    """Result of a test."""

    __test__ = False  # no test case of pytest's

    metrics: dict[str, float]  # scalars by name
    text: str  # summary for the terminal


class WorkloadDataModule(LightningDataModule, ABC):
    """Base of all workloads: settings, replay buffer, data loaders, state.

    Its loaders are ranges of step numbers: a DataLoader draws from the global generator, which breaks exact resume.
    The buffer holds `capacity` transitions; training starts with `min_size` of them, which must be `least` or more.
    """

    workload: ClassVar[str] = ""  # name on the command line
    table_columns: TableColumns = ()
    """Heading, metric and factor of the workload's columns in the terminal's table."""
    fitness_labels: Mapping[str, str] = {"unit": "reward an episode", "over": "agents"}
    """`unit` of fitness and what it is averaged `over`, for terminal and report."""
    training_steps: int = 1  # of a generation

    def __init__(self, capacity: int, min_size: int, batch_size: int, least: int) -> None:
        super().__init__()
        require_range("data.replay_capacity", capacity, least=1, whole=True)
        require_range("data.batch_size", batch_size, least=1, whole=True)
        require_range("data.replay_min_size", min_size, least=least, whole=True)
        if min_size > capacity:
            raise UserError(
                f"data.replay_min_size is {min_size}, more than data.replay_capacity {capacity}: training would never "
                "start; lower the one or raise the other"
            )
        self.replay_capacity, self.replay_min_size, self.batch_size = capacity, min_size, batch_size
        self._buffer: ReplayBuffer | None = None

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return everything about the data that determines results, as plain values; after `setup`."""

    def config(self) -> dict[str, Any]:
        """Return the arguments it was made with, as the group `data` of a configuration file."""
        return arguments_of(self)

    def describe(self) -> dict[str, str]:
        """Return names and values to show to the user at the start of a run."""
        return {}

    def data_used(self) -> dict[str, Any]:
        """Return the data that a fit uses, as plain values; checkpoints save it for `require_unused`; after `setup`."""
        return {}

    def require_unused(self, used: Mapping[str, Any]) -> None:
        """Raise a UserError that names the overlap if a test would use data in a fit's `data_used`."""

    def inference_spec(self) -> dict[str, Any]:
        """Return JSON values that turn other data into the network inputs of this fit; after `build`."""
        return {}

    def apply_inference_spec(self, spec: Mapping[str, Any]) -> None:
        """Make this data's network inputs as the fit that returned this `inference_spec` did; after `build`."""

    @property
    def buffer(self) -> ReplayBuffer:
        """Return the replay buffer, allocated for a fit."""
        assert self._buffer is not None, "the replay buffer is allocated for a fit"
        return self._buffer

    @property
    def buffer_bytes(self) -> int:
        """Return the bytes of the replay buffer that an earlier fit left to be used again; 0 without one."""
        return 0 if self._buffer is None else self._buffer.nbytes

    def allocate_buffer(self, capacity: int, fields: dict[str, Field], device: torch.device) -> None:
        """Allocate the replay buffer, or empty the existing one if it is alike: fitting again needs no second one."""
        buffer = self._buffer
        if buffer is not None and (buffer.capacity, buffer.fields, buffer.device) == (capacity, fields, device):
            buffer.reset_memory()
        else:
            self._buffer = ReplayBuffer(capacity, fields, device)

    @property
    def ready(self) -> bool:
        """Return whether the buffer is full enough to train from."""
        return len(self.buffer) >= self.replay_min_size

    def train_dataloader(self) -> range:
        """Return the numbers of the training steps."""
        return range(self.training_steps)

    def val_dataloader(self) -> range:
        """Return one number: a whole validation, or test, is one step."""
        return range(1)

    test_dataloader = val_dataloader

    def memory_owners(self) -> dict[str, object]:
        """Return the objects that hold memory, by owner name, for a memory profiler."""
        return {"replay": self._buffer}

    def state_dict(self) -> dict[str, Any]:
        """Return the replay buffer, by reference."""
        return {} if self._buffer is None else {"replay": self._buffer.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copy the saved replay buffer back, for a fit."""
        if self.trainer is None or self.trainer.state.fn == TrainerFn.FITTING:
            with altered_as_user_error():
                self.buffer.load_state_dict(state_dict["replay"])


class RolloutDataModule(WorkloadDataModule):
    """Base of workloads in which a population plays: a subclass loads its data, builds environments and networks.

    `eigen2.control.datamodule.ControlDataModule`, for example, describes the settings.
    """

    validates_every_agent: ClassVar[bool] = True
    """Whether every agent is validated in each generation; else the fittest alone, and `val_env` has one agent."""
    discount: float = 0.99
    """Discount per step where `model.gamma` is null, 0 to 1."""
    eval_env: Environment
    val_env: Environment

    def __init__(self, windows: int, exploration_windows: int, capacity: int, min_size: int, batch_size: int) -> None:
        super().__init__(capacity, min_size, batch_size, least=batch_size)
        require_range("data.windows_per_generation", windows, least=0, whole=True)
        require_range("data.exploration_windows", exploration_windows, least=0 if windows else 1, whole=True)
        self.windows_per_generation, self.exploration_windows = windows, exploration_windows
        self.fitness_windows = slice(0, windows or None)  # those whose mean return is an agent's fitness

    @abstractmethod
    def build(self, agents: int, device: torch.device) -> None:
        """Make `eval_env` with windows_per_generation + exploration_windows windows, and `val_env`.

        Where every agent is validated, `val_env` has one agent more, for the mean of the elites.
        """

    def needed_bytes(self, agents: int) -> dict[str, int]:
        """Return the bytes by owner that `build` will allocate, as far as they are known in advance."""
        return {}

    @abstractmethod
    def network_inputs(self, observation: Observation) -> Inputs:
        """Return the network inputs of (stored) observations, (agents or 1, batch, ...)."""

    def outcomes(self, observation: Observation) -> Tensor | None:
        """Return what the actions possible in stored observations led to, whichever were taken, in units of rewards.

        Shape (agents, batch, ...), NaN where it is unknown; None where only the outcome of the taken one is known.
        """
        return None

    @property
    @abstractmethod
    def sizes(self) -> Sizes:
        """Return the shapes that networks are built for, after `build`."""

    @abstractmethod
    def make_actor(self) -> nn.Module:
        """Build the workload's default actor, of a class that takes sizes and has defaults for all else."""

    @abstractmethod
    def make_critic(self) -> nn.Module:
        """Build the workload's default critic."""

    @abstractmethod
    def training_options(self, generation: int, seed: int) -> dict[str, Any]:
        """Return the reset options of a generation's windows, the same for every agent."""

    @abstractmethod
    def validation_options(self) -> dict[str, Any]:
        """Return the reset options of the validation windows, the same in every generation."""

    @property
    def longest_episode(self) -> int:
        """Return the steps of the longest episode, after `build`."""
        raise UserError(
            f"{type(self).__name__} does not define longest_episode: define it, or train in one process with "
            "model.gradient_steps of 0 or more"
        )

    def scores(self, env: Environment, returns: Tensor) -> Tensor:
        """Return the fitness of each episode just played in `env`, (agents, windows), from its sum of rewards."""
        return returns

    def episode_metrics(self, summary: dict[str, Tensor], fitness: Tensor) -> dict[str, float]:
        """Return scalars to log, by their full names, of all agents' summary of the fitness windows and fitness."""
        return {}

    def test(self, policies: TrainedPolicies) -> TestResult:
        """Play the champion on data that no fit has used; raise a UserError where the workload has none."""
        raise UserError(f"{type(self).__name__} has no data to test on that fit does not use")

    def record_validation(self) -> None:
        """Prepare to record the first agent of `val_env`, which plays the champion, in its next episodes."""

    def save_champion_record(self, generation: int) -> None:
        """Save the record of the validation that made the recorded agent champion of `generation`."""

    def settings(self) -> dict[str, Any]:
        """Return everything about the data that determines results, as plain values; after `setup`."""
        names = "windows_per_generation exploration_windows replay_capacity replay_min_size batch_size"
        return {name: vars(self)[name] for name in names.split()}

    def allocate_replay(self, device: torch.device, communicator: Communicator) -> None:
        """Allocate the replay buffer, which must hold a step of all agents, and with several processes the log."""
        env = self.eval_env
        per_step, steps = communicator.total * env.windows, env.credit_steps + 1
        if self.replay_capacity < per_step * steps:
            credited = f", and rewards are credited up to {steps - 1} steps back" if steps > 1 else ""
            raise UserError(
                f"data.replay_capacity is {self.replay_capacity}, but {communicator.total} agents in {env.windows} "
                f"windows add {per_step} transitions at once{credited}; raise it to at least {per_step * steps}"
            )
        if communicator.world == 1:
            self.allocate_buffer(self.replay_capacity, self.replay_fields, device)
            return
        self._buffer = None  # frees that of an earlier fit
        log = TransitionLog(env.agents * env.windows, self.longest_episode, self.replay_fields, device)
        self._buffer = SharedReplay(self.replay_capacity, self.replay_fields, communicator, log, device)

    @property
    def replay_fields(self) -> dict[str, Field]:
        """Return the fields of a transition."""
        return transition_fields(self.eval_env.observation_fields, self.eval_env.action_shape)

    @property
    def transition_bytes(self) -> int:
        """Return the bytes of a transition."""
        return sum(field.nbytes for field in self.replay_fields.values())

    def memory_owners(self) -> dict[str, object]:
        """Return the objects that hold memory, by owner name, for a memory profiler."""
        return {"replay": self._buffer, "environments": (self.eval_env, self.val_env)}
