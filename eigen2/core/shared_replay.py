"""A replay buffer spread over processes: each holds a part of the slots, and fetches what its agents draw."""

from collections.abc import Mapping

import torch
from jaxtyping import Int
from torch import Tensor

from eigen2.core.replay import Field, ReplayBuffer
from eigen2.distributed.communicator import Communicator

CHUNK_BYTES = 16_000_000  # of transitions that a process sends or receives at once


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


class SharedReplay(ReplayBuffer):
    """The replay buffer of n processes, of which this one holds every n-th slot, the first one by its rank.

    Slot by slot it is what a single process would hold. Its agents' transitions of a generation are first added to
    `log`. All processes call `add_log` and `gather` together.
    """

    def __init__(
        self,
        capacity: int,
        fields: Mapping[str, Field],
        communicator: Communicator,
        log: TransitionLog,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(capacity, fields, device, range(communicator.rank, capacity, communicator.world))
        self.log, self._communicator = log, communicator

    def add_log(self) -> None:
        """Add the logs of all processes in the order of one process, by step, then by agent; clear this one's."""
        log, rank = self.log, self._communicator.rank
        steps = torch.zeros(1, log.steps, dtype=torch.int64)
        steps[0, : len(log.counts)] = torch.tensor(log.counts, dtype=torch.int64)
        ranks = [1] * self._communicator.world
        counts = self._communicator.gather({"steps": steps}, "transition counts", ranks)["steps"]  # (processes, steps)
        by_step, total = counts.sum(0), int(counts.sum())
        first = by_step.cumsum(0) - by_step + counts[:rank].sum(0)  # number of this process's first one in each step
        logged = counts[rank].cumsum(0) - counts[rank]
        numbers = torch.arange(len(log)) + (first - logged).repeat_interleave(counts[rank])
        chunk = max(1, CHUNK_BYTES // (self.bytes_per_transition * max(1, int(counts.max()))))  # steps
        for step in range(0, log.steps, chunk):
            begin, end = (int(counts[rank, :until].sum()) for until in (step, step + chunk))
            kept = (
                begin + torch.nonzero(numbers[begin:end] >= total - self.capacity).flatten()
            )  # others overwrite these
            self._send(kept, (self.position + numbers[kept]) % self.capacity)
        self.position = (self.position + total) % self.capacity
        self.size, self.added = min(self.size + total, self.capacity), self.added + total
        log.clear()

    def _send(self, chosen: Int[Tensor, " sent"], slots: Int[Tensor, " sent"]) -> None:
        """Put chosen transitions of the log into their slots, whichever process holds these."""
        order, counts = self._by_owner(slots)
        sent = {**self.log.gather(chosen[order].to(self.device)), "slot": slots[order]}
        received, _ = self._communicator.exchange(sent, counts, "transitions")
        places = self._places(received.pop("slot"))
        for name, values in received.items():
            self._storage[name][places] = values

    def gather(self, slots: Int[Tensor, "..."]) -> dict[str, Tensor]:
        """Return copies of the transitions in `slots`, which each process chooses for itself, as in one process."""
        flat = slots.reshape(-1).cpu()
        order, counts = self._by_owner(flat)
        asked, asking = self._communicator.exchange({"slot": flat[order]}, counts, "drawn slots")
        answer = super().gather(self._places(asked["slot"]))
        drawn, _ = self._communicator.exchange(answer, asking, "drawn transitions")
        back = order.argsort().to(self.device)
        return {name: values[back].reshape((*slots.shape, *values.shape[1:])) for name, values in drawn.items()}

    def batches_at_once(self, transitions: int) -> int:
        """Return how many batches, of at most so many transitions in any process, make one exchange."""
        return max(1, CHUNK_BYTES // (self.bytes_per_transition * transitions))

    def _by_owner(self, slots: Int[Tensor, " slots"]) -> tuple[Int[Tensor, " slots"], list[int]]:
        """Return the order in which slots go by rank of the process that holds them, and how many each holds."""
        owners, world = slots % self._communicator.world, self._communicator.world
        return owners.argsort(stable=True), torch.bincount(owners, minlength=world).tolist()

    def _places(self, slots: Int[Tensor, " slots"]) -> Int[Tensor, " slots"]:
        """Return where in this process's memory its slots are."""
        return (slots // self._communicator.world).to(self.device)
