"""Orderly end of a run that is asked to stop: by Ctrl-C, by `kill`, by a job scheduler."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from eigen2.errors import RunStopped, require_range
from eigen2.runtime.signals import CODES, handling, requeue


class GracefulStop(Callback):
    """Ends a run after the generation in which it is asked to stop, with its checkpoint, if that is soon enough.

    SIGINT (Ctrl-C) and SIGTERM stop; SIGUSR1, which SLURM sends before a job's time is up (`#SBATCH
    --signal=USR1@120`), stops and asks SLURM to queue the job again. The run ends at once, and the last checkpoint
    stands, if the generation would take longer than the grace period, when the period is over, or at a second signal.
    No checkpoint is ever written within a generation, as none of half a generation resumes exactly.

    Args:
        grace_seconds: Seconds that the generation in progress may still take after a signal, 0 or more; what a
            scheduler leaves between SIGTERM and SIGKILL, less the seconds of a checkpoint.
    """

    def __init__(self, grace_seconds: float = 60.0) -> None:
        super().__init__()
        require_range("stop.grace_seconds", grace_seconds, least=0)
        self.grace_seconds = grace_seconds
        self._asked: signal.Signals | None = None
        self._handlers: dict[int, Any] = {}
        self._begun = self._took = 0.0
        self._trainer: Trainer | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Install the handlers, in place of Lightning's too, which would save within a generation."""
        self._trainer, self._asked, self._took = trainer, None, 0.0
        self._handlers = {each: signal.signal(each, self._handle) for each in (*CODES, signal.SIGALRM)}

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record when the generation begins."""
        self._begun = time.monotonic()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record how long it took; if any process got a signal, end all after their checkpoint."""
        self._took = time.monotonic() - self._begun
        if number := int(trainer.strategy.reduce(torch.tensor(int(self._asked or 0)), reduce_op="max")):
            self._asked = signal.Signals(number)
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the run if a signal came: raises RunStopped with the signal's exit code."""
        asked = self._asked
        self.teardown()
        if asked is not None:
            raise self._stopped(asked, f"after generation {trainer.current_epoch - 1}, which is saved")

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        """Restore the handlers."""
        if self._handlers:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for each, handler in self._handlers.items():
                signal.signal(each, handler)
            self._handlers, self._asked = {}, None

    on_exception = teardown

    def _handle(self, number: int, frame: FrameType | None) -> None:
        assert self._trainer is not None
        again, self._asked = self._asked is not None, self._asked or signal.Signals(number)
        left_s = self._took - (time.monotonic() - self._begun)
        generation = self._trainer.current_epoch
        if again or left_s > self.grace_seconds or self.grace_seconds == 0:
            raise self._stopped(self._asked, f"within generation {generation}, which is repeated on a resume")
        # again every second, as an exception raised while an object is finalised is lost
        signal.setitimer(signal.ITIMER_REAL, self.grace_seconds, 1.0)
        sys.stderr.write(
            f"{self._asked.name}: ends after generation {generation}, within {self.grace_seconds:g} s; "
            "a second signal ends it at once\n"
        )

    def _stopped(self, asked: signal.Signals, when: str) -> RunStopped:
        first = self._trainer is None or self._trainer.is_global_zero
        more = f"; {requeue()}" if asked == signal.SIGUSR1 and first else ""
        return RunStopped(f"stopped by {asked.name} {when}; --ckpt_path last resumes{more}", CODES[asked])


@contextmanager
def stops_at_once() -> Iterator[None]:
    """Let signals end the process at once, before and after training, with the exit codes of `GracefulStop`."""

    def stop(asked: signal.Signals) -> None:
        raise RunStopped(f"stopped by {asked.name} outside of training; nothing is lost", CODES[asked])

    with handling(stop):
        yield
