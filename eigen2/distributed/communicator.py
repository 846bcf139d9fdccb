"""The rows of a population that a process owns, and all that processes tell each other about theirs."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch import distributed as dist

from eigen2.errors import LOST_CONTACT, RunStopped

Rows = Mapping[str, Tensor]
"""Tensors by name, each with the same leading axis of rows; what is exchanged together travels as one message."""


@contextmanager
def in_contact(rank: int, world: int, purpose: str) -> Iterator[None]:
    """Turn the failure of an exchange into one line.

    Args:
        rank: of this process.
        world: how many there are.
        purpose: what is exchanged.

    Raises:
        RunStopped: another process ended, or did not answer in time.
    """
    try:
        yield
    except RuntimeError as error:  # torch.distributed's are of this class, and so are gloo's own
        reason = " ".join(str(error).split())
        reason = reason if len(reason) <= 160 else f"{reason[:157]}..."
        raise RunStopped(
            f"process {rank} of 0 to {world - 1} lost contact with the others, {purpose}: one of them ended, stopped "
            f"or was cut off ({reason}); the last checkpoint stands, --ckpt_path last resumes",
            LOST_CONTACT,
        ) from error


class Communicator:
    """Which of a population's rows belong to this process, by its place among equals; alone, all do.

    Everything random is addressed by the row's number in the whole population, and whatever depends on several rows is
    computed from all of them in their order, by each process for itself; so results do not depend on the number of
    processes. Messages are bytes in the CPU's memory, whatever device rows are on.

    Args:
        total: rows of the whole population.
        rank: of this process, from 0.
        world: how many processes there are.

    Attributes:
        rows: numbers of the rows that belong to this process.
        generation: the one in progress, for messages to a user.
        received_bytes: what came from other processes since `start_generation`.
        seconds: how long exchanges have taken since then, waiting for others included.
    """

    def __init__(self, total: int, rank: int = 0, world: int = 1) -> None:
        self.total, self.rank, self.world = total, rank, world
        self.rows = self.rows_of(rank)
        self.start_generation(0)

    def start_generation(self, generation: int) -> None:
        """Count anew, from this generation on."""
        self.generation = generation
        self.received_bytes = 0
        self.seconds = 0.0

    def rows_of(self, rank: int) -> range:
        """The rows of a process: as many as of any other, or one more or less."""
        return range(rank * self.total // self.world, (rank + 1) * self.total // self.world)

    def owner(self, row: int) -> int:
        """The process that a row belongs to."""
        return ((row + 1) * self.world - 1) // self.total

    def local_index(self, row: int) -> int | None:
        """Where among this process's rows a row is; None if it belongs to another."""
        return row - self.rows.start if row in self.rows else None

    def own_rows(self, values: Tensor) -> Tensor:
        """Of a tensor with a row an agent of the whole population, this process's rows."""
        return values[self.rows.start : self.rows.stop]

    def gather(self, own: Rows, purpose: str) -> dict[str, Tensor]:
        """All rows, in order, to every process.

        Args:
            own: this process's rows, (rows, ...) each.
            purpose: what they are, for messages to a user.

        Raises:
            RunStopped: contact with another process was lost.
        """
        if self.world == 1:
            return dict(own)
        return unpack_rows(torch.cat(self.gather_parts(pack_rows(own), self._counts(), purpose)), own)

    def gather_parts(self, own: UInt8[Tensor, "rows bytes"], counts: Sequence[int], purpose: str) -> list[Tensor]:
        """Every process's rows of bytes, to every process.

        Args:
            own: this process's, with as many bytes a row as any other's.
            counts: rows of each process.
            purpose: what they are, for messages to a user.

        Raises:
            RunStopped: contact with another process was lost.
        """
        if self.world == 1:
            return [own]
        most, width = max(counts), own.shape[1]
        filled = torch.cat([own, own.new_zeros(most - len(own), width)])
        parts = [torch.empty_like(filled) for _ in counts]
        with self._exchange(purpose, (self.world - 1) * filled.nbytes):
            dist.all_gather(parts, filled)
        return [part[:count] for part, count in zip(parts, counts, strict=True)]

    def collect(self, own: Rows, purpose: str) -> dict[str, Tensor] | None:
        """All rows, in order, to process 0 alone, on the CPU; None to the others.

        Args:
            own: this process's rows.
            purpose: what they are, for messages to a user.

        Raises:
            RunStopped: contact with another process was lost.
        """
        if self.world == 1:
            return dict(own)
        sent, counts = pack_rows(own), self._counts()
        filled = torch.cat([sent, sent.new_zeros(max(counts) - len(sent), sent.shape[1])])
        parts = [torch.empty_like(filled) for _ in counts] if self.rank == 0 else None
        with self._exchange(purpose, 0 if parts is None else (self.world - 1) * filled.nbytes):
            dist.gather(filled, parts)
        if parts is None:
            return None
        rows = torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
        return unpack_rows(rows, {name: values.cpu() for name, values in own.items()})

    def fetch(self, own: Rows, wanted: Sequence[Sequence[int]], purpose: str) -> dict[str, Tensor]:
        """The rows that each process wants, from the processes they belong to; each travels where it is wanted only.

        Args:
            own: this process's rows.
            wanted: for each process, by rank, the rows it wants, in ascending order; all processes know them all.
            purpose: what they are, for messages to a user.

        Returns:
            What this process wants, in order.

        Raises:
            RunStopped: contact with another process was lost.
        """
        first = self.rows.start
        if self.world == 1:
            return {name: values[list(wanted[0])] for name, values in own.items()}
        asked = [[row - first for row in rows if row in self.rows] for rows in wanted]
        sent = pack_rows({name: values[[row for rows in asked for row in rows]] for name, values in own.items()})
        counts = [sum(row in self.rows_of(rank) for row in wanted[self.rank]) for rank in range(self.world)]
        found = sent.new_empty(sum(counts), sent.shape[1])
        with self._exchange(purpose, (sum(counts) - counts[self.rank]) * sent.shape[1]):
            dist.all_to_all_single(found, sent, counts, [len(rows) for rows in asked])
        return unpack_rows(found, own)

    def broadcast(self, own: Rows, row: int, purpose: str) -> dict[str, Tensor]:
        """One row, (1, ...) each, from the process it belongs to, to all.

        Args:
            own: this process's rows.
            row: the number of the row.
            purpose: what it is, for messages to a user.

        Raises:
            RunStopped: contact with another process was lost.
        """
        place = self.local_index(row)
        here = slice(0, 1) if place is None else slice(place, place + 1)
        picked = {name: values[here] for name, values in own.items()}
        if self.world == 1:
            return picked
        sent = pack_rows(picked)
        with self._exchange(purpose, sent.nbytes if place is None else 0):
            dist.broadcast(sent, self.owner(row))
        return unpack_rows(sent, own)

    def describe(self) -> dict[str, str]:
        """Name and value of what a user should see at the start."""
        if self.world == 1:
            return {}
        sizes = sorted({len(self.rows_of(rank)) for rank in range(self.world)})
        return {"processes": f"{self.world}, each with {' or '.join(map(str, sizes))} of the {self.total} agents"}

    def _counts(self) -> list[int]:
        return [len(self.rows_of(rank)) for rank in range(self.world)]

    @contextmanager
    def _exchange(self, purpose: str, received_bytes: int) -> Iterator[None]:
        begun = time.perf_counter()
        with in_contact(self.rank, self.world, f"sharing {purpose} in generation {self.generation}"):
            yield
        self.seconds += time.perf_counter() - begun
        self.received_bytes += received_bytes


def pack_rows(rows: Rows) -> UInt8[Tensor, "rows bytes"]:
    """Rows side by side as bytes, in the CPU's memory."""
    return torch.cat([_bytes(values.detach().cpu()) for values in rows.values()], 1)


def _bytes(values: Tensor) -> UInt8[Tensor, "rows bytes"]:
    flat = values.contiguous().flatten()
    return flat.view(torch.uint8).reshape(len(values), _width(values) * values.itemsize)


def unpack_rows(rows: UInt8[Tensor, "rows bytes"], like: Rows) -> dict[str, Tensor]:
    """What was pack_rows, with the shapes of a row, the types and the devices of `like`."""
    widths = [_width(values) * values.itemsize for values in like.values()]
    parts = torch.split(rows, widths, 1)
    return {
        name: part.flatten()
        .clone()  # a view may begin at an odd byte
        .view(values.dtype)
        .reshape(len(rows), *values.shape[1:])
        .to(values.device)
        for (name, values), part in zip(like.items(), parts, strict=True)
    }


def _width(values: Tensor) -> int:
    """Numbers a row."""
    return math.prod(values.shape[1:])
