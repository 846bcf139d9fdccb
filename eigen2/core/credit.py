"""Move rewards in the replay buffer to the steps that earned them."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from eigen2.core.replay import ReplayBuffer


class Credit(NamedTuple):
    """Parts of a step's rewards that earlier steps earned."""

    account: Int[np.ndarray, " parts"]  # index into (agents, windows), flattened
    steps_ago: Int[np.ndarray, " parts"]  # steps since the part was earned; 0 for this very step
    amount: Float[np.ndarray, " parts"]


class CreditedSteps:
    """Replay slots of an episode's last steps; moves rewards back to earlier ones, at most `steps` (0 or more) ago.

    The buffer must hold at least `steps` + 1 transitions of every account (agents x windows).
    """

    def __init__(self, buffer: ReplayBuffer, accounts: int, steps: int) -> None:
        self._buffer, self._step = buffer, -1
        self._slots = np.full((steps + 1, accounts), -1)

    def record(self, stored: Tensor) -> None:
        """Record the slots of a step about to be added; `stored` (agents, windows) selects its transitions."""
        mask = stored.flatten().cpu().numpy()
        slots = (self._buffer.position - 1 + np.cumsum(mask)) % self._buffer.capacity
        self._step += 1
        self._slots[self._step % len(self._slots)] = np.where(mask, slots, -1)

    def move(self, credit: Credit) -> None:
        """Move parts of the last step's rewards to the steps that earned them, where these were stored."""
        now = self._slots[self._step % len(self._slots), credit.account]
        then = self._slots[(self._step - credit.steps_ago) % len(self._slots), credit.account]
        for slots, sign in ((now, -1.0), (then, 1.0)):
            chosen = (then >= 0) & (slots >= 0) & (credit.steps_ago > 0)
            self._buffer.add_reward(slots[chosen], sign * credit.amount[chosen])
