"""A bounded queue of checkpoints, and the one thread that uploads them."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, TypeVar

from eigen2.errors import UserError
from eigen2.runtime.bucket.checkpoint_store import kind_of
from eigen2.runtime.bucket.object_store import describe_error

LONGEST_WAIT_S = 60.0  # seconds between two attempts at most
Result = TypeVar("Result")


def retry(
    action: Callable[[], Result], *, attempts: int, backoff_s: float, wait: Callable[[float], object] = time.sleep
) -> Result:
    """Try an action again after an error, but not after one that the user must correct.

    There are `backoff_s` before the second attempt, and twice as many before each further one, 60 at most; it gives up
    if `wait` returns True.
    """
    for attempt in range(attempts - 1):
        try:
            return action()
        except UserError:
            raise
        except Exception:  # of any of the libraries
            if wait(min(backoff_s * 2**attempt, LONGEST_WAIT_S)) is True:
                raise
    return action()


@dataclass(slots=True, eq=False)
class Job:
    """A checkpoint on its way, as an open file: replacing or deleting its name does not change what is uploaded."""

    name: str
    file: BinaryIO
    order: int  # counts the jobs, from 1
    failed: bool = False  # whether all attempts failed since the last checkpoint was submitted


@dataclass(frozen=True, slots=True)
class Counts:
    """How many checkpoints came to what; each is counted once."""

    pending: int = 0  # wait, or are being uploaded
    done: int = 0  # are in the bucket
    failed: int = 0  # failed in all attempts; tried again with the next checkpoint and at the end
    superseded: int = 0  # left out, as a newer one of their kind came before their turn


class UploadQueue:
    """A bounded queue and the daemon thread that empties it.

    Args:
        send: uploads a job; raises what it likes, and returns a complaint that does not matter to the job, or None.
        max_pending: jobs that wait at most; beyond it the oldest that a newer one supersedes is left out.
        attempts: tries of a job before it counts as failed; see `retry`.
        backoff_s: seconds before the second try.
        wait: waits between tries; None waits until the queue is closed at most.
    """

    def __init__(
        self,
        send: Callable[[Job], str | None],
        *,
        max_pending: int,
        attempts: int,
        backoff_s: float,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self._send = send
        self._max_pending = max_pending
        self._attempts, self._backoff_s = attempts, backoff_s
        self._closed = threading.Event()
        self._wait = wait or self._closed.wait
        self._changed = threading.Condition()
        self._jobs: list[Job] = []  # wait or have failed
        self._current: Job | None = None
        self._submitted = self._done = self._superseded = 0
        self._complaint: str | None = None
        # a daemon: a request that hangs must not keep the process alive
        self._thread = threading.Thread(target=self._work, name="checkpoint-upload", daemon=True)
        self._thread.start()

    def submit(self, name: str, file: BinaryIO) -> None:
        """Take over an open file, which is closed when its fate is decided; return at once."""
        with self._changed:
            if self._closed.is_set():
                file.close()
                return
            self._submitted += 1
            self._jobs.append(Job(name, file, self._submitted))
            self._drop_superseded()
            self._retry_failed()

    def _drop_superseded(self) -> None:
        """Drop jobs with a newer one of their kind: those that failed, and the oldest beyond `max_pending`."""
        for job in [*self._jobs]:
            crowded = sum(not each.failed for each in self._jobs) > self._max_pending
            newer = any(each.order > job.order and kind_of(each.name) == kind_of(job.name) for each in self._jobs)
            if newer and (crowded or job.failed):
                self._jobs.remove(job)
                job.file.close()
                self._superseded += 1

    def _retry_failed(self) -> None:
        for job in self._jobs:
            job.failed = False
        self._drop_superseded()
        self._changed.notify_all()

    def _next(self) -> Job | None:
        return next((job for job in self._jobs if not job.failed), None)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed.is_set() or self._next())
                job = self._next()
                if self._closed.is_set() or job is None:
                    return
                self._jobs.remove(job)
                self._current = job
            try:
                send = partial(self._send, job)
                complaint = retry(send, attempts=self._attempts, backoff_s=self._backoff_s, wait=self._wait)
            except Exception as error:  # of any of the libraries: the job is kept
                self._finish(job, f"{job.name} did not get there ({describe_error(error)})", failed=True)
            else:
                self._finish(job, complaint, failed=False)

    def _finish(self, job: Job, complaint: str | None, *, failed: bool) -> None:
        with self._changed:
            self._current = None
            self._complaint = complaint or self._complaint
            if failed:
                job.failed = True
                self._jobs = sorted([*self._jobs, job], key=lambda each: each.order)
                self._drop_superseded()
            else:
                self._done += 1
            if not failed or self._closed.is_set():
                job.file.close()
            self._changed.notify_all()

    def take_complaint(self) -> str | None:
        """Return the last complaint since the last call; None if there is none."""
        with self._changed:
            complaint, self._complaint = self._complaint, None
            return complaint

    def counts(self) -> Counts:
        """Return how many checkpoints came to what so far."""
        with self._changed:
            failed = sum(job.failed for job in self._jobs)
            pending = len(self._jobs) - failed + (self._current is not None)
            return Counts(pending, self._done, failed, self._superseded)

    @property
    def uploading_bytes(self) -> int:
        """Return the size of the file that is being uploaded; 0 if none is."""
        with self._changed:
            return os.fstat(self._current.file.fileno()).st_size if self._current is not None else 0

    def drain(self, timeout_s: float) -> bool:
        """Try once more what failed and wait, at most so many seconds; return whether everything is in the bucket."""
        with self._changed:
            self._retry_failed()
            self._changed.wait_for(lambda: self._next() is None and self._current is None, timeout_s)
            return not self._jobs and self._current is None

    def close(self) -> None:
        """End the thread, after the upload in progress, and close every other file."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join(1.0)
        with self._changed:
            for job in self._jobs:
                job.file.close()
