"""Upload of checkpoints to a bucket in the background: training neither waits for it nor stops on its errors."""

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from lightning.pytorch import Callback, LightningModule, Trainer
from tqdm import tqdm

from eigen2.errors import REQUEUED, StoppedBySignal, UserError, require_range
from eigen2.runtime.bucket import PART, CheckpointFile, CheckpointStore, Place, connect, describe_error, resolve
from eigen2.runtime.checkpoint import BEST, LAST

LONGEST_WAIT_S = 60.0  # most seconds between two attempts
REQUEUE_WAIT_S = 30.0  # most seconds to wait for uploads before a SLURM job, whose time is nearly up, is queued again
Result = TypeVar("Result")


def retry(action: Callable[[], Result], attempts: int, wait: Callable[[float], object] = time.sleep) -> Result:
    """Call `action` until it succeeds, 1, 2, 4 ... 60 seconds apart, up to `attempts` times.

    A UserError is not retried, as the user must correct it. It gives up if `wait` returns True.
    """
    for attempt in range(attempts - 1):
        try:
            return action()
        except UserError:
            raise
        except Exception:  # of any of the libraries
            if wait(min(2.0 ** min(attempt, 6), LONGEST_WAIT_S)) is True:
                raise
    return action()


class UploadQueue:
    """Uploads the newest checkpoint of each name in a background thread.

    Checkpoints are open files: replacing or deleting a name does not change what is uploaded. Each new checkpoint
    starts a round, in which every file is tried; one that fails waits for the next round, unless it is replaced.

    `send` uploads a file under a name, and may return a warning; it is tried up to `attempts` times a round. `wait`
    waits between these, by default until the queue is closed at most.
    """

    def __init__(
        self, send: Callable[[BinaryIO, str], str | None], attempts: int, wait: Callable[[float], object] | None = None
    ) -> None:
        self._send, self._attempts = send, attempts
        self._closed, self._changed = threading.Event(), threading.Condition()
        self._wait = wait or self._closed.wait
        self._files: dict[str, BinaryIO] = {}
        self._round: list[str] = []  # names that are still to be tried
        self._warning: str | None = None
        self._failed = False  # whether the warning is of an upload that may succeed when it is tried again
        self.done = 0  # uploads so far
        self.uploading_bytes = 0  # size of the file that is being uploaded
        # a daemon: a request that hangs must not keep the process alive
        self._thread = threading.Thread(target=self._work, name="checkpoint-upload", daemon=True)
        self._thread.start()

    @property
    def pending(self) -> int:
        """Return the number of checkpoints that are not in the bucket yet."""
        return len(self._files) + bool(self.uploading_bytes)

    def submit(self, name: str, file: BinaryIO) -> None:
        """Take over an open file in place of an older one that waits; return at once."""
        with self._changed:
            if (older := self._files.pop(name, None)) is not None:
                older.close()
            self._files[name] = file
            self._round = list(self._files)
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed.is_set() or self._round)
                if self._closed.is_set():
                    return
                name = self._round.pop(0)
                file = self._files.pop(name)
                self.uploading_bytes = os.fstat(file.fileno()).st_size
            uploaded = failed = False
            try:
                warning = retry(partial(self._send, file, name), self._attempts, self._wait)
                uploaded = True
            except UserError as error:
                warning = f"{name} was not uploaded ({error})"
            except Exception as error:  # of any of the libraries
                warning, failed = f"{name} was not uploaded ({describe_error(error)})", True
            with self._changed:
                if warning:
                    self._warning, self._failed = warning, failed
                self.done += uploaded
                self.uploading_bytes = 0
                if uploaded or name in self._files or self._closed.is_set():
                    file.close()
                else:
                    self._files[name] = file
                self._changed.notify_all()

    def pop_warning(self, retried: str = "") -> str | None:
        """Return the newest warning since the last call, or None; `retried` is added if an upload is tried again."""
        with self._changed:
            warning, self._warning = self._warning, None
            return f"{warning}{retried}" if warning and self._failed else warning

    def drain(self, timeout_s: float) -> bool:
        """Try all pending uploads once more, for at most `timeout_s` seconds; return whether all are in the bucket."""
        with self._changed:
            self._round = list(self._files)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._round and not self.uploading_bytes, timeout_s)
            return not self.pending

    def close(self) -> None:
        """End the thread, after the upload in progress, and close every other file."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join(1.0)
        for file in self._files.values():
            file.close()


class CheckpointUploader(Callback):
    """Copies last.ckpt and best.ckpt to a bucket on Amazon S3 (or a compatible server) or Google Cloud Storage.

    After each generation, what is new in the run's folder `checkpoints` is uploaded by a background thread. Errors of
    the bucket never stop training; they are shown once a generation. Needs the extra `cloud`. Credentials
    are not settings: those of the environment are used (AWS_*, ~/.aws, GOOGLE_APPLICATION_CREDENTIALS, those of the
    machine). `--ckpt_path last` downloads the newest checkpoint if there is none in the folder.

    Args:
        provider: `s3` or `gs`; null takes CLOUD_PROVIDER.
        bucket: name of the bucket, which must exist; null takes CLOUD_BUCKET.
        prefix: folder in the bucket; null takes the name of the run's folder. Concurrent runs need different ones: the
            one that begins last takes it over, and the others upload nothing more.
        keep: number of newest checkpoints of each name to keep in the bucket, per run (1 or more); null deletes none.
        attempts: tries of an upload (1 or more), 1, 2, 4 ... 60 s apart; then it waits for the next checkpoint.
        drain_timeout_s: seconds to wait for uploads at the end of the run (0 to 1e7); at most 30 after SIGUSR1, then
            the SLURM job is queued again.
    """

    def __init__(
        self,
        provider: str | None = None,
        bucket: str | None = None,
        prefix: str | None = None,
        keep: int | None = 3,
        attempts: int = 5,
        drain_timeout_s: float = 120.0,
    ) -> None:
        super().__init__()
        require_range("CheckpointUploader.keep", 1 if keep is None else keep, least=1, whole=True)
        require_range("CheckpointUploader.attempts", attempts, least=1, whole=True)
        require_range("CheckpointUploader.drain_timeout_s", drain_timeout_s, least=0, most=1e7)
        self._where, self._keep, self._attempts = (provider, bucket, prefix), keep, attempts
        self._drain_timeout_s = drain_timeout_s
        self._place: Place | None = None
        self._queue: UploadQueue | None = None
        self._seen: dict[str, tuple[int, ...]] = {}

    def memory_owners(self) -> dict[str, object]:
        """Return the bytes of the part being uploaded; pending checkpoints are files, not memory."""
        return {"upload": min(self._queue.uploading_bytes, 2 * PART) if self._queue else 0}

    def fetch_newest(self, root: Path) -> Path | None:
        """Download the newest intact checkpoint into the run's folder; return it, or None if the bucket has none.

        Raises UserError if the bucket cannot be read or all are damaged, rather than silently start over.
        """
        place = resolve(*self._where, root)
        store = CheckpointStore(partial(connect, place), place)
        try:
            file = retry(partial(store.fetch_newest, root / "checkpoints", tqdm.write), self._attempts)
        except UserError:
            raise
        except Exception as error:  # of any of the libraries
            # its text may contain a key, and must not be in a traceback either
            raise UserError(
                f"cannot fetch a checkpoint from {place} to {root} ({describe_error(error)}); "
                "try again, or leave out --ckpt_path to start over"
            ) from None
        if file is not None:
            tqdm.write(f"cloud: fetched {file.name} from {place}")
        return file

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check the settings, and load the library before memory is measured."""
        uploaders = [callback for callback in trainer.callbacks if isinstance(callback, CheckpointUploader)]  # type: ignore[attr-defined]
        if len(uploaders) > 1:
            raise UserError(f"trainer.callbacks has {len(uploaders)} CheckpointUploaders: name one bucket")
        if stage == "fit" and trainer.is_global_zero and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            self._place = resolve(*self._where, Path(trainer.default_root_dir))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the queue, after all checks that may refuse the run."""
        if self._place is not None:
            resumed = trainer.ckpt_path is not None
            store = CheckpointStore(partial(connect, self._place), self._place, keep=self._keep, resumed=resumed)
            self._queue = UploadQueue(store.upload, self._attempts)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Submit the checkpoints of the generation before, now complete whatever the order of callbacks."""
        self._submit_new(trainer)
        if self._queue is not None and (warning := self._queue.pop_warning(f"; {self._place} will be retried")):
            tqdm.write(f"cloud: {warning}")

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException | None = None) -> None:
        """Submit the last checkpoint and wait for all uploads, also if training failed or was interrupted."""
        if self._queue is None:
            return
        requeues = isinstance(exception, StoppedBySignal) and exception.code == REQUEUED
        most_s = min(self._drain_timeout_s, REQUEUE_WAIT_S) if requeues else self._drain_timeout_s
        try:
            self._submit_new(trainer)
            if self._queue.pending:
                tqdm.write(f"cloud: waiting up to {most_s:g} s for {self._place}")
            if not self._queue.drain(most_s):
                pending, reason = self._queue.pending, self._queue.pop_warning() or "no answer in time"
                tqdm.write(f"cloud: {pending} checkpoints are not in {self._place}: {reason}; they remain on disk")
        finally:
            self.teardown()

    on_exception = on_fit_end

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        """End the thread."""
        if self._queue is not None:
            self._queue.close()
            self._queue = None

    def status_line(self) -> str | None:
        """Return one line for the generation table; None before anything was submitted."""
        if self._queue is None or not self._queue.pending + self._queue.done:
            return None
        return f"  cloud: {self._queue.pending} pending, {self._queue.done} done"

    def _submit_new(self, trainer: Trainer) -> None:
        if self._queue is None:
            return
        for name in (BEST, LAST):
            try:
                file: BinaryIO = CheckpointFile(Path(trainer.default_root_dir) / "checkpoints" / name)
            except OSError as error:
                if not isinstance(error, FileNotFoundError):
                    tqdm.write(f"cloud: {name} cannot be read ({error.strerror}); it will be tried again")
                continue
            status = os.fstat(file.fileno())
            version = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
            if self._seen.get(name) == version:
                file.close()
            else:
                self._seen[name] = version
                self._queue.submit(name, file)


def fetch_last(trainer: Trainer, ckpt_path: str | None) -> str | None:
    """Download the newest checkpoint of the bucket if `ckpt_path` is `last`; return its path, or None without one."""
    uploaders = [callback for callback in trainer.callbacks if isinstance(callback, CheckpointUploader)]  # type: ignore[attr-defined]
    file = uploaders[0].fetch_newest(Path(trainer.default_root_dir)) if uploaders and ckpt_path == "last" else None
    return None if file is None else str(file)
