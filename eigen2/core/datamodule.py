"""What an epoch draws: two environments that live as long as the run, one replay buffer, a generation's steps."""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn

from eigen2.core.credit import CreditedSteps
from eigen2.core.networks import Inputs, Sizes
from eigen2.core.randomness import Role, generator
from eigen2.core.replay import Field, ReplayBuffer, transition_fields
from eigen2.core.transition_exchange import Journal
from eigen2.distributed.communicator import Communicator
from eigen2.errors import UserError, require_range

Observation = dict[str, Tensor]
Act = Callable[[Observation], Tensor]
"""What an agent sees in some windows, (1, windows, ...) each, to its actions there, in [-1, 1]."""


@dataclass(frozen=True)
class Trained:
    """What a run has come to."""

    champion: Act
    agents: list[Act]
    """The population as it is."""
    generation: int
    """The champion's."""
    tried: int
    """Agents whose fitness was looked at, in all generations together."""
    seed: int


@dataclass(frozen=True)
class Findings:
    """What a test found."""

    metrics: dict[str, float]
    """Scalars by name."""
    text: str
    """What a user should read of it."""


@runtime_checkable
class Environment(Protocol):
    """A workspace that steps all agents in several windows at once and is reset for the life of the run.

    What it returns is the caller's: later steps and resets do not change it. Tensors have the leading axes (agents,
    windows), observations may have 1 for agents where all see the same.
    """

    agents: int
    windows: int
    observation_fields: dict[str, Field]
    credit_steps: int
    """How many steps earlier at most a reward may have been earned; above 0, `info["credit"]` of every step is a
    `Credit`, which says what was."""

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Of one agent in one window."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start new episodes, one a window."""

    def step(self, action: Tensor) -> tuple[Observation, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Next observation, reward, terminated, truncated, info."""

    def native_action(self, unit: Tensor) -> Tensor:
        """Actions in [-1, 1] in the environment's own units."""

    def get_episode_summary(self, windows: slice = ...) -> dict[str, Tensor]:
        """What happened since `reset`, (agents,) each."""


class StepTokens:
    """`count` numbered steps: a sized iterable in place of a DataLoader.

    A DataLoader would draw from the global generator at each epoch, which breaks exact resume; an unsized one is read
    one item ahead, before the generation's rollouts.
    """

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


@torch.no_grad()
def play(
    env: Environment,
    act: Callable[[Observation], Tensor],
    options: dict[str, Any],
    buffer: ReplayBuffer | None = None,
    after_step: Callable[[], None] = lambda: None,
) -> Tensor:
    """Play one episode in every window and return the undiscounted returns, (agents, windows) float64.

    A return is NaN where an action was not finite, whatever the environment made of it. What the buffer takes has its
    reward where the environment says that it was earned; over an episode the sum is the same.

    Args:
        env: reset here; afterwards it holds the episode's summary.
        act: observation to actions in [-1, 1].
        options: for `env.reset`; `playing` (agents, windows), if it is there, says where an episode is played at all.
        buffer: takes every transition up to the end of its episode, but for those with an observation, action or
            reward that is not finite: they would break every agent that learns from them.
        after_step: called after every step of the environment.
    """
    observation, _ = env.reset(options=options)
    seen = _finite(observation.values())
    returns: Tensor | None = None
    alive: Tensor | None = None
    earlier: CreditedSteps | None = None
    if buffer is not None and env.credit_steps:
        earlier = CreditedSteps(buffer, env.agents * env.windows, env.credit_steps)
    while alive is None or bool(alive.any()):
        action = act(observation)
        following, reward, terminated, truncated, info = env.step(env.native_action(action))
        if alive is None or returns is None:
            alive = options.get("playing", torch.ones((), dtype=torch.bool)).to(reward.device).expand_as(terminated)
            returns = torch.zeros_like(reward, dtype=torch.float64)
        acted = _finite([action])
        earned = reward if acted is None else torch.where(acted, reward, torch.nan)
        if buffer is not None:
            then = _finite(following.values())
            stored = alive
            for sound in (seen, then, _finite([earned])):
                stored = stored if sound is None else stored & sound
            ends = {"action": action, "reward": reward, "terminated": terminated, "truncated": truncated}
            following_fields = {f"next_{name}": value for name, value in following.items()}
            if earlier is not None:
                earlier.note(stored)
            buffer.add(_rows({**observation, **following_fields, **ends}, stored))
            if earlier is not None:
                earlier.move(info["credit"])
            seen = then
        returns += torch.where(alive, earned, 0.0)
        alive = alive & ~(terminated | truncated)
        observation = following
        after_step()
    assert returns is not None
    return returns


def _finite(values: Iterable[Tensor]) -> Tensor | None:
    """Where all floating values (agents or 1, windows, ...) are finite, (agents or 1, windows); None for everywhere."""
    floats = [value for value in values if value.is_floating_point()]
    if all(math.isfinite(float(value.sum(dtype=torch.float64))) for value in floats):
        return None  # a sum of finite float32 numbers cannot overflow a float64
    each = [value.reshape(*value.shape[:2], -1).isfinite().all(2) for value in floats]
    return functools.reduce(torch.logical_and, each)


def _rows(transitions: dict[str, Tensor], chosen: Tensor) -> dict[str, Tensor]:
    """The chosen transitions (agents, windows) as rows, agent by agent; shared values repeated."""
    agents = len(chosen)
    rows = {
        name: (value if value.shape[0] == agents else value.expand(agents, *value.shape[1:])).flatten(0, 1)
        for name, value in transitions.items()
    }
    if bool(chosen.all()):
        return rows
    return {name: value[chosen.flatten()] for name, value in rows.items()}


class RolloutDataModule(LightningDataModule, ABC):
    """The data side of ERL for any workload: a subclass loads its data, builds its environments and networks.

    Args:
        windows_per_generation: episodes whose mean return is an agent's fitness, the same for every agent (0 or more;
            with 0 the exploration windows count).
        exploration_windows: further episodes a generation, played with exploration noise to fill the replay buffer
            and not counted in fitness (0 or more).
        replay_capacity: transitions the shared replay buffer holds (1 or more).
        replay_min_size: transitions in the buffer before training starts (batch_size to replay_capacity).
        batch_size: transitions of a micro-batch, for each agent its own sample (1 or more).

    Attributes:
        eval_env, val_env: the two environments of the run.
        buffer: the replay buffer.
    """

    workload = ""
    """Its name on the command line."""
    validates_all = True
    """Whether every agent is validated in each generation; else the fittest in training alone, and `val_env` has one
    agent."""

    eval_env: Environment
    val_env: Environment
    buffer: ReplayBuffer

    def __init__(
        self,
        windows_per_generation: int,
        exploration_windows: int,
        replay_capacity: int,
        replay_min_size: int,
        batch_size: int,
    ) -> None:
        super().__init__()
        require_range("data.windows_per_generation", windows_per_generation, least=0)
        require_range("data.exploration_windows", exploration_windows, least=0 if windows_per_generation else 1)
        require_range("data.replay_capacity", replay_capacity, least=1)
        require_range("data.batch_size", batch_size, least=1)
        require_range("data.replay_min_size", replay_min_size, least=batch_size)
        if replay_min_size > replay_capacity:
            raise UserError(
                f"data.replay_min_size is {replay_min_size}, more than data.replay_capacity {replay_capacity}: "
                "training would never start; lower the one or raise the other"
            )
        self.windows_per_generation = windows_per_generation
        self.exploration_windows = exploration_windows
        self.replay_capacity = replay_capacity
        self.replay_min_size = replay_min_size
        self.batch_size = batch_size
        self.micro_batches = 1
        self.journal: Journal | None = None
        self._saved_buffer: dict[str, Any] | None = None

    # What a workload provides

    @abstractmethod
    def build(self, agents: int, device: torch.device) -> None:
        """Make `eval_env` with windows_per_generation + exploration_windows windows, and `val_env`."""

    @abstractmethod
    def needed_bytes(self, agents: int) -> dict[str, int]:
        """Bytes by owner that `build` will take."""

    @property
    def most_steps(self) -> int:
        """Steps of the longest episode, after `build`; needed where agents are on several processes."""
        raise UserError(f"{type(self).__name__} does not say how long an episode is at most: train in one process")

    @abstractmethod
    def network_inputs(self, observation: Observation) -> Inputs:
        """What networks see of (stored) observations, (agents or 1, batch, ...)."""

    @property
    @abstractmethod
    def sizes(self) -> Sizes:
        """What networks are built for, after `build`."""

    @abstractmethod
    def make_actor(self) -> nn.Module:
        """The workload's default actor; of a class that takes sizes and has defaults for all else."""

    @abstractmethod
    def make_critic(self) -> nn.Module:
        """The workload's default critic."""

    @abstractmethod
    def training_options(self, generation: int, seed: int) -> dict[str, Any]:
        """Reset options of a generation's windows, the same for every agent."""

    @abstractmethod
    def validation_options(self) -> dict[str, Any]:
        """Reset options of the validation windows, the same in every generation."""

    def episode_metrics(self, summary: dict[str, Tensor]) -> dict[str, float]:
        """Scalars to log of the fitness windows' summary, by their full names."""
        return {}

    def describe(self) -> dict[str, str]:
        """Name and value of what a user should see at the start."""
        return {}

    def settings(self) -> dict[str, Any]:
        """Everything about the data that decides what comes out of a run, as plain values; after `setup`."""
        names = ("windows_per_generation", "exploration_windows", "replay_capacity", "replay_min_size", "batch_size")
        return {name: getattr(self, name) for name in names}

    def seen(self) -> dict[str, Any]:
        """What a fit looks at, as plain values: kept in its checkpoints, for `require_unseen`; after `setup`."""
        return {}

    def require_unseen(self, seen: Mapping[str, Any]) -> None:
        """Refuse a test on what a fit has looked at.

        Args:
            seen: of the fit.

        Raises:
            UserError: names what they share.
        """

    def acting(self) -> dict[str, Any]:
        """What makes an actor's inputs of other data as of this, as JSON can hold it; after `build`."""
        return {}

    def see_as(self, acting: Mapping[str, Any]) -> None:
        """Show networks these data as the fit of a checkpoint showed them its own; after `build`.

        Args:
            acting: of the fit.
        """

    def test(self, trained: Trained) -> Findings:
        """Play the champion on what no fit has looked at.

        Raises:
            UserError: there is no such thing.
        """
        raise UserError(f"{type(self).__name__} has nothing to test on that fit does not see")

    # What every workload shares

    def allocate_replay(self, device: torch.device, share: Communicator | None = None) -> None:
        """Take the replay buffer's memory, once; with agents on several processes the journal's too.

        Args:
            device: where it lies.
            share: which agents are here; None for all.

        Raises:
            UserError: one step of all agents in all windows would not fit.
        """
        env = self.eval_env
        at_once = (share.total if share else env.agents) * env.windows
        steps = env.credit_steps + 1
        self.journal = None
        if share and share.world > 1:
            self.journal = Journal(env.agents * env.windows, self.most_steps, self.replay_fields, device)
        if self.replay_capacity < at_once * steps:
            raise UserError(
                f"data.replay_capacity is {self.replay_capacity}, but {at_once // env.windows} agents in "
                f"{env.windows} windows add {at_once} transitions at once"
                + (f", and rewards go back to those of {steps - 1} steps before" if steps > 1 else "")
                + f"; raise it to at least {at_once * steps}"
            )
        kept = getattr(self, "buffer", None)
        if kept is not None and kept.suits(self.replay_capacity, self.replay_fields, device):
            kept.reset_memory()  # fitting again takes no second buffer
        else:
            self.buffer = ReplayBuffer(self.replay_capacity, self.replay_fields, device)

    @property
    def fitness_windows(self) -> slice:
        """The windows whose mean return is an agent's fitness."""
        return slice(0, self.windows_per_generation or None)

    @property
    def replay_fields(self) -> dict[str, Field]:
        """What a transition stores."""
        return transition_fields(self.eval_env.observation_fields, self.eval_env.action_shape)

    @property
    def transition_bytes(self) -> int:
        """Bytes a transition takes."""
        return sum(field.nbytes for field in self.replay_fields.values())

    @property
    def replay_bytes(self) -> int:
        """Bytes the replay buffer takes."""
        return self.replay_capacity * self.transition_bytes

    def draw_bytes(self, agents: int, micro_batches: int) -> int:
        """Bytes of the replay slots that a generation draws, and of one agent's beside them."""
        return 8 * (agents + 1) * micro_batches * self.batch_size

    @property
    def ready(self) -> bool:
        """Whether the buffer is full enough to train from."""
        return len(self.buffer) >= self.replay_min_size

    def watch(self, agent: int) -> None:
        """Told before a validation that `agent` may come out of it as champion: a workload may record its episodes."""

    def keep_record(self, generation: int) -> None:
        """Told after a validation that the watched agent is the champion, found in `generation`."""

    def draw_slots(self, agents: int, micro_batches: int, generation: int, seed: int, first: int = 0) -> Tensor:
        """Replay slots for a generation, (micro_batches, agents, batch_size); each agent draws from its own address.

        Args:
            agents: how many there are (0 or more).
            micro_batches: of the generation.
            generation: the current one.
            seed: the run's.
            first: number of the first agent.
        """
        shape = (micro_batches, self.batch_size)
        slots = torch.empty(micro_batches, agents, self.batch_size, dtype=torch.int64)
        for agent in range(agents):
            drawn = generator(seed, Role.REPLAY, generation, first + agent).integers(len(self.buffer), size=shape)
            slots[:, agent] = torch.from_numpy(drawn)
        return slots

    def train_dataloader(self) -> StepTokens:
        """One token a micro-batch; their number is the module's to say."""
        return StepTokens(self.micro_batches)

    def val_dataloader(self) -> StepTokens:
        """One token: the whole validation is one step."""
        return StepTokens(1)

    def test_dataloader(self) -> StepTokens:
        """One token: the whole test is one step."""
        return StepTokens(1)

    def memory_owners(self) -> dict[str, object]:
        """What holds bytes, for a memory profiler."""
        return {"replay": (self.buffer, self.journal), "environments": (self.eval_env, self.val_env)}

    def state_dict(self) -> dict[str, Any]:
        """The replay buffer, by reference."""
        return {"replay": self.buffer.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copy the saved replay buffer back; validation, which has none, leaves it."""
        if self.trainer is not None and self.trainer.state.fn != TrainerFn.FITTING:
            return
        self.buffer.load_state_dict(state_dict["replay"])
