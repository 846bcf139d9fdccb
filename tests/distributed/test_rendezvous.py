"""Processes that meet: on the store of those before them, at addresses of their own, and when one ends before."""

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch.distributed as dist

from eigen2.distributed.rendezvous import LOOPBACK, listen, rendezvous
from eigen2.errors import LOST_CONTACT, UserError
from tests.command import free_port, server
from tests.distributed.meeting import listening, meet, orphan

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


def start(function: Callable[..., None], *args: object) -> Any:
    process = server.Process(target=function, args=args)
    process.start()
    return process


@pytest.mark.parametrize(
    ("script", "how", "code"),
    [
        ("exit 2", "ended with exit code 2", 2),
        ("exit 0", "ended with exit code 0", LOST_CONTACT),
        ("kill -9 $$", "was killed by signal 9", LOST_CONTACT),
    ],
)
def test_a_launched_process_that_ends_before_all_have_joined_ends_its_launcher(
    script: str, how: str, code: int, tmp_path: Path
) -> None:
    process = start(meet, 0, free_port(), tmp_path / "errors", script)
    process.join(120)  # of the 300 seconds of timeout_s
    assert process.exitcode == code
    (line,) = (tmp_path / "errors").read_text().splitlines()
    assert line == (
        f"process 1 of this machine {how} before all processes joined, and so does process 0; --ckpt_path last resumes"
    )


def test_a_launched_process_does_not_outlive_its_launcher(tmp_path: Path) -> None:
    start(orphan, free_port(), tmp_path / "errors", tmp_path / "pid").join(120)
    child = int((tmp_path / "pid").read_text())
    with suppress(psutil.NoSuchProcess):
        psutil.Process(child).wait(120)
    assert not psutil.pid_exists(child)
    (line,) = (tmp_path / "errors").read_text().splitlines()
    assert line == "process 1: process 0 of this machine ended before all processes joined"


def test_processes_of_one_machine_listen_on_the_loopback_interface_alone(tmp_path: Path) -> None:
    port = free_port()
    started = [start(listening, rank, port, tmp_path / str(rank)) for rank in (0, 1)]
    for process in started:
        process.join(120)
        assert process.exitcode == 0
    store, other = (json.loads((tmp_path / str(rank)).read_text()) for rank in (0, 1))
    assert [LOOPBACK, port] in store["addresses"]
    assert len(other["addresses"]) >= 1
    assert {address for address, _ in store["addresses"] + other["addresses"]} == {LOOPBACK}
    # gloo might take the loopback interface by itself, if the machine's name stands for it
    assert psutil.net_if_addrs()[store["interface"]][0].address == LOOPBACK


def test_a_store_listens_on_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    file = listen(LOOPBACK, port)
    assert file is not None
    with socket.socket(fileno=file) as listener:
        assert listener.getsockname() == (LOOPBACK, port)
        with pytest.raises(UserError, match=rf"cannot listen on 127\.0\.0\.1 port {port} \(.*\): set MASTER_ADDR and"):
            listen(LOOPBACK, port)
    assert listen("192.0.2.1", port) is None  # of no machine here
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(socket.AF_INET, 1, 6, "", ("127.0.1.1", port))])
    assert listen("node-1", port) is None  # other machines know it at another address
