"""A generation's transitions of several processes, put into each one's replay buffer in one and the same order."""

from collections.abc import Mapping

import torch
from torch import Tensor

from eigen2.core.replay import Field, ReplayBuffer
from eigen2.distributed.communicator import Communicator, pack_rows, unpack_rows


class Journal(ReplayBuffer):
    """What agents here add in one generation, step by step, until it is shared.

    Args:
        at_once: transitions that one step adds at most.
        steps: of the longest episode.
        fields: as the replay buffer's.
        device: where they lie.
    """

    def __init__(
        self, at_once: int, steps: int, fields: Mapping[str, Field], device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(at_once * steps, fields, device)
        self.steps = steps
        self.counts: list[int] = []

    def add(self, transitions: Mapping[str, Tensor]) -> None:
        """Add those of a step.

        Raises:
            ValueError: an episode is longer than was said.
        """
        if len(self.counts) == self.steps:
            raise ValueError(f"an episode has more than the {self.steps} steps it was said to have at most")
        super().add(transitions)
        self.counts.append(len(transitions["reward"]))

    def clear(self) -> None:
        """Forget the generation; the memory stays for the next one."""
        self.size = self.position = self.added = 0
        self.counts.clear()


def share_journal(journal: Journal, buffer: ReplayBuffer, share: Communicator) -> None:
    """Put what all processes noted into the replay buffer, as one that plays all agents would have; clear the journal.

    What would be overwritten by later steps of the same generation does not travel.

    Args:
        journal: of this process.
        buffer: takes the transitions step by step, in each step those of the first agents first.
        share: which agents are where.

    Raises:
        RunStopped: contact with another process was lost.
    """
    own = torch.zeros(1, journal.steps, dtype=torch.int64)
    own[0, : len(journal.counts)] = torch.tensor(journal.counts, dtype=torch.int64)
    counts = {"counts": own}
    told = share.gather_parts(pack_rows(counts), [1] * share.world, "how many transitions there are")
    added = unpack_rows(torch.cat(told), counts)["counts"]  # (processes, steps)
    later = added.sum(0).flip(0).cumsum(0).flip(0) - added.sum(0)
    first = int((later >= buffer.capacity).sum())
    before = added[:, :first].sum(1)
    buffer.skip(int(before.sum()))
    kept = {name: journal[name][int(before[share.rank]) :] for name in journal.fields}
    parts = share.gather_parts(pack_rows(kept), added[:, first:].sum(1).tolist(), "transitions")
    rows = [unpack_rows(part, kept) for part in parts]
    ends = added[:, first:].cumsum(1)
    for step, count in enumerate(added[:, first:].unbind(1)):
        cuts = [slice(int(end - of), int(end)) for end, of in zip(ends[:, step], count, strict=True)]
        if int(count.sum()):
            buffer.add(
                {name: torch.cat([each[name][cut] for each, cut in zip(rows, cuts, strict=True)]) for name in kept}
            )
    journal.clear()
