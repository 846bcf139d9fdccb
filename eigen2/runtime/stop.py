"""Clean stop of a run on a signal: from Ctrl-C, from `kill`, from a job scheduler."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from eigen2.errors import LOST_CONTACT, RunStopped, StoppedBySignal, require_range
from eigen2.runtime.signals import CODES, handling, requeue, stopped_by
from eigen2.runtime.uploader import CheckpointUploader


class GracefulStop(Callback):
    """Ends a run on a signal, after the generation in progress and its checkpoint.

    SIGINT (Ctrl-C) and SIGTERM stop; SIGUSR1, which SLURM sends before a job's time is up (`#SBATCH
    --signal=USR1@120`), stops and asks SLURM to queue the job again. The run ends at once, to resume from its last
    checkpoint, if the generation would take longer than the grace period, when that period is over, or at a second
    signal. No checkpoint is written within a generation, as half of one cannot be resumed exactly.

    Args:
        grace_seconds: Seconds that the generation in progress may still take after a signal, 0 to 1e7: the time that a
            scheduler leaves between SIGTERM and SIGKILL, less the time to write a checkpoint.
    """

    def __init__(self, grace_seconds: float = 60.0) -> None:
        super().__init__()
        require_range("stop.grace_seconds", grace_seconds, least=0, most=1e7)
        self.grace_seconds = grace_seconds
        self._received: signal.Signals | None = None
        self._handlers: dict[int, Any] = {}
        self._began = self._took_s = 0.0
        self._requeues = False  # whether the run ends by SIGUSR1
        self._trainer: Trainer | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let uploaders come last: at the end they wait, and a signal ends that once the handlers are restored."""
        callbacks = trainer.callbacks  # type: ignore[attr-defined]
        trainer.callbacks = sorted(callbacks, key=lambda callback: isinstance(callback, CheckpointUploader))  # type: ignore[attr-defined]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Install the handlers, in place of Lightning's too, which would save within a generation."""
        self._trainer, self._received, self._took_s, self._requeues = trainer, None, 0.0, False
        self._handlers = {signum: signal.signal(signum, self._handle) for signum in (*CODES, signal.SIGALRM)}

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record when the generation began; raise StoppedBySignal if one came while the last was saved."""
        self._began = time.monotonic()
        if (received := self._received_by_any(trainer)) is not None:
            raise self._stopped(received, f"before generation {trainer.current_epoch}")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record how long the generation took; if any process received a signal, stop all after the checkpoint."""
        self._took_s = time.monotonic() - self._began
        if (received := self._received_by_any(trainer)) is not None:  # else one may have come meanwhile
            self._received, trainer.should_stop = received, True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the run if a signal came and generations are left: raises StoppedBySignal."""
        received, most = self._received, trainer.max_epochs
        self.teardown()
        if received is not None and (most is None or most < 0 or trainer.current_epoch < most):
            raise self._stopped(received, f"after generation {trainer.current_epoch - 1}, which is saved")

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        """Restore the handlers."""
        if self._handlers:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for signum, handler in self._handlers.items():
                signal.signal(signum, handler)
            self._handlers, self._received = {}, None

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Queue the SLURM job again, also if another process ended before this one could; restore the handlers.

        Uploads end first, as SLURM ends a job that it queues again.
        """
        lost = isinstance(exception, RunStopped) and exception.code == LOST_CONTACT
        stopped = isinstance(exception, StoppedBySignal) and self._requeues
        if trainer.is_global_zero and (stopped or (lost and self._received == signal.SIGUSR1)):
            self.teardown()  # a further signal ends the wait for uploads
            try:
                for callback in trainer.callbacks:  # type: ignore[attr-defined]
                    if isinstance(callback, CheckpointUploader):
                        callback.on_exception(trainer, pl_module, stopped_by(signal.SIGUSR1, again=False))
            finally:
                line = requeue()
            if lost:
                sys.stderr.write(f"{line}\n")
            else:
                exception.args = f"{exception}; {line}", *exception.args[1:]
        self.teardown()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        assert self._trainer is not None
        if number == signal.SIGALRM and self._trainer.interrupted:  # the exception has arrived
            signal.setitimer(signal.ITIMER_REAL, 0)
            return
        again, self._received = self._received is not None, self._received or signal.Signals(number)
        left_s = self._took_s - (time.monotonic() - self._began)
        generation = self._trainer.current_epoch
        if again or left_s > self.grace_seconds or self.grace_seconds == 0:
            # again every second, as an exception raised while an object is finalised is lost
            signal.setitimer(signal.ITIMER_REAL, 1.0, 1.0)
            raise self._stopped(self._received, f"within generation {generation}, which is repeated on a resume")
        signal.setitimer(signal.ITIMER_REAL, self.grace_seconds, 1.0)
        sys.stderr.write(
            f"{self._received.name}: the run ends after generation {generation}, within {self.grace_seconds:g} s; "
            "a second signal ends it at once\n"
        )

    def _received_by_any(self, trainer: Trainer) -> signal.Signals | None:
        number = int(trainer.strategy.reduce(torch.tensor(int(self._received or 0)), reduce_op="max"))
        return signal.Signals(number) if number else None

    def _stopped(self, received: signal.Signals, when: str) -> StoppedBySignal:
        self._requeues = received == signal.SIGUSR1
        return stopped_by(received, f" {when}; --ckpt_path last resumes", again=False)


@contextmanager
def stops_at_once(trainer: Trainer) -> Iterator[None]:
    """Let signals end the process at once before and after training, with the exit codes of `GracefulStop`.

    SIGUSR1 before the end of training also queues the SLURM job again.
    """

    def stop(received: signal.Signals) -> None:
        again = trainer.is_global_zero and not trainer.state.stopped
        raise stopped_by(received, " outside of training; nothing is lost", again)

    with handling(stop):
        yield
