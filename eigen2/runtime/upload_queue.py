"""A bounded queue of checkpoints, and the one thread that uploads them."""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

from eigen2.runtime.checkpoint_store import kind_of
from eigen2.runtime.object_store import Cancelled, describe, persist


@dataclass(slots=True, eq=False)
class Job:
    """A checkpoint on its way, as an open file: replacing or deleting its name does not change what is uploaded."""

    name: str
    file: BinaryIO
    order: int
    """Counts the jobs, from 1."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the checkpoints that were handed over; every one is counted once."""

    pending: int = 0
    """Wait, or are being uploaded."""
    done: int = 0
    """Lie in the bucket, compared with the local file."""
    failed: int = 0
    """Did not get there in all attempts; tried again with the next checkpoint and at the end."""
    superseded: int = 0
    """Left out, as a newer one of their kind came before their turn."""


class UploadQueue:
    """A bounded queue and the one thread that empties it.

    Args:
        send: uploads a job, giving up when the function it is handed says so; raises what it likes. It returns a
            complaint about what did not matter to the job, if there is one.
        max_pending: jobs that wait at most; beyond it the oldest that a newer one supersedes is left out.
        attempts: tries of a job before it counts as failed.
        backoff_s: seconds before the second try; twice as many before each further one.
        sleep: waits between tries; None waits, but ends at once when the queue is closed.
    """

    def __init__(
        self,
        send: Callable[[Job, Callable[[], bool]], str | None],
        *,
        max_pending: int,
        attempts: int,
        backoff_s: float,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._send = send
        self._max_pending = max_pending
        self._attempts = attempts
        self._backoff_s = backoff_s
        self._stop = threading.Event()
        self._sleep = sleep or self._stop.wait
        self._changed = threading.Condition()
        self._waiting: list[Job] = []
        self._current: Job | None = None
        self._failed: list[Job] = []  # one of a kind at most
        self._submitted = self._done = self._superseded = 0
        self._complaint: str | None = None
        self._thread: threading.Thread | None = None

    def submit(self, name: str, file: BinaryIO) -> None:
        """Take over an open file; returns at once.

        Args:
            name: of the checkpoint.
            file: is closed when its fate is decided.
        """
        with self._changed:
            if self._stop.is_set():
                file.close()
                return
            self._drop([job for job in self._failed if kind_of(job.name) == kind_of(name)])
            self._try_failed_again()
            self._submitted += 1
            self._waiting.append(Job(name, file, self._submitted))
            while len(self._waiting) > self._max_pending:
                self._make_room()
            if self._thread is None:
                # a daemon: a request that hangs must not keep the process alive
                self._thread = threading.Thread(target=self._work, name="checkpoint-upload", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _try_failed_again(self) -> None:
        self._waiting[:0] = self._failed
        self._failed = []

    def _make_room(self) -> None:
        kinds = [kind_of(job.name) for job in self._waiting]
        for i, kind in enumerate(kinds):
            if kind in kinds[i + 1 :]:
                self._drop([self._waiting[i]])
                return
        # all are the newest of their kind: none may get lost
        self._failed.append(self._waiting.pop(0))

    def _drop(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            (self._waiting if job in self._waiting else self._failed).remove(job)
            job.file.close()
            self._superseded += 1

    def _work(self) -> None:
        while (job := self._next()) is not None:
            try:
                action = partial(self._send, job, self._stop.is_set)
                complaint = persist(action, attempts=self._attempts, backoff_s=self._backoff_s, sleep=self._pause)
            except Exception as error:  # of any of the libraries: it is complained about, and the job kept
                self._give_up(job, error)
            else:
                self._finish(job, complaint)

    def _pause(self, seconds: float) -> None:
        self._sleep(seconds)
        if self._stop.is_set():
            raise Cancelled("the upload was cancelled")

    def _next(self) -> Job | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stop.is_set())
            if self._stop.is_set():
                return None
            self._current = self._waiting.pop(0)
            return self._current

    def _finish(self, job: Job, complaint: str | None) -> None:
        with self._changed:
            self._current = None
            self._done += 1
            self._complaint = complaint or self._complaint
            job.file.close()
            self._changed.notify_all()

    def _give_up(self, job: Job, error: Exception) -> None:
        with self._changed:
            self._current = None
            if not isinstance(error, Cancelled):
                self._complaint = f"{job.name} did not get there ({describe(error)})"
            newer = {kind_of(other.name) for other in self._waiting + self._failed}
            self._failed.append(job)
            if kind_of(job.name) in newer:
                self._drop([job])
            if self._stop.is_set():
                job.file.close()
            self._changed.notify_all()

    def take_complaint(self) -> str | None:
        """The last complaint since this was asked before."""
        with self._changed:
            complaint, self._complaint = self._complaint, None
            return complaint

    def counts(self) -> Counts:
        """What became of all jobs so far."""
        with self._changed:
            pending = len(self._waiting) + (self._current is not None)
            return Counts(pending, self._done, len(self._failed), self._superseded)

    @property
    def uploading(self) -> int:
        """Bytes of the file that is being uploaded; 0 if none is."""
        with self._changed:
            job = self._current
            return os.fstat(job.file.fileno()).st_size if job is not None else 0

    def drain(self, timeout_s: float) -> bool:
        """Try once more what failed, and wait until nothing waits.

        Args:
            timeout_s: seconds to wait at most.

        Returns:
            Whether everything is in the bucket.
        """
        with self._changed:
            self._try_failed_again()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting and self._current is None, timeout_s)
            return not (self._waiting or self._current or self._failed)

    def close(self) -> None:
        """End the thread, and close every file; an upload in progress ends with its current request."""
        self._stop.set()
        with self._changed:
            self._failed += self._waiting
            self._waiting = []
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(1.0)
        with self._changed:
            for job in self._failed:
                job.file.close()
