"""Episodes on several landscapes at a time, whose steps go into the replay buffer."""

from collections.abc import Sequence

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

from eigen2.core.replay import Field, ReplayBuffer
from eigen2.dqn.losses import relative_reward
from eigen2.fire.simulation.environment import action_mask
from eigen2.fire.simulation.frames import Frames

Cells = Int64[np.ndarray, " environments"]


def replay_fields(frames: Frames) -> dict[str, Field]:
    """What a step stores. What is observed after it is what the next step of the same environment stores."""
    return {
        **frames.fields,
        "action": Field((), torch.int64),
        "reward": Field((), torch.float32),
        "terminated": Field((), torch.bool),
    }


class Collector:
    """Plays environments side by side; each of their steps adds one transition an environment to the buffer.

    Args:
        environments: of `FuelBreakEnv`s, without automatic resets.
        frames: of their landscapes.
        buffer: takes the transitions.
        relative: whether their rewards are `eigen2.dqn.losses.relative_reward`s, rather than the environments' points.

    Attributes:
        observation: uint8 (environments, planes, rows, columns), as they are now.
        landscape: numbers of the landscapes they are on, (environments,).
        burned: the share of all cells that burns, (environments,).
        reduction: the part of the burned area saved so far, (environments,).
    """

    def __init__(self, environments: VectorEnv, frames: Frames, buffer: ReplayBuffer, relative: bool = True) -> None:
        self.environments, self.frames, self.buffer, self.relative = environments, frames, buffer, relative
        self.observation: UInt8[np.ndarray, "environments planes rows columns"] = np.empty(0, np.uint8)
        self.reduction: Float[np.ndarray, " environments"] = np.zeros(environments.num_envs)
        self.burned: Float[np.ndarray, " environments"] = np.zeros(environments.num_envs)
        self.landscape = np.zeros(environments.num_envs, np.int64)
        self._ended = np.zeros(environments.num_envs, bool)

    @property
    def allowed(self) -> Bool[np.ndarray, "environments cells"]:
        """Where breaks may be placed now."""
        return action_mask(self.observation)

    def begin(self, seeds: Sequence[int]) -> None:
        """Start an episode in every environment.

        Args:
            seeds: that draw landscape and ignitions, one an environment.
        """
        self.observation, info = self.environments.reset(seed=list(seeds))  # type: ignore[arg-type]  # Gymnasium's base class
        self._ended[:] = False
        self._note(info)

    def step(self, cells: Cells) -> Float[np.ndarray, " environments"]:
        """Place a break in each environment and return the environments' rewards.

        Args:
            cells: allowed ones.
        """
        stored, before = self.frames.pack(self.observation, self.landscape), self.burned
        following, reward, terminated, _, info = self.environments.step(cells)
        learned = reward
        if self.relative:
            size = self.observation[0, 0].size
            saved = zip(before, info["burned"], strict=True)
            learned = np.array([relative_reward(had, has, size) for had, has in saved])
        self.buffer.add(
            {
                **stored,
                "action": torch.from_numpy(cells.astype(np.int64)),
                "reward": torch.from_numpy(learned.astype(np.float32)),
                "terminated": torch.from_numpy(terminated.copy()),
            }
        )
        self.observation, self._ended = following, terminated.copy()
        self._note(info)
        earned: Float[np.ndarray, " environments"] = reward
        return earned

    def go_on(self) -> None:
        """Where an episode ended before those of others, start another one."""
        if self._ended.any():
            before = self.landscape, self.reduction, self.burned
            self.observation, info = self.environments.reset(options={"reset_mask": self._ended})
            self._note(info)
            for now, kept in zip((self.landscape, self.reduction, self.burned), before, strict=True):
                now[~self._ended] = kept[~self._ended]
            self._ended[:] = False

    def _note(self, info: dict[str, np.ndarray]) -> None:
        self.landscape = np.array(info["landscape"], np.int64)
        self.reduction = np.array(info["reduction"], float)
        self.burned = np.array(info["burned"], float)


def draw_slots(
    buffer: ReplayBuffer, environments: int, steps: int, batch_size: int, chance: np.random.Generator
) -> Int64[Tensor, "steps_and_next batch"]:
    """Slots of transitions and of those that followed them in the same environment.

    Args:
        buffer: to draw from.
        environments: that add to it together, one after the other.
        steps: of a transition, 1 or more; the newest ones of each environment are not followed by so many yet.
        batch_size: transitions to draw, 1 or more.
        chance: draws them, evenly and with replacement.

    Returns:
        Row k has what was stored k steps later; the last row, what was observed after all `steps`.
    """
    newest = environments * steps
    age = chance.integers(newest, len(buffer), size=batch_size)  # of the newest transition it is 0
    first = torch.from_numpy((buffer.position - 1 - age) % buffer.capacity)
    later = environments * torch.arange(steps + 1)[:, None]
    slots: Tensor = (first + later) % buffer.capacity
    return slots
