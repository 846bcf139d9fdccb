"""A tiny workload: tasks so small that the right values are known, played through the real module.

A probe shows a number x, takes a number as the action and pays a reward. Every episode has the same length and ends
terminated or truncated.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor, nn

from eigen2.core.datamodule import RolloutDataModule
from eigen2.core.environment import Observation
from eigen2.core.networks import Inputs, Sizes
from eigen2.core.randomness import Role, generator
from eigen2.core.replay import Field
from eigen2.erl.learners import DDPG
from eigen2.erl.module import ERLModule
from eigen2.runtime.checkpoint import DurableCheckpointIO


@dataclass(frozen=True)
class Probe:
    """A task."""

    reward: Callable[[Tensor, Tensor, int], Tensor]  # of (x, action, step), (agents, windows); step counts from 0
    steps: int = 1  # of an episode
    truncated: bool = False  # whether episodes are cut at their end instead of terminating
    contexts: Sequence[float] = (0.0,)  # values of x, drawn evenly for every window
    walks: bool = False  # whether x is context + step instead of the context throughout


AIM = Probe(lambda x, action, step: -((action - 0.5) ** 2), contexts=(-1.0, 0.0, 1.0))


class ProbeEnvironment:
    """Steps a probe for all agents in all windows; x is the same for all agents and is given once, as (1, windows)."""

    credit_steps, action_shape = 0, (1,)

    def __init__(self, probe: Probe, agents: int, windows: int) -> None:
        self.probe, self.agents, self.windows = probe, agents, windows
        self.observation_fields = {"x": Field((1,), torch.float32)}
        self.context = torch.zeros(windows)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Observation, dict[str, Any]]:
        self.context = torch.tensor(options["contexts"], dtype=torch.float32)
        self.steps, self.actions = 0, list[Tensor]()
        return self._observation(), {}

    def _observation(self) -> Observation:
        x = self.context + self.steps if self.probe.walks else self.context
        return {"x": x.clone()[None, :, None]}

    def step(self, action: Tensor) -> tuple[Observation, Tensor, Tensor, Tensor, dict[str, Any]]:
        x = self._observation()["x"][..., 0].expand(self.agents, -1)
        self.actions.append(action.clone())
        reward = self.probe.reward(x, action[..., 0], self.steps)
        self.steps += 1
        over = torch.full(reward.shape, self.steps == self.probe.steps)
        never = torch.zeros_like(over)
        terminated, truncated = (never, over) if self.probe.truncated else (over, never)
        return self._observation(), reward, terminated, truncated, {}

    def native_action(self, unit: Tensor) -> Tensor:
        return unit

    def get_episode_summary(self, windows: slice = slice(None)) -> dict[str, Tensor]:
        return {"steps": torch.full((self.agents,), self.steps)}


class ProbeActor(nn.Module):
    """One hidden layer; actions (batch, 1) in [-1, 1]."""

    head_parameters = ("layers.2",)

    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, 1), nn.Tanh())

    def forward(self, inputs: Inputs) -> Tensor:
        return self.layers(inputs["x"])


class ProbeCritic(nn.Module):
    """Two hidden layers; values (batch,)."""

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        first, second, last = nn.Linear(2, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 1)
        self.layers = nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), last)

    def forward(self, inputs: Inputs, action: Tensor) -> Tensor:
        return self.layers(torch.cat([inputs["x"], action], dim=-1))[..., 0]


class ProbeRollouts(RolloutDataModule):
    """The data side of a probe."""

    eval_env: ProbeEnvironment
    val_env: ProbeEnvironment

    def __init__(
        self,
        probe: Probe,
        *,
        windows_per_generation: int = 4,
        exploration_windows: int = 12,
        replay_capacity: int = 2048,
        replay_min_size: int = 32,
        batch_size: int = 32,
        critic_hidden: int = 16,
    ) -> None:
        super().__init__(windows_per_generation, exploration_windows, replay_capacity, replay_min_size, batch_size)
        self.probe, self.critic_hidden = probe, critic_hidden

    def build(self, agents: int, device: torch.device) -> None:
        self.eval_env = ProbeEnvironment(self.probe, agents, self.windows_per_generation + self.exploration_windows)
        self.val_env = ProbeEnvironment(self.probe, agents + 1, len(self.probe.contexts))

    @property
    def longest_episode(self) -> int:
        return self.probe.steps

    def network_inputs(self, observation: Observation) -> Inputs:
        return {"x": observation["x"]}

    @property
    def sizes(self) -> Sizes:
        return Sizes({"x": (1,)}, self.eval_env.action_shape)

    def make_actor(self) -> nn.Module:
        return ProbeActor()

    def make_critic(self) -> nn.Module:
        return ProbeCritic(self.critic_hidden)

    def training_options(self, generation: int, seed: int) -> dict[str, Any]:
        drawn = generator(seed, Role.WINDOWS, generation).choice(self.probe.contexts, size=self.eval_env.windows)
        return {"contexts": drawn.tolist()}

    def validation_options(self) -> dict[str, Any]:
        return {"contexts": list(self.probe.contexts)}


def make_trainer(*callbacks: Callback, epochs: int = 1, **settings: Any) -> Trainer:
    """A Trainer that writes nothing, unless told to."""
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    defaults: dict[str, Any] = {**quiet, "num_sanity_val_steps": 0, "accelerator": "cpu", "devices": 1}
    defaults["plugins"] = [DurableCheckpointIO()]
    return Trainer(max_epochs=epochs, callbacks=list(callbacks), **{**defaults, **settings})


def fit(
    probe: Probe,
    *callbacks: Callback,
    epochs: int = 1,
    data: dict[str, Any] | None = None,
    module_class: type[ERLModule] = ERLModule,
    **model: Any,
) -> ERLModule:
    """Train a population of 4 on a probe; the module keeps its trainer and data afterwards."""
    settings: dict[str, Any] = {"population_size": 4, "gradient_steps": 4, "accumulate": 1, "gamma": 0.5, "tau": 0.1}
    settings |= {
        "actor_lr": 1e-2,
        "critic_lr": 1e-2,
        "reward_scale": 1.0,
        "noise": 0.5,
        "noise_decay": 1.0,
        "learner": DDPG(saturation_penalty=0.0),
    }
    module = module_class(**{**settings, "evolution": None, **model})
    make_trainer(*callbacks, epochs=epochs).fit(module, datamodule=ProbeRollouts(probe, **(data or {})))
    return module
