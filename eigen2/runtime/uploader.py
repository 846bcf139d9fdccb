"""Upload of checkpoints to a bucket in the background: training never waits for it or stops for its faults."""

import contextlib
import os
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from lightning.pytorch import Callback, LightningModule, Trainer
from tqdm import tqdm

from eigen2.errors import UserError, require_range
from eigen2.runtime.bucket.checkpoint_store import PART, CheckpointStore
from eigen2.runtime.bucket.object_store import connect, describe_error, resolve
from eigen2.runtime.bucket.upload_queue import Counts, Job, UploadQueue, retry
from eigen2.runtime.checkpoint import DAMAGED, EARLIER


class CheckpointUploader(Callback):
    """Copies checkpoints to a bucket on Amazon S3 (or what speaks its language) or Google Cloud Storage.

    After each generation what is new in the run's folder `checkpoints` is handed to a thread of its own.
    Errors of the bucket never stop training; they are shown once a generation. Needs `pip install 'eigen2[cloud]'`.
    Credentials are not settings: those of the environment are used (AWS_*, ~/.aws, GOOGLE_APPLICATION_CREDENTIALS,
    those of the machine). With it, `--ckpt_path last` fetches the newest checkpoint if there is none in the folder.

    Args:
        provider: `s3` or `gs`; null takes CLOUD_PROVIDER (aws, gcs and gcp mean the same).
        bucket: name of the bucket, which must exist; null takes CLOUD_BUCKET.
        prefix: folder in the bucket. Runs that may go on at the same time each need their own; null takes the name of
            the run's folder.
        dirpath: folder that is watched; null takes `checkpoints` in the run's folder.
        keep: newest checkpoints of each kind (last, best) of a run that stay in the bucket (1 or more); null deletes
            none.
        max_pending: checkpoints that wait at most (1 or more); beyond it the oldest that a newer one supersedes is
            left out.
        attempts: tries of an upload before it counts as failed (1 or more); it is tried again with the next checkpoint.
        backoff_s: seconds before the second try (0 or more); twice as many before each further one, 60 at most.
        request_timeout_s: seconds that a request, of 8 MiB at most, may take (above 0).
        drain_timeout_s: seconds that the end of the run waits for uploads (0 or more).
    """

    def __init__(
        self,
        provider: str | None = None,
        bucket: str | None = None,
        prefix: str | None = None,
        dirpath: str | None = None,
        keep: int | None = 3,
        max_pending: int = 4,
        attempts: int = 5,
        backoff_s: float = 1.0,
        request_timeout_s: float = 60.0,
        drain_timeout_s: float = 120.0,
    ) -> None:
        super().__init__()
        for name, value, bound in (
            ("keep", 1 if keep is None else keep, {"least": 1}),
            ("max_pending", max_pending, {"least": 1}),
            ("attempts", attempts, {"least": 1}),
            ("backoff_s", backoff_s, {"least": 0}),
            ("request_timeout_s", request_timeout_s, {"above": 0}),
            ("drain_timeout_s", drain_timeout_s, {"least": 0}),
        ):
            require_range(f"CheckpointUploader.{name}", value, **bound)
        self._where, self._dirpath = (provider, bucket, prefix), dirpath
        self._keep, self._max_pending = keep, max_pending
        self._attempts, self._backoff_s = attempts, backoff_s
        self._request_timeout_s, self._drain_timeout_s = request_timeout_s, drain_timeout_s
        self._store: CheckpointStore | None = None
        self._queue: UploadQueue | None = None
        self._seen: dict[str, tuple[int, ...]] = {}
        self._began = False

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings; a copy has neither thread nor files."""
        return self.__dict__ | {"_store": None, "_queue": None, "_seen": {}}

    def memory_owners(self) -> dict[str, object]:
        """Return the bytes of the part that is being uploaded; what waits is files, not memory."""
        return {"upload": min(self._queue.uploading_bytes, 2 * PART) if self._queue else 0}

    def open_store(self, root: Path) -> CheckpointStore:
        """Return the bucket of the run in a folder; raises UserError if provider, bucket or library is missing."""
        place = resolve(*self._where, root)
        return CheckpointStore(partial(connect, place, self._request_timeout_s), place, keep=self._keep)

    def fetch_newest(self, root: Path) -> Path | None:
        """Download the newest whole checkpoint into the run's folder; return it, or None if the bucket has none.

        Raises:
            UserError: the bucket cannot be read, or what it has is damaged: beginning anew would hide that.
        """
        store = self.open_store(root)
        fetch = partial(store.fetch_newest, self._folder(root), tqdm.write)
        try:
            file = retry(fetch, attempts=self._attempts, backoff_s=self._backoff_s)
        except UserError:
            raise
        except Exception as error:  # of any of the libraries
            # its text may hold a key, and must not be in a traceback either
            raise UserError(
                f"cannot look for a checkpoint in {store.place} ({describe_error(error)}); "
                "try again, or leave out --ckpt_path to begin"
            ) from None
        if file is not None:
            tqdm.write(f"cloud: fetched {file.name} from {store.place}")
        return file

    def _folder(self, root: Path) -> Path:
        return Path(self._dirpath) if self._dirpath else root / "checkpoints"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check the settings, and load the library before memory is measured."""
        if stage == "fit" and trainer.is_global_zero and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            self._store = self.open_store(Path(trainer.default_root_dir))

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the queue."""
        if self._store is None:
            return
        self._store.resumed = trainer.ckpt_path is not None
        send, backoff_s = partial(_send, self._store), self._backoff_s
        self._queue = UploadQueue(send, max_pending=self._max_pending, attempts=self._attempts, backoff_s=backoff_s)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Submit what the generation before left: now it is complete, in whatever order callbacks run."""
        self._began = True
        self._submit_new(trainer)
        if self._queue is not None and self._store is not None and (complaint := self._queue.take_complaint()):
            tqdm.write(f"cloud: {complaint}; {self._store.place} is tried again")

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Submit the last checkpoint, and wait for all."""
        self._finish(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Upload what there is where training failed or was interrupted; nothing if the run was refused."""
        if self._began:
            self._finish(trainer)
        self._close()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave no thread behind."""
        self._close()

    def status_line(self) -> str | None:
        """Return one line for the generation table; None before anything was submitted."""
        if self._queue is None or (counts := self._queue.counts()) == Counts():
            return None
        left_out = f", {counts.superseded} superseded" if counts.superseded else ""
        return f"  cloud: {counts.pending} pending, {counts.done} done, {counts.failed} failed{left_out}"

    def _submit_new(self, trainer: Trainer) -> None:
        """Submit the files that are new since the last call, oldest first."""
        if self._queue is None:
            return
        seen: dict[str, tuple[int, ...]] = {}
        found: list[tuple[int, str, BinaryIO]] = []
        for path in self._folder(Path(trainer.default_root_dir)).glob("[!.]*.ckpt"):
            if path.match(EARLIER) or path.name == DAMAGED:  # was uploaded as the last, or should not be
                continue
            with contextlib.suppress(FileNotFoundError):  # a folder's files may go while it is read
                file: BinaryIO = path.open("rb")
                status = os.fstat(file.fileno())
                seen[path.name] = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
                if self._seen.get(path.name) == seen[path.name]:
                    file.close()
                else:
                    found.append((status.st_mtime_ns, path.name, file))
        self._seen = seen
        for _, name, file in sorted(found, key=lambda each: each[:2]):
            self._queue.submit(name, file)

    def _finish(self, trainer: Trainer) -> None:
        if self._queue is None or self._store is None:
            return
        try:
            self._submit_new(trainer)
            waiting = self._queue.counts()
            if waiting.pending or waiting.failed:
                tqdm.write(f"cloud: waiting up to {self._drain_timeout_s:g} s for {self._store.place}")
            whole = self._queue.drain(self._drain_timeout_s)
            complaint = self._queue.take_complaint()
            if not whole:
                counts = self._queue.counts()
                reason = f": {complaint}" if complaint else ""
                tqdm.write(
                    f"cloud: {counts.pending + counts.failed} checkpoints are not in {self._store.place}{reason}; "
                    f"they lie in {self._folder(Path(trainer.default_root_dir))}"
                )
        finally:
            self._close()

    def _close(self) -> None:
        if self._queue is not None:
            self._queue.close()
            self._queue = None


def _send(store: CheckpointStore, job: Job) -> str | None:
    """Upload, then delete what is too old; return a complaint if only that failed."""
    store.upload(job.file, job.name, job.order)
    try:
        store.delete_old()
    except Exception as error:  # of any of the libraries; the checkpoint is there
        return f"older checkpoints cannot be deleted ({describe_error(error)})"
    return None


def fetch_last(trainer: Trainer, ckpt_path: str | None) -> str | None:
    """Return what `last` means where the run's folder has no checkpoint: the newest of the bucket, if there is one."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    uploaders = [callback for callback in callbacks if isinstance(callback, CheckpointUploader)]
    if ckpt_path != "last" or not uploaders:
        return None
    file = uploaders[0].fetch_newest(Path(trainer.default_root_dir))
    return None if file is None else str(file)
