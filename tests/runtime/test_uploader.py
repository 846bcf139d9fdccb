"""Uploads happen beside training: a bounded queue, retries, nothing lost, no thread left behind."""

import copy
import pickle
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from eigen2.errors import UserError
from eigen2.runtime import uploader
from eigen2.runtime.bucket.upload_queue import Counts, Job, UploadQueue, retry
from eigen2.runtime.uploader import CheckpointUploader, fetch_last
from tests.runtime.buckets import SECRET, Bucket, failing


class Gate:
    """Uploads of a queue, each held until it is let through, of which the first `failures` fail."""

    def __init__(self, failures: float = 0, is_open: bool = False) -> None:
        self.sent: list[str] = []
        self.began = threading.Semaphore(0)
        self.through = threading.Semaphore(0)
        self.failures = failures
        if is_open:
            self.open()

    def __call__(self, job: Job) -> str | None:
        self.began.release()
        self.through.acquire()
        if self.failures:
            self.failures -= 1
            raise ConnectionError(SECRET)
        self.sent.append(f"{job.name} {job.file.read().decode()}")
        return None

    def open(self) -> None:
        self.through.release(1_000)


def queue(send: Callable[[Job], str | None], **options: Any) -> tuple[UploadQueue, list[float]]:
    waited: list[float] = []
    return UploadQueue(
        send, **{"max_pending": 3, "attempts": 4, "backoff_s": 1.5, "wait": waited.append} | options
    ), waited


def submit(to: UploadQueue, name: str, text: str) -> BinaryIO:
    file: Any = tempfile.TemporaryFile()  # noqa: SIM115
    file.write(text.encode())
    file.seek(0)
    to.submit(name, file)
    return file


def test_tries_again_after_twice_the_time_and_then_succeeds() -> None:
    gate = Gate(failures=3, is_open=True)
    uploads, waited = queue(gate)
    file = submit(uploads, "last.ckpt", "a")
    assert uploads.drain(10)
    assert (gate.sent, waited) == (["last.ckpt a"], [1.5, 3.0, 6.0])
    assert uploads.counts() == Counts(done=1)
    assert uploads.take_complaint() is None
    assert file.closed
    uploads.close()


def test_what_the_user_must_correct_is_not_tried_again() -> None:
    waited: list[float] = []

    def refuse() -> None:
        waited.append(-1)
        raise UserError("no")

    with pytest.raises(UserError):
        retry(refuse, attempts=5, backoff_s=1.0, wait=waited.append)
    assert waited == [-1]


def test_what_failed_is_complained_about_once_and_tried_again_with_the_next() -> None:
    gate = Gate(failures=float("inf"), is_open=True)
    uploads, _ = queue(gate, attempts=2)
    submit(uploads, "best.ckpt", "a")
    assert not uploads.drain(10)
    assert uploads.counts() == Counts(failed=1)
    assert uploads.take_complaint() == "best.ckpt did not get there (ConnectionError)"
    assert uploads.take_complaint() is None
    gate.failures = 0
    submit(uploads, "last.ckpt", "b")
    assert uploads.drain(10)
    assert gate.sent == ["best.ckpt a", "last.ckpt b"]
    assert uploads.counts() == Counts(done=2)
    uploads.close()


def test_beyond_the_bound_the_oldest_superseded_is_left_out() -> None:
    gate = Gate()
    uploads, _ = queue(gate)
    submit(uploads, "last.ckpt", "0")
    gate.began.acquire()  # it is being uploaded: it no longer waits
    assert not uploads.drain(0.05)  # and holds up nobody longer than asked for
    files = [submit(uploads, "best.ckpt", "0")]
    files += [submit(uploads, f"last-{generation}.ckpt", "") for generation in (1, 2, 3, 4)]
    assert uploads.counts() == Counts(pending=4, superseded=2)
    assert [file.closed for file in files] == [False, True, True, False, False]
    gate.open()
    assert uploads.drain(10)
    assert gate.sent == ["last.ckpt 0", "best.ckpt 0", "last-3.ckpt ", "last-4.ckpt "]
    uploads.close()


def test_with_room_for_one_the_newest_of_every_kind_gets_there() -> None:
    gate = Gate()
    uploads, _ = queue(gate, max_pending=1)
    submit(uploads, "last.ckpt", "0")
    gate.began.acquire()
    for text in "123":
        submit(uploads, "best.ckpt", text)
        submit(uploads, "last.ckpt", text)
    gate.open()
    assert uploads.drain(10)
    assert gate.sent == ["last.ckpt 0", "best.ckpt 3", "last.ckpt 3"]
    uploads.close()


def test_closing_ends_the_thread_and_closes_all_files() -> None:
    gate = Gate(failures=float("inf"))
    uploads, _ = queue(gate, wait=None, backoff_s=3600.0)  # as it waits for the second try
    files = [submit(uploads, "last.ckpt", str(i)) for i in range(3)]
    gate.began.acquire()
    gate.open()
    uploads.close()
    assert not threads()
    files.append(submit(uploads, "last.ckpt", "late"))
    assert all(file.closed for file in files)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["best.ckpt", "last.ckpt"]), st.integers(0, 3)), max_size=12))
