"""Gymnasium environments of this test suite: small, and with known answers."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

ROOM = spaces.Box(-10.0, 10.0, (2,), np.float64)


class Count(gymnasium.Env[np.ndarray, np.ndarray]):
    """Shows (a number drawn at reset, steps so far); pays the action plus that number; ends after `ends` steps.

    A step after the end, or before a reset, is an error: whoever resets by itself, or does not, is found out.
    """

    observation_space = ROOM
    action_space = spaces.Box(np.array([-2.0], np.float32), np.array([6.0], np.float32))

    def __init__(self, ends: int = 4, pays: Any = 1.0, fails: str = "", shows: int = 2) -> None:
        self.ends, self.pays, self.fails, self.shows = ends, pays, fails, shows
        self.steps: int | None = None
        self.resets = 0
        self.fail("init")
        if fails == "memory":
            raise MemoryError

    def fail(self, where: str) -> None:
        if self.fails == (where if self.resets < 2 else f"{where} later"):
            raise OSError("no such\nfile")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.fail("reset")
        self.drawn = float(self.np_random.uniform())
        self.steps = 0
        self.resets += 1
        return np.array([self.drawn, 0.0]), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        self.fail("step")
        assert self.steps is not None
        assert self.steps < self.ends, "stepped after its end"
        assert self.action_space.contains(action)
        # the sooner, the larger the action: copies end at different times
        self.steps += 1 if float(action[0]) < 4 else 2
        over = self.steps >= self.ends
        pay = None if self.pays is None else np.multiply(self.pays, float(action[0])) + self.drawn
        return np.resize([self.drawn, self.steps], self.shows), pay, over, False, {}


class Pictures(Count):
    """Shows a dictionary of arrays."""

    observation_space = spaces.Dict({"a": spaces.Box(0, 1, (2, 3)), "b": spaces.Discrete(4)})

    def reset(self, **options: Any) -> Any:
        super().reset(**options)
        return {"a": np.full((2, 3), 0.5, np.float32), "b": 2}, {}

    def step(self, action: np.ndarray) -> Any:
        _, *rest = super().step(action)
        return {"a": np.full((2, 3), 0.25, np.float32), "b": 3}, *rest


class Unbounded(Count):
    action_space = spaces.Box(-np.inf, np.inf, (1,))


class Huge(Count):
    action_space = spaces.Box(-np.finfo(np.float32).max, np.finfo(np.float32).max, (1,))


class Huge64(Count):
    action_space = spaces.Box(0.0, 1e300, (1,), np.float64)


class Inert(Count):
    action_space = spaces.Box(0.0, 1.0, (0,))


class Sequences(Count):
    observation_space = spaces.Sequence(spaces.Discrete(2))


for name, kind, limit in (
    ("Count", Count, 3),
    ("Endless", Count, None),
    ("Pictures", Pictures, 3),
    ("Unbounded", Unbounded, 3),
    ("Huge", Huge, 3),
    ("Huge64", Huge64, 3),
    ("Inert", Inert, 3),
    ("Sequences", Sequences, 3),
):
    gymnasium.register(f"tests/{name}-v0", entry_point=kind, max_episode_steps=limit)
