"""Buckets for tests: one in memory with planted faults, and a TCP proxy to a real server that fails on demand."""

import contextlib
import errno
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fsspec.implementations.memory import MemoryFileSystem

from eigen2.runtime.bucket import CheckpointStore, Place
from eigen2.runtime.checksums import write_checksum

SECRET = "wJalrXUtnFEMI-secret"


class Bucket(MemoryFileSystem):
    """A separate filesystem in memory, whose calls fail as `fault` decides."""

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.store: dict[str, Any] = {}
        self.pseudo_dirs = [""]
        self.fault: Callable[[str], None] = lambda call: None
        self.calls: list[str] = []
        self.options: dict[str, Any] = {}

    def _call(self, call: str) -> None:
        self.calls.append(call)
        self.fault(call)

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        self._call("put")
        self.options = options
        super().put_file(lpath, rpath)

    def find(self, path: str, **kwargs: Any) -> Any:
        self._call("find")
        return super().find(path, **kwargs)

    def objects(self) -> dict[str, bytes]:
        stored = {path.removeprefix("/bucket/"): file.getvalue() for path, file in self.store.items()}
        return {path: content for path, content in stored.items() if not path.endswith("/writer")}

    def checkpoints(self, prefix: str = "a", provider: str = "memory", **options: Any) -> CheckpointStore:
        return CheckpointStore(lambda: self, Place(provider, "bucket", prefix), **options)


def failing(times: float, call: str = "put") -> Callable[[str], None]:
    """Return a fault that ends after `times` calls; its text has a credential, as errors of HTTP libraries do."""
    left = [times]

    def fault(name: str) -> None:
        if name == call and left[0] > 0:
            left[0] -= 1
            raise OSError(errno.EIO, f"https://key:{SECRET}@host/?X-Amz-Security-Token={SECRET}")

    return fault


def checkpoint(folder: Path, text: str, name: str = "last.ckpt", size: int = 1000) -> Path:
    """Write a file that begins with a text and has a checksum; most of a large one is a hole."""
    path = folder / name
    path.write_bytes(text.encode() * 1000)
    with path.open("r+b") as file:
        file.truncate(size + 1000)
    write_checksum(path, 0)
    return path


class Proxy:
    """A TCP proxy to a server on the loopback, through which requests fail according to `mode`.

    `error`: every request is answered with status 500. `stall`: nothing is answered. `cut`: connections break
    after `limit` bytes. `dead`: they break at once.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self.mode = "open"
        self.limit = 100_000
        self.failures: float = 0
        self.faults = 0
        self.sent = bytearray()
        self._passed = 0
        self._open: list[socket.socket] = []
        self._closing = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def fail(self, mode: str, failures: float = float("inf")) -> None:
        """Let the next `failures` connections fail."""
        self.mode, self.failures, self._passed = mode, failures, 0
        self._hang_up()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                threading.Thread(target=self._serve, args=(self._listener.accept()[0],), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._open.append(client)
        with contextlib.suppress(OSError), client:
            first = client.recv(65536)
            mode = self.mode if first and self.failures > 0 else "open"
            if mode != "open":
                self.failures -= 1
                self.faults += 1
            if mode == "stall":
                self._closing.wait(60)
            elif mode == "error":
                client.sendall(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                client.shutdown(socket.SHUT_WR)
                while client.recv(65536):
                    pass
            elif mode != "dead":
                with socket.create_connection(("127.0.0.1", self._target)) as server:
                    self._open.append(server)
                    threading.Thread(target=self._pump, args=(server, client), daemon=True).start()
                    self.sent += first
                    server.sendall(first)
                    self._pump(client, server, self.limit if mode == "cut" else None)

    def _pump(self, source: socket.socket, target: socket.socket, limit: int | None = None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
                self._passed += len(data)
                if limit is not None and self._passed > limit:
                    source.shutdown(socket.SHUT_RDWR)  # closing alone wakes no thread that reads
                    target.shutdown(socket.SHUT_RDWR)
            target.shutdown(socket.SHUT_WR)

    def _hang_up(self) -> None:
        while self._open:
            with contextlib.suppress(OSError):
                self._open.pop().shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closing.set()
        self._listener.close()
        self._hang_up()


@contextlib.contextmanager
def proxy_to(port: int) -> Iterator[Proxy]:
    with contextlib.closing(Proxy(port)) as proxy:
        yield proxy
