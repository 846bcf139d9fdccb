"""How the processes of an attempt find each other where those of an earlier one have left their addresses."""

import time
from datetime import timedelta
from uuid import uuid4

from torch._C._distributed_c10d import PrefixStore, Store

POLL_S = 0.01


def meet(store: Store, rank: int, world: int, timeout: timedelta) -> Store:
    """A part of a store that only those know of who are alive now.

    torchrun keeps one store for all attempts of a run. A process that reads in it where another one listens may read
    what that one's predecessor has written, and find nobody there. So each process but the first leaves a word that was
    never used; the first answers every such word with one of its own, until all have confirmed that.

    Args:
        store: that all processes share.
        rank: of this process.
        world: how many there are.
        timeout: for all to come.

    Raises:
        RuntimeError: not all came in time.
    """
    if rank:
        word = uuid4().hex
        store.set(f"eigen2/here/{rank}", word)
        store.wait([f"eigen2/welcome/{word}"], timeout)
        name = store.get(f"eigen2/welcome/{word}").decode()
        store.set(f"{name}/confirmed/{rank}", "")
        return PrefixStore(name, store)
    name, answered = f"eigen2/{uuid4().hex}", dict.fromkeys(range(1, world), b"")
    until = time.monotonic() + timeout.total_seconds()
    while answered:
        for other in [*answered]:
            if store.check([f"{name}/confirmed/{other}"]):
                del answered[other]
            elif store.check([f"eigen2/here/{other}"]):
                found = store.get(f"eigen2/here/{other}")
                if found != answered[other]:  # of an earlier attempt, perhaps: then another one follows
                    store.set(f"eigen2/welcome/{found.decode()}", name)
                    answered[other] = found
        if time.monotonic() > until:
            seconds = timeout.total_seconds()
            raise RuntimeError(f"{len(answered)} of {world} processes did not come within {seconds:g} s")
        time.sleep(POLL_S)
    return PrefixStore(name, store)