def test_every_checkpoint_is_counted_once_and_the_newest_of_each_kind_is_never_lost(
    plan: list[tuple[str, int]],
) -> None:
    """Each checkpoint fails up to three times before it succeeds; a job has two tries, and each drain two more."""
    failures = {order: times for order, (_, times) in enumerate(plan, 1)}
    got: dict[str, int] = {}

    def send(job: Job) -> str | None:
        if failures[job.order]:
            failures[job.order] -= 1
            raise ConnectionError
        got[job.name] = max(job.order, got.get(job.name, 0))
        return None

    uploads, _ = queue(send, attempts=2, max_pending=2)
    for name, _ in plan:
        submit(uploads, name, "")
    uploads.drain(10)
    uploads.drain(10)
    counts = uploads.counts()
    uploads.close()
    assert counts.pending == counts.failed == 0
    assert counts.done + counts.superseded == len(plan)
    assert got == {name: order for order, (name, _) in enumerate(plan, 1)}


class Tiny(LightningModule):
    """One weight, one step an epoch."""

    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.error = error

    def training_step(self, batch: torch.Tensor, i: int) -> torch.Tensor:
        if self.error is not None and self.current_epoch == 2:
            raise self.error
        return self.layer(batch).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(torch.ones(1, 1))


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """Takes the place of the bucket that the callback is told of."""
    bucket = Bucket()
    monkeypatch.setattr(uploader, "connect", lambda place, timeout_s: bucket)
    monkeypatch.setattr("eigen2.runtime.bucket.object_store._library", lambda provider: None)
    return bucket


def callback(**options: Any) -> CheckpointUploader:
    options = {"provider": "s3", "bucket": "bucket", "backoff_s": 0.0, "drain_timeout_s": 20.0} | options
    return CheckpointUploader(**options)


def fit(
    root: Path, *callbacks: Callback, epochs: int = 4, module: LightningModule | None = None, **options: Any
) -> None:
    saving = ModelCheckpoint(
        str(root / "checkpoints"), filename="last", enable_version_counter=False, save_on_train_epoch_end=True
    )
    trainer = Trainer(
        max_epochs=epochs,
        default_root_dir=root,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[*callbacks, saving],
        **options,
    )
    trainer.fit(module or Tiny())


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "checkpoint-upload"]


def names(bucket: Bucket) -> list[str]:
    return sorted(path.rsplit("-", 1)[-1] for path in bucket.objects())


