"""Partition of a population's rows over processes, and the collectives by which processes exchange them."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch import distributed as dist

from eigen2.errors import LOST_CONTACT, RunStopped, is_shortage, one_line

Rows = Mapping[str, Tensor]  # tensors by name with the same leading axis of rows; they travel in one message


@contextmanager
def in_contact(rank: int, world: int, purpose: str) -> Iterator[None]:
    """Turn the failure of a collective into RunStopped, with one line that states its `purpose`."""
    try:
        yield
    except RuntimeError as error:  # torch.distributed and gloo raise this class
        if is_shortage(error):
            raise
        reason = one_line(error)
        raise RunStopped(
            f"process {rank} of 0 to {world - 1} lost contact with the others, {purpose}: one of them ended, stopped "
            f"or was cut off ({reason}); the last checkpoint stands, --ckpt_path last resumes",
            LOST_CONTACT,
        ) from error


class Communicator:
    """The rows of a population that this process owns, and collectives on them. A single process owns all rows.

    Randomness is addressed by a row's number in the whole population, and whatever depends on several rows is computed
    from all of them, in order, by every process; so results do not depend on the number of processes. Messages are
    bytes in the CPU's memory, on whatever device the rows are. `purpose` describes an exchange in error messages; every
    collective raises RunStopped if contact with another process is lost.
    """

    def __init__(self, total: int, rank: int = 0, world: int = 1) -> None:
        self.total, self.rank, self.world = total, rank, world  # rows of the population, this process, processes
        self.rows = self.rows_of(rank)  # numbers of the rows this process owns
        self._counts = [len(self.rows_of(each)) for each in range(world)]
        self.start_generation(0)

    def start_generation(self, generation: int) -> None:
        """Reset `received_bytes`, from other processes, and `seconds` in collectives, waiting included."""
        self.generation, self.received_bytes, self.seconds = generation, 0, 0.0

    def rows_of(self, rank: int) -> range:
        """Return the rows a process owns; processes differ by one row at most."""
        return range(rank * self.total // self.world, (rank + 1) * self.total // self.world)

    def owner(self, row: int) -> int:
        """Return the rank of the process that owns a row."""
        return ((row + 1) * self.world - 1) // self.total

    def local_index(self, row: int) -> int | None:
        """Return a row's index among this process's rows; None if another process owns it."""
        return row - self.rows.start if row in self.rows else None

    def own_rows(self, values: Tensor) -> Tensor:
        """Return this process's rows of a tensor with all rows of the population."""
        return values[self.rows.start : self.rows.stop]

    def gather(self, own: Rows, purpose: str, counts: Sequence[int] | None = None) -> dict[str, Tensor]:
        """Return all rows, in order, on every process, contiguous: strides change the order of a later sum.

        `counts` are the rows of each process, by rank, if not those of agents.
        """
        if self.world == 1:
            return {name: values.contiguous() for name, values in own.items()}
        counts = counts or self._counts
        padded = _padded(pack_rows(own), max(counts))
        parts = [torch.empty_like(padded) for _ in counts]
        with self._exchange(purpose, (self.world - 1) * padded.nbytes):
            dist.all_gather(parts, padded)
        return unpack_rows(torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)]), own)

    def exchange(self, own: Rows, counts: Sequence[int], purpose: str) -> tuple[dict[str, Tensor], list[int]]:
        """Send rows, the first `counts[0]` to process 0 and so on; return those received, and how many from each."""
        if self.world == 1:
            return dict(own), list(counts)
        sizes = torch.tensor(counts)
        received = torch.empty_like(sizes)
        with self._exchange(purpose, (self.world - 1) * sizes.itemsize):
            dist.all_to_all_single(received, sizes)
        return self._exchange_rows(own, counts, received.tolist(), purpose), received.tolist()

    def fetch(self, own: Rows, wanted: Sequence[Sequence[int]], purpose: str) -> dict[str, Tensor]:
        """Return the rows this process wants, in order; rows travel only to the processes that want them.

        `wanted` has for each process, by rank, the rows it wants, ascending; it is the same on every process.
        """
        if self.world == 1:
            return {name: values[list(wanted[0])] for name, values in own.items()}
        indices = [[row - self.rows.start for row in rows if row in self.rows] for rows in wanted]
        sent = {name: values[[row for rows in indices for row in rows]] for name, values in own.items()}
        counts = [sum(row in self.rows_of(rank) for row in wanted[self.rank]) for rank in range(self.world)]
        return self._exchange_rows(sent, [len(rows) for rows in indices], counts, purpose)

    def _exchange_rows(
        self, own: Rows, sent: Sequence[int], received: Sequence[int], purpose: str
    ) -> dict[str, Tensor]:
        packed = pack_rows(own)
        found = packed.new_empty(sum(received), packed.shape[1])
        with self._exchange(purpose, (sum(received) - received[self.rank]) * packed.shape[1]):
            dist.all_to_all_single(found, packed, list(received), list(sent))
        return unpack_rows(found, own)

    def broadcast(self, own: Rows, row: int, purpose: str) -> dict[str, Tensor]:
        """Return one row, (1, ...) each, on every process."""
        index = self.local_index(row)
        picked = {name: values[index or 0 : (index or 0) + 1] for name, values in own.items()}
        if self.world == 1:
            return picked
        sent = pack_rows(picked)
        with self._exchange(purpose, sent.nbytes if index is None else 0):
            dist.broadcast(sent, self.owner(row))
        return unpack_rows(sent, own)

    def describe(self) -> dict[str, str]:
        """Return names and values to show to the user at the start of a run."""
        if self.world == 1:
            return {}
        sizes = " or ".join(map(str, sorted(set(self._counts))))
        return {"processes": f"{self.world}, each with {sizes} of the {self.total} agents"}

    @contextmanager
    def _exchange(self, purpose: str, received_bytes: int) -> Iterator[None]:
        begun = time.perf_counter()
        with in_contact(self.rank, self.world, f"sharing {purpose} in generation {self.generation}"):
            yield
        self.seconds += time.perf_counter() - begun
        self.received_bytes += received_bytes


def pack_rows(rows: Rows) -> UInt8[Tensor, "rows bytes"]:
    """Return the bytes of rows side by side, on the CPU."""
    parts = [values.detach().cpu().contiguous() for values in rows.values()]
    return torch.cat([part.flatten().view(torch.uint8).reshape(len(part), _row_bytes(part)) for part in parts], 1)


def unpack_rows(packed: UInt8[Tensor, "rows bytes"], like: Rows) -> dict[str, Tensor]:
    """Return packed rows with the names, types, devices and shapes of a row of `like`."""
    parts = torch.split(packed, [_row_bytes(values) for values in like.values()], 1)
    return {
        name: part.flatten()
        .clone()  # a view may begin at an odd byte
        .view(values.dtype)
        .reshape(len(packed), *values.shape[1:])
        .to(values.device)
        for (name, values), part in zip(like.items(), parts, strict=True)
    }


def _row_bytes(values: Tensor) -> int:
    return math.prod(values.shape[1:]) * values.itemsize


def _padded(rows: UInt8[Tensor, "rows bytes"], count: int) -> UInt8[Tensor, "count bytes"]:
    return torch.cat([rows, rows.new_zeros(count - len(rows), rows.shape[1])])
