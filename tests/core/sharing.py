"""One of several processes that share a replay buffer; it imports little, as each does."""

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from eigen2.core import shared_replay
from eigen2.core.replay import Field, ReplayBuffer
from eigen2.core.shared_replay import SharedReplay, TransitionLog
from eigen2.distributed.communicator import Communicator

FIELDS = {"reward": Field((), torch.float32), "view": Field((2, 3), torch.float16), "done": Field((), torch.bool)}
AGENTS, STEPS = 5, 4


def transitions(first: int, count: int) -> dict[str, Tensor]:
    """Return transitions whose values are a function of their number."""
    number = torch.arange(first, first + count)
    view = (number[:, None, None] + torch.arange(6).reshape(2, 3)).half()
    return {"reward": number.float(), "view": view, "done": number % 3 == 0}


def check_shared(rank: int, world: int, store: str) -> None:
    """Play several generations into a shared buffer and, in every process, into a whole one; compare what is drawn."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    shared_replay.CHUNK_BYTES = 200  # a few transitions: a generation is exchanged in several parts
    for capacity in (AGENTS * 2, 37):  # below and above what a generation adds
        communicator, chance = Communicator(AGENTS, rank, world), np.random.default_rng(capacity)
        log = TransitionLog(2 * len(communicator.rows), STEPS, FIELDS)
        shared, whole = SharedReplay(capacity, FIELDS, communicator, log), ReplayBuffer(capacity, FIELDS)
        for _ in range(4):
            for _ in range(int(chance.integers(STEPS + 1))):
                counts = chance.integers(3, size=AGENTS)  # of each agent: episodes end early
                step = transitions(whole.added, int(counts.sum()))
                begin, end = int(counts[: communicator.rows.start].sum()), int(counts[: communicator.rows.stop].sum())
                log.add({name: values[begin:end] for name, values in step.items()})
                whole.add(step)
            shared.add_log()
            assert (len(shared), shared.position, shared.added) == (len(whole), whole.position, whole.added)
            assert len(log) == 0
            for name in FIELDS:
                assert torch.equal(shared[name], whole[name][rank::world]), name
            if len(whole):
                drawn = torch.from_numpy(chance.integers(len(whole), size=(world, 3, 4)))
                slots = drawn[rank, : 3 if rank else 0]  # one process draws nothing
                for name, values in shared.gather(slots).items():
                    assert torch.equal(values, whole.gather(slots)[name]), name
    dist.destroy_process_group()
