"""Processes that start again on the store of those before them."""

import threading
from datetime import timedelta

import pytest
import torch.distributed as dist

from eigen2.distributed.rendezvous import rendezvous

SOON = timedelta(seconds=20)


def attempt(store: dist.Store, world: int, came: list[int]) -> dict[int, dist.Store]:
    """Return what each process gets; they come in this order."""
    found: dict[int, dist.Store] = {}

    def come(rank: int) -> None:
        found[rank] = rendezvous(store, rank, world, SOON)

    threads = [threading.Thread(target=come, args=(rank,)) for rank in came]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("came", [[0, 1, 2], [2, 1, 0], [1, 0, 2]])
def test_the_processes_of_an_attempt_share_what_those_before_do_not_see(came: list[int]) -> None:
    store = dist.HashStore()
    attempts = [attempt(store, 3, came) for _ in range(3)]
    for number, found in enumerate(attempts):
        assert sorted(found) == [0, 1, 2]
        found[0].set("address", str(number))
    for number, found in enumerate(attempts):
        assert {each.get("address") for each in found.values()} == {str(number).encode()}


def test_an_attempt_that_failed_halfway_does_not_harm_the_next() -> None:
    store = dist.HashStore()
    for rank in (1, 2):  # which left their tokens and were killed
        store.set(f"eigen2/token/{rank}", f"stale {rank}")
    found = attempt(store, 3, [0, 1, 2])
    found[0].set("address", "new")
    assert {each.get("address") for each in found.values()} == {b"new"}


def test_who_does_not_come_is_not_waited_for_for_ever() -> None:
    assert isinstance(rendezvous(dist.HashStore(), 0, 1, SOON), dist.PrefixStore)
    with pytest.raises(RuntimeError, match=r"2 of 3 processes did not join within 0\.2 s"):
        rendezvous(dist.HashStore(), 0, 3, timedelta(seconds=0.2))
