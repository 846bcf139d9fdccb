"""Uploads run in the background: they are retried, the newest is never lost, and no thread remains."""

import errno
import os
import signal
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

from eigen2.errors import StoppedBySignal, UserError
from eigen2.runtime import signals, uploader
from eigen2.runtime import stop as stop_module
from eigen2.runtime.checkpoint import DurableCheckpointIO, GenerationCheckpoint
from eigen2.runtime.stop import GracefulStop
from eigen2.runtime.uploader import CheckpointUploader, UploadQueue, fetch_last, retry
from tests.runtime.buckets import SECRET, Bucket, failing


class Gate:
    """An upload function that blocks each upload until it is let through; the first `failures` of them fail."""

    def __init__(self, failures: float = 0, is_open: bool = False) -> None:
        self.sent: list[str] = []
        self.began = threading.Semaphore(0)
        self.through = threading.Semaphore(1_000 if is_open else 0)
        self.failures = failures

    def __call__(self, file: BinaryIO, name: str) -> str | None:
        self.began.release()
        self.through.acquire()
        if self.failures:
            self.failures -= 1
            raise ConnectionError(SECRET)
        self.sent.append(f"{name} {file.read().decode()}")
        return None


def submit(to: UploadQueue, name: str, text: str) -> BinaryIO:
    file: Any = tempfile.TemporaryFile()  # noqa: SIM115
    file.write(text.encode())
    file.seek(0)
    to.submit(name, file)
    return file


def test_an_upload_is_retried_after_doubling_delays_until_it_succeeds() -> None:
    gate, waited = Gate(failures=8, is_open=True), list[float]()
    uploads = UploadQueue(gate, 9, waited.append)
    file = submit(uploads, "last.ckpt", "a")
    assert uploads.drain(10)
    assert (gate.sent, waited) == (["last.ckpt a"], [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0])
    assert (uploads.pending, uploads.done, uploads.pop_warning()) == (0, 1, None)
    assert file.closed
    uploads.close()

    def refuse() -> None:
        waited.append(-1)
        raise UserError("no")

    with pytest.raises(UserError):  # the user must correct it
        retry(refuse, 5, waited.append)
    assert waited[8:] == [-1]


def test_a_failed_upload_is_reported_once_and_retried_with_the_next() -> None:
    gate = Gate(failures=float("inf"), is_open=True)
    uploads = UploadQueue(gate, 2, lambda seconds: None)
    submit(uploads, "best.ckpt", "a")
    assert not uploads.drain(10)
    assert uploads.pending == 1
    assert uploads.pop_warning("; again") == "best.ckpt was not uploaded (ConnectionError); again"
    assert uploads.pop_warning() is None
    gate.failures = 0
    submit(uploads, "last.ckpt", "b")
    assert uploads.drain(10)
    assert gate.sent == ["best.ckpt a", "last.ckpt b"]
    uploads.close()


@pytest.mark.parametrize("refused", [False, True])
def test_only_what_is_tried_again_is_said_to_be(refused: bool) -> None:
    def send(file: BinaryIO, name: str) -> str:
        if refused:
            raise UserError("another run writes there")
        return "older checkpoints cannot be deleted"

    uploads = UploadQueue(send, 1)
    submit(uploads, "last.ckpt", "a")
    assert uploads.drain(10) != refused
    line = "last.ckpt was not uploaded (another run writes there)" if refused else "older checkpoints cannot be deleted"
    assert uploads.pop_warning("; again") == line
    uploads.close()


def test_only_the_newest_pending_file_of_each_name_is_uploaded() -> None:
    gate = Gate()
    uploads = UploadQueue(gate, 1)
    submit(uploads, "last.ckpt", "0")
    gate.began.acquire()  # it is being uploaded, no longer pending
    assert not uploads.drain(0.05)  # and returns after the timeout
    files = [submit(uploads, name, text) for text in "123" for name in ("best.ckpt", "last.ckpt")]
    assert [file.closed for file in files] == [True] * 4 + [False] * 2
    assert uploads.pending == 3
    gate.through.release(10)
    assert uploads.drain(10)
    assert gate.sent == ["last.ckpt 0", "best.ckpt 3", "last.ckpt 3"]
    uploads.close()


