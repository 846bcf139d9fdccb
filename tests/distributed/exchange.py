"""One of several processes that exchange rows: `python -m tests.distributed.exchange RANK WORLD STORE SECONDS PLAN`."""

import atexit
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
from torch import distributed as dist

from eigen2.distributed.communicator import Communicator
from eigen2.errors import RunStopped

MANY = 5


def whole(total: int) -> dict[str, torch.Tensor]:
    """The same rows in every process, of all kinds of numbers."""
    chance = np.random.default_rng(total)
    return {
        "weights": torch.from_numpy(chance.standard_normal((total, 7), dtype=np.float32)),
        "one": torch.from_numpy(chance.standard_normal(total)),
        "flag": torch.from_numpy(chance.random(total) < 0.5),
        "days": torch.from_numpy(chance.integers(1000, size=(total, 2, 3))),
        "half": torch.from_numpy(chance.standard_normal((total, 3))).bfloat16(),
        "empty": torch.zeros(total, 0),
    }


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Bit for bit, types and shapes included."""
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].dtype == values.dtype
        assert torch.equal(found[name], values), name


def exchange(rank: int, world: int) -> None:
    """Use every collective, for several sizes of a population, against what lies in each process anyway."""
    for total in (world, world + 1, 3 * world - 1, 16):
        communicator, rows = Communicator(total, rank, world), whole(total)
        own = {name: communicator.own_rows(values) for name, values in rows.items()}
        same(communicator.gather(own, "rows"), rows)
        collected = communicator.collect(own, "rows")
        assert (collected is None) == (rank > 0)
        if collected is not None:
            same(collected, rows)
        chance = np.random.default_rng([total, world])
        for _ in range(MANY):
            wanted = [
                sorted(chance.choice(total, size=chance.integers(total + 1), replace=False)) for _ in range(world)
            ]
            wanted = [[int(row) for row in part] for part in wanted]
            communicator.start_generation(0)
            same(communicator.fetch(own, wanted, "rows"), {name: values[wanted[rank]] for name, values in rows.items()})
            foreign = sum(row not in communicator.rows for row in wanted[rank])
            assert communicator.received_bytes == foreign * sum(values[0].nbytes for values in rows.values())
        for row in range(total):
            same(
                communicator.broadcast(own, row, "a row"),
                {name: values[row : row + 1] for name, values in rows.items()},
            )
        counts = [int(chance.integers(4)) for _ in range(world)]
        parts = communicator.gather_parts(torch.full((counts[rank], 3), rank, dtype=torch.uint8), counts, "parts")
        for other, (part, count) in enumerate(zip(parts, counts, strict=True)):
            assert part.tolist() == [[other] * 3] * count


def wait_for_all(name: str, rank: int, world: int) -> None:
    """Come to a point where all have come, not by what is tested here."""
    Path(f"{name}.{rank}").touch()
    while not all(Path(f"{name}.{other}").exists() for other in range(world)):
        time.sleep(0.01)


def main() -> None:
    """Join the others and do what is asked for; a process that loses contact says so and exits with its code."""
    rank, world, store, timeout_s, plan = (convert(word) for convert, word in zip(KINDS, sys.argv[1:], strict=True))
    torch.set_num_threads(1)
    wait_for_all(f"{store}.started", rank, world)  # a time-out is about messages, not about imports
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(seconds=timeout_s)
    )
    atexit.register(dist.destroy_process_group)
    wait_for_all(f"{store}.joined", rank, world)  # who ends now ends after the others have found it
    if plan == "exchange":
        exchange(rank, world)
    elif rank == world - 1:  # the fault: it ends, or does not answer
        if plan == "silent":
            while not Path(f"{store}.done").exists():
                time.sleep(0.05)
    else:
        communicator = Communicator(world, rank, world)
        communicator.start_generation(7)
        try:
            communicator.gather({"one": torch.zeros(1)}, "fitness")
        except RunStopped as stop:
            sys.stderr.write(f"{stop}\n")
            sys.exit(stop.code)


KINDS = (int, int, str, float, str)

if __name__ == "__main__":
    main()
