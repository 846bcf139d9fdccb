"""One of several processes that exchange rows; it imports little, as each does."""

import numpy as np
import torch
from torch import distributed as dist

from eigen2.distributed.communicator import Communicator


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


def check_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Check that all values are equal bit for bit, with the same types and shapes."""
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].dtype == values.dtype
        assert torch.equal(found[name], values), name


def check_exchange(rank: int, world: int, store: str) -> None:
    """Check every collective, for several population sizes, against the rows that each process has anyway."""
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    for total in (world, world + 1, 3 * world - 1, 16):
        communicator, rows = Communicator(total, rank, world), whole(total)
        own = {name: communicator.own_rows(values) for name, values in rows.items()}
        check_same(communicator.gather(own, "rows"), rows)
        chance = np.random.default_rng([total, world])
        for _ in range(5):
            wanted = [sorted(chance.permutation(total)[: chance.integers(total + 1)].tolist()) for _ in range(world)]
            communicator.start_generation(0)
            expected = {name: values[wanted[rank]] for name, values in rows.items()}
            check_same(communicator.fetch(own, wanted, "rows"), expected)
            foreign = sum(row not in communicator.rows for row in wanted[rank])
            assert communicator.received_bytes == foreign * sum(values[0].nbytes for values in rows.values())
        for row in range(total):
            picked = {name: values[row : row + 1] for name, values in rows.items()}
            check_same(communicator.broadcast(own, row, "a row"), picked)
        counts = chance.integers(4, size=(world, world)).tolist()  # rows that each sends to each
        numbers = torch.arange(world * world).reshape(world, world)
        sent = [numbers[origin].repeat_interleave(torch.tensor(counts[origin])) for origin in range(world)]
        received, by_origin = communicator.exchange({"pair": sent[rank]}, counts[rank], "pairs")
        assert by_origin == [counts[origin][rank] for origin in range(world)]
        assert received["pair"].tolist() == [rank + world * i for i in range(world) for _ in range(counts[i][rank])]
        lengths = [len(pairs) for pairs in sent]
        everywhere = communicator.gather({"pair": sent[rank]}, "pairs", lengths)["pair"]
        assert torch.equal(everywhere, torch.cat(sent))
    if world > 1:
        dist.destroy_process_group()
