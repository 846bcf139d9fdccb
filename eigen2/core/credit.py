"""Rewards that come later than the step that earned them, put where they belong in the replay buffer."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from eigen2.core.replay import ReplayBuffer


class Credit(NamedTuple):
    """Parts of a step's rewards that earlier steps earned."""

    account: Int[np.ndarray, " parts"]
    """Whose: the index into (agents, windows), flattened."""
    steps_ago: Int[np.ndarray, " parts"]
    """How long ago: 0 for this very step."""
    amount: Float[np.ndarray, " parts"]
    """How much of the reward."""


class CreditedSteps:
    """The slots of an episode's last steps in a replay buffer, between which rewards are moved.

    Args:
        buffer: holds at least `steps` + 1 transitions of every account.
        accounts: agents x windows.
        steps: longest way back (0 or more).
    """

    def __init__(self, buffer: ReplayBuffer, accounts: int, steps: int) -> None:
        self._buffer = buffer
        self._slots = np.full((steps + 1, accounts), -1)
        self._step = -1

    def note(self, stored: Tensor) -> None:
        """Remember where a step's transitions are about to be added; `stored` (agents, windows) says which are."""
        own = stored.flatten().cpu().numpy()
        slots = (self._buffer.position - 1 + np.cumsum(own)) % self._buffer.capacity
        self._step += 1
        self._slots[self._step % len(self._slots)] = np.where(own, slots, -1)

    def move(self, credit: Credit) -> None:
        """Move parts of the noted step's rewards to the steps that earned them, where these were stored."""
        now = self._slots[self._step % len(self._slots), credit.account]
        then = self._slots[(self._step - credit.steps_ago) % len(self._slots), credit.account]
        for slots, sign in ((now, -1.0), (then, 1.0)):
            chosen = (then >= 0) & (slots >= 0) & (credit.steps_ago > 0)
            self._buffer.add_reward(slots[chosen], sign * credit.amount[chosen])
