"""Rendezvous of a run's processes: where they listen, what tells attempts apart, and the end of one before all join."""

import errno
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from ipaddress import ip_address
from threading import Event, Thread
from uuid import uuid4

import psutil
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from eigen2.errors import UserError

LOOPBACK = "127.0.0.1"
WATCH_S = 0.2  # between looks at the other processes


def loopback_interface() -> str | None:
    """Return the name of the network interface that only this machine reaches; None if it has none."""
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, addresses in interfaces if LOOPBACK in [each.address for each in addresses]), None)


def check_port(port: str | None) -> None:
    """Refuse, by a UserError, a MASTER_PORT that is set and no port."""
    if port is not None and not (port.isdecimal() and 1 <= int(port) <= 65_535):
        raise UserError(f"MASTER_PORT is {port!r}; it must be a whole number from 1 to 65535")


def listen(address: str, port: int) -> int | None:
    """Return a socket that listens on one address, as a file descriptor, where a TCPStore would listen on all.

    None if others reach this machine at that address through something else, or it has another meaning for them: then
    only listening on all addresses serves them. Raises UserError if the port cannot be had.
    """
    try:
        family, *_, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        if address != LOOPBACK and ip_address(place[0]).is_loopback:
            return None
        return socket.create_server(place[:2], family=family).detach()
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            return None
        raise UserError(
            f"process 0 cannot listen on {address} port {port} ({error.strerror or error}): set MASTER_ADDR and "
            "MASTER_PORT to an address of its machine and a free port"
        ) from error


@contextmanager
def watched(find_lost: Callable[[], tuple[str, int] | None]) -> Iterator[None]:
    """Leave this process as soon as `find_lost` returns a line and an exit code.

    A thread asks it, because nothing interrupts torch while it waits for other processes. Exit handlers do not run.
    """
    joined = Event()

    def watch() -> None:
        while not joined.wait(WATCH_S):
            if (found := find_lost()) is not None:
                line, code = found
                sys.stdout.flush()
                sys.stderr.write(f"{line}\n")
                sys.stderr.flush()
                os._exit(code)

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        joined.set()
        thread.join()


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