def test_closing_ends_the_thread_and_closes_all_files() -> None:
    gate = Gate(failures=float("inf"))
    uploads = UploadQueue(gate, 5)  # closed while it waits for the second attempt
    files = [submit(uploads, "last.ckpt", str(i)) for i in range(3)]
    gate.began.acquire()
    gate.through.release()
    uploads.close()
    assert not threads()
    assert all(file.closed for file in files)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["best.ckpt", "last.ckpt"]), st.integers(0, 3)), max_size=12))
def test_the_newest_of_each_name_is_never_lost(plan: list[tuple[str, int]]) -> None:
    """Each checkpoint fails up to three times before it succeeds, with two attempts in a round."""
    failures = {str(order): times for order, (_, times) in enumerate(plan)}
    uploaded: dict[str, str] = {}

    def send(file: BinaryIO, name: str) -> str | None:
        file.seek(0)
        text = file.read().decode()
        if failures[text]:
            failures[text] -= 1
            raise ConnectionError
        uploaded[name] = text
        return None

    uploads = UploadQueue(send, 2, lambda seconds: None)
    for order, (name, _) in enumerate(plan):
        submit(uploads, name, str(order))
    uploads.drain(10)
    uploads.drain(10)
    assert uploads.pending == 0
    uploads.close()
    assert uploaded == {name: str(order) for order, (name, _) in enumerate(plan)}


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
    """Replace the bucket of the callback by one in memory; retries do not wait."""
    bucket = Bucket()
    monkeypatch.setattr(uploader, "connect", lambda place: bucket)
    monkeypatch.setattr("eigen2.runtime.bucket._library", lambda provider: None)
    monkeypatch.setattr(uploader, "LONGEST_WAIT_S", 0.0)
    return bucket


def callback(**options: Any) -> CheckpointUploader:
    return CheckpointUploader(**{"provider": "s3", "bucket": "bucket", "drain_timeout_s": 20.0} | options)


def fit(root: Path, *callbacks: Callback, epochs: int = 4, module: LightningModule | None = None) -> Path:
    """Run a fit and return its last checkpoint."""
    trainer = Trainer(
        max_epochs=epochs,
        default_root_dir=root,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[*callbacks, GenerationCheckpoint()],
        plugins=[DurableCheckpointIO()],
    )
    trainer.fit(module or Tiny())
    return root / "checkpoints" / "last.ckpt"


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "checkpoint-upload"]


def fetched(bucket: Bucket, root: Path) -> Path:
    """Download the newest checkpoint of a run from the bucket."""
    newest = bucket.checkpoints(prefix=root.name).fetch_newest(root / "new", print)
    assert newest is not None
    return newest


def wait(event: threading.Event) -> None:
    assert event.wait(60), "training waited for the bucket"


def on_hook(hook: str, action: Callable[[Trainer], None]) -> Callback:
    """Return a callback that calls a function in the hook of this name."""
    made = Callback()
    setattr(made, hook, lambda trainer, *arguments: action(trainer))
    return made


def test_every_generation_is_uploaded_as_it_was_submitted(bucket: Bucket, tmp_path: Path) -> None:
    """Each upload reads its file after the next checkpoint has replaced it."""
    contents, held = [], [threading.Event() for _ in range(4)]

    def observe(trainer: Trainer) -> None:
        if trainer.current_epoch:
            contents.append((tmp_path / "checkpoints" / "last.ckpt").read_bytes())
        if trainer.current_epoch > 1:
            held[trainer.current_epoch - 2].set()
            while cloud._queue is not None and cloud._queue.done < trainer.current_epoch - 1:
                time.sleep(0.001)

    uploads = iter([*held[:2], None, None])
    bucket.fault = lambda call: wait(event) if call == "put" and (event := next(uploads)) else None
    cloud = callback(keep=None)
    last = fit(tmp_path, cloud, on_hook("on_train_epoch_start", observe))
    assert list(bucket.objects().values()) == [*contents, last.read_bytes()]
    assert len({*contents}) == 3
    assert threads() == []