def test_every_generation_gets_there_and_the_last_is_the_file(bucket: Bucket, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    for name in ("generation-00001.ckpt", "damaged.ckpt"):  # stay here
        (folder / name).write_bytes(b"x")
    fit(tmp_path / "run", callback(keep=None, max_pending=100))
    objects = bucket.objects()
    assert [path.split("-")[1][4:] for path in sorted(objects)] == ["000001", "000002", "000003", "000004"]
    assert objects[max(objects)] == (tmp_path / "run" / "checkpoints" / "last.ckpt").read_bytes()
    assert threads() == []


def test_training_ends_although_nothing_can_be_uploaded(
    bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket.fault = failing(float("inf"))
    before = threading.active_count()
    fit(tmp_path, callback(attempts=2))
    assert (tmp_path / "checkpoints" / "last.ckpt").exists()
    captured = capsys.readouterr()
    assert "1 checkpoints are not in s3://bucket/" in captured.out
    assert "(OSError, Input/output error)" in captured.out
    assert SECRET not in captured.out + captured.err
    assert threads() == []
    assert threading.active_count() <= before


def test_a_bucket_that_comes_back_has_the_newest(bucket: Bucket, tmp_path: Path) -> None:
    bucket.fault = failing(7)
    fit(tmp_path, callback(attempts=2))
    newest = bucket.checkpoints(prefix=tmp_path.name).fetch_newest(tmp_path / "new", print)
    assert newest is not None
    assert newest.read_bytes() == (tmp_path / "checkpoints" / "last.ckpt").read_bytes()


def test_training_that_stalls_nowhere_while_the_bucket_does(bucket: Bucket, tmp_path: Path) -> None:
    """The bucket answers once training is over: with a wait anywhere in between, the run would never end."""
    over = threading.Event()
    bucket.fault = lambda call, path: None if call != "put" else _wait(over)

    class Over(Callback):
        def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            assert trainer.current_epoch == 4
            over.set()

    fit(tmp_path, callback(max_pending=2), Over())
    assert over.is_set()
    assert names(bucket)[-1] == "last.ckpt"


def _wait(event: threading.Event) -> None:
    assert event.wait(60), "training waited for the bucket"


@pytest.mark.parametrize("error", [RuntimeError("planned"), KeyboardInterrupt()])
def test_a_run_that_fails_leaves_its_last_checkpoint_and_no_thread(
    error: BaseException, bucket: Bucket, tmp_path: Path
) -> None:
    with pytest.raises((RuntimeError, SystemExit)):
        fit(tmp_path, callback(), module=Tiny(error))
    newest = bucket.checkpoints(prefix=tmp_path.name).fetch_newest(tmp_path / "new", print)
    assert newest is not None
    assert torch.load(newest, weights_only=True)["epoch"] == 1
    assert threads() == []


def test_a_run_that_is_refused_uploads_nothing(bucket: Bucket, tmp_path: Path) -> None:
    fit(tmp_path, epochs=1)

    class Refuse(Callback):
        def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            raise UserError("no")

    with pytest.raises(UserError):
        fit(tmp_path, callback(), Refuse())
    assert bucket.calls == []
    assert threads() == []


def test_a_replaced_file_is_uploaded_as_it_was_handed_over(bucket: Bucket, tmp_path: Path) -> None:
    held = threading.Event()
    contents: list[bytes] = []

    class Replace(Callback):
        def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            path = tmp_path / "checkpoints" / "last.ckpt"
            if trainer.current_epoch == 1:
                contents.append(path.read_bytes())
            if trainer.current_epoch == 2:
                assert path.read_bytes() != contents[0]
                held.set()

    bucket.fault = lambda call, path: _wait(held) if call == "find" else None  # before the file is read again
    fit(tmp_path, callback(keep=None, max_pending=100), Replace(), epochs=3)
    assert bucket.objects()[min(bucket.objects())] == contents[0]


def test_nothing_happens_in_a_dry_run_and_on_other_ranks(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(tmp_path, callback(), fast_dev_run=True)
    assert bucket.calls == []
    monkeypatch.setattr(Trainer, "is_global_zero", property(lambda self: False))
    fit(tmp_path, callback(), epochs=2)
    assert bucket.calls == []
    assert threads() == []


def test_a_copy_has_the_settings_and_neither_thread_nor_files(bucket: Bucket, tmp_path: Path) -> None:
    class Copy(Callback):
        def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            for twin in (copy.deepcopy(each), pickle.loads(pickle.dumps(each))):  # noqa: S301
                assert twin.status_line() is None
                assert twin._max_pending == 7
                twin.teardown(trainer, pl_module, "fit")

    each = callback(max_pending=7)
    fit(tmp_path, each, Copy())
    assert names(bucket)[-1] == "last.ckpt"


def test_the_status_fits_the_table_and_memory_is_a_part_at_most(bucket: Bucket, tmp_path: Path) -> None:
    lines, owners = [], []
    held = threading.Event()

    class Look(Callback):
        def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            lines.append(each.status_line())
            if trainer.current_epoch == 2:
                while not each.memory_owners()["upload"]:
                    time.sleep(0.001)
                owners.append(each.memory_owners())
                held.set()

    bucket.fault = lambda call, path: _wait(held) if call == "put" else None
    each = callback(max_pending=1)
    fit(tmp_path, each, Look())
    assert lines[0] is None
    assert lines[1] == "  cloud: 1 pending, 0 done, 0 failed"
    assert all(len(line) <= 80 for line in lines[1:])
    size = (tmp_path / "checkpoints" / "last.ckpt").stat().st_size
    assert abs(owners[0]["upload"] - size) < 100
    assert each.memory_owners() == {"upload": 0}


def test_last_is_fetched_and_a_bucket_that_cannot_be_read_is_no_reason_to_begin_anew(
    bucket: Bucket, tmp_path: Path
) -> None:
    fit(tmp_path / "first" / "run", callback(), epochs=2)
    trainer = Trainer(
        default_root_dir=tmp_path / "second" / "run",
        accelerator="cpu",
        logger=False,
        callbacks=[callback(attempts=2)],
        enable_checkpointing=False,
    )
    for path in (None, "best", "some.ckpt"):
        assert fetch_last(trainer, path) is None
    fetched = fetch_last(trainer, "last")
    assert fetched == str(tmp_path / "second" / "run" / "checkpoints" / "last.ckpt")
    assert Path(fetched).read_bytes() == (tmp_path / "first" / "run" / "checkpoints" / "last.ckpt").read_bytes()
    bucket.fault = failing(float("inf"), "find")
    with pytest.raises(UserError, match=r"cannot look for a checkpoint in s3://bucket/run \(OSError, Input") as refused:
        fetch_last(trainer, "last")
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": 0}, "CheckpointUploader.keep is 0; it must be at least 1"),
        ({"max_pending": 0}, "CheckpointUploader.max_pending is 0"),
        ({"attempts": 0}, "CheckpointUploader.attempts is 0"),
        ({"backoff_s": -1.0}, "CheckpointUploader.backoff_s is -1.0"),
        ({"request_timeout_s": 0.0}, "CheckpointUploader.request_timeout_s is 0.0; it must be above 0"),
        ({"drain_timeout_s": -1.0}, "CheckpointUploader.drain_timeout_s is -1.0"),
    ],
)
def test_settings_outside_their_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        callback(**options)
