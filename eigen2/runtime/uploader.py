"""Upload of checkpoints to a bucket in the background: training never waits for it or stops for its faults."""

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from lightning.pytorch import Callback, LightningModule, Trainer
from tqdm import tqdm

from eigen2.errors import UserError, require_range
from eigen2.runtime.bucket import PART, CheckpointStore, Place, connect, describe_error, resolve
from eigen2.runtime.checkpoint import BEST, LAST

LONGEST_WAIT_S = 60.0  # seconds between two attempts at most
Result = TypeVar("Result")


def retry(action: Callable[[], Result], attempts: int, wait: Callable[[float], object] = time.sleep) -> Result:
    """Try an action again after an error, 1, 2, 4 ... 60 seconds later, unless the user must correct it.

    It gives up if `wait` returns True.
    """
    for attempt in range(attempts - 1):
        try:
            return action()
        except UserError:
            raise
        except Exception:  # of any of the libraries
            if wait(min(2.0**attempt, LONGEST_WAIT_S)) is True:
                raise
    return action()


class UploadQueue:
    """The newest checkpoint of each name that is not in the bucket yet, and the thread that uploads them.

    They are open files: replacing or deleting a name does not change what is uploaded. Each new checkpoint begins a
    round, in which every file is tried; one that fails waits for the next round, unless there is a newer one by then.

    `send` uploads a file under a name, and may return a complaint of something else; it has so many `attempts` in a
    round, and `wait` waits between them, by default until the queue is closed at most.
    """

    def __init__(
        self, send: Callable[[BinaryIO, str], str | None], attempts: int, wait: Callable[[float], object] | None = None
    ) -> None:
        self._send, self._attempts = send, attempts
        self._closed, self._changed = threading.Event(), threading.Condition()
        self._wait = wait or self._closed.wait
        self._files: dict[str, BinaryIO] = {}
        self._round: list[str] = []  # names that are still to be tried
        self._complaint: str | None = None
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
            uploaded = False
            try:
                complaint = retry(partial(self._send, file, name), self._attempts, self._wait)
                uploaded = True
            except Exception as error:  # of any of the libraries
                complaint = f"{name} was not uploaded ({describe_error(error)})"
            with self._changed:
                self._complaint = complaint or self._complaint
                self.done += uploaded
                self.uploading_bytes = 0
                if uploaded or name in self._files or self._closed.is_set():
                    file.close()
                else:
                    self._files[name] = file
                self._changed.notify_all()

    def take_complaint(self) -> str | None:
        """Return the last complaint since the last call; None if there is none."""
        with self._changed:
            complaint, self._complaint = self._complaint, None
            return complaint

    def drain(self, timeout_s: float) -> bool:
        """Try everything once more and wait, at most so many seconds; return whether everything is in the bucket."""
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
    """Copies last.ckpt and best.ckpt to a bucket on Amazon S3 (or what speaks its language) or Google Cloud Storage.

    After each generation what is new in the run's folder `checkpoints` is handed to a thread of its own.
    Errors of the bucket never stop training; they are shown once a generation. Needs `pip install 'eigen2[cloud]'`.
    Credentials are not settings: those of the environment are used (AWS_*, ~/.aws, GOOGLE_APPLICATION_CREDENTIALS,
    those of the machine). With it, `--ckpt_path last` fetches the newest checkpoint if there is none in the folder.

    Args:
        provider: `s3` or `gs`; null takes CLOUD_PROVIDER.
        bucket: name of the bucket, which must exist; null takes CLOUD_BUCKET.
        prefix: folder in the bucket. Runs that may go on at the same time each need their own; null takes the name of
            the run's folder.
        keep: newest checkpoints of each name of a run that stay in the bucket (1 or more); null deletes none.
        attempts: tries of an upload (1 or more), 1, 2, 4 ... 60 s apart; then it waits for the next checkpoint.
        drain_timeout_s: seconds that the end of the run waits for uploads (0 or more).
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
        require_range("CheckpointUploader.keep", 1 if keep is None else keep, least=1)
        require_range("CheckpointUploader.attempts", attempts, least=1)
        require_range("CheckpointUploader.drain_timeout_s", drain_timeout_s, least=0)
        self._where, self._keep, self._attempts = (provider, bucket, prefix), keep, attempts
        self._drain_timeout_s = drain_timeout_s
        self._place: Place | None = None
        self._queue: UploadQueue | None = None
        self._seen: dict[str, tuple[int, ...]] = {}

    def memory_owners(self) -> dict[str, object]:
        """Return the bytes of the part that is being uploaded; what waits is files, not memory."""
        return {"upload": min(self._queue.uploading_bytes, 2 * PART) if self._queue else 0}

    def fetch_newest(self, root: Path) -> Path | None:
        """Download the newest whole checkpoint into the run's folder; return it, or None if the bucket has none.

        Raises UserError if the bucket cannot be read or all is damaged there: beginning anew would hide that.
        """
        place = resolve(*self._where, root)
        store = CheckpointStore(partial(connect, place), place)
        try:
            file = retry(partial(store.fetch_newest, root / "checkpoints", tqdm.write), self._attempts)
        except UserError:
            raise
        except Exception as error:  # of any of the libraries
            # its text may hold a key, and must not be in a traceback either
            raise UserError(
                f"cannot look for a checkpoint in {place} ({describe_error(error)}); "
                "try again, or leave out --ckpt_path to begin"
            ) from None
        if file is not None:
            tqdm.write(f"cloud: fetched {file.name} from {place}")
        return file

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check the settings, and load the library before memory is measured."""
        if stage == "fit" and trainer.is_global_zero and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            self._place = resolve(*self._where, Path(trainer.default_root_dir))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the queue, now that nothing refuses the run any more."""
        if self._place is not None:
            resumed = trainer.ckpt_path is not None
            store = CheckpointStore(partial(connect, self._place), self._place, keep=self._keep, resumed=resumed)
            self._queue = UploadQueue(store.upload, self._attempts)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Submit what the generation before left: now it is complete, in whatever order callbacks run."""
        self._submit_new(trainer)
        if self._queue is not None and (complaint := self._queue.take_complaint()):
            tqdm.write(f"cloud: {complaint}; {self._place} is tried again")

    def on_fit_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Submit the last checkpoint, and wait for all; also where training failed or was interrupted."""
        if self._queue is None:
            return
        try:
            self._submit_new(trainer)
            if self._queue.pending:
                tqdm.write(f"cloud: waiting up to {self._drain_timeout_s:g} s for {self._place}")
            if not self._queue.drain(self._drain_timeout_s):
                pending, reason = self._queue.pending, self._queue.take_complaint() or "no answer in time"
                tqdm.write(f"cloud: {pending} checkpoints are not in {self._place}: {reason}; they are local")
        finally:
            self.teardown()

    on_exception = on_fit_end

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        """Leave no thread behind."""
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
                file: BinaryIO = (Path(trainer.default_root_dir) / "checkpoints" / name).open("rb")
            except FileNotFoundError:
                continue
            status = os.fstat(file.fileno())
            version = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
            if self._seen.get(name) == version:
                file.close()
            else:
                self._seen[name] = version
                self._queue.submit(name, file)


def fetch_last(trainer: Trainer, ckpt_path: str | None) -> str | None:
    """Return what `last` means where the run's folder has no checkpoint: the newest of the bucket, if there is one."""
    uploaders = [each for each in trainer.callbacks if isinstance(each, CheckpointUploader)]  # type: ignore[attr-defined]
    file = uploaders[0].fetch_newest(Path(trainer.default_root_dir)) if uploaders and ckpt_path == "last" else None
    return None if file is None else str(file)
