"""Buckets for tests: one in memory with planted faults, and real servers on the loopback behind a line that fails."""

import contextlib
import errno
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fsspec.implementations.memory import MemoryFileSystem

from eigen2.runtime.bucket.checkpoint_store import CheckpointStore
from eigen2.runtime.bucket.object_store import Place

SECRET = "wJalrXUtnFEMI-secret"


class Bucket(MemoryFileSystem):
    """A filesystem of its own in memory, whose calls fail as planned."""

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.store: dict[str, Any] = {}
        self.pseudo_dirs = [""]
        self.fault: Callable[[str, str], None] = lambda call, path: None
        self.calls: list[str] = []

    def _call(self, call: str, path: str) -> None:
        self.calls.append(call)
        self.fault(call, path)

    def put_file(self, lpath: str, rpath: str, *args: Any, **kwargs: Any) -> None:
        self._call("put", rpath)
        super().put_file(lpath, rpath, *args, **kwargs)
        self._call("stored", rpath)

    def find(self, path: str, **kwargs: Any) -> Any:
        self._call("find", path)
        return super().find(path, **kwargs)

    def objects(self) -> dict[str, bytes]:
        return {path.removeprefix("/bucket/"): file.getvalue() for path, file in self.store.items()}

    def checkpoints(self, prefix: str = "a", resumed: bool = False, keep: int | None = None) -> CheckpointStore:
        store = CheckpointStore(lambda: self, Place("memory", "bucket", prefix), keep=keep)
        store.resumed = resumed
        return store


def failing(times: float, call: str = "put") -> Callable[[str, str], None]:
    """A fault that goes away after some calls; its text holds a credential, as those of HTTP libraries do."""
    left = [times]

    def fault(name: str, path: str) -> None:
        if name == call and left[0] > 0:
            left[0] -= 1
            raise OSError(errno.EIO, f"https://key:{SECRET}@host/{path}?X-Amz-Security-Token={SECRET}")

    return fault


def checkpoint(folder: Path, text: str, name: str = "last.ckpt") -> Path:
    """Replace a file in one step, as checkpoints are."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{name}.tmp"
    draft.write_bytes(text.encode() * 1000)
    return draft.replace(folder / name)


class Line:
    """A TCP line to a server on the loopback, through which requests fail as told.

    `error`: every request is answered with status 500. `stall`: nothing is answered. `cut`: connections break
    once `whole` bytes went through. `dead`: they break at once.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self.mode = "open"
        self.whole = 100_000
        self.failures: float = float("inf")
        self.faults = 0
        self._passed = 0
        self.sent = bytearray()
        self._open: list[socket.socket] = []
        self._closing = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def fail(self, mode: str, failures: float = float("inf")) -> None:
        """From now on; `failures` connections, then all is well again."""
        self.mode, self.failures, self._passed = mode, failures, 0
        self._hang_up()

    def _fault(self) -> str:
        if self.mode == "open" or self.failures <= 0:
            return "open"
        self.failures -= 1
        self.faults += 1
        return self.mode

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._open.append(client)
        with contextlib.suppress(OSError), client:
            first = client.recv(65536)
            fault = self._fault() if first else "open"
            if fault == "dead":
                return
            if fault == "stall":
                self._closing.wait(60)
                return
            if fault == "error":
                client.sendall(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                client.shutdown(socket.SHUT_WR)
                while client.recv(65536):
                    pass
                return
            with socket.create_connection(("127.0.0.1", self._target)) as server:
                self._open.append(server)
                back = threading.Thread(target=self._pump, args=(server, client, None), daemon=True)
                back.start()
                self.sent += first
                server.sendall(first)
                self._pump(client, server, self.whole if fault == "cut" else None)
                if fault == "cut":
                    # closing alone wakes no thread that reads
                    for end in (client, server):
                        with contextlib.suppress(OSError):
                            end.shutdown(socket.SHUT_RDWR)
                back.join()

    def _pump(self, source: socket.socket, target: socket.socket, limit: int | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
                if limit is not None:
                    self._passed += len(data)
                    if self._passed > limit:
                        return
            target.shutdown(socket.SHUT_WR)

    def _hang_up(self) -> None:
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def close(self) -> None:
        self._closing.set()
        self._listener.close()
        self._hang_up()


@contextlib.contextmanager
def line_to(port: int) -> Iterator[Line]:
    line = Line(port)
    try:
        yield line
    finally:
        line.close()
