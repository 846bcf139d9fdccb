"""Exchange a generation's transitions, so that every process's replay buffer holds all of them in the same order."""

from collections.abc import Mapping

import torch
from torch import Tensor

from eigen2.core.replay import Field, ReplayBuffer
from eigen2.distributed.communicator import Communicator, pack_rows, unpack_rows


class TransitionLog(ReplayBuffer):
    """Transitions of this process's agents in one generation, up to `steps` steps of at most `rows` transitions."""

    def __init__(self, rows: int, steps: int, fields: Mapping[str, Field], device: torch.device | str = "cpu") -> None:
        super().__init__(rows * steps, fields, device)
        self.steps = steps
        self.counts: list[int] = []

    def add(self, transitions: Mapping[str, Tensor]) -> None:
        """Add the transitions of one step; raise a ValueError after more than `steps` steps."""
        if len(self.counts) == self.steps:
            raise ValueError(f"an episode has more steps than the {self.steps} of the longest episode")
        super().add(transitions)
        self.counts.append(len(transitions["reward"]))

    def clear(self) -> None:
        """Drop the generation and keep the memory."""
        self.size = self.position = self.added = 0
        self.counts.clear()


def exchange_transitions(log: TransitionLog, buffer: ReplayBuffer, communicator: Communicator) -> None:
    """Add all processes' logs to the buffer in the order of one process, by step, then by agent; clear the log."""
    counts_of_steps = torch.zeros(1, log.steps, dtype=torch.int64)
    counts_of_steps[0, : len(log.counts)] = torch.tensor(log.counts, dtype=torch.int64)
    like = {"counts": counts_of_steps}
    received = communicator.gather_parts(pack_rows(like), [1] * communicator.world, "transition counts")
    added = unpack_rows(torch.cat(received), like)["counts"]  # (processes, steps)
    logged = {name: log[name] for name in log.fields}
    packed = communicator.gather_parts(pack_rows(logged), added.sum(1).tolist(), "transitions")
    # each process's transitions, split by step
    parts = [
        {name: torch.split(values, counts) for name, values in unpack_rows(part, logged).items()}
        for part, counts in zip(packed, added.tolist(), strict=True)
    ]
    for step in range(added.shape[1]):
        if added[:, step].any():
            buffer.add({name: torch.cat([part[name][step] for part in parts]) for name in logged})
    log.clear()
