"""A run that is asked to stop ends cleanly, reports why by its exit code, and loses nothing."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.trainer.states import TrainerStatus

from eigen2.errors import LOST_CONTACT, RunStopped, StoppedBySignal, UserError
from eigen2.runtime import signals, stop
from eigen2.runtime.checksums import verify_checksum
from tests.command import eigen2
from tests.erl.probe import make_trainer
from tests.runs import finish, metrics, run, same, state


def stopped(root: Path, names: list[str], *options: str, generation: int = 2, **environment: str) -> Any:
    """Return the process of a run that sends itself signals."""
    sender = ["--trainer.callbacks+=tests.signals.SignalAt", f"--trainer.callbacks.names={names}"]
    sender += [f"--trainer.callbacks.generation={generation}"]
    done: CompletedProcess[str] = run(root, *sender, *options, env=os.environ | environment)
    assert "Traceback" not in done.stderr
    return done


AFTER = "after generation 2, which is saved; --ckpt_path last resumes"
WITHIN = "within generation 2, which is repeated on a resume; --ckpt_path last resumes"
IN_WRITE = ["--trainer.callbacks.place=checkpoint"]
LATE = ["--stop.grace_seconds=1", "--trainer.callbacks.wait_s=9"]


CASES = {
    "terminated": (["SIGTERM"], [], 143, 2, f"stopped by SIGTERM {AFTER}"),
    "interrupted": (["SIGINT"], [], 130, 2, f"stopped by SIGINT {AFTER}"),
    "at once": (["SIGTERM", "SIGTERM"], [], 143, 1, f"stopped by SIGTERM {WITHIN}"),
    "in the write": (["SIGINT", "SIGINT"], IN_WRITE, 130, 1, f"stopped by SIGINT {WITHIN}"),
    "no grace": (["SIGTERM"], ["--stop.grace_seconds=0"], 143, 1, f"stopped by SIGTERM {WITHIN}"),
    "grace is over": (["SIGTERM"], LATE, 143, 1, f"stopped by SIGTERM {WITHIN}"),
}


@pytest.mark.parametrize(
    ("names", "options", "code", "last", "message"),
    [pytest.param(*each, id=name, marks=pytest.mark.slow if i else ()) for i, (name, each) in enumerate(CASES.items())],
)
def test_a_run_ends_cleanly_and_resumes_exactly(
    names: list[str], options: list[str], code: int, last: int, message: str, uninterrupted: Path, tmp_path: Path
) -> None:
    done = stopped(tmp_path, names, *options)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (code, message)
    assert verify_checksum(tmp_path / "checkpoints" / "last.ckpt") == last
    assert len(metrics(tmp_path)) >= last
    finish(tmp_path)
    assert same(state(tmp_path), state(uninterrupted))
    assert metrics(tmp_path) == metrics(uninterrupted)


@pytest.mark.slow
def test_a_signal_before_training_ends_the_run_at_once(tmp_path: Path) -> None:
    done = stopped(tmp_path, ["SIGINT"], "--trainer.callbacks.place=setup", generation=0)
    assert done.returncode == 130
    assert done.stderr.splitlines()[-1] == "stopped by SIGINT outside of training; nothing is lost"


@pytest.mark.parametrize(("command", "name", "code"), [("validate", "SIGTERM", 143), ("test", "SIGINT", 130)])
def test_a_signal_ends_validate_and_test(command: str, name: str, code: int, uninterrupted: Path) -> None:
    sender = ["--trainer.callbacks+=tests.signals.SignalAt", f"--trainer.callbacks.names=[{name}]"]
    sender += ["--trainer.callbacks.generation=0", "--trainer.callbacks.place=setup"]
    done = eigen2(command, "--config", "tests/small.yaml", "--trainer.default_root_dir", uninterrupted, *sender)
    line = f"stopped by {name} outside of training; nothing is lost"
    assert (done.returncode, done.stderr.splitlines()) == (code, [line])


@pytest.mark.slow
def test_slurm_queues_the_job_again_after_a_complete_generation(tmp_path: Path) -> None:
    programs, root = tmp_path / "bin", tmp_path / "run"
    programs.mkdir()
    (programs / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/arguments\n')
    (programs / "scontrol").chmod(0o755)
    slurm = {"SLURM_NTASKS": "1", "SLURM_JOB_ID": "77", "SLURM_JOB_NAME": "fit", "SLURM_LOCALID": "0"}
    slurm |= {"SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_NODELIST": "localhost"}
    done = stopped(root, ["SIGUSR1"], **slurm, PATH=f"{programs}:{os.environ['PATH']}")
    assert done.returncode == 138, done.stderr
    assert done.stderr.splitlines()[-1].endswith("--ckpt_path last resumes; SLURM queued job 77 again")
    assert (tmp_path / "arguments").read_text() == "requeue 77\n"
    assert sorted(path.name for path in root.rglob("*.ckpt")) == ["best.ckpt", "generation-00001.ckpt", "last.ckpt"]


def test_a_scheduler_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "scontrol"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setattr(signals, "REQUEUE_S", 0.1)
    for script, reason in (
        ("#!/bin/sh\nexec sleep 60\n", "timed out after 0.1 seconds"),
        ("no script", "Exec format error"),
        ("#!/bin/sh\necho Invalid job >&2\nexit 1\n", ": Invalid job"),
    ):
        program.write_text(script)
        program.chmod(0o755)
        signals.requeue.cache_clear()
        line = signals.requeue()
        assert line.startswith("SLURM did not queue job 77: ")
        assert reason in line


def test_a_job_of_an_array_is_queued_again_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one's id is that of the array, too."""
    (program := tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for name, value in (("JOB_ID", "36"), ("ARRAY_JOB_ID", "36"), ("ARRAY_TASK_ID", "1")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    signals.requeue.cache_clear()
    assert signals.requeue() == "SLURM queued job 36_1 again"
    assert (tmp_path / "arguments").read_text() == "requeue 36_1\n"
    signals.requeue.cache_clear()


@contextmanager
def watched(grace_seconds: float = 60.0) -> Iterator[tuple[Trainer, LightningModule, stop.GracefulStop]]:
    """A callback whose handlers are installed, as in a fit that has begun."""
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    module, callback = LightningModule(), stop.GracefulStop(grace_seconds)
    callback.on_train_start(trainer, module)
    try:
        yield trainer, module, callback
    finally:
        callback.teardown(trainer, module, "fit")


@pytest.mark.parametrize("left", [61.0, 59.0])
def test_a_generation_that_takes_longer_than_the_grace_is_not_finished(
    left: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(stop.time, "monotonic", lambda: now[0])
    with watched() as (trainer, module, callback):
        callback.on_train_epoch_start(trainer, module)
        now[0] = 100.0  # the first generation takes as many seconds
        callback.on_train_epoch_end(trainer, module)
        callback.on_train_epoch_start(trainer, module)
        now[0] = 200.0 - left
        if left > callback.grace_seconds:
            with pytest.raises(StoppedBySignal, match="within generation 0"):
                os.kill(os.getpid(), signal.SIGTERM)
        else:
            os.kill(os.getpid(), signal.SIGTERM)
            callback.on_train_epoch_end(trainer, module)
            assert trainer.should_stop
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_grace_period_that_no_timer_takes_is_refused() -> None:
    with pytest.raises(UserError, match=r"stop\.grace_seconds is 10000000000\.0; it must be at least 0 and at most"):
        stop.GracefulStop(1e10)


def test_a_signal_while_a_generation_is_saved_starts_no_other() -> None:
    with watched() as (trainer, module, callback):
        callback.on_train_epoch_start(trainer, module)
        callback.on_train_epoch_end(trainer, module)
        assert not trainer.should_stop
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(StoppedBySignal, match="before generation 0; --ckpt_path last resumes"):
            callback.on_train_epoch_start(trainer, module)


@pytest.mark.parametrize(("epochs", "ends"), [(1, False), (2, True), (-1, True)])
def test_a_signal_in_the_last_generation_leaves_nothing_to_resume(epochs: int, ends: bool) -> None:
    class Signalled(BoringModel):
        def on_train_batch_start(self, batch: object, batch_idx: int) -> None:
            if batch_idx == 0:
                signal.raise_signal(signal.SIGTERM)

    trainer = make_trainer(stop.GracefulStop(), epochs=epochs)
    with pytest.raises(StoppedBySignal, match="after generation 0") if ends else nullcontext():
        trainer.fit(Signalled())
    assert (trainer.state.status, trainer.current_epoch) == ("interrupted" if ends else "finished", 1)


@pytest.mark.parametrize(("status", "queued"), [("initializing", True), ("running", True), ("finished", False)])
def test_before_the_end_of_training_the_job_is_queued_again_too(
    status: str, queued: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = slow_scheduler(tmp_path, monkeypatch)
    trainer = make_trainer()
    trainer.state.status = TrainerStatus(status)
    found = "outside of training; nothing is lost" + "; SLURM queued job 77 again" * queued
    with pytest.raises(StoppedBySignal, match=f"^stopped by SIGUSR1 {found}$"), stop.stops_at_once(trainer):
        signal.raise_signal(signal.SIGUSR1)
    assert calls.exists() == queued


def test_a_signal_that_comes_while_processes_agree_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[None] = []

    def reduce(value: torch.Tensor, **settings: object) -> torch.Tensor:
        if not sent:
            sent.append(os.kill(os.getpid(), signal.SIGTERM))
        return value

    with watched() as (trainer, module, callback):
        monkeypatch.setattr(trainer.strategy, "reduce", reduce)
        callback.on_train_epoch_end(trainer, module)
        with pytest.raises(StoppedBySignal, match="stopped by SIGTERM before generation 0"):
            callback.on_train_epoch_start(trainer, module)


def test_once_the_run_ends_the_alarm_leaves_its_end_alone() -> None:
    """Callbacks that end before it, such as one that waits for uploads, are not interrupted."""
    with watched(grace_seconds=0.01) as (trainer, module, callback):
        callback.on_train_epoch_start(trainer, module)
        with pytest.raises(StoppedBySignal):  # noqa: PT012 - the alarm comes whenever it does
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        trainer.state.status = TrainerStatus.INTERRUPTED
        os.kill(os.getpid(), signal.SIGALRM)
        assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def slow_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.1) -> Path:
    """Make a scheduler that answers after some seconds; return the file in which it counts its calls."""
    signals.requeue.cache_clear()
    program, calls = tmp_path / "scontrol", tmp_path / "calls"
    program.write_text(f"#!/bin/sh\necho >> {calls}\nexec sleep {seconds}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    return calls


def test_a_slow_scheduler_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The alarm that ends the grace period goes off every second."""
    calls = slow_scheduler(tmp_path, monkeypatch, seconds=1.5)

    class Slow(BoringModel):
        def on_train_batch_start(self, batch: object, batch_idx: int) -> None:
            signal.raise_signal(signal.SIGUSR1)
            time.sleep(60)

    trainer = make_trainer(stop.GracefulStop(grace_seconds=0.1))
    with pytest.raises(StoppedBySignal, match="SLURM queued job 77 again"):
        trainer.fit(Slow())
    assert calls.read_text() == "\n"


def test_the_job_is_queued_again_if_another_process_ended_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = slow_scheduler(tmp_path, monkeypatch)

    class Alone(BoringModel):
        def on_train_batch_start(self, batch: object, batch_idx: int) -> None:
            signal.raise_signal(signal.SIGUSR1)
            raise RunStopped("lost contact", LOST_CONTACT)

    with pytest.raises(RunStopped, match="lost contact"):
        make_trainer(stop.GracefulStop()).fit(Alone())
    assert calls.read_text() == "\n"
    assert capsys.readouterr().err.splitlines()[-1] == "SLURM queued job 77 again"