def test_training_ends_without_a_bucket_and_one_that_recovers_has_the_newest(
    bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket.fault = failing(3)  # a slow machine may upload the first and the last checkpoint alone, in two tries each
    last = fit(tmp_path / "back", callback(attempts=2))
    assert last.read_bytes() == fetched(bucket, tmp_path / "back").read_bytes()
    capsys.readouterr()
    bucket.fault, cloud = failing(float("inf")), callback(attempts=2)

    def observe(trainer: Trainer) -> None:
        while trainer.current_epoch == 2 and cloud._queue is not None and cloud._queue._warning is None:
            time.sleep(0.001)

    assert fit(tmp_path, cloud, on_hook("on_train_epoch_end", observe)).exists()
    output = "".join(capsys.readouterr())
    assert "1 checkpoints are not in s3://bucket/" in output
    assert " will be retried\n" in output
    assert "(OSError, Input/output error)" in output
    assert SECRET not in output
    assert threads() == []


def test_training_does_not_wait_for_a_bucket_that_stalls(bucket: Bucket, tmp_path: Path) -> None:
    """The bucket answers once training is over: if training waited for it, the run would never end."""
    over, lines, owners = threading.Event(), [], []
    cloud = callback()

    def observe(trainer: Trainer) -> None:
        lines.append(cloud.status_line())
        if trainer.current_epoch == 2:
            while not (owned := cloud.memory_owners()["upload"]):
                time.sleep(0.001)
            owners.append(owned)

    bucket.fault = lambda call: wait(over) if call == "put" else None
    ends = on_hook("on_train_end", lambda trainer: over.set())
    last = fit(tmp_path, cloud, on_hook("on_train_epoch_end", observe), ends)
    assert lines[:2] == [None, "  cloud: 1 pending, 0 done"]
    assert abs(owners[0] - last.stat().st_size) < 100
    assert cloud.memory_owners() == {"upload": 0}
    assert last.read_bytes() == fetched(bucket, tmp_path).read_bytes()


def test_a_checkpoint_that_cannot_be_read_is_uploaded_once_it_can(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud, whole = callback(), uploader.CheckpointFile

    def opened(path: Path) -> Any:
        if path.name == "last.ckpt" and Path(tmp_path / "broken").exists():
            raise OSError(errno.EIO, "Input/output error")
        return whole(path)

    def observe(trainer: Trainer) -> None:
        if trainer.current_epoch == 1:
            (tmp_path / "broken").touch()
            cloud.on_train_epoch_start(trainer, trainer.lightning_module)
            (tmp_path / "broken").unlink()

    monkeypatch.setattr(uploader, "CheckpointFile", opened)
    last = fit(tmp_path, on_hook("on_train_epoch_start", observe), cloud)
    assert capsys.readouterr().out.count("cloud: last.ckpt cannot be read (Input/output error); it will be") == 1
    assert last.read_bytes() == fetched(bucket, tmp_path).read_bytes()


@pytest.mark.parametrize(
    ("error", "raised"), [(RuntimeError("planned"), RuntimeError), (KeyboardInterrupt(), SystemExit)]
)
def test_a_run_that_fails_leaves_its_last_checkpoint_and_no_thread(
    error: BaseException, raised: type[BaseException], bucket: Bucket, tmp_path: Path
) -> None:
    with pytest.raises(raised):
        fit(tmp_path, callback(), module=Tiny(error))
    assert torch.load(fetched(bucket, tmp_path), weights_only=True)["epoch"] == 1
    assert threads() == []


def stop_by_slurm(trainer: Trainer) -> None:
    if trainer.current_epoch == 2:
        signal.raise_signal(signal.SIGUSR1)


@pytest.mark.parametrize("within", [False, True])
def test_slurm_queues_the_job_again_once_the_last_checkpoint_is_uploaded(
    within: bool, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLURM ends a job that it queues again."""
    queued: list[int] = []

    def requeue() -> str:
        queued.append(torch.load(fetched(bucket, tmp_path), weights_only=True)["epoch"])
        return "queued"

    for module in (signals, stop_module):
        monkeypatch.setattr(module, "requeue", requeue)
    bucket.fault = lambda call: time.sleep(0.5 * (call == "put"))
    stopper = GracefulStop(grace_seconds=0.0 if within else 60.0)
    with pytest.raises(StoppedBySignal, match=r"--ckpt_path last resumes; queued$"):
        fit(tmp_path, stopper, callback(), on_hook("on_train_batch_start", stop_by_slurm))
    assert queued == [1 if within else 2]
    assert threads() == []


@pytest.mark.parametrize("error", [None, RuntimeError("planned")])
def test_ctrl_c_ends_the_wait_for_uploads(
    error: BaseException | None, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalls, drain = threading.Event(), UploadQueue.drain

    def interrupted(queue: UploadQueue, timeout_s: float) -> bool:
        threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
        return drain(queue, timeout_s)

    monkeypatch.setattr(UploadQueue, "drain", interrupted)
    bucket.fault = lambda call: wait(stalls) if call == "put" else None
    began, before = time.monotonic(), signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            fit(tmp_path, callback(drain_timeout_s=40.0), GracefulStop(), module=Tiny(error))
    finally:
        signal.signal(signal.SIGINT, before)  # Lightning ignores it from its first on
        stalls.set()
    assert time.monotonic() - began < 30


def test_slurm_queues_the_job_again_in_time_if_the_bucket_stalls(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalls, queued = threading.Event(), list[float]()
    bucket.fault = lambda call: wait(stalls) if call == "put" else None
    monkeypatch.setattr(uploader, "REQUEUE_WAIT_S", 0.1)
    monkeypatch.setattr(stop_module, "requeue", lambda: queued.append(time.monotonic()))
    began = time.monotonic()
    with pytest.raises(StoppedBySignal):
        fit(tmp_path, callback(drain_timeout_s=40.0), GracefulStop(), on_hook("on_train_batch_start", stop_by_slurm))
    stalls.set()
    assert queued[0] - began < 30


def test_nothing_is_uploaded_by_a_refused_run_or_by_other_ranks(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(tmp_path, epochs=1)

    def refuse(trainer: Trainer) -> None:
        raise UserError("no")

    with pytest.raises(UserError):
        fit(tmp_path, callback(), on_hook("on_fit_start", refuse))
    monkeypatch.setattr(Trainer, "is_global_zero", property(lambda self: False))
    fit(tmp_path, callback(), epochs=2)
    assert bucket.calls == []
    assert threads() == []


def test_last_is_fetched_and_an_unreadable_bucket_is_an_error(bucket: Bucket, tmp_path: Path) -> None:
    last, second = fit(tmp_path / "first" / "run", callback(), epochs=2), tmp_path / "second" / "run"
    options: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}
    trainer = Trainer(default_root_dir=second, callbacks=[callback(attempts=2)], **options)
    for path in (None, "best", "some.ckpt"):
        assert fetch_last(trainer, path) is None
    assert fetch_last(trainer, "last") == str(second / "checkpoints" / "last.ckpt")
    assert (second / "checkpoints" / "last.ckpt").read_bytes() == last.read_bytes()
    bucket.fault = failing(float("inf"), "find")
    with pytest.raises(UserError, match=r"cannot fetch .* s3://bucket/run to .*/run \(OSError, Input") as refused:
        fetch_last(trainer, "last")
    assert SECRET not in str(refused.value)


def test_waits_are_bounded_however_many_attempts_there_are() -> None:
    waited: list[float] = []
    with pytest.raises(ZeroDivisionError):
        retry(lambda: 1 / 0, 1100, waited.append)
    assert max(waited) == 60
    with pytest.raises(UserError, match=r"drain_timeout_s is 10000000000\.0; it must be at least 0 and at most"):
        callback(drain_timeout_s=1e10)  # which threads refuse


@pytest.mark.parametrize("option", ["keep", "attempts", "drain_timeout_s"])
def test_settings_outside_their_range_are_refused(option: str) -> None:
    with pytest.raises(UserError, match=f"CheckpointUploader.{option} is -1; it must be at least [01]"):
        callback(**{option: -1})
