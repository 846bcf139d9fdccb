"""Rendezvous of the processes of one attempt on a store that still holds the keys of earlier attempts."""

import time
from datetime import timedelta
from uuid import uuid4

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]


def rendezvous(store: Store, rank: int, world: int, timeout: timedelta) -> Store:
    """Return a part of a shared store that only the processes of this attempt know.

    torchrun keeps one store for all attempts, where a process could read the address of a predecessor of its peer. No
    environment variable tells attempts apart: TORCHELASTIC_RESTART_COUNT is counted on each node for itself. So every
    process but the first publishes a token that was never used before, and the first answers each token it finds with
    the name of this attempt, until all processes of this attempt have joined.

    Raises:
        RuntimeError: not all processes joined in time.
    """
    if rank:
        token = uuid4().hex
        store.set(f"eigen2/token/{rank}", token)
        store.wait([f"eigen2/attempt/{token}"], timeout)
        attempt = store.get(f"eigen2/attempt/{token}").decode()
        store.add(f"{attempt}/joined", 1)
        return PrefixStore(attempt, store)
    attempt, deadline = f"eigen2/{uuid4().hex}", time.monotonic() + timeout.total_seconds()
    while (missing := world - 1 - store.add(f"{attempt}/joined", 0)) > 0:
        for other in range(1, world):
            if store.check([f"eigen2/token/{other}"]):  # perhaps of an earlier attempt: then a new one follows
                store.set(f"eigen2/attempt/{store.get(f'eigen2/token/{other}').decode()}", attempt)
        if time.monotonic() > deadline:
            raise RuntimeError(f"{missing} of {world} processes did not join within {timeout.total_seconds():g} s")
        time.sleep(0.01)
    return PrefixStore(attempt, store)
